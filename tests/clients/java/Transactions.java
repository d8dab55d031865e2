// Transactions of the Java client beside what every client shows: their states, copies by consume, transform, produce,
// fencing.

import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.*;

public class Transactions extends Frame {
    static void all() {
        scenario("transactions-states", Transactions::states);
        scenario("transactions-copy", Transactions::transactionsCopy);
        scenario("transactions-fencing", Transactions::transactionsFencing);
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
            return got.stream().map(record -> text(record.value())).sorted().toList();
        }
    }

    static TransactionState stateOf(String id) throws Exception {
        return admin.describeTransactions(List.of("java-" + id)).description("java-" + id).get().state();
    }

    static void states() throws Exception {
        String topic = create("txn-states", 2);
        try (var producer = transactional("states")) {
            producer.beginTransaction();
            for (int n = 0; n < 6; n++) producer.send(new ProducerRecord<>(topic, n % 2, null, bytes("a" + n)));
            producer.commitTransaction();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, null, bytes("b0")));
            producer.flush();
            producer.abortTransaction();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 1, null, bytes("c0"))).get();
            same(TransactionState.ONGOING, stateOf("states"), "state");
            var listed = admin.listTransactions(new ListTransactionsOptions().filterStates(Set.of(TransactionState.ONGOING)));
            check(listed.all().get().stream().anyMatch(found -> found.transactionalId().equals("java-states")), "listed");
            var described = admin.describeTransactions(List.of("java-states")).description("java-states").get();
            same(Set.of(new TopicPartition(topic, 1)), described.topicPartitions(), "partitions");
            var partition = new TopicPartition(topic, 1);
            var producers = admin.describeProducers(List.of(partition)).partitionResult(partition).get().activeProducers();
            check(producers.stream().anyMatch(state -> state.currentTransactionStartOffset().isPresent()), "it is open there");
            same(List.of("a0", "a1", "a2", "a3", "a4", "a5"), values(topic, 2, "read_committed", 6), "committed");
            producer.commitTransaction();
        }
        eventually("the last one is complete", () -> stateOf("states") == TransactionState.COMPLETE_COMMIT);
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
}
