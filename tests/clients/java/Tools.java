// Kafka's own command-line tools, their main methods called one after the other in one JVM, which saves a start of a
// second for each. Arguments: the bootstrap address and the broker's data directory, whose files dump-log reads.

import java.io.*;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.time.*;
import java.util.*;
import java.util.regex.Pattern;
import java.util.stream.*;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.utils.internals.Exit;

public class Tools extends Frame {
    static final Map<String, String> CLASSES = Map.ofEntries(
        Map.entry("topics", "org.apache.kafka.tools.TopicCommand"),
        Map.entry("configs", "org.apache.kafka.tools.ConfigCommand"),
        Map.entry("console-producer", "org.apache.kafka.tools.ConsoleProducer"),
        Map.entry("console-consumer", "org.apache.kafka.tools.consumer.ConsoleConsumer"),
        Map.entry("consumer-groups", "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"),
        Map.entry("get-offsets", "org.apache.kafka.tools.GetOffsetShell"),
        Map.entry("log-dirs", "org.apache.kafka.tools.LogDirsCommand"),
        Map.entry("dump-log", "org.apache.kafka.tools.DumpLogSegments"),
        Map.entry("delete-records", "org.apache.kafka.tools.DeleteRecordsCommand"),
        Map.entry("transactions", "org.apache.kafka.tools.TransactionsCommand"),
        Map.entry("features", "org.apache.kafka.tools.FeatureCommand"),
        Map.entry("cluster", "org.apache.kafka.tools.ClusterTool"),
        Map.entry("api-versions", "org.apache.kafka.tools.BrokerApiVersionsCommand"),
        Map.entry("producer-perf", "org.apache.kafka.tools.ProducerPerformance"),
        Map.entry("consumer-perf", "org.apache.kafka.tools.ConsumerPerformance"),
        Map.entry("verifiable-producer", "org.apache.kafka.tools.VerifiableProducer"),
        Map.entry("verifiable-consumer", "org.apache.kafka.tools.VerifiableConsumer"),
        Map.entry("metadata-quorum", "org.apache.kafka.tools.MetadataQuorumCommand"),
        Map.entry("leader-election", "org.apache.kafka.tools.LeaderElectionCommand"),
        Map.entry("reassign-partitions", "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"));

    static final PrintStream terminal = System.out;
    static Path data, work;
    static String addressOption = "--bootstrap-server";

    public static void main(String[] arguments) throws Exception {
        connect(arguments[0]);
        data = Path.of(arguments[1]);
        keepRunning();
        scenario("topics", Tools::topics);
        scenario("console", Tools::console);
        scenario("console-formats", Tools::consoleFormats);
        scenario("configs", Tools::configs);
        scenario("quotas", Tools::quotas);
        scenario("get-offsets", Tools::getOffsets);
        scenario("consumer-groups-describe", Tools::describeGroups);
        scenario("consumer-groups-reset", Tools::resetGroups);
        scenario("consumer-groups-delete", Tools::deleteGroups);
        scenario("delete-records", Tools::deleteRecords);
        scenario("log-dirs", Tools::logDirs);
        scenario("transactions", Tools::transactions);
        scenario("transactions-ended", Tools::endTransactions);
        scenario("features", Tools::features);
        scenario("cluster", Tools::cluster);
        scenario("api-versions", Tools::apiVersions);
        scenario("producer-perf", Tools::producerPerformance);
        scenario("consumer-perf", Tools::consumerPerformance);
        scenario("verifiable", Tools::verifiable);
        scenario("leader-election", Tools::leaderElection);
        scenario("reassign-partitions", Tools::reassign);
        scenario("dump-log", Tools::dumpLog);
        scenario("dump-log-offsets", Tools::dumpOffsets);
        scenario("dump-log-transactions", Tools::dumpTransactions);
        scenario("delete-topic", Tools::deleteTopic);
        endTools();
    }

    // A tool's exit ends that tool alone.
    static void keepRunning() throws Exception {
        work = Files.createTempDirectory("tools");
        Exit.setExitProcedure(Tools::end);
        Exit.setHaltProcedure(Tools::end);
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
    }

