"""The rows of DESIGN.md, section 6: what was asked for, what was seen, and whether it is met."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Callable

PRODUCE = "1-topic-1-partition-1kb"
LATENCY = ("1-topic-1-partition-1kb-rate-10000", "1-topic-1-partition-1kb-rate-2000", "1-topic-1-partition-1kb-rate-500")
CPU = "broker CPU s/GB"
# The load of the latency row leaves Kafka half of its processors.
KAFKA_CPU_PERCENT_MAX = 50.0
MET, MISSED, UNKNOWN = "met", "missed", "not measured"


@dataclass(frozen=True)
class Row:
    what: str
    asked: str
    seen: str
    verdict: str
    workload: str


class Results:
    """The report's workloads by name."""

    def __init__(self, report: dict) -> None:
        self.workloads = {workload["name"]: workload for workload in report["workloads"]}
        self.broker_cpus = report.get("broker_cpus", 1)

    def get(self, workload: str, peer: str, figure: str) -> float | None:
        peers = self.workloads.get(workload, {}).get("peers", {})
        found = peers.get(peer, {}).get("summary", {}).get(figure)
        return found["median"] if found else None


def rows(report: dict) -> list[dict]:
    results = Results(report)
    return [asdict(row) for make in ROWS for row in make(results)]


def single(what: str, workload: str, asked: str, seen: str | None, met: bool | None) -> Row:
    verdict = UNKNOWN if met is None else MET if met else MISSED
    return Row(what, asked, seen or "—", verdict, workload)


def at_most(what: str, workload: str, value: float | None, most: float, unit: str, asked: str | None = None) -> Row:
    asked = asked or f"≤ {most:g} {unit}"
    return single(what, workload, asked, None if value is None else f"{value:.3g} {unit}", None if value is None else value <= most)


def at_least(what: str, workload: str, value: float | None, least: float, asked: str, beside: str = "") -> Row:
    seen = None if value is None else f"{value:.2f}×{beside}"
    return single(what, workload, asked, seen, None if value is None else value >= least)


def ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def produce(results: Results) -> list[Row]:
    kuring, kafka, limit, strict = (results.get(PRODUCE, peer, CPU) for peer in ("kuring", "kafka", "limit", "limit-preallocating"))
    beside = f"; {ratio(kuring, strict):.2f}× a sink that preallocates" if kuring and strict else ""
    to_limit = ratio(kuring, limit)
    return [
        single("produce, broker CPU per GB, to the bare sink", PRODUCE, "≤ 1.0×",
               f"{to_limit:.2f}× ({kuring:.2f} s/GB){beside}" if to_limit else None, to_limit <= 1.0 if to_limit else None),
        at_least("produce, broker CPU per GB, less than Kafka", PRODUCE, ratio(kafka, kuring), 3.0, "≥ 3×, goal 5×"),
    ]


def replicated(results: Results) -> list[Row]:
    name = "replicated-1kb"
    kuring, kafka = (results.get(name, peer, CPU) for peer in ("kuring", "kafka"))
    beside = f" ({kuring:.2f} s/GB)" if kuring else ""
    return [at_least("replicated produce, three nodes, acks=all: CPU per GB of all, less than Kafka's", name, ratio(kafka, kuring), 3.0, "≥ 3×", beside)]


def crossing(results: Results) -> list[Row]:
    name = "1-topic-1-partition-1kb-crossing-shards"
    value = ratio(results.get(name, "kuring", CPU), results.get("1-topic-1-partition-1kb-one-shard", "kuring", CPU))
    return [at_most("the same with every batch crossing shards", name, value, 1.1, "×")]


def lone(results: Results) -> list[Row]:
    name = "1-topic-1-partition-1kb-lone"
    return [at_most("lone 1 KiB produce, acks=1, broker CPU", name, results.get(name, "kuring", "broker CPU µs/request"), 60, "µs")]


def fetch(results: Results) -> list[Row]:
    name = "1-topic-1-partition-1kb-catch-up"
    kuring, kafka, limit = (results.get(name, peer, CPU) for peer in ("kuring", "kafka", "limit"))
    excess = None
    if None not in (kuring, kafka, limit):
        excess = max(kuring - limit, 0.0) / (kafka - limit) if kafka > limit else float("inf")
    small = "1-topic-50-partitions-1kb-small-ranges"
    return [
        at_most("fetch in bulk, broker CPU per GB, to the sendfile server", name, ratio(kuring, limit), 1.15, "×"),
        at_most("its excess over the limit, to Kafka's excess", name, excess, 0.2, "×", "≤ 1/5"),
        at_most("fetch at the tail, 50 ranges of 1 KiB, broker CPU", small,
                results.get(small, "kuring", "broker CPU µs/request"), 100, "µs"),
    ]


def latency(results: Results) -> list[Row]:
    """The highest rate that Kafka holds at half of its processors."""
    limit = KAFKA_CPU_PERCENT_MAX * results.broker_cpus
    held = [name for name in LATENCY if (results.get(name, "kafka", "broker CPU % of a core") or 1e9) <= limit]
    name = held[0] if held else LATENCY[-1]
    beside = "" if held else " (Kafka used more than half of its CPUs)"
    figures = {(peer, figure): results.get(name, peer, f"{figure} ms") for peer in ("kuring", "kafka") for figure in ("p99", "p99.9")}
    return [
        at_least("end to end, p99 lower than Kafka's", name, ratio(figures["kafka", "p99"], figures["kuring", "p99"]), 3, "≥ 3×, goal 5×", beside),
        at_least("end to end, p99.9 lower than Kafka's", name, ratio(figures["kafka", "p99.9"], figures["kuring", "p99.9"]), 5,
                 "≥ 5×, goal 10×", beside),
        at_most("end to end, p99.9", name, figures["kuring", "p99.9"], 5, "ms"),
    ]


def start(results: Results) -> list[Row]:
    value = results.get("start", "kuring", "start to first record ms")
    return [at_most("start to first produced record", "start", value, 100, "ms", "< 100 ms")]


def memory(results: Results) -> list[Row]:
    return [
        at_most("resident memory, idle", "memory", results.get("memory", "kuring", "idle MiB"), 32, "MiB", "< 32 MiB"),
        at_most("resident memory, 1,000 partitions, 1,000 connections", "memory", results.get("memory", "kuring", "loaded MiB"), 256,
                "MiB", "< 256 MiB"),
    ]


def idle_partitions(results: Results) -> list[Row]:
    name = "100000-partitions-idle"
    whole = (results.get(name, "kuring", "partitions") or 0) >= 100_000
    value = lambda figure: results.get(name, "kuring", figure) if whole else None
    return [
        at_most("100,000 idle partitions, memory", name, value("idle MiB"), 300, "MiB", "< 300 MiB"),
        at_most("100,000 idle partitions, start", name, value("start s"), 5, "s", "< 5 s"),
    ]


def recovery(results: Results) -> list[Row]:
    whole = (results.get("recovery", "kuring", "partitions") or 0) >= 10_000
    value = results.get("recovery", "kuring", "recovery s") if whole else None
    return [at_most("recovery after kill -9, 10,000 partitions, 50 GiB", "recovery", value, 5, "s", "< 5 s")]


def stall(results: Results) -> list[Row]:
    name = "sustained-4x-memory"
    return [at_most("longest stall of a shard, 4× the memory limit", name, results.get(name, "kuring", "longest stall ms"), 20, "ms",
                    "< 20 ms")]


ROWS: tuple[Callable[[Results], list[Row]], ...] = (
    produce, replicated, crossing, lone, fetch, latency, start, memory, idle_partitions, recovery, stall)
