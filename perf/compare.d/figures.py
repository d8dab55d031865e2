"""From the runs of a workload to the figures that are shown: medians with their spread."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass

from load import Measurement
from workloads import Workload

PERCENTILES = ("p50", "p99", "p99.9")


@dataclass(frozen=True)
class Figure:
    """The median of the rounds, the least and the most."""

    median: float
    least: float
    most: float


def of_run(run: Measurement, workload: Workload) -> dict[str, float]:
    """Every figure of one run, by the name that the page shows."""
    figures: dict[str, float] = {}
    main = run.latency
    if main and workload.rate is None:
        figures["MB/s"] = main.mb_per_second
        figures["records/s"] = main.records / main.seconds if main.seconds else 0.0
    if run.cpu_per_gb is not None:
        figures["broker CPU s/GB"] = run.cpu_per_gb
        figures["kernel threads CPU s/GB"] = run.kernel_cpu_seconds / (run.bytes / 1e9)
        figures["client CPU s/GB"] = run.client_cpu_seconds / (run.bytes / 1e9)
    requests = sum(side.requests for side in (run.produced, run.consumed) if side)
    if requests and not run.beside_another:
        figures["broker CPU µs/request"] = run.broker_cpu_seconds / requests * 1e6
    if run.bytes:
        figures["broker CPU % of a core"] = 100 * run.broker_cpu_seconds / run.wall_seconds
    if main:
        figures |= {f"{name} ms": main.latency_ms[name] for name in PERCENTILES if name in main.latency_ms}
    if run.peak_mib:
        figures["memory MiB"] = run.peak_mib
    return figures | run.extra


def summary(runs: list[Measurement], workload: Workload) -> dict[str, Figure]:
    each = [of_run(run, workload) for run in runs]
    names = list(dict.fromkeys(name for figures in each for name in figures))
    summed = {}
    for name in names:
        values = [figures[name] for figures in each if name in figures]
        summed[name] = Figure(statistics.median(values), min(values), max(values))
    return summed


def middle_run(runs: list[Measurement]) -> Measurement:
    """The run whose p99 is the median: its percentile curve and memory are drawn."""
    key = lambda run: run.latency.latency_ms.get("p99", 0.0) if run.latency else run.wall_seconds
    return sorted(runs, key=key)[len(runs) // 2]


def as_json(runs: list[Measurement], workload: Workload, note: str) -> dict:
    chosen = middle_run(runs)
    return {
        "note": note,
        "summary": {name: asdict(figure) for name, figure in summary(runs, workload).items()},
        "curve": chosen.latency.curve if chosen.latency else [],
        "memory": chosen.memory,
        "runs": [of_run(run, workload) for run in runs],
    }