    static void endTools() throws Exception {
        Streams.delete(work);
        Exit.resetExitProcedure();
        exit();
    }

    static class Ended extends Error {
        Ended(String message) {
            super(message, null, false, false);
        }
    }

    // What a tool does when its process ends.
    static final List<Runnable> hooks = new ArrayList<>();
    // The first counts: some tools catch what an exit throws here, and exit once more.
    static Integer exitCode;

    static void end(int code, String message) {
        if (exitCode == null) exitCode = code;
        throw new Ended(message);
    }

    record Output(int code, String text) {
        Output ok() {
            check(code == 0, "exit code " + code + ": " + text);
            return this;
        }

        Output failed() {
            check(code != 0, "it succeeded: " + text);
            return this;
        }

        Output has(String... words) {
            for (String word : words) check(text.contains(word), "no '" + word + "' in: " + text.trim());
            return this;
        }

        Output matches(String pattern) {
            check(Pattern.compile(pattern, Pattern.MULTILINE).matcher(text).find(), "no /" + pattern + "/ in: " + text.trim());
            return this;
        }

        List<String> lines() {
            return text.lines().toList();
        }
    }

    static Output tool(String name, Object... arguments) throws Exception {
        return tool(name, "", arguments);
    }

    // The commands of transactions, features and the quorum want the address in front of their own command.
    static Output tool(String name, String input, Object[] arguments) throws Exception {
        var all = new ArrayList<String>();
        for (Object argument : arguments) all.add("" + argument);
        boolean first = List.of("transactions", "features", "metadata-quorum").contains(name);
        if (!name.equals("dump-log")) all.addAll(first ? 0 : all.size(), List.of(addressOption, bootstrap));
        var out = new ByteArrayOutputStream();
        var stream = new PrintStream(out, true, StandardCharsets.UTF_8);
        var stdin = System.in;
        var stderr = System.err;
        System.setOut(stream);
        System.setErr(stream);
        System.setIn(new ByteArrayInputStream(input.getBytes(StandardCharsets.UTF_8)));
        exitCode = null;
        try {
            Class.forName(CLASSES.get(name)).getMethod("main", String[].class).invoke(null, (Object) all.toArray(String[]::new));
        } catch (InvocationTargetException error) {
            if (!(error.getCause() instanceof Ended ended)) throw error;
            if (ended.getMessage() != null) stream.println(ended.getMessage());
        } finally {
            hooks.forEach(Runnable::run);
            hooks.clear();
            System.setOut(terminal);
            System.setErr(stderr);
            System.setIn(stdin);
        }
        return new Output(exitCode == null ? 0 : exitCode, out.toString(StandardCharsets.UTF_8));
    }

    // In a process of its own: what some do at its end, they leave to the JVM.
    static Output process(String name, Object... arguments) throws Exception {
        var command = new ArrayList<String>(List.of(ProcessHandle.current().info().command().get(), "-XX:TieredStopAtLevel=1",
            "-cp", System.getProperty("java.class.path"), CLASSES.get(name), "--bootstrap-server", bootstrap));
        for (Object argument : arguments) command.add("" + argument);
        var process = new ProcessBuilder(command).redirectErrorStream(true).start();
        String text = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        return new Output(process.waitFor(), text);
    }

    static Output feed(String name, String input, Object... arguments) throws Exception {
        return tool(name, input, arguments);
    }

    static String numbers(int from, int to) {
        return IntStream.rangeClosed(from, to).mapToObj(n -> n + "\n").collect(Collectors.joining());
    }

