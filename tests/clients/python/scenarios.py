"""What the Python clients share: a scenario's line of output and the exit code."""

import sys
import time
import traceback

PATIENCE = 30
# Records of the past could be deleted by retention while they are read.
START = int(time.time() * 1000)
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


class Scenarios:
    def __init__(self):
        self.failed = False

    def run(self, name, body):
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
