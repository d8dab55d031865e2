// The Java client (kafka-clients) through the scenarios that every client here runs. Arguments: the bootstrap address,
// and "outage" for that one alone.

import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.Future;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.atomic.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class Scenarios extends Frame {
    public static void main(String[] arguments) {
        connect(arguments[0]);
        if (arguments.length > 1) {
            scenario("outage", Scenarios::outage);
            exit();
        }
        scenario("admin", Scenarios::administer);
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd"))
            scenario("codec-" + codec, () -> roundTrip(codec));
        scenario("headers-and-nulls", Scenarios::headersAndNulls);
        scenario("sizes", Scenarios::sizes);
        scenario("too-large", Scenarios::tooLarge);
        scenario("log-append-time", Scenarios::logAppendTime);
        scenario("idempotent", Scenarios::idempotent);
        scenario("transactions", Scenarios::transactions);
        Transactions.all();
        scenario("group-resume", Scenarios::groupResume);
        scenario("group-share", Scenarios::groupShare);
        scenario("group-crash", Scenarios::groupCrash);
        scenario("group-cooperative", Scenarios::groupCooperative);
        scenario("group-new-protocol", Scenarios::groupNewProtocol);
        scenario("group-migration", Scenarios::groupMigration);
        scenario("commit-async", Scenarios::commitAsync);
        scenario("share-group", Scenarios::shareGroup);
        scenario("share-group-implicit", Scenarios::shareGroupImplicit);
        scenario("seek-pause-resume", Scenarios::seekPauseResume);
        scenario("offsets-by-time", Scenarios::offsetsByTime);
        scenario("delete-records", Scenarios::deleteRecords);
        scenario("topic-created-again", Scenarios::topicCreatedAgain);
        scenario("describe", Scenarios::describe);
        exit();
    }

    static void administer() throws Exception {
        same(brokers, admin.describeCluster().nodes().get().size(), "nodes");
        String topic = create("admin", 3, Map.of("retention.ms", "3600000"));
        eventually("the topic is listed", () -> admin.listTopics().names().get().contains(topic));
        fails(TopicExistsException.class, () -> create("admin", 1));
        fails(InvalidReplicationFactorException.class,
            () -> admin.createTopics(List.of(new NewTopic("java-r", 1, (short) (brokers + 1)))).all().get());
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
            one.subscribe(new SubscriptionPattern("java-shared-n.*"));
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

    static ShareConsumer<byte[], byte[]> shareConsumer(String group, Map<String, Object> more) {
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", bootstrap, "group.id", group));
        settings.putAll(more);
        return new KafkaShareConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static void readFromTheBeginning(String group) throws Exception {
        var resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        var earliest = new AlterConfigOp(
            new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(earliest))).all().get();
    }

    // Two members with explicit acknowledgements: nothing is lost, and what was accepted does not come again.
    static void shareGroup() throws Exception {
        String topic = create("share-explicit", 3), group = "java-share-explicit";
        readFromTheBeginning(group);
        send(topic, 3, 300);
        Map<String, Object> explicit = Map.of("share.acknowledgement.mode", "explicit");
        Set<String> accepted = new HashSet<>(), released = new HashSet<>(), rejected = new HashSet<>();
        try (var one = shareConsumer(group, explicit); var two = shareConsumer(group, explicit)) {
            one.subscribe(List.of(topic));
            two.subscribe(List.of(topic));
            long end = System.nanoTime() + PATIENCE.toNanos();
            while (accepted.size() + rejected.size() < 300) {
                check(System.nanoTime() < end, "only " + accepted.size() + " of 300 records were accepted");
                for (var consumer : List.of(one, two)) {
                    for (var record : consumer.poll(Duration.ofMillis(200))) {
                        String value = new String(record.value(), StandardCharsets.UTF_8);
                        check(!accepted.contains(value), value + " came again after it was accepted");
                        check(!rejected.contains(value), value + " came again after it was rejected");
                        if (value.endsWith("7") && released.add(value)) {
                            same((short) 1, record.deliveryCount().get(), "deliveries of " + value);
                            consumer.acknowledge(record, AcknowledgeType.RELEASE);
                        } else if (value.endsWith("99")) {
                            rejected.add(value);
                            consumer.acknowledge(record, AcknowledgeType.REJECT);
                        } else {
                            if (released.contains(value))
                                same((short) 2, record.deliveryCount().get(), "deliveries of " + value);
                            accepted.add(value);
                            consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                        }
                    }
                    consumer.commitSync(PATIENCE).values().forEach(error -> check(error.isEmpty(), "commit: " + error));
                }
            }
            same(30, released.size(), "released");
            var described = admin.describeShareGroups(List.of(group)).all().get().get(group);
            same(2, described.members().size(), "members");
            same(GroupState.STABLE, described.groupState(), "state");
            check(admin.listGroups(ListGroupsOptions.forShareGroups()).all().get().stream()
                .anyMatch(listing -> listing.groupId().equals(group)), "the group is not listed");
        }
        // Closed: nobody has anything, and a third member finds nothing left.
        try (var three = shareConsumer(group, explicit)) {
            three.subscribe(List.of(topic));
            for (int n = 0; n < 10; n++) same(0, three.poll(Duration.ofMillis(200)).count(), "records left");
        }
        eventually("the group is empty", () ->
            admin.describeShareGroups(List.of(group)).all().get().get(group).groupState() == GroupState.EMPTY);
        admin.deleteShareGroups(List.of(group)).all().get();
    }

    // Implicit acknowledgement: what a poll gave is accepted by the next one, and by the end.
    static void shareGroupImplicit() throws Exception {
        String topic = create("share-implicit", 1), group = "java-share-implicit";
        readFromTheBeginning(group);
        send(topic, 1, 50);
        try (var consumer = shareConsumer(group, Map.of())) {
            consumer.subscribe(List.of(topic));
            int got = 0;
            long end = System.nanoTime() + PATIENCE.toNanos();
            while (got < 50) {
                check(System.nanoTime() < end, "only " + got + " of 50 records came");
                got += consumer.poll(Duration.ofMillis(200)).count();
            }
            same(50, got, "records");
            consumer.commitSync(PATIENCE).values().forEach(error -> check(error.isEmpty(), "commit: " + error));
        }
        try (var consumer = shareConsumer(group, Map.of())) {
            consumer.subscribe(List.of(topic));
            for (int n = 0; n < 10; n++) same(0, consumer.poll(Duration.ofMillis(200)).count(), "records left");
            send(topic, 1, 1);
            eventually("the next record", () -> consumer.poll(Duration.ofMillis(200)).count() == 1);
        }
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
            var rest = poll(consumer, 10);
            check(rest.stream().allMatch(record -> record.partition() == 1), "one is resumed");
            long time = rest.get(5).timestamp();
            long offset = consumer.offsetsForTimes(Map.of(one, time)).get(one).offset();
            consumer.seek(one, offset);
            same(time, poll(consumer, 1).get(0).timestamp(), "the first at that time");
        }
    }

    static void deleteRecords() throws Exception {
        String topic = create("delete-records", 1);
        send(topic, 1, 10);
        var partition = new TopicPartition(topic, 0);
        same(6L, admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(6))).lowWatermarks().get(partition)
            .get().lowWatermark(), "low watermark");
        same(6L, admin.listOffsets(Map.of(partition, OffsetSpec.earliest())).all().get().get(partition).offset(), "first");
        same("v6", values(topic, 4, "read_uncommitted").get(0), "the first that is read");
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

    static void sizes() throws Exception {
        int large = 20_000_000;
        String topic = create("sizes", 1, Map.of("max.message.bytes", "25000000"));
        List<Integer> sizes = List.of(0, 1, 1_000_000, large);
        try (var producer = producer(Map.of("max.request.size", 25_000_000, "buffer.memory", 64_000_000L))) {
            for (int size : sizes) {
                byte[] value = new byte[size];
                Arrays.fill(value, (byte) size);
                producer.send(new ProducerRecord<>(topic, 0, null, value)).get();
            }
        }
        try (var consumer = consumer(Map.of())) {
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            var got = poll(consumer, sizes.size());
            for (int n = 0; n < sizes.size(); n++) {
                byte[] wanted = new byte[sizes.get(n)];
                Arrays.fill(wanted, (byte) wanted.length);
                check(Arrays.equals(wanted, got.get(n).value()), "value " + n + " is another");
            }
        }
    }

    static void logAppendTime() throws Exception {
        String topic = create("append-time", 1, Map.of("message.timestamp.type", "LogAppendTime"));
        long told;
        try (var producer = producer(Map.of())) {
            told = producer.send(new ProducerRecord<byte[], byte[]>(topic, 0, 1000L, null, bytes("v"))).get().timestamp();
        }
        check(Math.abs(told - System.currentTimeMillis()) < 60_000, "the answer says " + told);
        try (var consumer = consumer(Map.of())) {
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            same(told, poll(consumer, 1).get(0).timestamp(), "the stored time");
        }
    }

    static void transactions() throws Exception {
        String topic = create("txn", 1), input = create("txn-input", 1);
        send(input, 1, 3);
        var offset = Map.of(new TopicPartition(input, 0), new OffsetAndMetadata(3));
        try (var producer = producer(Map.of("transactional.id", "java-txn"))) {
            producer.initTransactions();
            for (String outcome : List.of("committed", "aborted", "committed")) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, 0, null, bytes(outcome)));
                if (outcome.equals("committed")) {
                    producer.sendOffsetsToTransaction(offset, new ConsumerGroupMetadata("java-txn"));
                    producer.commitTransaction();
                } else {
                    producer.flush();
                    producer.abortTransaction();
                }
            }
        }
        same(List.of("committed", "committed"), values(topic, 2, "read_committed"), "read_committed");
        same(List.of("committed", "aborted", "committed"), values(topic, 3, "read_uncommitted"), "read_uncommitted");
        same(offset, admin.listConsumerGroupOffsets("java-txn").partitionsToOffsetAndMetadata().get(), "offsets");
    }

    // Nobody can kill a consumer of this process: its heartbeats stop when their thread is interrupted.
    static void groupCrash() throws Exception {
        String topic = create("crash", 4);
        Map<String, Object> group = Map.of(
            "group.id", "java-crash", "session.timeout.ms", 6000, "heartbeat.interval.ms", 200);
        // Never closed: closing would leave the group.
        var lost = consumer(group);
        lost.subscribe(List.of(topic));
        await(4, lost);
        Thread heartbeats = Thread.getAllStackTraces().keySet().stream()
            .filter(thread -> thread.getName().equals("kafka-coordinator-heartbeat-thread | java-crash")).findFirst().get();
        try (var one = consumer(group)) {
            one.subscribe(List.of(topic));
            share(one, lost);
            heartbeats.interrupt();
            long began = System.nanoTime();
            await(4, one);
            check(System.nanoTime() - began > 3_000_000_000L, "its session had not ended yet");
        }
    }

    static void groupCooperative() throws Exception {
        String topic = create("cooperative", 4);
        Map<String, Object> group = Map.of("group.id", "java-cooperative", "heartbeat.interval.ms", 200,
            "partition.assignment.strategy", CooperativeStickyAssignor.class.getName());
        var taken = new HashSet<TopicPartition>();
        try (var one = consumer(group); var two = consumer(group)) {
            one.subscribe(List.of(topic), new ConsumerRebalanceListener() {
                public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                    taken.addAll(partitions);
                }

                public void onPartitionsAssigned(Collection<TopicPartition> partitions) {}
            });
            await(4, one);
            two.subscribe(List.of(topic));
            share(one, two);
            same(2, taken.size(), "only what goes to the other is taken away");
            same(taken, two.assignment(), "what the other has");
        }
    }

    static void commitAsync() throws Exception {
        String topic = create("async", 1);
        send(topic, 1, 10);
        var partition = new TopicPartition(topic, 0);
        var done = new AtomicReference<String>();
        try (var consumer = consumer(Map.of("group.id", "java-async"))) {
            consumer.assign(List.of(partition));
            poll(consumer, 10);
            var offset = new OffsetAndMetadata(4, Optional.empty(), "note");
            consumer.commitAsync(Map.of(partition, offset), (offsets, error) -> done.set("" + error));
            eventually("the callback", () -> {
                consumer.poll(Duration.ofMillis(10));
                return done.get() != null;
            });
            same("null", done.get(), "error");
            same(offset, consumer.committed(Set.of(partition)).get(partition), "committed");
        }
    }

    static void topicCreatedAgain() throws Exception {
        String topic = create("again", 1);
        send(topic, 1, 5);
        admin.deleteTopics(List.of(topic)).all().get();
        eventually("the name is free", () -> {
            try {
                create("again", 1);
                return true;
            } catch (Exception error) {
                return false;
            }
        });
        try (var producer = producer(Map.of())) {
            same(0L, producer.send(new ProducerRecord<>(topic, 0, null, bytes("new"))).get().offset(), "offset");
        }
        same(List.of("new"), values(topic, 1, "read_uncommitted"), "the only record");
    }

    // The run stops and restarts the broker meanwhile; see outage() there.
    static void outage() throws Exception {
        Path control = Path.of(System.getenv("KURING_OUTAGE"));
        String topic = create("outage", 1);
        var partition = new TopicPartition(topic, 0);
        var got = new ConcurrentSkipListMap<Long, String>();
        var wanted = new AtomicLong(Long.MAX_VALUE);
        var failure = new AtomicReference<Throwable>();
        var reader = new Thread(() -> {
            try (var consumer = consumer(Map.of("group.id", "java-outage", "heartbeat.interval.ms", 500))) {
                consumer.subscribe(List.of(topic));
                while (got.size() < wanted.get()) {
                    consumer.poll(Duration.ofMillis(100)).forEach(record -> got.put(record.offset(), text(record.value())));
                    consumer.commitAsync();
                }
            } catch (Throwable error) {
                failure.set(error);
            }
        });
        reader.setDaemon(true);
        reader.start();
        int count = 0;
        try (var producer = producer(Map.of("delivery.timeout.ms", 150_000, "max.block.ms", 120_000))) {
            var last = producer.send(new ProducerRecord<>(topic, 0, null, bytes("" + count++)));
            last.get();
            Files.createFile(control.resolve("java.ready"));
            for (; !Files.exists(control.resolve("stop")); Thread.sleep(5))
                last = producer.send(new ProducerRecord<>(topic, 0, null, bytes("" + count++)));
            last.get();
            producer.flush();
        }
        wanted.set(count);
        reader.join(60_000);
        same(null, failure.get(), "the consumer's error");
        List<String> numbers = new ArrayList<>();
        for (int n = 0; n < count; n++) numbers.add("" + n);
        check(count > 1000, "only " + count + " records were sent");
        same(count, got.size(), "records received");
        check(numbers.equals(List.copyOf(got.values())), "what was received is not what was sent, in order");
        check(numbers.equals(values(topic, count, "read_uncommitted")), "what is stored is not what was sent, in order");
    }
}
