// Kafka's own tools against three brokers, and a load of the Java client through which brokers come and go. Arguments:
// "tools", a bootstrap address, the controllers' addresses and the nodes' properties files with %d for a node, or "load", the
// address and a directory in which "ready" tells that it runs and "stop" that it shall end.

import java.nio.file.*;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import java.util.stream.*;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;

public class Cluster extends Tools {
    static final List<Integer> BROKERS = List.of(1, 2, 3);
    static final String NOBODYS = "AAAAAAAAAAAAAAAAAAAAAQ";

    public static void main(String[] arguments) throws Exception {
        connect(arguments[1]);
        if (arguments[0].equals("load")) {
            scenario("load", () -> load(Path.of(arguments[2])));
            exit();
        }
        keepRunning();
        scenario("cluster", Cluster::endpoints);
        scenario("metadata-quorum", Cluster::quorum);
        scenario("topics", Cluster::spread);
        scenario("topics-assigned", Cluster::assigned);
        scenario("controllers", () -> atControllers(arguments[2]));
        scenario("console", Cluster::numbers);
        scenario("log-dirs", Cluster::directories);
        scenario("configs-topics", Cluster::topicConfigs);
        scenario("configs-brokers", Cluster::brokerConfigs);
        scenario("leader-election", Cluster::election);
        scenario("reassign-generate", Cluster::generate);
        scenario("reassign-execute", Cluster::execute);
        scenario("reassign-cancel", Cluster::cancel);
        scenario("features", Cluster::features);
        scenario("topics-delete", Cluster::delete);
        scenario("controllers-changed", () -> changeControllers(arguments[2], arguments[3]));
        endTools();
    }

    static void endpoints() throws Exception {
        tool("cluster", "cluster-id").ok().matches("Cluster ID: \\S{22}");
        var shown = tool("cluster", "list-endpoints").ok();
        for (int id : BROKERS) shown.matches("^" + id + "\\s+127\\.0\\.0\\.1\\s+\\d+");
        long found = tool("api-versions").ok().lines().stream().filter(line -> line.contains("(id: ")).count();
        same(3L, found, "brokers");
    }

    static void quorum() throws Exception {
        var status = tool("metadata-quorum", "describe", "--status").ok().has("CurrentObservers:")
            .matches("^ClusterId:\\s+\\S{22}$").matches("^LeaderId:\\s+[123]$").matches("^LeaderEpoch:\\s+\\d+$")
            .matches("^HighWatermark:\\s+\\d+$").matches("^MaxFollowerLag:\\s+\\d+$").matches("^MaxFollowerLagTimeMs:\\s+\\d+$");
        for (int id : BROKERS) status.matches("^CurrentVoters:.*\"id\": " + id + "[,}]");
        eventually("one leads, two follow", () -> {
            var rows = tool("metadata-quorum", "describe", "--replication").ok().has("NodeId", "LogEndOffset", "Lag", "Status").lines();
            long leaders = rows.stream().filter(row -> row.matches("[123]\\s+\\S+\\s+\\d+\\s+0\\s+.*\\sLeader\\s*")).count();
            long followers = rows.stream().filter(row -> row.matches("[123]\\s+\\S+\\s+\\d+\\s+\\d+\\s+.*\\sFollower\\s*")).count();
            return leaders == 1 && followers == 2;
        });
    }

    static Output describe(String topic) throws Exception {
        return tool("topics", "--describe", "--topic", topic).ok();
    }

    // A line of --describe; those in sync are in any order.
    static String row(int partition, int leader, Integer... replicas) {
        String isr = IntStream.range(0, replicas.length).mapToObj(n -> "[" + joined(replicas, "") + "]").collect(Collectors.joining(","));
        return "Partition: " + partition + "\\s+Leader: " + leader + "\\s+Replicas: " + joined(replicas, ",") + "\\s+Isr: " + isr + "(\\s|$)";
    }