    static void topics() throws Exception {
        tool("topics", "--create", "--topic", "tools", "--partitions", 2, "--config", "retention.ms=3600000").ok()
            .has("Created topic tools.");
        tool("topics", "--create", "--topic", "tools").failed().has("already exists");
        tool("topics", "--create", "--topic", "tools", "--if-not-exists").ok();
        tool("topics", "--create", "--topic", "more", "--replication-factor", brokers + 1).failed()
            .has("InvalidReplicationFactorException");
        eventually("it is listed", () -> tool("topics", "--list").ok().lines().contains("tools"));
        tool("topics", "--describe", "--topic", "tools").ok().has("PartitionCount: 2", "ReplicationFactor: " + brokers, "retention.ms=3600000")
            .matches("Partition: 1\\s+Leader: \\d\\s+Replicas: \\d(,\\d){%d}\\s+Isr: \\d".formatted(brokers - 1));
        tool("topics", "--alter", "--topic", "tools", "--partitions", 3).ok();
        tool("topics", "--alter", "--topic", "tools", "--partitions", 1).failed().has("InvalidPartitionsException");
        eventually("three partitions", () -> tool("topics", "--describe", "--topic", "tools").ok().text.contains("PartitionCount: 3"));
        for (String option : List.of("--under-replicated-partitions", "--unavailable-partitions", "--under-min-isr-partitions",
                "--at-min-isr-partitions")) {
            long wanted = option.startsWith("--at-min") && brokers == 1 ? 3 : 0;
            eventually(wanted + " for " + option, () -> wanted == tool("topics", "--describe", "--topic", "tools", option).ok()
                .lines().stream().filter(line -> line.contains("Partition: ")).count());
        }
        tool("topics", "--describe", "--topics-with-overrides").ok().has("Topic: tools");
        tool("topics", "--describe", "--topic", "nothing-of-this-name").failed().has("does not exist");
    }

    static void console() throws Exception {
        feed("console-producer", numbers(1, 100), "--topic", "tools", "--compression-codec", "zstd").ok();
        var got = tool("console-consumer", "--topic", "tools", "--from-beginning", "--max-messages", 100).ok();
        var found = got.lines().stream().filter(line -> line.matches("\\d+")).map(Integer::valueOf).sorted().toList();
        same(IntStream.rangeClosed(1, 100).boxed().toList(), found, "numbers");
    }

    static void consoleFormats() throws Exception {
        tool("topics", "--create", "--topic", "tools-formats", "--partitions", 1).ok();
        feed("console-producer", "h:1\tk1\tv1\nh:2,g:3\tk2\tv2\n", "--topic", "tools-formats", "--reader-property", "parse.key=true",
            "--reader-property", "parse.headers=true", "--command-property", "enable.idempotence=true").ok();
        var shown = new ArrayList<>(List.of("--topic", "tools-formats", "--max-messages", "1", "--formatter-property", "print.key=true",
            "--formatter-property", "print.headers=true", "--formatter-property", "print.offset=true", "--formatter-property",
            "print.partition=true", "--formatter-property", "print.timestamp=true", "--isolation-level", "read_committed"));
        shown.addAll(List.of("--partition", "0", "--offset", "1"));
        tool("console-consumer", shown.toArray()).ok()
            .matches("CreateTime:\\d+\\s+Partition:0\\s+Offset:1\\s+h:2,g:3\\s+k2\\s+v2");
        tool("console-consumer", "--topic", "tools-formats", "--from-beginning", "--timeout-ms", 2000).has("v1", "v2");
    }

    static void configs() throws Exception {
        tool("configs", "--alter", "--topic", "tools", "--add-config", "max.message.bytes=2000000,cleanup.policy=[compact,delete]").ok()
            .has("Completed updating config for topic tools.");
        eventually("it shows", () -> tool("configs", "--describe", "--topic", "tools").ok().text.contains("max.message.bytes=2000000"));
        tool("configs", "--describe", "--topic", "tools").ok().has("cleanup.policy=compact,delete", "retention.ms=3600000");
        tool("configs", "--alter", "--topic", "tools", "--delete-config", "max.message.bytes,cleanup.policy").ok();
        eventually("it is gone", () -> !tool("configs", "--describe", "--topic", "tools").ok().text.contains("max.message.bytes"));
        tool("configs", "--describe", "--topic", "tools", "--all").ok().has("max.message.bytes=1048588", "synonyms={DEFAULT_CONFIG:");
        tool("configs", "--alter", "--topic", "tools", "--add-config", "no.such.config=1").failed().has("Unknown topic config name");
        tool("configs", "--alter", "--topic", "tools", "--add-config", "retention.ms=soon").failed().has("Invalid value soon");
        tool("configs", "--describe", "--entity-type", "brokers", "--entity-name", 1, "--all").ok().has("log.dirs=", "num.partitions=1");
        tool("configs", "--alter", "--entity-type", "brokers", "--entity-default", "--add-config", "log.retention.ms=7200000").ok();
        eventually("the broker's default shows", () -> tool("configs", "--describe", "--entity-type", "brokers", "--entity-default").ok()
            .text.contains("log.retention.ms=7200000"));
        tool("configs", "--alter", "--entity-type", "brokers", "--entity-default", "--delete-config", "log.retention.ms").ok();
    }

