// What the Java scenarios share: a scenario's line of output, clients, and waiting. Each file has the scenarios of one
// subject in a static method all(), which Scenarios.main calls; scenarios.txt lists their names.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

public class Frame {
    interface Body {
        void run() throws Exception;
    }

    static final Duration PATIENCE = Duration.ofSeconds(60);
    // Records of the past could be deleted by retention while they are read.
    static final long start = System.currentTimeMillis();
    // The one scenario that is wanted, all when null.
    static final String only = System.getenv("KURING_SCENARIO");
    static String bootstrap;
    // Brokers, each with a replica of all.
    static int brokers;
    static Admin admin;
    static boolean failed = false;

    static void connect(String address) {
        bootstrap = address;
        brokers = address.split(",").length;
        admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
    }

    static void exit() {
        admin.close(Duration.ofSeconds(1));
        System.exit(failed ? 1 : 0);
    }

    static void scenario(String name, Body body) {
        if (only != null && !only.equals(name)) return;
        try {
            body.run();
            System.out.println("ok " + name);
        } catch (Throwable error) {
            failed = true;
            Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
            System.out.println("FAILED " + name + ": " + shortened(cause.toString()) + " at " + where(error));
        }
    }

    static String shortened(String text) {
        String line = text.replace('\n', ' ');
        return line.length() < 800 ? line : line.substring(0, 400) + " ... " + line.substring(line.length() - 400);
    }

    // The line of the scenario itself.
    static String where(Throwable error) {
        return Arrays.stream(error.getStackTrace()).filter(frame -> frame.getClassLoaderName() != null
            && frame.getClassLoaderName().equals("app") && !frame.getClassName().startsWith("org.apache.")
            && !frame.getClassName().equals("Frame")).findFirst().map(Object::toString).orElse("?");
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
        admin.createTopics(List.of(new NewTopic("java-" + topic, partitions, (short) -1).configs(configs))).all().get();
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

    // Polls until the assignment has so many partitions; records that come meanwhile are not wanted.
    static void await(int partitions, Consumer<?, ?>... members) {
        long end = System.nanoTime() + PATIENCE.toNanos();
        while (!Arrays.stream(members).allMatch(member -> member.assignment().size() == partitions)) {
            check(System.nanoTime() < end, "assigned " + Arrays.stream(members).map(Consumer::assignment).toList());
            for (var member : members) member.poll(Duration.ofMillis(50));
        }
    }

    // All of one partition, from the start.
    static List<String> values(String topic, int count, String isolation) {
        try (var consumer = consumer(Map.of("isolation.level", isolation))) {
            var partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            return poll(consumer, count).stream().map(record -> text(record.value())).toList();
        }
    }

    static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }
}
