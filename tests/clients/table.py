"""Compares what a run of the clients printed with what the same programs did with Apache Kafka (kafka.txt), and makes
README.md's table of it.

usage: table.py RESULTS [--write | --check | --expect] CLIENT...
  RESULTS has lines "CLIENT STATUS NAME[: why]", STATUS is ok or FAILED; the CLIENTs are those that ran
  --write   puts the table into README.md      --check  fails when README.md has another one
  --expect  the run was one with Apache Kafka KAFKA_VERSION: puts what it did with these CLIENTs into kafka.txt
"""

import datetime
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
README = HERE / "README.md"
BEGIN, END = "<!-- table: made by run --table -->\n", "<!-- end of the table -->\n"
EXPECTED = HERE / "kafka.txt"
EXPECTED_HEAD = """\
# What the same programs did with Apache Kafka: what is expected of kuring. Written by tests/clients/run --kafka --table.
# CLIENT SCENARIO ok|FAILED VERSION DATE
"""
# Programs with scenarios of their own; all others go through the common list.
OWN = ["streams", "connect", "tools", "cluster", "directories"]


def entries(name, fields):
    lines = (HERE / name).read_text().splitlines()
    return [line.split(None, fields - 1) for line in lines if line and not line.startswith("#")]


def read_results(path):
    """{client: {scenario: status}} in the order printed."""
    results = {}
    for line in pathlib.Path(path).read_text().splitlines():
        client, status, rest = line.split(" ", 2)
        results.setdefault(client, {})[rest.split(":", 1)[0]] = status
    return results


def problems(results, scenarios, unsupported):
    for client, found in results.items():
        for name in found:
            if client not in OWN and name not in scenarios:
                yield f"{client} {name}: not in scenarios.txt"
            if (client, name) in unsupported:
                yield f"{client} {name}: is listed in unsupported.txt and yet runs"
    for client, name in unsupported:
        if name not in scenarios:
            yield f"unsupported.txt: {client} {name}: no such scenario"


def holes(clients, results, scenarios, beside, unsupported):
    """Cells of the common list that nobody has filled or explained."""
    for client in clients:
        for name in scenarios:
            known = client in OWN or name in beside or (client, name) in unsupported
            if not known and name not in results.get(client, {}):
                yield f"{client} {name}: has neither run nor a reason in unsupported.txt"


def expected():
    """{(client, scenario): (status, version, date)}"""
    lines = EXPECTED.read_text().splitlines() if EXPECTED.exists() else []
    rows = (line.split() for line in lines if line and not line.startswith("#"))
    return {(client, name): tuple(rest) for client, name, *rest in rows}


def expect(results, clients):
    # A run of one scenario says nothing of the others.
    is_whole = "KURING_SCENARIO" not in os.environ
    kept = {cell: rest for cell, rest in expected().items() if not (is_whole and cell[0] in clients)}
    stamp = (os.environ["KAFKA_VERSION"], datetime.date.today().isoformat())
    found = {(client, name): (status, *stamp) for client, cells in results.items() for name, status in cells.items()}
    rows = [" ".join([*cell, *rest]) for cell, rest in {**kept, **found}.items()]
    EXPECTED.write_text(EXPECTED_HEAD + "".join(f"{line}\n" for line in sorted(rows)))


def differences(results, whole):
    """Where kuring did not do as Kafka did; what kafka.txt does not know is one in a run of all clients only."""
    wanted = expected()
    for client, found in results.items():
        for name, status in found.items():
            kafka, *stamp = wanted.get((client, name), ("unknown",))
            if status == "FAILED" and kafka == "ok":
                yield f"{client} {name}: DIFFERENCE: it passes with Apache Kafka {' of '.join(stamp)}"
            elif status == "FAILED" and kafka == "FAILED":
                yield f"{client} {name}: fails with Apache Kafka too: list it in unsupported.txt"
            elif kafka == "unknown" and whole and client != "directories":
                yield f"{client} {name}: nobody has looked what Apache Kafka does: tests/clients/run --kafka --table {client}"


def row(cells):
    return "| " + " | ".join(cells) + " |\n"


def table(clients, results, scenarios, beside, unsupported):
    columns = [client for client in clients if client not in OWN]

    def mark(client, name):
        if (client, name) in unsupported:
            return "–"
        return {"ok": "✓", "FAILED": "**fails**", None: ""}[results.get(client, {}).get(name)]

    # Without the days: they change where the table does not.
    kafkas = sorted({version for _, version, _ in expected().values()})
    text = "✓ passes, – the client cannot (reasons below). The same programs went through the same scenarios with Apache\n"
    text += f"Kafka {', '.join(kafkas)}: `kafka.txt` has what it did and when.\n\n"
    failing = [f"{client} {name}" for (client, name), (status, *_) in sorted(expected().items()) if status != "ok"]
    text += f"There these failed: {', '.join(failing)}.\n\n" if failing else ""
    text += row(["scenario", *columns]) + row(["---"] + [":-:"] * len(columns))
    for name in scenarios:
        if name not in beside:
            text += row([name, *(mark(client, name) for client in columns)])
    text += "\nBeside that list, where a client has a program for it:\n\n" + row(["scenario", "clients"]) + row(["---", "---"])
    for name in beside:
        found = [(client, mark(client, name)) for client in columns if (client, name) not in unsupported]
        text += row([name, ", ".join(f"{client} {what}" for client, what in found if what)])
    text += "\n" + "".join(f"- {name}: {what}\n" for name, what in scenarios.items())
    reasons = {}
    for (client, name), reason in unsupported.items():
        reasons.setdefault((client, reason), []).append(name)
    text += "\nWhat clients cannot:\n\n"
    text += "".join(f"- {client}, {', '.join(names)}: {reason}\n" for (client, reason), names in reasons.items())
    text += "\nPrograms with scenarios of their own:\n\n" + row(["program", "scenarios that pass"]) + row(["---", "---"])
    for client in clients:
        if client in OWN:
            passed = [name for name, status in results.get(client, {}).items() if status == "ok"]
            text += row([client, ", ".join(passed)])
    return text


def main():
    path, *rest = sys.argv[1:]
    mode = rest.pop(0) if rest and rest[0].startswith("--") else ""
    results = read_results(path)
    scenarios = {name.lstrip("+"): what for name, what in entries("scenarios.txt", 2)}
    beside = [name[1:] for name, _ in entries("scenarios.txt", 2) if name.startswith("+")]
    unsupported = {(client, name): reason for client, name, reason in entries("unsupported.txt", 3)}
    wrong = list(problems(results, scenarios, unsupported))
    if mode == "--expect":
        expect(results, rest)
        for problem in wrong:
            print(f"table: FAILED {problem}")
        sys.exit(1 if wrong else 0)
    if os.environ.get("KURING_JUDGED") == "kuring":
        wrong += differences(results, bool(mode))
        if mode:
            wrong += holes(rest, results, scenarios, beside, unsupported)
    before, _, rest_of_readme = README.read_text().partition(BEGIN)
    old, _, after = rest_of_readme.partition(END)
    new = table(rest, results, scenarios, beside, unsupported)
    if mode == "--write":
        README.write_text(before + BEGIN + new + END + after)
    elif mode == "--check" and old != new:
        wrong.append("README.md's table is not what this run found: tests/clients/run --table writes it")
    for problem in wrong:
        print(f"table: FAILED {problem}")
    sys.exit(1 if wrong else 0)


main()
