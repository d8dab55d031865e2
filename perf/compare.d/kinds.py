"""How each kind of workload is run on a peer. Each function runs it once and returns what it measured; what is
made for it is removed again, but for what stays for the next round (`Stored`)."""

from __future__ import annotations

import base64
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace

import machine
from load import LoadFailed, Measurement, Tools, side
from peers import Peer
from probe import Probe
from workloads import Workload

HERE = os.path.dirname(os.path.abspath(__file__))
STARTS = 5
START_SECONDS_MAX = 120
IDLE_SECONDS = 3


@dataclass
class Amounts:
    """How long and how much: smaller in the smoke run."""

    seconds: float = 10.0
    produce_bytes_max: int = 8 << 30
    stored_bytes: int = 2 << 30
    # 200 for each of 50 partitions: all of them at the tail, where a broker knows its last appends.
    small_batches: int = 10_000
    memory_limit_bytes: int = 2 << 30
    idle_partitions: int = 100_000
    starts: int = STARTS

    def scaled(self, scale: float) -> "Amounts":
        less = lambda amount: max(int(amount * scale), 1)
        return replace(self, produce_bytes_max=less(self.produce_bytes_max), stored_bytes=less(self.stored_bytes),
                       small_batches=less(self.small_batches), memory_limit_bytes=less(self.memory_limit_bytes),
                       idle_partitions=less(self.idle_partitions))


@dataclass
class Run:
    """One workload on one peer; lives over its rounds, and so does what `stored` names."""

    tools: Tools
    peer: Peer
    workload: Workload
    amounts: Amounts
    stored: str | None = None
    turn: int = 0

    def measure(self) -> Measurement:
        self.turn += 1
        return globals()[self.workload.kind](self)

    def finish(self) -> None:
        if self.stored:
            self.tools.delete(self.peer, self.stored)
            self.stored = None

    def topic(self) -> str:
        """A new topic for this turn."""
        name = f"{self.workload.kind.replace('_', '-')}-{self.turn}"
        self.tools.delete(self.peer, name)
        self.tools.create(self.peer, name, self.workload.partitions, self.workload.topic_settings(self.peer.name))
        return name

    def store(self, records: int, *arguments: str) -> str:
        """A topic that holds `records`, the same over all rounds."""
        if self.stored is None:
            name = f"stored-{self.workload.kind.replace('_', '-')}"
            self.tools.delete(self.peer, name)
            self.tools.create(self.peer, name, self.workload.partitions, self.workload.topic_settings(self.peer.name))
            self.stored = name
            self.tools.perf(self.peer, "produce", "--topic", name, "--threads", "1", "--records", str(records),
                            "--record-size", str(self.workload.record_bytes), *arguments)
        return self.stored

    def common(self, topic: str) -> list[str]:
        return ["--topic", topic, "--partitions", str(self.workload.partitions), *self.workload.arguments]

    @property
    def seconds(self) -> str:
        return str(self.amounts.seconds)

    @property
    def threads(self) -> str:
        return str(min(len(self.tools.cpus), self.workload.partitions))


def produce(run: Run) -> Measurement:
    topic = run.topic()
    try:
        most = run.amounts.produce_bytes_max // run.workload.record_bytes
        return run.tools.perf(run.peer, "produce", *run.common(topic), "--threads", run.threads, "--duration", run.seconds,
                              "--records", str(most), "--record-size", str(run.workload.record_bytes))
    finally:
        run.tools.delete(run.peer, topic)


def paced(run: Run) -> Measurement:
    topic = run.topic()
    try:
        return run.tools.perf(run.peer, "produce", *run.common(topic), "--threads", "1", "--duration", run.seconds, "--rate",
                              str(run.workload.rate), "--record-size", str(run.workload.record_bytes))
    finally:
        run.tools.delete(run.peer, topic)


def paced_end_to_end(run: Run) -> Measurement:
    topic = run.topic()
    arguments = ["end-to-end", *run.common(topic), "--threads", "1", "--rate", str(run.workload.rate), "--record-size",
                 str(run.workload.record_bytes)]
    try:
        # Connections, files and the first fetches of a topic are not what is measured.
        run.tools.perf(run.peer, *arguments, "--duration", str(min(1.0, run.amounts.seconds)))
        return run.tools.perf(run.peer, *arguments, "--duration", run.seconds)
    finally:
        run.tools.delete(run.peer, topic)


