// Kafka Streams: a word count with exactly_once_v2, whose state comes back from its changelog. Arguments: the bootstrap
// address.

import java.nio.file.*;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreTypes;

public class Streams extends Frame {
    static final List<String> WORDS = List.of("broker", "log", "shard", "log", "broker", "log");
    static String input, output;

    public static void main(String[] arguments) throws Exception {
        connect(arguments[0]);
        input = create("words", 2);
        output = create("counts", 2);
        Path first = Files.createTempDirectory("streams"), second = Files.createTempDirectory("streams");
        scenario("word-count-exactly-once", () -> wordCount(first));
        scenario("restore-from-changelog", () -> restore(second));
        scenario("changelog-topics", Streams::changelog);
        for (Path directory : List.of(first, second)) delete(directory);
        exit();
    }

    static KafkaStreams start(Path directory, StateRestoreListener listener) {
        var builder = new StreamsBuilder();
        builder.stream(input, Consumed.with(Serdes.String(), Serdes.String()))
            .groupBy((key, word) -> word)
            .count(Materialized.<String, Long, KeyValueStore<org.apache.kafka.common.utils.Bytes, byte[]>>as("counts"))
            .toStream().to(output, Produced.with(Serdes.String(), Serdes.Long()));
        var settings = new Properties();
        settings.putAll(Map.of(
            "application.id", "java-word-count", "bootstrap.servers", bootstrap, "state.dir", directory.toString(),
            "processing.guarantee", "exactly_once_v2", "default.key.serde", Serdes.StringSerde.class.getName(),
            "default.value.serde", Serdes.StringSerde.class.getName(), "commit.interval.ms", "100",
            "statestore.cache.max.bytes", "0", "auto.offset.reset", "earliest"));
        // The session of the one before may still be open.
        settings.put(StreamsConfig.consumerPrefix("session.timeout.ms"), "6000");
        var streams = new KafkaStreams(builder.build(), settings);
        streams.setGlobalStateRestoreListener(listener);
        streams.start();
        return streams;
    }

    static void say(List<String> words) throws Exception {
        try (var producer = producer(Map.of())) {
            int n = 0;
            for (String word : words) producer.send(new ProducerRecord<>(input, n++ % 2, null, bytes(word)));
            producer.flush();
        }
    }

    static Long count(KafkaStreams streams, String word) {
        try {
            return streams.store(StoreQueryParameters.fromNameAndType("counts", QueryableStoreTypes.<String, Long>keyValueStore()))
                .get(word);
        } catch (org.apache.kafka.streams.errors.InvalidStateStoreException notYet) {
            return null;
        }
    }

    static void wordCount(Path directory) throws Exception {
        try (var streams = start(directory, new Counter())) {
            say(WORDS);
            eventually("the counts", () -> Objects.equals(count(streams, "log"), 3L) && Objects.equals(count(streams, "broker"), 2L));
            streams.close(Duration.ofSeconds(20));
        }
        same(Map.of("log", 3L, "broker", 2L, "shard", 1L), counted(WORDS.size()), "what a read_committed consumer sees last");
    }

    static class Counter implements StateRestoreListener {
        final AtomicLong restored = new AtomicLong();

        public void onRestoreStart(TopicPartition partition, String store, long start, long end) {}

        public void onBatchRestored(TopicPartition partition, String store, long end, long count) {}

        public void onRestoreEnd(TopicPartition partition, String store, long count) {
            restored.addAndGet(count);
        }
    }

    // With an empty directory, as on another machine.
    static void restore(Path directory) throws Exception {
        var counter = new Counter();
        try (var streams = start(directory, counter)) {
            eventually("the state is back", () -> Objects.equals(count(streams, "log"), 3L));
            check(counter.restored.get() > 0, "nothing came from the changelog");
            say(List.of("log"));
            eventually("it goes on counting", () -> Objects.equals(count(streams, "log"), 4L));
            streams.close(Duration.ofSeconds(20));
        }
        same(4L, counted(WORDS.size() + 1).get("log"), "what a read_committed consumer sees last");
    }

    static Map<String, Long> counted(int count) {
        Map<String, Long> last = new HashMap<>();
        try (var consumer = consumer(Map.of("isolation.level", "read_committed"))) {
            var partitions = List.of(new TopicPartition(output, 0), new TopicPartition(output, 1));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            for (var record : poll(consumer, count))
                last.put(text(record.key()), new LongDeserializer().deserialize(output, record.value()));
        }
        return last;
    }

    static void changelog() throws Exception {
        var names = admin.listTopics().names().get();
        String changelog = "java-word-count-counts-changelog", again = "java-word-count-counts-repartition";
        check(names.containsAll(List.of(changelog, again)), "topics: " + names);
        // What was counted is not kept for ever: Streams deletes what it has read of the repartition topic.
        var partition = new TopicPartition(again, 0);
        admin.listOffsets(Map.of(partition, OffsetSpec.earliest())).all().get();
    }

    static void delete(Path directory) throws Exception {
        try (var files = Files.walk(directory)) {
            for (Path file : files.sorted(Comparator.reverseOrder()).toList()) Files.delete(file);
        }
    }
}