    static long sum(Output offsets) {
        return offsets.ok().lines().stream().filter(line -> line.startsWith("tools:")).mapToLong(line -> Long.parseLong(line.split(":")[2])).sum();
    }

    static void quotas() throws Exception {
        alterQuota("--entity-type", "users", "--entity-name", "ann", "--add-config", "producer_byte_rate=1024,request_percentage=50");
        alterQuota("--entity-type", "users", "--entity-name", "ann", "--entity-type", "clients", "--entity-name", "c", "--add-config",
            "consumer_byte_rate=2048");
        alterQuota("--entity-type", "clients", "--entity-default", "--add-config", "controller_mutation_rate=0.5");
        alterQuota("--entity-type", "ips", "--entity-name", "10.1.2.3", "--add-config", "connection_creation_rate=7");
        eventually("they are there", () -> tool("configs", "--describe", "--entity-type", "users").ok().text.contains("ann"));
        tool("configs", "--describe", "--entity-type", "users").ok().has("Quota configs for user-principal 'ann' are", "producer_byte_rate=1024.0", "request_percentage=50.0");
        tool("configs", "--describe", "--entity-type", "users", "--entity-name", "ann").ok().has("producer_byte_rate=1024.0");
        tool("configs", "--describe", "--entity-type", "users", "--entity-name", "ann", "--entity-type", "clients").ok()
            .has("Quota configs for user-principal 'ann', client-id 'c' are consumer_byte_rate=2048.0");
        tool("configs", "--describe", "--entity-type", "clients", "--entity-default").ok()
            .has("Quota configs for the default client-id are controller_mutation_rate=0.5");
        tool("configs", "--describe", "--entity-type", "ips").ok()
            .has("Quota configs for ip '10.1.2.3' are connection_creation_rate=7.0");
        tool("configs", "--alter", "--entity-type", "users", "--entity-name", "ann", "--add-config", "producer_byte_rate=0").failed()
            .has("must be greater than 0");
        alterQuota("--entity-type", "users", "--entity-name", "ann", "--delete-config", "producer_byte_rate,request_percentage");
        alterQuota("--entity-type", "users", "--entity-name", "ann", "--entity-type", "clients", "--entity-name", "c", "--delete-config",
            "consumer_byte_rate");
        alterQuota("--entity-type", "clients", "--entity-default", "--delete-config", "controller_mutation_rate");
        alterQuota("--entity-type", "ips", "--entity-name", "10.1.2.3", "--delete-config", "connection_creation_rate");
        eventually("they are gone", () -> tool("configs", "--describe", "--entity-type", "users").ok().text.isBlank());
    }

    static void alterQuota(Object... arguments) throws Exception {
        var all = new ArrayList<Object>(List.of("--alter"));
        all.addAll(List.of(arguments));
        tool("configs", all.toArray()).ok().has("Completed updating");
    }