    static String joined(Integer[] numbers, String between) {
        return Arrays.stream(numbers).map(String::valueOf).collect(Collectors.joining(between));
    }

    static void awaitRow(String topic, int partition, int leader, Integer... replicas) throws Exception {
        var wanted = java.util.regex.Pattern.compile(row(partition, leader, replicas), java.util.regex.Pattern.MULTILINE);
        eventually(topic + ": " + wanted, () -> wanted.matcher(describe(topic).text()).find());
    }

    static void spread() throws Exception {
        tool("topics", "--create", "--topic", "spread", "--partitions", 6, "--replication-factor", 3, "--config", "min.insync.replicas=2").ok()
            .has("Created topic spread.");
        tool("topics", "--create", "--topic", "wide", "--replication-factor", 4).failed().has("InvalidReplicationFactorException");
        eventually("each leads two", () -> {
            var lines = describe("spread").lines();
            return BROKERS.stream().allMatch(id -> lines.stream().filter(line -> line.contains("Leader: " + id + "\t")).count() == 2);
        });
        describe("spread").has("PartitionCount: 6", "ReplicationFactor: 3", "min.insync.replicas=2");
        tool("topics", "--alter", "--topic", "spread", "--partitions", 8).ok();
        tool("topics", "--alter", "--topic", "spread", "--partitions", 8).failed().has("InvalidPartitionsException");
        eventually("eight partitions", () -> describe("spread").text().contains("PartitionCount: 8"));
        for (String option : List.of("--under-replicated-partitions", "--unavailable-partitions", "--under-min-isr-partitions",
                "--at-min-isr-partitions"))
            eventually("no partition with " + option, () -> !tool("topics", "--describe", "--topic", "spread", option).ok().text().contains("Partition: "));
    }

    static void assigned() throws Exception {
        tool("topics", "--create", "--topic", "placed", "--replica-assignment", "1:2,2:3,3:1").ok();
        awaitRow("placed", 0, 1, 1, 2);
        awaitRow("placed", 1, 2, 2, 3);
        awaitRow("placed", 2, 3, 3, 1);
        tool("topics", "--alter", "--topic", "placed", "--partitions", 4, "--replica-assignment", "1:2,2:3,3:1,1:3").ok();
        awaitRow("placed", 3, 1, 1, 3);
        tool("topics", "--create", "--topic", "nowhere", "--replica-assignment", "1:9").failed().has("InvalidReplicaAssignmentException");
    }

    static void numbers() throws Exception {
        feed("console-producer", numbers(1, 200), "--topic", "spread", "--command-property", "acks=all").ok();
        var got = tool("console-consumer", "--topic", "spread", "--from-beginning", "--max-messages", 200, "--group", "spread-group").ok();
        var found = got.lines().stream().filter(line -> line.matches("\\d+")).map(Integer::valueOf).sorted().toList();
        same(IntStream.rangeClosed(1, 200).boxed().toList(), found, "numbers");
        tool("consumer-groups", "--describe", "--group", "spread-group", "--state").ok().matches("127\\.0\\.0\\.1:\\d+\\s+\\([123]\\)");
        long sum = tool("get-offsets", "--topic", "spread").ok().lines().stream().mapToLong(line -> Long.parseLong(line.split(":")[2])).sum();
        same(200L, sum, "the ends of all partitions together");
    }

    static void directories() throws Exception {
        tool("log-dirs", "--describe", "--topic-list", "spread").ok().has("\"broker\":1", "\"broker\":2", "\"broker\":3", "\"partition\":\"spread-7\"");
        String two = tool("log-dirs", "--describe", "--topic-list", "placed", "--broker-list", "2").ok().text();
        check(two.contains("placed-1") && !two.contains("placed-2") && !two.contains("placed-3"), two);
    }

