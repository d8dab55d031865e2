"""Brokers as processes: what a script in perf/peers prepares and runs, started, watched and ended here."""

from __future__ import annotations

import glob
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from dataclasses import dataclass, field

import machine
from probe import Probe

SCRIPTS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "peers")
STOP_SECONDS_MAX = 30
READY_SECONDS_MAX = 120

# All peers get these; the file pattern of DESIGN.md's sink comes from the topics' settings.
SETTINGS = {
    "log.retention.check.interval.ms": "1000",
    "log.initial.task.delay.ms": "500",
    "auto.create.topics.enable": "false",
    # Kafka's 50 refuse some of 1,000 connections that come at once.
    "socket.listen.backlog.size": "4096",
}


class PeerFailed(Exception):
    """A broker did not start, or ended."""


@dataclass
class Peer:
    name: str
    folder: str
    cpus: frozenset[int]
    environment: dict[str, str]
    # More than one: a cluster, whose script is NAME-cluster.
    nodes: int = 1
    settings: dict[str, str] = field(default_factory=dict)
    cgroup: machine.Cgroup | None = None
    process: subprocess.Popen | None = None
    # What it has been driven with since its start, for peers that must be warm.
    driven_bytes: int = 0
    driven_since: float = 0.0
    is_warm: bool = False

    def __post_init__(self) -> None:
        self.script = os.path.join(SCRIPTS, script_name(self.name, self.nodes))
        about = json.loads(self._script("about"))
        self.title: str = about["title"]
        self.warms: bool = about["warms"]
        self.port = free_port()
        self.admin_port = free_port()

    @property
    def is_kuring(self) -> bool:
        return self.name in ("kuring", "kuring-before")

    @property
    def is_bare(self) -> bool:
        """It leads what it makes, and cannot be asked about it."""
        return self.name.startswith("limit")

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        if self.process is None or self.process.poll() is not None:
            raise PeerFailed(f"{self.name} does not run: {self.last_words()}")
        return self.process.pid

    @property
    def pids(self) -> list[int]:
        """The brokers."""
        if self.nodes == 1:
            return [self.pid]
        found = machine.children(self.pid)
        if len(found) < self.nodes:
            raise PeerFailed(f"{self.name}: {len(found)} of {self.nodes} nodes run: {self.last_words()}")
        return found

    def cpu_seconds(self) -> float:
        return machine.cpu_seconds(*self.pids)

    def resident_mib(self) -> float:
        return machine.resident_mib(*self.pids)

    def prepare(self) -> None:
        settings = SETTINGS | self.settings
        if self.is_kuring:
            settings |= {"kuring.admin.listener": f"127.0.0.1:{self.admin_port}"}
            settings.setdefault("kuring.cpus", ",".join(map(str, sorted(self.cpus))))
        pairs = [f"{name}={value}" for name, value in settings.items()]
        self._script("prepare", self.folder, str(self.port), *pairs)

    def spawn(self) -> float:
        """Starts the process; returns when that was."""
        log = open(os.path.join(self.folder, "log"), "ab")
        started = time.monotonic()
        self.process = subprocess.Popen(
            [self.script, "run", self.folder], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            env=self.environment, start_new_session=True, preexec_fn=machine.confined(self.cpus, self.cgroup))
        log.close()
        self.driven_bytes, self.driven_since, self.is_warm = 0, started, not self.warms
        return started

    def start(self) -> None:
        self.prepare()
        started = self.spawn()
        probe = Probe(self.port)
        while not probe.answers():
            if self.process.poll() is not None or time.monotonic() - started > READY_SECONDS_MAX:
                raise PeerFailed(f"{self.name} did not start: {self.last_words()}")
            time.sleep(0.02)

    def stop(self, kill: bool = False) -> float:
        """Ends the process and returns how long that took."""
        started = time.monotonic()
        if self.process is not None:
            self._kill() if kill else self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self._kill()
                self.process.wait()
            self.process = None
        return time.monotonic() - started

    def _kill(self) -> None:
        """What started the nodes of a cluster ends after them."""
        if self.nodes > 1 and self.process.poll() is None:
            for pid in machine.children(self.process.pid):
                os.kill(pid, signal.SIGKILL)
        else:
            self.process.kill()

    def remove(self) -> None:
        self.stop(kill=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def segments(self, topic: str) -> list[str]:
        return glob.glob(f"{self.folder}/data/{topic}-*/*.log")

    def metrics(self) -> dict[str, float]:
        """kuring's own figures; empty for other peers."""
        if not self.is_kuring:
            return {}
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def last_words(self) -> str:
        try:
            with open(os.path.join(self.folder, "log"), errors="replace") as log:
                return log.read()[-2000:]
        except FileNotFoundError:
            return "it left no log"

    def _script(self, *arguments: str) -> str:
        done = subprocess.run([self.script, *arguments], env=self.environment, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise PeerFailed(f"{self.name} {arguments[0]}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout


def script_name(peer: str, nodes: int) -> str:
    return f"{peer}-cluster" if nodes > 1 else peer


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