    static void getOffsets() throws Exception {
        same(100L, sum(tool("get-offsets", "--topic", "tools")), "ends");
        same(0L, sum(tool("get-offsets", "--topic", "tools", "--time", "earliest")), "starts");
        same(0L, sum(tool("get-offsets", "--topic", "tools", "--time", "1")), "first at or after a time");
        tool("get-offsets", "--topic-partitions", "tools:0-3", "--time", "max-timestamp").ok().matches("^tools:\\d:\\d+$");
        same(0L, sum(tool("get-offsets", "--topic", "tools", "--time", System.currentTimeMillis() + 3_600_000)), "behind the last");
        tool("get-offsets", "--topic", "tools", "--partitions", "1", "--exclude-internal-topics", "--time", "latest").ok().matches("^tools:1:\\d+$");
    }

    static void describeGroups() throws Exception {
        tool("console-consumer", "--topic", "tools", "--group", "tools-group", "--from-beginning", "--max-messages", 100).ok();
        tool("consumer-groups", "--list").ok().has("tools-group");
        tool("consumer-groups", "--list", "--state").ok().matches("tools-group\\s+\\S*\\s*Empty");
        tool("consumer-groups", "--describe", "--group", "tools-group").ok().has("no active members")
            .matches("tools-group\\s+tools\\s+0\\s+(\\d+)\\s+\\1\\s+0\\s");
        try (var member = consumer(Map.of("group.id", "tools-active", "client.id", "tools-member"))) {
            member.subscribe(List.of("tools"));
            await(3, member);
            tool("consumer-groups", "--describe", "--group", "tools-active", "--members", "--verbose").ok().has("tools-member")
                .matches("tools[:(]0[,-]");
            tool("consumer-groups", "--describe", "--group", "tools-active", "--state").ok().has("Stable", "range");
            tool("consumer-groups", "--describe", "--all-groups").ok().has("tools-group", "tools-active");
            tool("consumer-groups", "--delete", "--group", "tools-active").has("GroupNotEmptyException");
            tool("consumer-groups", "--reset-offsets", "--group", "tools-active", "--topic", "tools", "--to-earliest", "--execute")
                .has("inactive");
        }
        tool("consumer-groups", "--describe", "--group", "nothing-of-this-name").has("Group nothing-of-this-name not found.");
    }

    // By --execute, told by what the tool prints and by what is committed.
    static void reset(String wanted, String... how) throws Exception {
        var arguments = new ArrayList<Object>(List.of("--reset-offsets", "--group", "tools-reset", "--execute"));
        if (!how[0].equals("--from-file")) arguments.addAll(List.of("--topic", "tools-reset:0"));
        arguments.addAll(List.of(how));
        tool("consumer-groups", arguments.toArray()).ok().matches("tools-reset\\s+tools-reset\\s+0\\s+" + wanted + "\\b");
        var found = admin.listConsumerGroupOffsets("tools-reset").partitionsToOffsetAndMetadata().get();
        same(Long.valueOf(wanted), found.get(new TopicPartition("tools-reset", 0)).offset(), String.join(" ", how));
    }

    static void resetGroups() throws Exception {
        tool("topics", "--create", "--topic", "tools-reset", "--partitions", 1, "--config", "retention.ms=-1").ok();
        try (var producer = producer(Map.of())) {
            for (int day = 1; day <= 10; day++) {
                long time = Instant.parse("2020-01-%02dT00:00:00Z".formatted(day)).toEpochMilli();
                producer.send(new ProducerRecord<>("tools-reset", 0, time, null, bytes("v"))).get();
            }
        }
        var partition = new TopicPartition("tools-reset", 0);
        admin.alterConsumerGroupOffsets("tools-reset", Map.of(partition, new OffsetAndMetadata(5))).all().get();
        tool("consumer-groups", "--reset-offsets", "--group", "tools-reset", "--topic", "tools-reset", "--to-earliest", "--dry-run").ok();
        reset("5", "--to-current");
        reset("0", "--to-earliest");
        reset("10", "--to-latest");
        reset("3", "--to-offset", "3");
        reset("10", "--to-offset", "3000");
        reset("6", "--shift-by", "-4");
        reset("8", "--shift-by", "2");
        reset("4", "--to-datetime", "2020-01-05T00:00:00.000");
        long days = Duration.between(Instant.parse("2020-01-08T00:00:00Z"), Instant.now()).toDays();
        reset("7", "--by-duration", "P" + (days + 1) + "DT0H0M0S");
        String plan = tool("consumer-groups", "--reset-offsets", "--group", "tools-reset", "--topic", "tools-reset", "--to-offset", "2",
            "--export", "--dry-run").ok().lines().stream().filter(line -> line.matches("\"?tools-reset\"?,0,2")).findFirst().get();
        Path file = Files.writeString(work.resolve("plan.csv"), plan + "\n");
        reset("2", "--from-file", file.toString());
    }

