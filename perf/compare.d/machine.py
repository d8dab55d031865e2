"""What the kernel tells of processes and of the machine, and where processes may run."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import signal
import threading
import time
from dataclasses import dataclass, field

PAGE = os.sysconf("SC_PAGE_SIZE")
PR_SET_PDEATHSIG = 1
SYS_CACHESTAT = 451
KERNEL_THREADS_PARENT = "2"
LIBC = ctypes.CDLL(None, use_errno=True)


def cpu_seconds(*pids: int) -> float:
    """Processor time of processes with all their threads, those that have ended too, to the nanosecond."""
    return sum(time.clock_gettime(~pid << 3 | 2) for pid in pids)


def kernel_threads() -> dict[str, int]:
    """Processor time in ns of each of the kernel's threads: write-back of what nobody asked it to write is theirs."""
    taken = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            with open(f"{entry.path}/stat") as stat:
                if stat.read().rsplit(")", 1)[1].split()[1] != KERNEL_THREADS_PARENT:
                    continue
            with open(f"{entry.path}/schedstat") as schedstat:
                taken[entry.name] = int(schedstat.read().split()[0])
    return taken


def kernel_seconds_since(before: dict[str, int]) -> float:
    """What they have taken since; of those that have ended nothing is known."""
    return sum(taken - before.get(thread, 0) for thread, taken in kernel_threads().items()) / 1e9


def resident_mib(*pids: int) -> float:
    pages = 0
    for pid in pids:
        with open(f"/proc/{pid}/statm") as statm:
            pages += int(statm.read().split()[1])
    return pages * PAGE / (1 << 20)


def children(pid: int) -> list[int]:
    """Of the first thread of a process."""
    with open(f"/proc/{pid}/task/{pid}/children") as children:
        return [int(child) for child in children.read().split()]


@dataclass(frozen=True)
class Cpus:
    """Broker and client do not share a processor where there are two."""

    broker: frozenset[int]
    client: frozenset[int]

    @property
    def disjoint(self) -> bool:
        return not self.broker & self.client


def split_cpus(broker: str | None, client: str | None) -> Cpus:
    here = sorted(os.sched_getaffinity(0))
    half = max(len(here) // 2, 1)
    chosen = lambda text, default: frozenset(int(number) for number in text.split(",")) if text else frozenset(default)
    return Cpus(chosen(broker, here[:half]), chosen(client, here[half:] or here))


def confined(cpus: frozenset[int], cgroup: "Cgroup | None" = None):
    """For `Popen(preexec_fn=)`: runs on `cpus` and dies with this process."""
    parent = os.getpid()

    def confine() -> None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        os.sched_setaffinity(0, cpus)
        if cgroup:
            cgroup.enter()

    return confine


@dataclass
class Memory:
    """Samples the resident memory of processes, all together, while the block runs."""

    pids: list[int]
    samples: list[tuple[float, float]] = field(default_factory=list)

    def __enter__(self) -> "Memory":
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        start = time.monotonic()
        while True:
            try:
                self.samples.append((round(time.monotonic() - start, 2), round(resident_mib(*self.pids), 2)))
            except (FileNotFoundError, ProcessLookupError):
                return
            if self._over.wait(0.1):
                return

    @property
    def peak_mib(self) -> float:
        return max((mib for _, mib in self.samples), default=0.0)


class Cgroup:
    """A memory limit, in version 1 or 2 of control groups."""

    def __init__(self, name: str, limit_bytes: int) -> None:
        version_1 = os.path.isdir("/sys/fs/cgroup/memory")
        root = "/sys/fs/cgroup/memory" if version_1 else "/sys/fs/cgroup"
        self.path = os.path.join(root, name)
        os.mkdir(self.path)
        try:
            limit = "memory.limit_in_bytes" if version_1 else "memory.max"
            with open(os.path.join(self.path, limit), "w") as file:
                file.write(str(limit_bytes))
        except OSError:
            os.rmdir(self.path)
            raise

    def enter(self) -> None:
        with open(os.path.join(self.path, "cgroup.procs"), "w") as procs:
            procs.write(str(os.getpid()))

    def remove(self) -> None:
        for _ in range(50):
            try:
                os.rmdir(self.path)
                return
            except OSError:
                time.sleep(0.1)


def cached_share(paths: list[str]) -> float | None:
    """The share of the files' pages that are in the page cache; None where the kernel does not tell."""
    cached = pages = 0
    for path in paths:
        with open(path, "rb") as file:
            span = (ctypes.c_uint64 * 2)(0, os.fstat(file.fileno()).st_size)
            counts = (ctypes.c_uint64 * 5)()
            if LIBC.syscall(SYS_CACHESTAT, file.fileno(), span, counts, 0) != 0:
                return None
            cached += counts[0]
            pages += -(-span[1] // PAGE)
    return cached / max(pages, 1)


def drop_cache(paths: list[str]) -> None:
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def describe(cpus: Cpus, directory: str) -> dict[str, str]:
    with open("/proc/cpuinfo") as info:
        model = re.search(r"model name\s*: (.*)", info.read())
    with open("/proc/meminfo") as info:
        memory = int(info.readline().split()[1]) / (1 << 20)
    shared = "" if cpus.disjoint else ", shared"
    return {
        "processor": f"{model.group(1) if model else platform.machine()}, {os.cpu_count()} CPUs",
        "memory": f"{memory:.0f} GiB",
        "kernel": platform.release(),
        "file system": f"{file_system(directory)} at {directory}",
        "CPUs of the broker": ",".join(map(str, sorted(cpus.broker))) + shared,
        "CPUs of the client": ",".join(map(str, sorted(cpus.client))) + shared,
        "load before": " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }


def file_system(directory: str) -> str:
    best = ("", "unknown")
    with open("/proc/mounts") as mounts:
        for line in mounts:
            _, point, kind, *_ = line.split()
            inside = directory == point or directory.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(best[0]):
                best = (point, kind)
    return best[1]
