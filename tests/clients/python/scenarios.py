"""What the Python clients share: a scenario's line of output and the exit code."""

import atexit
import os
import pathlib
import subprocess
import sys
import time
import traceback

PATIENCE = 60
# Records of the past could be deleted by retention while they are read.
START = int(time.time() * 1000)
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


class Scenarios:
    def __init__(self):
        self.failed = False

    def run(self, name, body):
        if os.environ.get("KURING_SCENARIO", name) != name:
            return
        try:
            body()
            print(f"ok {name}", flush=True)
        except Exception as error:
            self.failed = True
            where = traceback.extract_tb(error.__traceback__)[-1]
            print(f"FAILED {name}: {type(error).__name__}: {error} (line {where.lineno})", flush=True)

    def exit(self):
        sys.exit(1 if self.failed else 0)


def same(wanted, found, what):
    assert wanted == found, f"{what}: wanted {wanted!r}, found {found!r}"


def eventually(what, probe):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        value = probe()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {PATIENCE} s: {what}")


# What "sizes" sends: nothing to 20 MB.
SIZES = [0, 1, 1_000_000, 20_000_000]
SIZES_MAX = 25_000_000


def sized(size):
    return bytes([size % 251]) * size


def mode():
    """What the program is asked for: "" for all scenarios, "outage", or "member" (GROUP TOPIC)."""
    return sys.argv[2] if len(sys.argv) > 2 else ""


class Member:
    """This program once more, as a member of a group that can be killed."""

    def __init__(self, group, topic):
        self.process = subprocess.Popen([sys.executable, sys.argv[0], sys.argv[1], "member", group, topic])
        # Also when the scenario fails.
        atexit.register(self.kill)

    def kill(self):
        self.process.kill()
        self.process.wait()


class Outage:
    """The run stops and restarts the broker meanwhile: see outage() there."""

    control = pathlib.Path(os.environ.get("KURING_OUTAGE", "/nonexistent"))
    count_min = 1000

    def ready(self):
        (self.control / f"{os.environ['KURING_CLIENT']}.ready").touch()

    def ends(self):
        return (self.control / "stop").exists()

    def check(self, count, values, what):
        assert count > self.count_min, f"only {count} records were sent"
        same(count, len(values), f"records {what}")
        wrong = next((n for n in range(count) if values[n] != b"%d" % n), None)
        assert wrong is None, f"{what} at {wrong}: {values[wrong]}"
