"""Checks what a run of the clients printed and makes README.md's table of it.

usage: table.py RESULTS [--write | --check] CLIENT...
  RESULTS has lines "CLIENT STATUS NAME[: why]", STATUS is ok or FAILED; the CLIENTs are those that ran
  --write  puts the table into README.md      --check  fails when README.md has another one
"""

import pathlib
import sys

HERE = pathlib.Path(__file__).parent
README = HERE / "README.md"
BEGIN, END = "<!-- table: made by run --table -->\n", "<!-- end of the table -->\n"
# Programs with scenarios of their own; all others go through the common list.
OWN = ["streams", "connect", "tools", "directories"]


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


def row(cells):
    return "| " + " | ".join(cells) + " |\n"


def table(clients, results, scenarios, unsupported):
    columns = [client for client in clients if client not in OWN]

    def mark(client, name):
        if (client, name) in unsupported:
            return "–"
        return {"ok": "✓", "FAILED": "**fails**", None: ""}[results.get(client, {}).get(name)]

    text = "✓ passes, – the client cannot (reasons below), empty: not written yet.\n\n"
    text += row(["scenario", *columns]) + row(["---"] + [":-:"] * len(columns))
    for name in scenarios:
        text += row([name, *(mark(client, name) for client in columns)])
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
    scenarios = {name: what for name, what in entries("scenarios.txt", 2)}
    unsupported = {(client, name): reason for client, name, reason in entries("unsupported.txt", 3)}
    wrong = list(problems(results, scenarios, unsupported))
    before, _, rest_of_readme = README.read_text().partition(BEGIN)
    old, _, after = rest_of_readme.partition(END)
    new = table(rest, results, scenarios, unsupported)
    if mode == "--write":
        README.write_text(before + BEGIN + new + END + after)
    elif mode == "--check" and old != new:
        wrong.append("README.md's table is not what this run found: tests/clients/run --table writes it")
    for problem in wrong:
        print(f"table: FAILED {problem}")
    sys.exit(1 if wrong else 0)


main()
