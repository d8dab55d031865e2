// The Java client (kafka-clients) through the scenarios that every client here runs. Arguments: the bootstrap address.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.*;

public class Scenarios {
    interface Body {
        void run() throws Exception;
    }

    static final Duration PATIENCE = Duration.ofSeconds(30);
    // Records of the past could be deleted by retention while they are read.
    static final long start = System.currentTimeMillis();
    static String bootstrap;
    static Admin admin;
    static boolean failed = false;

    public static void main(String[] arguments) {
        bootstrap = arguments[0];
        admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
        scenario("admin", Scenarios::administer);
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd"))
            scenario("codec-" + codec, () -> roundTrip(codec));
        scenario("headers-and-nulls", Scenarios::headersAndNulls);
        scenario("idempotent", Scenarios::idempotent);
        scenario("too-large", Scenarios::tooLarge);
        scenario("group-resume", Scenarios::groupResume);
        scenario("group-share", Scenarios::groupShare);
        scenario("group-new-protocol", Scenarios::groupNewProtocol);
        scenario("group-migration", Scenarios::groupMigration);
        scenario("transactions", Scenarios::transactions);
        scenario("transactions-copy", Scenarios::transactionsCopy);
        scenario("transactions-fencing", Scenarios::transactionsFencing);
        scenario("offsets-by-time", Scenarios::offsetsByTime);
        scenario("seek-pause-resume", Scenarios::seekPauseResume);
        scenario("delete-records", Scenarios::deleteRecords);
        scenario("describe", Scenarios::describe);
        admin.close(Duration.ofSeconds(1));
        System.exit(failed ? 1 : 0);
    }

    static void scenario(String name, Body body) {
        try {
            body.run();
            System.out.println("ok " + name);
        } catch (Throwable error) {
            failed = true;
            Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
            System.out.println("FAILED " + name + ": " + cause);
        }
    }

    static void check(boolean holds, String what) {
        if (!holds) throw new AssertionError(what);
    }

    static void same(Object wanted, Object found, String what) {
        if (!Objects.equals(wanted, found)) throw new AssertionError(what + ": wanted " + wanted + ", found " + found);
    }

    interface Probe {
        boolean holds() throws Exception;
    }

    // Kafka answers an administrator from metadata that may lag behind what it has just done.
    static void eventually(String what, Probe probe) throws Exception {
        long end = System.nanoTime() + PATIENCE.toNanos();
        while (!probe.holds()) {
            check(System.nanoTime() < end, "not within " + PATIENCE + ": " + what);
            Thread.sleep(50);
        }
    }

    static <E extends Throwable> void fails(Class<E> kind, Body body) throws Exception {
        try {
            body.run();
        } catch (ExecutionException error) {
            check(kind.isInstance(error.getCause()), "wanted " + kind.getSimpleName() + ", found " + error.getCause());
            return;
        }
        throw new AssertionError("wanted " + kind.getSimpleName() + ", nothing failed");
    }

    static String create(String topic, int partitions) throws Exception {
        return create(topic, partitions, Map.of());
    }

    static String create(String topic, int partitions, Map<String, String> configs) throws Exception {
        admin.createTopics(List.of(new NewTopic("java-" + topic, partitions, (short) 1).configs(configs))).all().get();
        return "java-" + topic;
    }

