"""The loads, named like OpenMessaging Benchmark's: what is declared here is what is run and what the page says."""

from __future__ import annotations

from dataclasses import dataclass, field

BROKERS = ("kuring", "kafka")
ALL = ("kuring", "kafka", "limit")
MIB = 1 << 20

# The file pattern of the bare sink: files of 256 MiB, all but the last two unlinked at once.
ROLLING = {"segment.bytes": str(256 * MIB), "retention.bytes": str(512 * MIB), "file.delete.delay.ms": "0"}
# All connections stay on the first of two shards.
CROSSING = {"kuring.shards": "2", "kuring.connection.shards": "0", "kuring.connection.moves": "false"}
REPLICATED_TOPIC = ROLLING | {"min.insync.replicas": "2"}
KEEPING = {"segment.bytes": str(256 * MIB), "file.delete.delay.ms": "0"}


@dataclass(frozen=True)
class Workload:
    name: str
    # The function of kinds.py that runs it.
    kind: str
    about: str
    partitions: int = 1
    record_bytes: int = 1024
    # Further arguments of `kuring perf`.
    arguments: tuple[str, ...] = ()
    rate: int | None = None
    topic: dict[str, str] = field(default_factory=lambda: dict(ROLLING))
    peers: tuple[str, ...] = ALL
    # Properties of one peer's process; other than before, it is started anew.
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    # Topic settings of one peer only.
    topic_of: dict[str, dict[str, str]] = field(default_factory=dict)
    in_smoke: bool = False
    # More than one: a cluster, each partition on every node of it.
    nodes: int = 1

    def topic_settings(self, peer: str) -> dict[str, str]:
        return self.topic | self.topic_of.get(kind_of(peer), {})

    def settings_of(self, peer: str) -> dict[str, str]:
        return self.settings.get(kind_of(peer), {})


def kind_of(peer: str) -> str:
    """Another build, or another mode, of a peer gets the same settings."""
    return peer.split("-")[0]


def produce(name: str, about: str, **more) -> Workload:
    return Workload(name, "produce", about, **more)


BASE = produce("1-topic-1-partition-1kb", "Produce as fast as the broker takes it: one connection, batches of 64 KiB, acks=all.",
               peers=ALL + ("limit-preallocating",), in_smoke=True)

REPLICATED = produce("replicated-1kb",
                     "Three nodes on all processors, two partitions led by each, three replicas of each: as fast as two in sync take it, acks=all. "
                     "Processor time is that of all nodes, for each GB that was produced.", partitions=6, topic=REPLICATED_TOPIC, peers=BROKERS, nodes=3)