    static void deleteGroups() throws Exception {
        tool("consumer-groups", "--delete-offsets", "--group", "tools-reset", "--topic", "tools-reset").ok().has("Successful");
        tool("consumer-groups", "--delete", "--group", "tools-group").ok().has("successful");
        tool("consumer-groups", "--delete", "--group", "tools-group").has("GroupIdNotFoundException");
        check(!tool("consumer-groups", "--list").ok().lines().contains("tools-group"), "it is listed");
    }

    static void deleteRecords() throws Exception {
        Path file = Files.writeString(work.resolve("offsets.json"),
            "{\"partitions\":[{\"topic\":\"tools-reset\",\"partition\":0,\"offset\":4}],\"version\":1}");
        tool("delete-records", "--offset-json-file", file).ok().has("low_watermark: 4");
        tool("get-offsets", "--topic", "tools-reset", "--time", "earliest").ok().has("tools-reset:0:4");
        Files.writeString(file, "{\"partitions\":[{\"topic\":\"tools-reset\",\"partition\":0,\"offset\":400}],\"version\":1}");
        tool("delete-records", "--offset-json-file", file).has("OffsetOutOfRangeException");
    }

    static void logDirs() throws Exception {
        tool("log-dirs", "--describe", "--topic-list", "tools").ok().has("\"partition\":\"tools-0\"", "\"isFuture\":false")
            .matches("\"size\":[1-9]");
        tool("log-dirs", "--describe", "--broker-list", "1").ok().has("\"broker\":1", "\"error\":null");
    }