    static Producer<byte[], byte[]> producer(Map<String, Object> more) {
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", bootstrap));
        settings.putAll(more);
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static Consumer<byte[], byte[]> consumer(Map<String, Object> more) {
        Map<String, Object> settings = new HashMap<>(Map.of(
            "bootstrap.servers", bootstrap, "enable.auto.commit", "false", "auto.offset.reset", "earliest"));
        settings.putAll(more);
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static void send(String topic, int partitions, int count) throws Exception {
        try (var producer = producer(Map.of())) {
            for (int n = 0; n < count; n++)
                producer.send(new ProducerRecord<>(topic, n % partitions, bytes("k" + n), bytes("v" + n)));
            producer.flush();
        }
    }

    static List<ConsumerRecord<byte[], byte[]>> poll(Consumer<byte[], byte[]> consumer, int count) {
        List<ConsumerRecord<byte[], byte[]>> got = new ArrayList<>();
        long end = System.nanoTime() + PATIENCE.toNanos();
        while (got.size() < count) {
            check(System.nanoTime() < end, "only " + got.size() + " of " + count + " records came");
            consumer.poll(Duration.ofMillis(100)).forEach(got::add);
        }
        return got;
    }

    static void administer() throws Exception {
        same(1, admin.describeCluster().nodes().get().size(), "nodes");
        String topic = create("admin", 3, Map.of("retention.ms", "3600000"));
        eventually("the topic is listed", () -> admin.listTopics().names().get().contains(topic));
        fails(TopicExistsException.class, () -> create("admin", 1));
        fails(InvalidReplicationFactorException.class,
            () -> admin.createTopics(List.of(new NewTopic("java-r", 1, (short) 3))).all().get());
        same(3, admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size(), "partitions");
        admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(5))).all().get();
        eventually("five partitions", () ->
            admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size() == 5);
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        Config config = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        same("3600000", config.get("retention.ms").value(), "retention.ms");
        same(ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, config.get("retention.ms").source(), "its source");
        check(config.entries().size() > 25, "all configs are described: " + config.entries().size());
        var step = new AlterConfigOp(new ConfigEntry("cleanup.policy", "compact"), AlterConfigOp.OpType.APPEND);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(step))).all().get();
        eventually("the policy is appended", () -> admin.describeConfigs(List.of(resource)).all().get().get(resource)
            .get("cleanup.policy").value().equals("delete,compact"));
        config = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        same("3600000", config.get("retention.ms").value(), "what was not altered stays");
        admin.deleteTopics(List.of(topic)).all().get();
        eventually("it is gone", () -> !admin.listTopics().names().get().contains(topic));
        fails(UnknownTopicOrPartitionException.class, () -> admin.describeTopics(List.of(topic)).allTopicNames().get());
    }

    static void roundTrip(String codec) throws Exception {
        String topic = create("codec-" + codec, 4);
        List<String> sent = new ArrayList<>();
        List<Future<RecordMetadata>> last = new ArrayList<>(Collections.nCopies(4, null));
        try (var producer = producer(Map.of("compression.type", codec, "linger.ms", 5))) {
            for (int n = 0; n < 1000; n++) {
                sent.add("value " + n + " " + "x".repeat(n));
                last.set(n % 4, producer.send(
                    new ProducerRecord<>(topic, n % 4, start + n, bytes("k" + n), bytes(sent.get(n)))));
            }
            for (var future : last) future.get();
        }
        try (var consumer = consumer(Map.of())) {
            List<TopicPartition> all = new ArrayList<>();
            for (int n = 0; n < 4; n++) all.add(new TopicPartition(topic, n));
            consumer.assign(all);
            consumer.seekToBeginning(all);
            int[] next = {0, 1, 2, 3};
            for (var record : poll(consumer, 1000)) {
                int n = next[record.partition()];
                same(sent.get(n), new String(record.value(), StandardCharsets.UTF_8), "partition " + record.partition());
                same(start + n, record.timestamp(), "timestamp");
                next[record.partition()] = n + 4;
            }
        }
    }

    static void headersAndNulls() throws Exception {
        String topic = create("headers", 1);
        List<Header> headers = List.of(new RecordHeader("a", bytes("1")), new RecordHeader("a", null));
        try (var producer = producer(Map.of())) {
            producer.send(new ProducerRecord<byte[], byte[]>(topic, 0, (byte[]) null, bytes("v"), headers));
            producer.send(new ProducerRecord<>(topic, 0, bytes("k"), null)).get();
        }
        try (var consumer = consumer(Map.of())) {
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            var got = poll(consumer, 2);
            check(got.get(0).key() == null && got.get(1).value() == null, "nulls stay null");
            same(headers, List.of(got.get(0).headers().toArray()), "headers");
        }
    }

    static void idempotent() throws Exception {
        String topic = create("idempotent", 1);
        var settings = Map.<String, Object>of("enable.idempotence", "true", "batch.size", 200);
        try (var producer = producer(settings)) {
            List<Future<RecordMetadata>> all = new ArrayList<>();
            for (int n = 0; n < 2000; n++) all.add(producer.send(new ProducerRecord<>(topic, 0, null, bytes("" + n))));
            for (int n = 0; n < 2000; n++) same((long) n, all.get(n).get().offset(), "offset");
        }
        var state = admin.describeProducers(List.of(new TopicPartition(topic, 0))).all().get();
        same(1, state.values().iterator().next().activeProducers().size(), "active producers");
    }

    static void tooLarge() throws Exception {
        String topic = create("too-large", 1, Map.of("max.message.bytes", "2000000"));
        try (var producer = producer(Map.of("max.request.size", 10_000_000))) {
            producer.send(new ProducerRecord<>(topic, 0, null, new byte[1_900_000])).get();
            fails(RecordTooLargeException.class,
                () -> producer.send(new ProducerRecord<>(topic, 0, null, new byte[2_100_000])).get());
        }
        try (var consumer = consumer(Map.of("max.partition.fetch.bytes", 1000, "fetch.max.bytes", 1000))) {
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            same(1_900_000, poll(consumer, 1).get(0).value().length, "a record above the fetch limits comes whole");
        }
    }

    static void groupResume() throws Exception {
        String topic = create("resume", 3);
        send(topic, 3, 30);
        Map<String, Object> group = Map.of("group.id", "java-resume");
        try (var consumer = consumer(group)) {
            consumer.subscribe(List.of(topic));
            poll(consumer, 30);
            consumer.commitSync();
            var metadata = new OffsetAndMetadata(7, "half way");
            consumer.commitSync(Map.of(new TopicPartition(topic, 0), metadata));
            same(metadata.metadata(), consumer.committed(Set.of(new TopicPartition(topic, 0)))
                .get(new TopicPartition(topic, 0)).metadata(), "metadata");
        }
        try (var consumer = consumer(group)) {
            consumer.subscribe(List.of(topic));
            same(3, poll(consumer, 3).size(), "the three after the commit");
            same(0, consumer.poll(Duration.ofMillis(300)).count(), "no more");
        }
        check(admin.listGroups().all().get().stream().anyMatch(found -> found.groupId().equals("java-resume")), "listed");
        same(3, admin.listConsumerGroupOffsets("java-resume").partitionsToOffsetAndMetadata().get().size(), "offsets");
    }

    static void groupShare() throws Exception {
        String topic = create("share", 4);
        Map<String, Object> group = Map.of("group.id", "java-share", "heartbeat.interval.ms", 200);
        try (var one = consumer(group); var two = consumer(group)) {
            one.subscribe(List.of(topic));
            two.subscribe(List.of(topic));
            long end = System.nanoTime() + PATIENCE.toNanos();
            while (one.assignment().size() != 2 || two.assignment().size() != 2) {
                check(System.nanoTime() < end, "shared " + one.assignment() + " and " + two.assignment());
                one.poll(Duration.ofMillis(50));
                two.poll(Duration.ofMillis(50));
            }
            var both = new HashSet<>(one.assignment());
            both.addAll(two.assignment());
            same(4, both.size(), "each partition once");
            two.unsubscribe();
            while (one.assignment().size() != 4) {
                check(System.nanoTime() < end, "the one that stays has " + one.assignment());
                one.poll(Duration.ofMillis(50));
            }
        }
    }

    // KIP-848: the coordinator assigns, also by an expression; heartbeats come every 5 s.
    static void groupNewProtocol() throws Exception {
        String topic = create("shared-new", 4);
        send(topic, 4, 40);
        Map<String, Object> group = Map.of("group.id", "java-new", "group.protocol", "consumer");
        try (var one = consumer(group); var two = consumer(group)) {
            one.subscribe(new SubscriptionPattern(".*shared-new"));
            two.subscribe(List.of(topic));
            share(one, two);
            var described = admin.describeConsumerGroups(List.of("java-new")).all().get().get("java-new");
            same(GroupState.STABLE, described.groupState(), "state");
            same(2, described.members().size(), "members");
            for (var member : List.of(one, two)) {
                var read = new HashMap<TopicPartition, OffsetAndMetadata>();
                member.assignment().forEach(partition -> read.put(partition, new OffsetAndMetadata(10)));
                member.commitSync(read);
            }
        }
        try (var consumer = consumer(group)) {
            consumer.subscribe(List.of(topic));
            long end = System.nanoTime() + PATIENCE.toNanos();
            while (consumer.assignment().size() != 4) {
                check(System.nanoTime() < end, "has " + consumer.assignment());
                consumer.poll(Duration.ofMillis(50));
            }
            send(topic, 4, 4);
            same(4, poll(consumer, 4).size(), "those after the commit");
        }
    }

    // A member of each protocol in one group.
    static void groupMigration() throws Exception {
        String topic = create("moved", 4);
        var classic = Map.<String, Object>of("group.id", "java-moved", "heartbeat.interval.ms", 200);
        var modern = Map.<String, Object>of("group.id", "java-moved", "group.protocol", "consumer");
        try (var one = consumer(classic)) {
            one.subscribe(List.of(topic));
            one.poll(Duration.ofMillis(1000));
            try (var two = consumer(modern)) {
                two.subscribe(List.of(topic));
                share(one, two);
            }
            long end = System.nanoTime() + PATIENCE.toNanos();
            while (one.assignment().size() != 4) {
                check(System.nanoTime() < end, "the one that stays has " + one.assignment());
                one.poll(Duration.ofMillis(50));
            }
        }
    }

    static void share(Consumer<?, ?> one, Consumer<?, ?> two) {
        long end = System.nanoTime() + PATIENCE.toNanos();
        while (one.assignment().size() != 2 || two.assignment().size() != 2) {
            check(System.nanoTime() < end, "shared " + one.assignment() + " and " + two.assignment());
            one.poll(Duration.ofMillis(50));
            two.poll(Duration.ofMillis(50));
        }
        var both = new HashSet<Object>(one.assignment());
        both.addAll(two.assignment());
        same(4, both.size(), "each partition once");
    }

    static Producer<byte[], byte[]> transactional(String id) {
        var producer = producer(Map.of("transactional.id", "java-" + id));
        producer.initTransactions();
        return producer;
    }

    static List<String> values(String topic, int partitions, String isolation, int count) {
        var assignment = new ArrayList<TopicPartition>();
        for (int partition = 0; partition < partitions; partition++) assignment.add(new TopicPartition(topic, partition));
        try (var consumer = consumer(Map.of("isolation.level", isolation))) {
            consumer.assign(assignment);
            var got = poll(consumer, count);
            consumer.poll(Duration.ofMillis(300)).forEach(got::add);
            return got.stream().map(record -> new String(record.value(), StandardCharsets.UTF_8)).sorted().toList();
        }
    }

    static TransactionState stateOf(String id) throws Exception {
        return admin.describeTransactions(List.of("java-" + id)).description("java-" + id).get().state();
    }

    static void transactions() throws Exception {
        String topic = create("txn", 2);
        try (var producer = transactional("txn")) {
            producer.beginTransaction();
            for (int n = 0; n < 6; n++) producer.send(new ProducerRecord<>(topic, n % 2, null, bytes("a" + n)));
            producer.commitTransaction();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, null, bytes("b0")));
            producer.flush();
            producer.abortTransaction();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 1, null, bytes("c0"))).get();
            same(TransactionState.ONGOING, stateOf("txn"), "state");
            var listed = admin.listTransactions(new ListTransactionsOptions().filterStates(Set.of(TransactionState.ONGOING)));
            check(listed.all().get().stream().anyMatch(found -> found.transactionalId().equals("java-txn")), "listed");
            var described = admin.describeTransactions(List.of("java-txn")).description("java-txn").get();
            same(Set.of(new TopicPartition(topic, 1)), described.topicPartitions(), "partitions");
            var partition = new TopicPartition(topic, 1);
            var producers = admin.describeProducers(List.of(partition)).partitionResult(partition).get().activeProducers();
            check(producers.stream().anyMatch(state -> state.currentTransactionStartOffset().isPresent()), "it is open there");
            same(List.of("a0", "a1", "a2", "a3", "a4", "a5"), values(topic, 2, "read_committed", 6), "committed");
            producer.commitTransaction();
        }
        eventually("the last one is complete", () -> stateOf("txn") == TransactionState.COMPLETE_COMMIT);
        same(List.of("a0", "a1", "a2", "a3", "a4", "a5", "c0"), values(topic, 2, "read_committed", 7), "committed");
        same(List.of("a0", "a1", "a2", "a3", "a4", "a5", "b0", "c0"), values(topic, 2, "read_uncommitted", 8), "all");
    }

    // Consume, transform, produce; every third transaction is aborted and begun again.
    static void transactionsCopy() throws Exception {
        String in = create("txn-in", 2), out = create("txn-out", 1);
        send(in, 2, 30);
        Map<String, Object> group = Map.of("group.id", "java-copy", "isolation.level", "read_committed", "max.poll.records", 4);
        int copied = 0, attempt = 0;
        long end = System.nanoTime() + PATIENCE.toNanos();
        try (var producer = transactional("copy"); var consumer = consumer(group)) {
            consumer.subscribe(List.of(in));
            while (copied < 30) {
                check(System.nanoTime() < end, "only " + copied + " were copied");
                var records = consumer.poll(Duration.ofMillis(100));
                if (records.isEmpty()) continue;
                producer.beginTransaction();
                var next = new HashMap<TopicPartition, OffsetAndMetadata>();
                for (var record : records) {
                    producer.send(new ProducerRecord<>(out, record.value()));
                    next.put(new TopicPartition(in, record.partition()), new OffsetAndMetadata(record.offset() + 1));
                }
                producer.sendOffsetsToTransaction(next, consumer.groupMetadata());
                if (++attempt % 3 == 0) {
                    producer.abortTransaction();
                    for (var partition : consumer.assignment()) {
                        var committed = consumer.committed(Set.of(partition)).get(partition);
                        consumer.seek(partition, committed == null ? 0 : committed.offset());
                    }
                } else {
                    producer.commitTransaction();
                    copied += records.count();
                }
            }
        }
        var wanted = new ArrayList<String>();
        for (int n = 0; n < 30; n++) wanted.add("v" + n);
        Collections.sort(wanted);
        same(wanted, values(out, 1, "read_committed", 30), "each record once");
        var committed = admin.listConsumerGroupOffsets("java-copy").partitionsToOffsetAndMetadata().get();
        same(30L, committed.values().stream().mapToLong(OffsetAndMetadata::offset).sum(), "offsets");
    }

    static void transactionsFencing() throws Exception {
        String topic = create("txn-fencing", 1);
        try (var zombie = transactional("fencing")) {
            zombie.beginTransaction();
            zombie.send(new ProducerRecord<>(topic, bytes("zombie"))).get();
            try (var successor = transactional("fencing")) {
                successor.beginTransaction();
                successor.send(new ProducerRecord<>(topic, bytes("successor")));
                successor.commitTransaction();
            }
            try {
                zombie.send(new ProducerRecord<>(topic, bytes("zombie again")));
                zombie.commitTransaction();
                throw new AssertionError("the zombie committed");
            } catch (ProducerFencedException | InvalidProducerEpochException expected) {
                // It can only be closed.
            }
        }
        same(List.of("successor"), values(topic, 1, "read_committed", 1), "the successor's alone");
        // An administrator ends what nobody ends: with a new incarnation of its id.
        var hanging = transactional("hanging");
        hanging.beginTransaction();
        hanging.send(new ProducerRecord<>(topic, bytes("hanging"))).get();
        admin.fenceProducers(List.of("java-hanging")).all().get();
        eventually("it is aborted", () -> stateOf("hanging") != TransactionState.ONGOING);
        hanging.close(Duration.ZERO);
        same(List.of("successor"), values(topic, 1, "read_committed", 1), "still");
    }

    static void offsetsByTime() throws Exception {
        String topic = create("times", 1, Map.of("retention.ms", "-1"));
        try (var producer = producer(Map.of())) {
            for (long time : new long[] {1000, 2000, 3000})
                producer.send(new ProducerRecord<byte[], byte[]>(topic, 0, time, null, bytes("v"))).get();
        }
        var partition = new TopicPartition(topic, 0);
        try (var consumer = consumer(Map.of())) {
            same(1L, consumer.offsetsForTimes(Map.of(partition, 1500L)).get(partition).offset(), "at 1500");
            same(null, consumer.offsetsForTimes(Map.of(partition, 3001L)).get(partition), "at 3001");
        }
        same(2L, admin.listOffsets(Map.of(partition, OffsetSpec.maxTimestamp())).all().get().get(partition).offset(), "max");
    }

    static void seekPauseResume() throws Exception {
        String topic = create("seek", 2);
        send(topic, 2, 20);
        var zero = new TopicPartition(topic, 0);
        var one = new TopicPartition(topic, 1);
        try (var consumer = consumer(Map.of())) {
            consumer.assign(List.of(zero, one));
            consumer.seek(zero, 8);
            consumer.pause(List.of(one));
            check(poll(consumer, 2).stream().allMatch(record -> record.partition() == 0), "one is paused");
            consumer.resume(List.of(one));
            check(poll(consumer, 10).stream().allMatch(record -> record.partition() == 1), "one is resumed");
        }
    }

    static void deleteRecords() throws Exception {
        String topic = create("delete-records", 1);
        send(topic, 1, 10);
        var partition = new TopicPartition(topic, 0);
        same(6L, admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(6))).lowWatermarks().get(partition)
            .get().lowWatermark(), "low watermark");
        same(6L, admin.listOffsets(Map.of(partition, OffsetSpec.earliest())).all().get().get(partition).offset(), "first");
    }

    static void describe() throws Exception {
        String topic = create("describe", 2);
        send(topic, 2, 10);
        var directories = admin.describeLogDirs(List.of(1)).allDescriptions().get().get(1);
        long size = directories.values().stream().flatMap(directory -> directory.replicaInfos().entrySet().stream())
            .filter(entry -> entry.getKey().topic().equals(topic)).mapToLong(entry -> entry.getValue().size()).sum();
        check(size > 100, "the topic's size: " + size);
        var broker = new ConfigResource(ConfigResource.Type.BROKER, "1");
        check(admin.describeConfigs(List.of(broker)).all().get().get(broker).get("log.dirs") != null, "broker configs");
        admin.describeFeatures().featureMetadata().get();
    }
}