    static void topicConfigs() throws Exception {
        tool("configs", "--alter", "--topic", "placed", "--add-config", "retention.ms=3600000").ok();
        eventually("it shows", () -> tool("configs", "--describe", "--topic", "placed").ok().text().contains("retention.ms=3600000"));
        tool("configs", "--alter", "--topic", "placed", "--add-config", "min.insync.replicas=0").failed().has("Invalid value 0");
        tool("configs", "--alter", "--topic", "placed", "--delete-config", "retention.ms").ok();
        eventually("it is gone", () -> !tool("configs", "--describe", "--topic", "placed").ok().text().contains("retention.ms"));
    }

    static String ofBroker(int id) throws Exception {
        return tool("configs", "--describe", "--entity-type", "brokers", "--entity-name", id, "--all").ok().text();
    }

    static void brokerConfigs() throws Exception {
        tool("configs", "--alter", "--entity-type", "brokers", "--entity-name", 2, "--add-config", "log.cleaner.threads=2").ok();
        tool("configs", "--alter", "--entity-type", "brokers", "--entity-default", "--add-config", "log.retention.ms=7200000").ok();
        for (int id : BROKERS) {
            eventually("broker " + id + " has the default", () -> ofBroker(id).contains("log.retention.ms=7200000"));
            same(id == 2, ofBroker(id).contains("log.cleaner.threads=2 "), "broker " + id + " has what broker 2 was given");
        }
        tool("configs", "--alter", "--entity-type", "brokers", "--entity-name", 2, "--delete-config", "log.cleaner.threads").ok();
        tool("configs", "--alter", "--entity-type", "brokers", "--entity-default", "--delete-config", "log.retention.ms").ok();
        eventually("both are gone", () -> !ofBroker(2).contains("log.cleaner.threads=2 ") && !ofBroker(2).contains("log.retention.ms=7200000"));
        tool("configs", "--alter", "--entity-type", "brokers", "--entity-name", 3, "--add-config", "log.cleaner.threads=many").failed();
    }

    // Tools that are content with controllers (KIP-919): what they are told there, and what they change.
    static void atControllers(String addresses) throws Exception {
        String brokers = bootstrap;
        tool("topics", "--create", "--topic", "governed", "--partitions", 3).ok();
        addressOption = "--bootstrap-controller";
        bootstrap = addresses;
        try {
            tool("cluster", "cluster-id").ok().matches("Cluster ID: \\S{22}");
            var shown = tool("cluster", "list-endpoints").ok();
            for (int id : BROKERS) shown.matches("^" + id + "\\s+127\\.0\\.0\\.1\\s+\\d+\\s+null\\s+controller");
            tool("cluster", "unregister", "--id", 99).failed().has("Broker ID 99 is not currently registered");
            quorum();
            tool("features", "describe").ok().matches("Feature: transaction.version\\s+.*FinalizedVersionLevel: 2");
            tool("features", "upgrade", "--feature", "transaction.version=9").failed().has("transaction.version");
            tool("configs", "--alter", "--entity-type", "topics", "--entity-name", "governed", "--add-config", "retention.ms=3600000").ok();
            tool("configs", "--alter", "--entity-type", "topics", "--entity-name", "nowhere", "--add-config", "retention.ms=3600000").failed();
            tool("configs", "--alter", "--entity-type", "brokers", "--entity-default", "--add-config", "log.retention.ms=7200000").ok();
            eventually("the default shows", () -> tool("configs", "--describe", "--entity-type", "brokers", "--entity-default").ok()
                .text().contains("log.retention.ms=7200000"));
            tool("configs", "--alter", "--entity-type", "brokers", "--entity-default", "--delete-config", "log.retention.ms").ok();
        } finally {
            addressOption = "--bootstrap-server";
            bootstrap = brokers;
        }
        eventually("a broker shows it", () -> tool("configs", "--describe", "--topic", "governed").ok().text().contains("retention.ms=3600000"));
        tool("configs", "--alter", "--topic", "governed", "--delete-config", "retention.ms").ok();
    }

