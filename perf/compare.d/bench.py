"""The order of a comparison: which peers run when, who is driven next, what is kept of it."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field, replace

import figures
import machine
from kinds import Amounts, Run
from load import LoadFailed, Measurement, Tools
from peers import Peer, PeerFailed, script_name
from workloads import BASE, REPLICATED, Workload

# A peer that warms up is measured after so much, once two windows in a row agree.
WARM_SECONDS_MIN = 120.0
WARM_BYTES_MIN = 20_000_000_000
WARM_AGREE = 0.05
WINDOW_SECONDS = 10.0
WARM_WINDOWS_MAX = 40
WORKLOAD_WINDOWS_MAX = 4
# What those that need no compiler are given before their first round.
FIRST_BYTES = 1 << 30
PRODUCES = ("produce", "on_shard", "across_shards")
QUIET_SECONDS_MAX = 10.0
QUIET_SHARE = 0.05

RAN_AS_IT_SHOULD = "after warm-up"


@dataclass
class Options:
    rounds: int
    cold: bool
    only: list[str]
    # Another build of kuring beside this one, everywhere.
    with_before: bool
    amounts: Amounts


@dataclass
class Bench:
    """Peers run on from workload to workload as long as their settings stay the same; one is driven at a time."""

    tools: Tools
    cpus: machine.Cpus
    environment: dict[str, str]
    options: Options
    running: dict[str, Peer] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)

    def run(self, workload: Workload) -> dict:
        """All rounds of one workload on all its peers, as the report keeps it."""
        say(f"{workload.name}: {workload.about}")
        shown: dict[str, dict] = {}
        runs: dict[str, Run] = {}
        notes: dict[str, str] = {}
        measured: dict[str, list[Measurement]] = {}
        peers = workload.peers + (("kuring-before",) if self.options.with_before else ())
        names = [name for name in peers if not self.options.only or name in self.options.only]
        try:
            for name in names:
                try:
                    peer = self.peer(name, workload)
                    runs[name] = Run(self.tools, peer, workload, self.options.amounts)
                    notes[name] = self.warm(runs[name])
                    if peer.cpus != self.cpus.broker:
                        notes[name] = ", ".join(filter(None, [notes[name], "on the client's processors too"]))
                except (LoadFailed, PeerFailed) as error:
                    shown[name] = self.failed(name, error)
                    runs.pop(name, None)
            for turn in range(self.options.rounds):
                for name in list(runs):
                    try:
                        self.quiet(runs[name].peer)
                        run = runs[name].measure()
                    except (LoadFailed, PeerFailed) as error:
                        shown[name] = self.failed(name, error)
                        runs.pop(name)
                        continue
                    measured.setdefault(name, []).append(run)
                    say(f"  {turn + 1} {name:20} {brief(figures.of_run(run, workload))}")
        finally:
            for run in runs.values():
                self.finish(run)
        for name, its in measured.items():
            if name not in shown:
                shown[name] = figures.as_json(its, workload, notes[name])
        return {"name": workload.name, "about": workload.about, "kind": workload.kind, "rate": workload.rate,
                "peers": {name: shown[name] for name in names if name in shown}}

    def peer(self, name: str, workload: Workload) -> Peer:
        settings = workload.settings_of(name)
        key = script_name(name, workload.nodes)
        found = self.running.get(key)
        if found and found.settings == settings and found.process is not None and found.process.poll() is None:
            return found
        if found:
            found.remove()
        cpus = self.cpus.broker
        if workload.nodes > 1 or len(cpus) < int(settings.get("kuring.shards", 1)):
            # Several nodes, and two shards, want more than one processor, though the client be on one of them.
            cpus = self.cpus.broker | self.cpus.client
        peer = Peer(name, os.path.join(self.tools.folder, key), cpus, self.environment, workload.nodes, settings)
        self.running[key] = peer
        self.titles[name] = peer.title
        peer.start()
        return peer

    def warm(self, run: Run) -> str:
        """Drives a peer that compiles itself until its windows agree; says what came of it."""
        peer = run.peer
        if not peer.warms:
            if not self.options.cold and run.workload.kind in PRODUCES:
                # Files, pages and sockets are new to it as well.
                first = replace(run.amounts, produce_bytes_max=FIRST_BYTES)
                Run(self.tools, peer, run.workload, first).measure()
            return ""
        if self.options.cold or run.workload.kind in ("start", "memory", "sustained"):
            return "cold"
        notes = []
        if not peer.is_warm:
            of = BASE if peer.nodes == 1 else REPLICATED
            base = Run(self.tools, peer, of, Amounts(seconds=WINDOW_SECONDS, produce_bytes_max=1 << 40))
            steady = settle(base, WARM_WINDOWS_MAX, lambda: (
                time.monotonic() - peer.driven_since >= WARM_SECONDS_MIN and peer.driven_bytes * of.nodes >= WARM_BYTES_MIN))
            base.finish()
            peer.is_warm = True
            notes.append(f"warmed for {time.monotonic() - peer.driven_since:.0f} s with {peer.driven_bytes / 1e9:.0f} GB"
                         + ("" if steady else ", not steady"))
            say(f"  {peer.name}: {notes[-1]}")
        window = Run(self.tools, peer, run.workload, run.amounts)
        steady = settle(window, WORKLOAD_WINDOWS_MAX, lambda: True)
        # What a round stores is the same for warming and measuring.
        run.stored, run.turn = window.stored, window.turn
        return ", ".join([*notes, RAN_AS_IT_SHOULD if steady else "windows did not agree within 5%"])

    def quiet(self, peer: Peer) -> None:
        """Waits until deletions and flushes of the last run are over, of all peers."""
        end = time.monotonic() + QUIET_SECONDS_MAX
        others = [other for other in self.running.values() if other.process is not None and other.process.poll() is None]
        while time.monotonic() < end:
            before = [other.cpu_seconds() for other in others]
            time.sleep(0.3)
            used = [other.cpu_seconds() - start for other, start in zip(others, before)]
            if all(cpu / 0.3 < QUIET_SHARE for cpu in used):
                return

    def finish(self, run: Run) -> None:
        try:
            run.finish()
        except (LoadFailed, PeerFailed) as error:
            say(f"  {run.peer.name}: {error}")
        if run.peer.process is None or run.peer.process.poll() is not None:
            self.running.pop(script_name(run.peer.name, run.peer.nodes), None)
            run.peer.remove()

    def failed(self, name: str, error: Exception) -> dict:
        say(f"  {name} FAILED: {error}")
        return {"error": str(error), "summary": {}, "runs": [], "curve": [], "memory": [], "note": ""}

    def close(self) -> None:
        for peer in self.running.values():
            peer.remove()


def settle(run: Run, windows_max: int, enough) -> bool:
    """Runs windows until two in a row agree on the processor time per byte."""
    last = None
    for _ in range(windows_max):
        measured = run.measure()
        now = measured.cpu_per_gb
        if now is None:
            return True
        if last is not None and abs(now - last) <= WARM_AGREE * last and enough():
            return True
        last = now
    return False


def brief(shown: dict[str, float]) -> str:
    wanted = ("MB/s", "broker CPU s/GB", "broker CPU µs/request", "kernel threads CPU s/GB", "client CPU s/GB", "p50 ms", "p99 ms", "p99.9 ms", "memory MiB")
    extra = [name for name in shown if name not in wanted and not name.startswith(("records", "broker"))]
    return "  ".join(f"{name} {shown[name]:.3g}" for name in (*wanted, *extra) if name in shown)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
