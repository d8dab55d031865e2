// What is written into a node and must be found by the next that has its directories. Arguments: "write", "check",
// "more" or "check-more", the bootstrap address, and a file for the topics' ids.

import java.nio.file.*;
import java.time.Duration;
import java.util.*;
import java.util.stream.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

public class Directories extends Frame {
    static final List<String> TOPICS = List.of("java-plain", "java-compacted", "java-txn", "java-again");
    static final Map<String, Object> GROUP = Map.of("group.id", "java-directories");
    static final TopicPartition PLAIN = new TopicPartition("java-plain", 0);

    public static void main(String[] arguments) throws Exception {
        connect(arguments[1]);
        Path ids = Path.of(arguments[2]);
        switch (arguments[0]) {
            case "write" -> write(ids);
            case "check" -> check(ids, 3000, List.of("committed", "committed"));
            case "more" -> more();
            case "check-more" -> check(ids, 6000, List.of("committed", "committed", "committed"));
            default -> throw new IllegalArgumentException(arguments[0]);
        }
        exit();
    }

    static String idsOfTopics() throws Exception {
        var described = admin.describeTopics(TOPICS).allTopicNames().get();
        return TOPICS.stream().map(topic -> topic + " " + described.get(topic).topicId() + " "
            + described.get(topic).partitions().size()).collect(Collectors.joining("\n"));
    }

    static void write(Path ids) throws Exception {
        create("plain", 3, Map.of("retention.ms", "-1", "segment.bytes", "1048576"));
        create("compacted", 1, Map.of("cleanup.policy", "compact"));
        create("txn", 1);
        create("again", 1);
        admin.deleteTopics(List.of("java-again")).all().get();
        eventually("the name is free", () -> {
            try {
                create("again", 1);
                return true;
            } catch (Exception error) {
                return false;
            }
        });
        admin.createPartitions(Map.of("java-again", NewPartitions.increaseTo(2))).all().get();
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, "java-txn");
        var step = new AlterConfigOp(new ConfigEntry("retention.bytes", "123456789"), AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(step))).all().get();
        eventually("all topics", () -> admin.listTopics().names().get().containsAll(TOPICS));
        fill(0);
        transaction("committed", true);
        transaction("aborted", false);
        transaction("committed", true);
        commit(500);
        Files.writeString(ids, idsOfTopics());
    }

    static void fill(int from) throws Exception {
        try (var producer = producer(Map.of("compression.type", "zstd", "linger.ms", 5))) {
            for (int n = from; n < from + 3000; n++)
                producer.send(new ProducerRecord<>("java-plain", n % 3, bytes("k" + n), bytes("v" + n + "x".repeat(200))));
            for (int n = 0; n < 100; n++)
                producer.send(new ProducerRecord<>("java-compacted", 0, bytes("k" + n % 10), bytes("v" + (from + n))));
            producer.flush();
        }
    }

    static void transaction(String value, boolean commit) throws Exception {
        try (var producer = producer(Map.of("transactional.id", "java-directories"))) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>("java-txn", 0, null, bytes(value))).get();
            if (commit) producer.commitTransaction();
            else producer.abortTransaction();
        }
    }

    static void commit(long offset) throws Exception {
        try (var consumer = consumer(GROUP)) {
            consumer.assign(List.of(PLAIN));
            consumer.commitSync(Map.of(PLAIN, new OffsetAndMetadata(offset, "note")));
        }
    }

    static void check(Path ids, int count, List<String> committed) throws Exception {
        eventually("every partition is led", () -> admin.describeTopics(TOPICS).allTopicNames().get().values().stream()
            .flatMap(topic -> topic.partitions().stream()).allMatch(partition -> partition.leader() != null));
        same(Files.readString(ids), idsOfTopics(), "topics, ids and partitions");
        var configs = admin.describeConfigs(TOPICS.stream().map(topic -> new ConfigResource(ConfigResource.Type.TOPIC, topic)).toList())
            .all().get();
        var wanted = Map.of("java-plain", "segment.bytes=1048576", "java-compacted", "cleanup.policy=compact", "java-txn",
            "retention.bytes=123456789");
        wanted.forEach((topic, config) -> {
            var entry = configs.get(new ConfigResource(ConfigResource.Type.TOPIC, topic)).get(config.split("=")[0]);
            same(config.split("=")[1], entry.value(), topic);
            same(ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, entry.source(), topic);
        });
        try (var consumer = consumer(Map.of())) {
            var partitions = IntStream.range(0, 3).mapToObj(n -> new TopicPartition("java-plain", n)).toList();
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            int[] next = {0, 1, 2};
            for (var record : poll(consumer, count)) {
                int n = next[record.partition()];
                same("v" + n + "x".repeat(200), text(record.value()), "partition " + record.partition());
                next[record.partition()] = n + 3;
            }
            same(0, consumer.poll(Duration.ofMillis(300)).count(), "records above those");
        }
        same(committed, values("java-txn", committed.size(), "read_committed"), "committed");
        same(committed.size() + 1, values("java-txn", committed.size() + 1, "read_uncommitted").size(), "all");
        try (var consumer = consumer(GROUP)) {
            var found = consumer.committed(Set.of(PLAIN)).get(PLAIN);
            same(new OffsetAndMetadata(count / 6, "note"), new OffsetAndMetadata(found.offset(), found.metadata()), "the commit");
        }
    }

    static void more() throws Exception {
        fill(3000);
        transaction("committed", true);
        commit(1000);
    }
}