    // The rows of a node in the quorum's description: its directory's id and whether it leads, follows or observes.
    static String[] replica(int node) throws Exception {
        var rows = tool("metadata-quorum", "describe", "--replication").ok().lines().stream().map(line -> line.trim().split("\\s+"));
        return rows.filter(row -> row[0].equals("" + node)).map(row -> new String[] {row[1], row[row.length - 1]}).findFirst().orElseThrow();
    }

    static Output remove(int node, String directory) throws Exception {
        return tool("metadata-quorum", "remove-controller", "--controller-id", node, "--controller-directory-id", directory);
    }

    // A voter that does not lead is taken out, asked of a broker, and is put back, asked of the controllers.
    static void changeControllers(String addresses, String files) throws Exception {
        int node = BROKERS.stream().filter(id -> !isReplica(id, "Leader")).findFirst().get();
        String directory = replica(node)[0], file = files.formatted(node);
        remove(node, NOBODYS).failed().has("VoterNotFoundException");
        tool("metadata-quorum", "--command-config", file, "add-controller").failed().has("DuplicateVoterException");
        remove(node, directory).ok().has("Removed KRaft controller " + node + " with directory id " + directory);
        eventually("it observes", () -> isReplica(node, "Observer"));
        remove(node, directory).failed().has("VoterNotFoundException");
        String brokers = bootstrap;
        addressOption = "--bootstrap-controller";
        bootstrap = addresses;
        try {
            tool("metadata-quorum", "--command-config", file, "add-controller").ok().has("Added controller " + node + " with directory id " + directory);
            eventually("it votes", () -> isReplica(node, "Follower"));
        } finally {
            addressOption = "--bootstrap-server";
            bootstrap = brokers;
        }
        quorum();
    }

