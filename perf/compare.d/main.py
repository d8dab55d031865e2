"""The command: arguments, what is needed, the report's files."""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import excess
import machine
import page
import targets
from bench import Bench, Options, say
from kinds import Amounts
from load import Tools
from workloads import WORKLOADS, Workload

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PYTHON = os.path.expanduser("~/.cache/kuring-clients/python/bin/python")
FILES_MAX = 200_000
SMOKE = Amounts(seconds=1.5, produce_bytes_max=1 << 30, stored_bytes=256 << 20, small_batches=5000, starts=1)


def main() -> None:
    arguments = parse()
    chosen = [workload for workload in WORKLOADS if wanted(workload, arguments)]
    if arguments.list:
        for workload in chosen:
            print(f"{workload.name:62} {workload.about}")
        return
    if arguments.draw:
        with open(os.path.join(arguments.report, "report.json")) as file:
            write(arguments.report, json.load(file))
        return
    if not chosen:
        sys.exit("perf/compare: no workload has that name (--list)")
    raise_file_limit()
    # An interrupt unwinds like an error does, so that everything is ended and removed.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    environment = dict(os.environ, **binaries())
    cpus = machine.split_cpus(arguments.broker_cpus, arguments.client_cpus)
    folder = tempfile.mkdtemp(prefix="kuring-compare-", dir=arguments.directory)
    described = machine.describe(cpus, folder)
    python = PYTHON if os.path.exists(PYTHON) else None
    tools = Tools(environment["KURING"], python, cpus.client, folder)
    options = Options(arguments.rounds, arguments.smoke or arguments.cold, without_kafka(arguments.only),
                      "KURING_BEFORE" in environment, amounts(arguments))
    bench = Bench(tools, cpus, environment, options)
    report: dict = {"cold": options.cold, "made": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "rounds": options.rounds, "machine": described,
                    "broker_cpus": len(cpus.broker), "warnings": warnings(arguments, cpus), "workloads": []}
    try:
        for workload in chosen:
            report["workloads"].append(bench.run(workload))
            # What is measured is kept, whatever comes after it.
            write(arguments.report, finished(report, bench))
        if arguments.profile:
            report["excess"] = excess.explain(bench, report)
            write(arguments.report, report)
    finally:
        bench.close()
        shutil.rmtree(folder, ignore_errors=True)
    for row in report["targets"]:
        print(f"{row['verdict']:12} {row['what']}: {row['seen']} (asked for {row['asked']})")
    print(f"report: {os.path.join(arguments.report, 'index.html')}")
    failed = [f"{workload['name']} on {name}" for workload in report["workloads"] for name, peer in workload["peers"].items()
              if peer.get("error")]
    if failed:
        sys.exit(f"perf/compare: FAILED: {'; '.join(failed)}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="perf/compare", description="Measures kuring beside Apache Kafka and the bare limit, one after "
                                     "the other in turns, and writes a report. docs/PERFORMANCE.md says how to read it.",
                                     epilog="KURING and KURING_LIMITS name other binaries than those of the release build; KURING_BEFORE "
                                     "names another kuring, which is then measured beside the first in every workload.")
    parser.add_argument("--smoke", action="store_true", help="a few small loads, Kafka cold: under two minutes, no figures to trust")
    parser.add_argument("--only", action="append", default=[], metavar="PEER", help="only this peer (kuring, kafka, limit); may be repeated")
    parser.add_argument("--workload", action="append", default=[], metavar="NAME", help="only this workload; * and ? stand for letters; may be repeated")
    parser.add_argument("--list", action="store_true", help="list the workloads")
    parser.add_argument("--rounds", type=int, default=None, help="rounds (3; smoke 1)")
    parser.add_argument("--seconds", type=float, default=None, help="seconds of a run (10; smoke 1.5)")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the amounts of data")
    parser.add_argument("--cold", action="store_true", help="do not warm Kafka up")
    parser.add_argument("--broker-cpus", metavar="LIST", help="processors of the brokers (the first half)")
    parser.add_argument("--client-cpus", metavar="LIST", help="processors of the load generator (the others)")
    parser.add_argument("--directory", default="/var/tmp", help="where the brokers keep their data (/var/tmp)")
    parser.add_argument("--report", default=os.path.join(ROOT, "perf", "report"), help="where the report goes (perf/report)")
    parser.add_argument("--profile", action="store_true", help="for rows that are missed: where the time goes, beside what they are held to (needs perf)")
    parser.add_argument("--draw", action="store_true", help="only draw the page of a report.json again")
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (1 if arguments.smoke else 3)
    return arguments


def wanted(workload: Workload, arguments: argparse.Namespace) -> bool:
    if arguments.workload:
        return any(fnmatch.fnmatch(workload.name, pattern) for pattern in arguments.workload)
    return workload.in_smoke or not arguments.smoke


def amounts(arguments: argparse.Namespace) -> Amounts:
    chosen = SMOKE if arguments.smoke else Amounts()
    chosen = chosen.scaled(arguments.scale) if arguments.scale != 1.0 else chosen
    if arguments.seconds:
        chosen.seconds = arguments.seconds
    return chosen


def without_kafka(only: list[str]) -> list[str]:
    """Kafka's jars come by Maven: without Java the others are still worth measuring."""
    if only or shutil.which("java"):
        return only
    say("perf/compare: no java, so Apache Kafka is left out")
    return ["kuring", "kuring-before", "limit", "limit-preallocating"]


def warnings(arguments: argparse.Namespace, cpus: machine.Cpus) -> list[str]:
    found = []
    if arguments.smoke:
        found.append("A smoke run: short loads, Kafka cold. It shows that everything works, not how quick it is.")
    elif arguments.cold:
        found.append("Kafka was not warmed up.")
    if not cpus.disjoint:
        found.append("Broker and client share processors.")
    if os.getloadavg()[0] > 0.5:
        found.append(f"The machine was busy before the run (load {os.getloadavg()[0]:.1f}): figures are noisy.")
    return found


def binaries() -> dict[str, str]:
    """The release binary and the bare limit, built if they are not there."""
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
    paths = {"KURING": os.path.join(target, "release", "kuring"),
             "KURING_LIMITS": os.path.join(target, "release", "examples", "limits")}
    paths |= {name: os.environ[name] for name in paths if name in os.environ}
    if not all(map(os.path.exists, paths.values())):
        command = ["cargo", "build", "--locked", "--release", "--bin", "kuring", "--example", "limits"]
        subprocess.run(command, cwd=ROOT, check=True, stdin=subprocess.DEVNULL)
    return paths


def finished(report: dict, bench: Bench) -> dict:
    report["peers"] = bench.titles
    report["targets"] = targets.rows(report)
    return report


def write(folder: str, report: dict) -> None:
    os.makedirs(folder, exist_ok=True)
    report["targets"] = targets.rows(report)
    with open(os.path.join(folder, "report.json"), "w") as file:
        json.dump(report, file, indent=1)
    with open(os.path.join(folder, "index.html"), "w") as file:
        file.write(page.make(report))


def raise_file_limit() -> None:
    """As far as the hard limit, and that one too where it may be raised."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES_MAX, max(hard, FILES_MAX)))
    except (PermissionError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def interrupted(number: int, _frame: object) -> None:
    for again in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(again, signal.SIG_IGN)
    raise SystemExit(128 + number)