    static void transactions() throws Exception {
        tool("topics", "--create", "--topic", "tools-txn", "--partitions", 1).ok();
        try (var producer = producer(Map.of("transactional.id", "tools-txn", "transaction.timeout.ms", 50_000))) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>("tools-txn", 0, null, bytes("v"))).get();
            tool("transactions", "list").ok().matches("tools-txn\\s+\\d+\\s+\\d+\\s+Ongoing");
            tool("transactions", "describe", "--transactional-id", "tools-txn").ok().has("Ongoing", "50000", "tools-txn-0");
            tool("transactions", "describe-producers", "--topic", "tools-txn", "--partition", 0).ok()
                .matches("^\\d+\\s+0\\s+-?\\d+\\s+0\\s+\\d+\\s+0");
            tool("transactions", "find-hanging", "--broker-id", 1).ok();
            producer.commitTransaction();
        }
        eventually("it is complete", () -> tool("transactions", "describe", "--transactional-id", "tools-txn").ok().text.contains("CompleteCommit"));
    }

    // A transaction that its producer does not end; returns where it began.
    static long hang(Producer<byte[], byte[]> producer) throws Exception {
        producer.initTransactions();
        producer.beginTransaction();
        return producer.send(new ProducerRecord<>("tools-hanging", 0, null, bytes("v"))).get().offset();
    }

    static void endTransactions() throws Exception {
        tool("topics", "--create", "--topic", "tools-hanging", "--partitions", 1).ok();
        try (var producer = producer(Map.of("transactional.id", "tools-ended"))) {
            hang(producer);
            tool("transactions", "forceTerminateTransaction", "--transactionalId", "tools-ended").ok();
            eventually("it is aborted", () -> Pattern.compile("Empty|CompleteAbort").matcher(tool("transactions", "describe",
                "--transactional-id", "tools-ended").ok().text).find());
        }
        try (var producer = producer(Map.of("transactional.id", "tools-aborted"))) {
            long start = hang(producer);
            tool("transactions", "abort", "--topic", "tools-hanging", "--partition", 0, "--start-offset", start).ok();
            eventually("nothing is open there", () -> tool("transactions", "describe-producers", "--topic", "tools-hanging", "--partition", 0).ok()
                .lines().stream().skip(1).allMatch(line -> line.stripTrailing().endsWith("None")));
        }
    }

    static void features() throws Exception {
        tool("features", "describe").ok().matches("Feature: transaction.version\\s+.*FinalizedVersionLevel: 2")
            .matches("Feature: group.version\\s+.*FinalizedVersionLevel: 1");
        tool("features", "downgrade", "--feature", "transaction.version=1", "--dry-run").ok().has("transaction.version can be downgraded to 1");
        tool("features", "upgrade", "--feature", "transaction.version=9", "--dry-run").failed().has("transaction.version");
        tool("features", "disable", "--feature", "no.such.feature", "--dry-run").failed().has("no.such.feature");
    }

    static void cluster() throws Exception {
        tool("cluster", "cluster-id").ok().matches("Cluster ID: \\S{22}");
        tool("cluster", "list-endpoints").ok().has("127.0.0.1", bootstrap.split("[:,]")[1]);
        tool("cluster", "unregister", "--id", 99).failed().has("Broker ID 99 is not currently registered");
    }

    static void apiVersions() throws Exception {
        tool("api-versions").ok().has("(id: 1 rack: null", "Produce(0): 0 to", "Fetch(1): 4 to", "ApiVersions(18): 0 to");
    }

    static void producerPerformance() throws Exception {
        tool("producer-perf", "--topic", "tools", "--num-records", 5000, "--record-size", 500, "--throughput", -1).ok()
            .has("5000 records sent", "99th");
        tool("producer-perf", "--topic", "tools", "--num-records", 500, "--record-size", 500, "--throughput", -1, "--transactional-id",
            "tools-perf", "--transaction-duration-ms", 100).ok().has("500 records sent");
    }

    static void consumerPerformance() throws Exception {
        var shown = tool("consumer-perf", "--topic", "tools", "--num-records", 5000, "--timeout", 20_000);
        shown.has("MB.sec").matches("\\d{4}-\\d\\d-\\d\\d .*, \\d+");
    }

    static void verifiable() throws Exception {
        tool("topics", "--create", "--topic", "tools-verifiable", "--partitions", 2).ok();
        process("verifiable-producer", "--topic", "tools-verifiable", "--max-messages", 500).has("producer_send_success", "\"acked\":500");
        process("verifiable-consumer", "--topic", "tools-verifiable", "--group-id", "tools-verifiable", "--max-messages", 500, "--reset-policy",
            "earliest").has("partitions_assigned", "records_consumed", "offsets_committed", "\"success\":true");
    }

    static void leaderElection() throws Exception {
        tool("leader-election", "--election-type", "preferred", "--topic", "tools", "--partition", 0).ok()
            .has("Valid replica already elected for partitions tools-0");
        tool("leader-election", "--election-type", "unclean", "--topic", "tools", "--partition", 0).ok()
            .has("Valid replica already elected for partitions tools-0");
        tool("leader-election", "--election-type", "preferred", "--all-topic-partitions").ok();
        tool("leader-election", "--election-type", "preferred", "--topic", "nothing", "--partition", 0).failed()
            .has("UnknownTopicOrPartition");
    }

    static void reassign() throws Exception {
        Path topics = Files.writeString(work.resolve("move.json"), "{\"topics\":[{\"topic\":\"tools\"}],\"version\":1}");
        String all = IntStream.rangeClosed(1, brokers).mapToObj(id -> "" + id).collect(Collectors.joining(","));
        String plan = tool("reassign-partitions", "--topics-to-move-json-file", topics, "--broker-list", all, "--generate").ok()
            .has("Proposed partition reassignment configuration").lines().stream().filter(line -> line.startsWith("{")).reduce((a, b) -> b).get();
        Path file = Files.writeString(work.resolve("plan.json"), plan);
        tool("reassign-partitions", "--reassignment-json-file", file, "--execute").ok().has("Successfully started partition reassignments for tools-0");
        eventually("it is completed", () -> tool("reassign-partitions", "--reassignment-json-file", file, "--verify").ok().text
            .contains("Reassignment of partition tools-0 is completed"));
        tool("reassign-partitions", "--list").ok().has("No partition reassignments found.");
        tool("reassign-partitions", "--reassignment-json-file", file, "--cancel").ok();
        Path elsewhere = Files.writeString(work.resolve("elsewhere.json"),
            "{\"version\":1,\"partitions\":[{\"topic\":\"tools\",\"partition\":0,\"replicas\":[9]}]}");
        tool("reassign-partitions", "--reassignment-json-file", elsewhere, "--execute").failed().has("9");
    }

    static Path partition(String name, Pattern files) throws Exception {
        try (var found = Files.list(data.resolve(name))) {
            return found.filter(path -> files.matcher(path.getFileName().toString()).matches()).sorted().findFirst().get();
        }
    }

    // Of several segments, with records of known keys and values.
    static void dumpLog() throws Exception {
        tool("topics", "--create", "--topic", "tools-dump", "--partitions", 1, "--config", "segment.bytes=1048576", "--config",
            "index.interval.bytes=4096").ok();
        try (var producer = producer(Map.of("compression.type", "lz4", "batch.size", 8000))) {
            for (int n = 0; n < 30_000; n++) {
                byte[] value = new byte[100];
                new Random(n).nextBytes(value);
                producer.send(new ProducerRecord<>("tools-dump", 0, bytes("key-" + n), value));
            }
        }
        Path log = partition("tools-dump-0", Pattern.compile("0{20}\\.log"));
        tool("dump-log", "--files", log, "--print-data-log").ok().has("Log starting offset: 0", "key: key-0 payload", "compresscodec: lz4", "isvalid: true");
        tool("dump-log", "--files", log, "--deep-iteration", "--max-message-size", 10_000_000).ok().has("baseOffset: 0");
        String index = log.toString().replace(".log", ".index");
        tool("dump-log", "--files", index, "--index-sanity-check").ok().has("passed sanity check.");
        var verified = tool("dump-log", "--files", index, "--verify-index-only").ok();
        check(!verified.text.contains("mismatch") && !verified.text.contains("Non-consecutive"), verified.text);
        verified = tool("dump-log", "--files", log.toString().replace(".log", ".timeindex"), "--verify-index-only").ok();
        check(!verified.text.contains("mismatch") && !verified.text.contains("out of order"), verified.text);
        tool("dump-log", "--files", index).ok().matches("^offset: \\d+ position: \\d+");
    }

    // Which partition of an internal topic has records.
    static Output decoded(String topic, String option, String word) throws Exception {
        try (var partitions = Files.list(data)) {
            for (Path partition : partitions.filter(path -> path.getFileName().toString().startsWith(topic + "-")).sorted().toList()) {
                try (var logs = Files.list(partition)) {
                    for (Path log : logs.filter(path -> path.toString().endsWith(".log") && path.toFile().length() > 0).toList()) {
                        var shown = tool("dump-log", "--files", log, option).ok();
                        if (shown.text.contains(word)) return shown;
                    }
                }
            }
        }
        throw new AssertionError("no partition of " + topic + " has " + word);
    }

    static void dumpOffsets() throws Exception {
        decoded("__consumer_offsets", "--offsets-decoder", "tools-verifiable").matches("\"offset\":\\d+");
    }

    static void dumpTransactions() throws Exception {
        decoded("__transaction_state", "--transaction-log-decoder", "tools-txn").has("CompleteCommit");
    }

    static void deleteTopic() throws Exception {
        tool("topics", "--delete", "--topic", "tools").ok();
        eventually("it is gone", () -> !tool("topics", "--list").ok().lines().contains("tools"));
        tool("topics", "--delete", "--topic", "tools").failed().has("does not exist");
        tool("topics", "--delete", "--topic", "tools", "--if-exists").ok();
    }
}