    static boolean isReplica(int node, String role) {
        try {
            return replica(node)[1].equals(role);
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    static Path plan(String topic, int partition, Integer... replicas) throws Exception {
        return Files.writeString(work.resolve("plan-" + topic + ".json"), "{\"version\":1,\"partitions\":[{\"topic\":\"" + topic
            + "\",\"partition\":" + partition + ",\"replicas\":[" + joined(replicas, ",") + "]}]}");
    }

    static void election() throws Exception {
        tool("topics", "--create", "--topic", "elected", "--replica-assignment", "1:2:3").ok();
        awaitRow("elected", 0, 1, 1, 2, 3);
        tool("leader-election", "--election-type", "preferred", "--topic", "elected", "--partition", 0).ok()
            .has("Valid replica already elected for partitions elected-0");
        // Another order copies nothing, and leaves the leader.
        tool("reassign-partitions", "--reassignment-json-file", plan("elected", 0, 2, 1, 3), "--execute").ok();
        awaitRow("elected", 0, 1, 2, 1, 3);
        tool("leader-election", "--election-type", "preferred", "--topic", "elected", "--partition", 0).ok()
            .has("Successfully completed leader election (PREFERRED) for partitions elected-0");
        awaitRow("elected", 0, 2, 2, 1, 3);
        tool("leader-election", "--election-type", "unclean", "--topic", "elected", "--partition", 0).ok()
            .has("Valid replica already elected for partitions elected-0");
        tool("leader-election", "--election-type", "preferred", "--all-topic-partitions").ok();
    }

    static void generate() throws Exception {
        Path topics = Files.writeString(work.resolve("topics.json"), "{\"version\":1,\"topics\":[{\"topic\":\"placed\"}]}");
        var shown = tool("reassign-partitions", "--topics-to-move-json-file", topics, "--broker-list", "1,3", "--generate").ok()
            .has("Current partition replica assignment", "Proposed partition reassignment configuration");
        String proposed = shown.lines().stream().filter(line -> line.startsWith("{")).reduce((a, b) -> b).get();
        check(!proposed.matches(".*\"replicas\":\\[[^\\]]*2.*"), proposed);
        Path file = Files.writeString(work.resolve("proposed.json"), proposed);
        tool("reassign-partitions", "--reassignment-json-file", file, "--execute").ok()
            .has("Successfully started partition reassignments for placed-0,placed-1,placed-2,placed-3");
        for (int partition = 0; partition < 4; partition++) awaitDone(file, "placed-" + partition);
        eventually("none is on 2", () -> !java.util.regex.Pattern.compile("Replicas: [\\d,]*2").matcher(describe("placed").text()).find());
    }

    static void awaitDone(Path plan, String partition) throws Exception {
        eventually(partition + " is moved", () -> tool("reassign-partitions", "--reassignment-json-file", plan, "--verify").ok()
            .text().contains("Reassignment of partition " + partition + " is completed."));
    }

    // With something in it, that the new replicas have in the end.
    static void execute() throws Exception {
        tool("topics", "--create", "--topic", "moved", "--replica-assignment", "1:2").ok();
        fill("moved", 4);
        Path file = plan("moved", 0, 2, 3);
        tool("reassign-partitions", "--reassignment-json-file", file, "--execute", "--throttle", 100_000_000).ok()
            .has("Successfully started partition reassignment", "moved-0", "The inter-broker throttle limit was set to 100000000 B/s");
        awaitDone(file, "moved-0");
        awaitRow("moved", 0, 2, 2, 3);
        tool("reassign-partitions", "--list").ok().has("No partition reassignments found.");
        for (int id : BROKERS) check(!ofBroker(id).contains("replication.throttled.rate=100000000"), "broker " + id + " has its throttle yet");
        same(List.of("moved:0:4"), tool("get-offsets", "--topic", "moved").ok().lines(), "offsets");
    }

    static void fill(String topic, int records) throws Exception {
        try (var producer = producer(Map.of("acks", "all", "max.request.size", 2_000_000))) {
            for (int n = 0; n < records; n++) producer.send(new ProducerRecord<>(topic, 0, null, new byte[1_000_000])).get();
        }
    }

    static void cancel() throws Exception {
        tool("topics", "--create", "--topic", "slow", "--replica-assignment", "1:2").ok();
        fill("slow", 20);
        Path file = plan("slow", 0, 1, 3);
        tool("reassign-partitions", "--reassignment-json-file", file, "--execute", "--throttle", 1000).ok().has("slow-0");
        tool("reassign-partitions", "--list").ok().matches("slow-0: replicas: [123,]+\\.\\s+adding: 3\\.\\s+removing: 2\\.");
        tool("reassign-partitions", "--reassignment-json-file", file, "--verify", "--preserve-throttles").ok()
            .has("Reassignment of partition slow-0 is still in progress.");
        tool("reassign-partitions", "--reassignment-json-file", plan("slow", 0, 3, 2), "--execute").failed()
            .has("Cannot execute because there is an existing partition assignment.");
        tool("reassign-partitions", "--reassignment-json-file", plan("slow", 0, 1, 3), "--cancel").ok()
            .has("Successfully cancelled partition reassignment for: slow-0");
        awaitRow("slow", 0, 1, 1, 2);
        tool("reassign-partitions", "--list").ok().has("No partition reassignments found.");
        check(!ofBroker(1).contains("replication.throttled.rate=1000 "), "the throttle is there yet");
    }

    static void features() throws Exception {
        tool("features", "describe").ok().matches("Feature: transaction.version\\s+.*FinalizedVersionLevel: 2")
            .matches("Feature: group.version\\s+.*FinalizedVersionLevel: 1");
        tool("features", "downgrade", "--feature", "transaction.version=1").ok();
        eventually("it is lower", () -> java.util.regex.Pattern.compile("Feature: transaction.version\\s+.*FinalizedVersionLevel: 1")
            .matcher(tool("features", "describe").ok().text()).find());
        tool("features", "upgrade", "--feature", "transaction.version=2").ok();
        tool("features", "upgrade", "--feature", "transaction.version=9").failed().has("transaction.version");
        // Of voters that every node's file names, which come and go from then on; the nodes restart with their files.
        remove(3, NOBODYS).failed().has("UnsupportedVersionException");
        tool("features", "describe").ok().matches("Feature: kraft.version\\s+.*FinalizedVersionLevel: 0");
        tool("features", "upgrade", "--feature", "kraft.version=1", "--dry-run").ok().has("can be upgraded to 1");
        tool("features", "upgrade", "--feature", "kraft.version=2").failed().has("only supports versions 0-1");
        tool("features", "upgrade", "--feature", "kraft.version=1").ok();
        eventually("it is raised", () -> java.util.regex.Pattern.compile("Feature: kraft.version\\s+.*FinalizedVersionLevel: 1")
            .matcher(tool("features", "describe").ok().text()).find());
        tool("features", "downgrade", "--feature", "kraft.version=0").failed().has("Can't downgrade the version of this feature.");
    }

    static void delete() throws Exception {
        for (String topic : List.of("spread", "placed", "elected", "moved", "slow")) tool("topics", "--delete", "--topic", topic).ok();
        eventually("they are gone", () -> Collections.disjoint(tool("topics", "--list").ok().lines(), List.of("spread", "placed", "elected", "moved", "slow")));
        tool("topics", "--delete", "--topic", "spread").failed().has("does not exist");
    }

    // Numbers from 0 on in each partition: acknowledged by all in sync, read as they come, in the end each once and in order.
    static void load(Path directory) throws Exception {
        var assignment = Map.of(0, List.of(1, 2, 3), 1, List.of(2, 3, 1), 2, List.of(3, 1, 2));
        admin.createTopics(List.of(new NewTopic("through", assignment).configs(Map.of("min.insync.replicas", "2")))).all().get();
        var counts = new ConcurrentHashMap<Integer, Integer>();
        var read = CompletableFuture.supplyAsync(() -> follow(counts));
        var failures = new ConcurrentLinkedQueue<Exception>();
        var acknowledged = new AtomicInteger();
        int count = 0;
        try (var producer = producer(Map.of("acks", "all", "enable.idempotence", true, "delivery.timeout.ms", 120_000, "request.timeout.ms", 5000,
                "linger.ms", 1, "max.block.ms", 120_000))) {
            while (!Files.exists(directory.resolve("stop"))) {
                for (int partition = 0; partition < 3; partition++)
                    producer.send(new ProducerRecord<>("through", partition, null, bytes("" + count)), (metadata, error) -> {
                        if (error != null) failures.add(error);
                        else acknowledged.incrementAndGet();
                    });
                count++;
                if (acknowledged.get() > 0 && !Files.exists(directory.resolve("ready"))) Files.createFile(directory.resolve("ready"));
                Thread.sleep(5);
            }
        }
        check(failures.isEmpty(), failures.size() + " were refused, the first with " + failures.peek());
        same(3 * count, acknowledged.get(), "acknowledged");
        for (int partition = 0; partition < 3; partition++) counts.put(partition, count);
        read.get(60, TimeUnit.SECONDS);
    }

    // Ends when it has read as many of each partition as it is told.
    static Void follow(Map<Integer, Integer> counts) {
        int[] next = new int[3];
        try (var consumer = consumer(Map.of("request.timeout.ms", 5000))) {
            consumer.assign(IntStream.range(0, 3).mapToObj(partition -> new TopicPartition("through", partition)).toList());
            while (!IntStream.range(0, 3).allMatch(partition -> next[partition] >= counts.getOrDefault(partition, Integer.MAX_VALUE)))
                for (var record : consumer.poll(Duration.ofMillis(100))) {
                    int expected = next[record.partition()]++;
                    check(record.offset() == expected && new String(record.value()).equals("" + expected), "partition " + record.partition() + " has "
                        + new String(record.value()) + " at offset " + record.offset() + ", wanted " + expected);
                }
        }
        return null;
    }
}
