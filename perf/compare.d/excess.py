"""Where the processor time of a missed row goes: samples of kuring and of what it is held to, by what the kernel or the
broker was doing. `perf record` takes them in a run of their own, so that the figures of the report are not those of a profiled run."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections import Counter
from dataclasses import replace
from typing import Callable

import figures
from kinds import Run
from load import LoadFailed, Measurement
from targets import CPU, MISSED, PRODUCE
from workloads import WORKLOADS, Workload

SAMPLES_PER_SECOND = 4999
REQUEST = "broker CPU µs/request"
CROSSING, ONE_SHARD = "1-topic-1-partition-1kb-crossing-shards", "1-topic-1-partition-1kb-one-shard"

# For a row's workload: the figure, and the workload and peer that it is held to.
HELD_TO = {
    PRODUCE: (CPU, PRODUCE, "limit"),
    CROSSING: (CPU, ONE_SHARD, "kuring"),
    "1-topic-1-partition-1kb-lone": (REQUEST, "1-topic-1-partition-1kb-lone", "limit"),
    "1-topic-1-partition-1kb-catch-up": (CPU, "1-topic-1-partition-1kb-catch-up", "limit"),
    "1-topic-50-partitions-1kb-small-ranges": (REQUEST, "1-topic-50-partitions-1kb-small-ranges", "limit"),
}

# The first that names a frame of the stack has the sample. Frames are the kernel's or the program's functions.
GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("write-back that the broker asks for (fdatasync)", ("ext4_sync_file", "fdatasync", "__x64_sys_fsync", "sync_file_range", "vfs_fsync_range")),
    ("files made, closed and unlinked", ("__x64_sys_openat", "do_sys_openat2", "__x64_sys_unlink", "do_unlinkat", "__x64_sys_rename", "__x64_sys_ftruncate",
                                         "do_ftruncate", "vfs_fallocate", "__x64_sys_fallocate", "__fput", "__x64_sys_close")),
    ("append to the page cache", ("ext4_buffered_write_iter", "ext4_file_write_iter", "vfs_writev", "vfs_write", "do_pwritev")),
    ("receive", ("tcp_recvmsg", "__sys_recvfrom", "__sys_recvmsg")),
    ("send from the page cache (sendfile)", ("do_sendfile", "splice_direct_to_actor", "__x64_sys_sendfile64")),
    ("read small ranges from the page cache", ("vfs_read", "vfs_readv", "filemap_read", "do_preadv", "ksys_pread64")),
    ("send", ("tcp_sendmsg", "__sys_sendmsg", "__sys_sendto", "____sys_sendmsg")),
    ("sleep and wake: io_uring, epoll, futex, membarrier", ("__do_sys_io_uring_enter", "__x64_sys_io_uring_enter", "io_cqring_wait", "io_submit_sqes", "io_run_task_work",
        "tctx_task_work", "do_epoll_wait", "__x64_sys_epoll_wait", "do_futex", "__x64_sys_futex", "membarrier_private_expedited", "__x64_sys_membarrier",
        "eventfd_write", "schedule", "do_poll", "io_uring_submit")),
    ("page faults", ("asm_exc_page_fault", "exc_page_fault")),
    ("checksum (CRC-32C)", ("crc32c", "crc_fast")),
    ("other of the kernel", ("entry_SYSCALL_64_after_hwframe", "do_syscall_64", "asm_sysvec_apic_timer_interrupt", "asm_common_interrupt",
                             "asm_sysvec_call_function_single", "asm_sysvec_reschedule_ipi", "ret_from_fork_asm")),
)
# What is left is the program's own code, by the function that ran.
OWN: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("glommio: tasks, rings, timers", ("glommio::", "iou::", "uring_sys::", "io_uring")),
    ("records and batches checked", ("kuring::wire::record", "kuring::wire::validate")),
    ("requests and answers read and written", ("kuring::wire", "kafka_protocol")),
    ("memory: allocate, free, copy", ("malloc", "cfree", "_int_free", "_int_malloc", "realloc", "memmove", "memcpy", "memset", "alloc::")),
)
REST = "the rest of the program"


def explain(bench, report: dict) -> list[dict]:
    """A table for each missed row that has something it is held to."""
    if not shutil.which("perf"):
        raise SystemExit("perf/compare: --profile needs the program perf")
    missed = {row["workload"] for row in report["targets"] if row["verdict"] == MISSED}
    return [explain_row(bench, name, *HELD_TO[name]) for name in HELD_TO if name in missed]


def explain_row(bench, name: str, figure: str, base_name: str, base_peer: str) -> dict:
    ours = profiled(bench, workload(name), "kuring", figure)
    base = profiled(bench, workload(base_name), base_peer, figure)
    names = sorted({*ours, *base}, key=lambda group: base.get(group, 0.0) - ours.get(group, 0.0))
    groups = [{"group": group, "kuring": ours.get(group, 0.0), "base": base.get(group, 0.0)} for group in names]
    return {"workload": name, "figure": figure, "base": f"{base_peer}, {base_name}" if base_name != name else base_peer, "groups": groups}


def workload(name: str) -> Workload:
    return next(one for one in WORKLOADS if one.name == name)


def profiled(bench, of: Workload, peer_name: str, figure: str) -> dict[str, float]:
    """What each group costs, in the figure's unit: its share of the samples times the run's own figure."""
    peer = bench.peer(peer_name, of)
    run = Run(bench.tools, peer, of, replace(bench.options.amounts, seconds=max(bench.options.amounts.seconds, 5.0)))
    try:
        bench.warm(run)
        with tempfile.TemporaryDirectory(dir=bench.tools.folder) as folder:
            samples = os.path.join(folder, "perf.data")
            measured, groups = sampled(peer.pids, samples, run.measure)
    finally:
        bench.finish(run)
    whole = figures.of_run(measured, of).get(figure)
    if not whole or not groups:
        raise LoadFailed(f"no profile of {peer_name} in {of.name}")
    total = sum(groups.values())
    return {group: whole * count / total for group, count in groups.items()}


def sampled(pids: list[int], path: str, load: Callable[[], Measurement]) -> tuple[Measurement, Counter]:
    command = ["perf", "record", "-e", "cpu-clock", "-F", str(SAMPLES_PER_SECOND), "-g", "-p", ",".join(map(str, pids)), "-o", path]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as recorder:
        try:
            measured = load()
        finally:
            recorder.terminate()
    script = subprocess.run(["perf", "script", "-i", path, "-F", "comm,ip,sym"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return measured, count(script.stdout)


def count(script: str) -> Counter:
    """Samples by group. A sample is a line with the thread's name, its frames from the innermost on, and an empty line."""
    groups: Counter = Counter()
    for sample in script.split("\n\n"):
        frames = [line.split(None, 1)[1] for line in sample.splitlines() if line[:1].isspace() and len(line.split(None, 1)) == 2]
        if frames:
            groups[group_of(frames)] += 1
    return groups


def group_of(frames: list[str]) -> str:
    for name, marks in GROUPS:
        if any(mark in frame for frame in frames for mark in marks):
            return name
    for name, marks in OWN:
        if any(mark in frames[0] for mark in marks):
            return name
    return REST