WORKLOADS = (
    BASE,
    produce("1-topic-1-partition-100b", "As fast as the broker takes it, records of 100 bytes in batches of 64 KiB.", record_bytes=100),
    produce("1-topic-1-partition-64kb", "As fast as the broker takes it, records of 64 KiB, each a batch.", record_bytes=64 << 10),
    produce("1-topic-100-partitions-1kb", "As fast as the broker takes it, over 100 partitions.", partitions=100),
    produce("1-topic-1000-partitions-1kb", "As fast as the broker takes it, over 1,000 partitions.", partitions=1000),
    produce("1-topic-1-partition-1kb-acks-0", "As fast as the broker takes it, acks=0.", arguments=("--acks", "0")),
    produce("1-topic-1-partition-1kb-acks-1", "As fast as the broker takes it, acks=1.", arguments=("--acks", "1")),
    produce("1-topic-1-partition-1kb-idempotent", "As fast as the broker takes it, with producer ids and sequences.", arguments=("--idempotent",)),
    produce("1-topic-1-partition-1kb-transactional", "As fast as the broker takes it, in transactions of 100 ms.",
            arguments=("--transactional", "--transaction-duration", "100"), peers=BROKERS, in_smoke=True),
    produce("1-topic-1-partition-1kb-lz4", "As fast as the broker takes it, compressed with lz4; bytes are those before compression.",
            arguments=("--compression", "lz4")),
    Workload("1-topic-1-partition-1kb-lone", "paced", "1,000 requests per second, each a record alone, acks=1.",
             arguments=("--acks", "1", "--batch-size", "1"), rate=1000, in_smoke=True),
    Workload("1-topic-100-partitions-100b-1000-connections", "produce",
             "1,000 connections, each with one request of one record of 100 bytes in flight, acks=1.", partitions=100,
             record_bytes=100, arguments=("--connections", "1000", "--in-flight", "1", "--batch-size", "1", "--acks", "1")),
    Workload("1-topic-1-partition-1kb-catch-up", "consume", "One reader of what is in the page cache, answers of 1 MiB.",
             topic=KEEPING, in_smoke=True),
    Workload("1-topic-50-partitions-1kb-small-ranges", "small_ranges", "Fetches at the tail that are answered with 50 ranges of 1 KiB.",
             partitions=50, record_bytes=950, arguments=("--partition-bytes", "1100"), topic=KEEPING),
    Workload("1-topic-1-partition-1kb-tail", "paced_end_to_end", "A reader at the tail of 50,000 records per second.",
             arguments=("--linger", "1"), rate=50_000),
    Workload("1-topic-100-partitions-1kb-tail", "paced_end_to_end", "A reader at the tail of 50,000 records per second over 100 partitions.", partitions=100,
             arguments=("--linger", "1"), rate=50_000),
    Workload("1-topic-1-partition-1kb-fan-out-10", "paced_end_to_end", "Ten readers, each of all of 10,000 records per second.",
             arguments=("--linger", "1", "--fan-out", "10"), rate=10_000),
    Workload("1-topic-1-partition-1kb-rate-500", "paced_end_to_end", "From the scheduled send to the reader, 500 records per second.",
             rate=500),
    Workload("1-topic-1-partition-1kb-rate-2000", "paced_end_to_end", "From the scheduled send to the reader, 2,000 records per second.", rate=2000,
             in_smoke=True),
    Workload("1-topic-1-partition-1kb-rate-10000", "paced_end_to_end", "From the scheduled send to the reader, 10,000 records per second.", rate=10_000),
    Workload("1-topic-4-partitions-1kb-catch-up-cached-beside-producer", "beside_reader",
             "A producer of 5,000 records per second beside a reader of what is in the page cache.", partitions=4,
             rate=5000, topic=KEEPING, peers=BROKERS),
    Workload("1-topic-4-partitions-1kb-catch-up-cold-beside-producer", "beside_cold_reader",
             "A producer of 5,000 records per second beside a reader of what is only on the disk.", partitions=4, rate=5000, topic=KEEPING, peers=BROKERS),
    Workload("1-topic-1-partition-1kb-librdkafka-produce", "librdkafka_produce",
             "librdkafka's producer (linger.ms=5, acks=all), as fast as it goes: an independent check.",
             arguments=("linger.ms=5", "acks=all"), in_smoke=True),
    Workload("1-topic-1-partition-1kb-librdkafka-consume", "librdkafka_consume",
             "librdkafka's consumer at its defaults, from the page cache.", topic=KEEPING),
    Workload("1-topic-1-partition-1kb-fsync", "produce", "As fast as the broker takes it, every answer waits for the disk (fsync).", arguments=("--in-flight", "50"),
             settings={"kuring": {"kuring.durability": "fsync"}},
             topic_of={"kafka": {"flush.messages": "1"}, "limit": {"flush.messages": "1"}}),
    Workload("1-topic-1-partition-1kb-one-shard", "on_shard",
             "Connection and partition on the same shard of two: what the next is compared with.", peers=("kuring",),
             settings={"kuring": CROSSING}),
    Workload("1-topic-1-partition-1kb-crossing-shards", "across_shards",
             "Every batch goes from the connection's shard to the partition's.", peers=("kuring",),
             settings={"kuring": CROSSING}),
    REPLICATED,
    Workload("replicated-1kb-rate-2000", "paced_end_to_end",
             "The same three nodes: from the scheduled send over the followers to the reader, 2,000 records per second in small batches.", partitions=6,
             rate=2000, topic=REPLICATED_TOPIC, peers=BROKERS, nodes=3),
    Workload("memory", "memory",
             "A new process: resident memory idle, then with 1,000 partitions and 1,000 connections at 20,000 records per second.",
             partitions=1000, rate=20_000, arguments=("--connections", "1000"), peers=BROKERS),
    Workload("start", "start", "From the start of the process to the first record that it has taken, and its end by SIGTERM.",
             peers=BROKERS, in_smoke=True),
    Workload("100000-partitions-idle", "idle_partitions", "A start with 100,000 partitions, and the memory that they take.",
             partitions=100_000, peers=("kuring",)),
    Workload("recovery", "recovery", "perf/restart: 10,000 partitions of 50 GiB, kill -9.", peers=("kuring",)),
    Workload("sustained-4x-memory", "sustained",
             "Produce of 4 times the memory limit of a control group, beside compaction and a cold reader.", peers=BROKERS,
             topic=KEEPING, settings={"kuring": {"log.cleaner.backoff.ms": "1000"}, "kafka": {"log.cleaner.backoff.ms": "1000"}}),
)
