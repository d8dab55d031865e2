"""Load on a peer: `kuring perf` and librdkafka's client as processes of their own, and what they measured."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import time
from dataclasses import dataclass, field

import machine
from peers import Peer

HERE = os.path.dirname(os.path.abspath(__file__))
CLIENT_SECONDS_MAX = 900
LED_SECONDS_MAX = 60
# Work that a broker puts off until after the load: it counts as part of it.
AFTER_SECONDS = 0.5


class LoadFailed(Exception):
    """A load generator ended with an error."""


@dataclass
class Side:
    """What was produced or consumed."""

    records: int
    bytes: int
    requests: int
    seconds: float
    latency_ms: dict[str, float]
    # Pairs of 1/(1-quantile) and milliseconds.
    curve: list[tuple[float, float]] = field(default_factory=list)

    @property
    def mb_per_second(self) -> float:
        return self.bytes / 1e6 / self.seconds if self.seconds else 0.0


@dataclass
class Measurement:
    """One run of one workload on one peer."""

    produced: Side | None
    consumed: Side | None
    broker_cpu_seconds: float
    client_cpu_seconds: float
    wall_seconds: float
    memory: list[tuple[float, float]]
    peak_mib: float
    # Of the kernel's own threads, whoever they worked for.
    kernel_cpu_seconds: float = 0.0
    # The broker had other work than this: its processor time is not this load's alone.
    beside_another: bool = False
    # Figures that only some workloads have.
    extra: dict[str, float] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """What the broker's processor time is divided by: all that went in and came out."""
        return sum(side.bytes for side in (self.produced, self.consumed) if side)

    @property
    def cpu_per_gb(self) -> float | None:
        if not self.bytes or self.beside_another:
            return None
        return self.broker_cpu_seconds / (self.bytes / 1e9)

    @property
    def latency(self) -> Side | None:
        return self.consumed or self.produced


@dataclass
class Tools:
    """Where the load generators are and where they run."""

    kuring: str
    python: str | None
    cpus: frozenset[int]
    folder: str

    def topic(self, peer: Peer, command: str, name: str, *arguments: str) -> str:
        line = [self.kuring, "topic", command, name, *arguments, "--bootstrap", peer.bootstrap, "--timeout", "120"]
        done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              preexec_fn=machine.confined(self.cpus))
        if done.returncode != 0:
            raise LoadFailed(f"{' '.join(line)}: {done.stderr.strip()}")
        return done.stdout

    def create(self, peer: Peer, name: str, partitions: int, configs: dict[str, str]) -> None:
        pairs = [word for pair in configs.items() for word in ("--config", "=".join(pair))]
        line = ["create", name, "--partitions", str(partitions), *pairs]
        if peer.nodes > 1:
            # Nodes that have just started do not all serve yet.
            self._retried(peer, *line, "--replication-factor", str(peer.nodes), "--if-not-exists")
        else:
            self.topic(peer, *line)
        # Created is not yet led, where there are many.
        if not peer.is_bare:
            self._retried(peer, "describe", name)

    def _retried(self, peer: Peer, *arguments: str) -> None:
        end = time.monotonic() + LED_SECONDS_MAX
        while True:
            try:
                self.topic(peer, *arguments)
                return
            except LoadFailed:
                if time.monotonic() > end or peer.process is None or peer.process.poll() is not None:
                    raise
                time.sleep(0.2)

    def delete(self, peer: Peer, name: str) -> None:
        line = ["delete", name, "--if-exists"]
        self._retried(peer, *line) if peer.nodes > 1 else self.topic(peer, *line)

    def perf(self, peer: Peer, *arguments: str) -> Measurement:
        """Runs `kuring perf` to its end, watching the peer meanwhile."""
        with tempfile.NamedTemporaryFile(dir=self.folder, suffix=".hgrm") as curve:
            line = [self.kuring, "perf", *arguments, "--json", "--quiet", "--hdr", curve.name,
                    "--bootstrap", peer.bootstrap]
            return self._measure(peer, line, curve.name)

    def begin_perf(self, peer: Peer, *arguments: str) -> "Beside":
        line = [self.kuring, "perf", *arguments, "--json", "--quiet", "--bootstrap", peer.bootstrap]
        return Beside(line, self.cpus)

    def librdkafka(self, peer: Peer, *arguments: str) -> Measurement:
        if self.python is None:
            raise LoadFailed("confluent-kafka is not installed: run tests/clients/run once")
        line = [self.python, os.path.join(HERE, "librdkafka_load.py"), peer.bootstrap, *arguments]
        return self._measure(peer, line, None)

    def _measure(self, peer: Peer, line: list[str], curve: str | None) -> Measurement:
        before, started = peer.cpu_seconds(), time.monotonic()
        kernel = machine.kernel_threads()
        with machine.Memory(peer.pids) as memory:
            report, usage = run(line, self.cpus)
            wall = time.monotonic() - started
            time.sleep(AFTER_SECONDS)
        measured = Measurement(
            produced=side(report.get("produced")), consumed=side(report.get("consumed")),
            broker_cpu_seconds=peer.cpu_seconds() - before, kernel_cpu_seconds=machine.kernel_seconds_since(kernel),
            client_cpu_seconds=report.get("client_cpu_seconds", usage), wall_seconds=wall,
            memory=memory.samples, peak_mib=memory.peak_mib)
        if curve and measured.latency:
            measured.latency.curve = read_curve(curve)
        peer.driven_bytes += measured.bytes
        return measured


class Beside:
    """A load that runs while another one is measured."""

    def __init__(self, line: list[str], cpus: frozenset[int]) -> None:
        self.process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, preexec_fn=machine.confined(cpus))
        self.line = line

    def __enter__(self) -> "Beside":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def is_over(self) -> bool:
        return self.process.poll() is not None

    def interrupt(self) -> None:
        """Ends it early; it still says what it measured."""
        self.process.send_signal(2)

    def report(self) -> dict:
        out, error = self.process.communicate(timeout=CLIENT_SECONDS_MAX)
        return read_report(self.line, self.process.returncode, out, error)


def run(line: list[str], cpus: frozenset[int]) -> tuple[dict, float]:
    """The report of a load generator and the processor time that it took."""
    with Beside(line, cpus) as client:
        before = os.times()
        report = client.report()
        after = os.times()
    return report, after.children_user + after.children_system - before.children_user - before.children_system


def read_report(line: list[str], status: int, out: str, error: str) -> dict:
    if status != 0:
        raise LoadFailed(f"{' '.join(line)}: status {status}: {error.strip()[-1000:]}")
    try:
        return json.loads(out)
    except ValueError:
        raise LoadFailed(f"{' '.join(line)}: not a report: {out[-300:]!r}") from None


def side(report: dict | None) -> Side | None:
    if report is None:
        return None
    if report["failed"] or report["records"] <= 0:
        raise LoadFailed(f"nothing moved or records were refused: {report}")
    names = ("records", "bytes", "requests", "seconds", "latency_ms")
    return Side(**{name: report[name] for name in names})


def read_curve(path: str) -> list[tuple[float, float]]:
    """The percentile file of HdrHistogram's tools: value, quantile, count, 1/(1-quantile)."""
    curve = []
    with open(path) as file:
        for line in file:
            found = re.match(r"\s*([\d.]+)\s+[\d.]+\s+\d+\s+([\d.]+)\s*$", line)
            if found:
                curve.append((float(found.group(2)), float(found.group(1))))
    return curve