def consume(run: Run) -> Measurement:
    topic = run.store(run.amounts.stored_bytes // run.workload.record_bytes)
    return run.tools.perf(run.peer, "consume", *run.common(topic), "--threads", run.threads, "--duration", run.seconds)


def small_ranges(run: Run) -> Measurement:
    topic = run.store(run.amounts.small_batches, "--batch-size", "1", "--in-flight", "20")
    return run.tools.perf(run.peer, "consume", *run.common(topic), "--threads", "1", "--duration", run.seconds)


def beside_reader(run: Run, cold: bool = False) -> Measurement:
    old = run.store(run.amounts.stored_bytes // run.workload.record_bytes)
    topic = run.topic()
    segments = run.peer.segments(old)
    produce = ["produce", "--topic", topic, "--threads", "1", "--rate", str(run.workload.rate), "--duration", run.seconds]
    if cold:
        machine.drop_cache(segments)
    share = machine.cached_share(segments)
    reading = ["consume", "--topic", old, "--threads", "1", "--duration", str(run.amounts.seconds + 1)]
    # Once to the end, so that the cold reader does not become a cached one; the cached one begins again.
    if cold:
        reading = reading[:-2]
    try:
        with run.tools.begin_perf(run.peer, *reading) as reader:
            measured = run.tools.perf(run.peer, *produce)
            over = reader.is_over()
            if not over:
                reader.interrupt()
            read = side(reader.report()["consumed"])
        measured.beside_another = True
        measured.extra["reader MB/s"] = read.mb_per_second
        measured.extra["reader was over early"] = float(cold and over)
        if share is not None:
            measured.extra["cached % before"] = 100 * share
        return measured
    finally:
        run.tools.delete(run.peer, topic)


def beside_cold_reader(run: Run) -> Measurement:
    return beside_reader(run, cold=True)


def librdkafka_produce(run: Run) -> Measurement:
    topic = run.topic()
    try:
        most = run.amounts.produce_bytes_max // run.workload.record_bytes
        return run.tools.librdkafka(run.peer, "produce", topic, str(most), run.seconds, str(run.workload.record_bytes),
                                    *run.workload.arguments)
    finally:
        run.tools.delete(run.peer, topic)


def librdkafka_consume(run: Run) -> Measurement:
    records = run.amounts.stored_bytes // run.workload.record_bytes
    topic = run.store(records)
    return run.tools.librdkafka(run.peer, "consume", topic, str(records), run.seconds, str(run.workload.record_bytes))


def on_shard(run: Run) -> Measurement:
    return produce_to_shard(run, 0)


def across_shards(run: Run) -> Measurement:
    return produce_to_shard(run, 1)


def produce_to_shard(run: Run, wanted: int) -> Measurement:
    """Connections are all on shard 0; the partition's shard follows from the topic's id (docs/decisions/0001)."""
    for _ in range(30):
        topic = run.topic()
        described = run.tools.topic(run.peer, "describe", topic)
        found = re.search(r": id ([\w-]{22}),", described)
        if not found:
            raise LoadFailed(f"no topic id in {described!r}")
        number = base64.urlsafe_b64decode(found.group(1) + "==")
        slot = (int.from_bytes(number[:8], "big") ^ int.from_bytes(number[8:], "big")) % 3
        if (slot + 1) // 2 == wanted:
            try:
                most = run.amounts.produce_bytes_max // run.workload.record_bytes
                return run.tools.perf(run.peer, "produce", *run.common(topic), "--threads", "1", "--duration", run.seconds,
                                      "--records", str(most))
            finally:
                run.tools.delete(run.peer, topic)
    raise LoadFailed(f"no topic of 30 came to shard {wanted}")


def restart(peer: Peer) -> None:
    """A new process on an empty directory."""
    peer.remove()
    peer.start()


def memory(run: Run) -> Measurement:
    restart(run.peer)
    time.sleep(IDLE_SECONDS)
    idle = run.peer.resident_mib()
    measured = paced_end_to_end(run)
    measured.extra |= {"idle MiB": idle, "loaded MiB": measured.peak_mib}
    return measured


def start(run: Run) -> Measurement:
    """On an empty directory until it is ready, then with a topic until the first record."""
    peer = run.peer
    peer.remove()
    peer.prepare()
    empty = until(peer, lambda probe: probe.answers())
    run.tools.create(peer, "first", 1, {})
    ready, stopped, cpu = [], [], []
    for _ in range(run.amounts.starts):
        stopped.append(peer.stop())
        ready.append(until(peer, lambda probe: probe.takes_a_record("first")))
        cpu.append(peer.cpu_seconds())
    median = lambda values: sorted(values)[len(values) // 2] * 1000
    extra = {"empty directory to ready ms": empty * 1000, "start to first record ms": median(ready),
             "SIGTERM to end ms": median(stopped), "CPU of the start ms": median(cpu)}
    return Measurement(None, None, cpu[-1], 0.0, ready[-1], [], peer.resident_mib(), extra=extra)


def until(peer: Peer, holds) -> float:
    started = peer.spawn()
    probe = Probe(peer.port)
    while not holds(probe):
        if peer.process.poll() is not None or time.monotonic() - started > START_SECONDS_MAX:
            raise LoadFailed(f"{peer.name} did not start: {peer.last_words()}")
        time.sleep(0.001)
    return time.monotonic() - started


def idle_partitions(run: Run) -> Measurement:
    restart(run.peer)
    # A topic of 10,000 partitions is too much for one metadata change, here and in Kafka.
    topics, count = 20, run.amounts.idle_partitions
    for number in range(topics):
        run.tools.create(run.peer, f"idle-{number}", count // topics, {})
    run.peer.stop()
    started = until(run.peer, lambda probe: probe.answers())
    # Ready is when all partitions are open: metrics of a broker that still opens them say so.
    while run.peer.metrics().get("kuring_partitions_opening", 0) > 0:
        time.sleep(0.05)
    opened = time.monotonic() - run.peer.driven_since
    time.sleep(IDLE_SECONDS)
    extra = {"partitions": float(count), "start s": max(started, opened), "idle MiB": run.peer.resident_mib()}
    measured = Measurement(None, None, run.peer.cpu_seconds(), 0.0, opened, [], extra["idle MiB"], extra=extra)
    run.peer.remove()
    return measured


def recovery(run: Run) -> Measurement:
    """perf/restart has its own broker; here its first line of figures is read."""
    run.peer.stop()
    script = os.path.join(os.path.dirname(HERE), "restart")
    environment = dict(run.peer.environment, KURING_RESTART_ROUNDS="1", KURING_RESTART_DIR=run.tools.folder)
    with subprocess.Popen([sys.executable, script], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True,
                          preexec_fn=machine.confined(run.peer.cpus)) as process:
        try:
            said, _ = process.communicate(timeout=1800)
        except BaseException:
            process.send_signal(signal.SIGINT)
            raise
    found = re.search(r"kill -9, 1 GiB unflushed\s+(\d+) ms to ready,\s+([\d.]+) CPU s,\s+([\d.]+) MiB", said)
    size = re.search(r"(\d+) partitions, ([\d.]+) GiB in files", said)
    if process.returncode != 0 or not found or not size:
        raise LoadFailed(f"perf/restart: status {process.returncode}: {said[-1000:]}")
    took, cpu, resident = (float(group) for group in found.groups())
    return Measurement(None, None, cpu, 0.0, took / 1000, [], resident, extra={
        "recovery s": took / 1000, "partitions": float(size.group(1)), "GiB": float(size.group(2))})


def sustained(run: Run) -> Measurement:
    limit = run.amounts.memory_limit_bytes
    try:
        cgroup = machine.Cgroup(f"kuring-compare-{os.getpid()}-{run.peer.name}", limit)
    except OSError as error:
        raise LoadFailed(f"no control group with a memory limit: {error}") from None
    run.peer.remove()
    run.peer.cgroup = cgroup
    try:
        run.peer.start()
        return sustained_within(run, limit)
    finally:
        run.peer.cgroup = None
        run.peer.remove()
        cgroup.remove()


def sustained_within(run: Run, limit: int) -> Measurement:
    tools, peer = run.tools, run.peer
    compacting = {"cleanup.policy": "compact", "segment.bytes": str(8 << 20), "min.cleanable.dirty.ratio": "0.01"}
    tools.create(peer, "old", 4, run.workload.topic)
    tools.create(peer, "compacted", 4, compacting)
    tools.create(peer, "sustained", 4, run.workload.topic)
    tools.perf(peer, "produce", "--topic", "old", "--threads", "1", "--records", str(limit // 1024))
    machine.drop_cache(peer.segments("old"))
    keyed = ["produce", "--topic", "compacted", "--threads", "1", "--keys", "10000"]
    # Work for the cleaner from the beginning on.
    tools.perf(peer, *keyed, "--records", str(limit // 4 // 1024))
    compacted = [*keyed, "--rate", "20000", "--duration", "600"]
    with tools.begin_perf(peer, "consume", "--topic", "old", "--threads", "1", "--duration", "600") as reader, \
            tools.begin_perf(peer, *compacted) as beside:
        measured = tools.perf(peer, "produce", "--topic", "sustained", "--threads", "1", "--records", str(4 * limit // 1024))
        for other in (reader, beside):
            if other.is_over():
                raise LoadFailed(f"what ran beside it ended early: {other.process.stderr.read()}")
            other.interrupt()
        reader.report()
        measured.beside_another = True
        compacted_side = side(beside.report()["produced"])
        measured.extra["producer beside p99.9 ms"] = compacted_side.latency_ms["p99.9"]
    metrics = peer.metrics()
    stalls = [value for name, value in metrics.items() if name.startswith("kuring_shard_stall_longest_seconds")]
    if stalls:
        measured.extra["longest stall ms"] = max(stalls) * 1000
        cleaned = [value for name, value in metrics.items() if name.startswith("kuring_cleaner_bytes_total")]
        measured.extra["compacted MB"] = sum(cleaned) / 1e6
    return measured
