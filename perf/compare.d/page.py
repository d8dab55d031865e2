"""The report as one page of HTML that needs nothing else."""

from __future__ import annotations

import charts
from charts import Bar, Line, escape
from targets import MISSED, MET

SHORT = {"kuring": "kuring", "kuring-before": "kuring before", "kafka": "Kafka", "limit": "bare limit", "limit-preallocating": "limit, preall."}
ORDER = ("kuring", "kuring-before", "kafka", "limit", "limit-preallocating")
# Figures of which more is better; of all others less is.
MORE_IS_BETTER = {"MB/s", "records/s", "reader MB/s"}
TABLE = ("MB/s", "reader MB/s", "broker CPU s/GB", "client CPU s/GB", "broker CPU µs/request", "broker CPU % of a core", "p50 ms", "p99 ms",
         "p99.9 ms", "memory MiB")

STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1c2128; --soft: #59636e; --line: #d8dee4; --panel: #f6f8fa;
  --kuring: #0f766e; --kafka: #d97706; --limit: #6b7280; --strict: #a3a9b3; --before: #7c3aed; --good: #1a7f37; --bad: #c62828; }
@media (prefers-color-scheme: dark) { :root { --back: #14181d; --text: #e3e8ee; --soft: #9aa5b1; --line: #333b45; --panel: #1c2229;
  --kuring: #2dd4bf; --kafka: #fbbf24; --limit: #9ca3af; --strict: #6b7280; --before: #b794f6; --good: #57c271; --bad: #ff7b72; } }
body { margin: 0 auto; max-width: 1160px; padding: 24px; font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 19px; margin: 40px 0 8px; } h3 { font-size: 14px; margin: 0 0 2px; }
p { margin: 4px 0 12px; max-width: 80ch; } .soft { color: var(--soft); } .small { font-size: 13px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); gap: 12px; margin: 16px 0; }
.card { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 12px 14px; }
.card b { display: block; font-size: 24px; line-height: 1.25; } .card span { color: var(--soft); font-size: 13px; }
.grid2 { display: grid; grid-template-columns: repeat(auto-fit, minmax(440px, 1fr)); gap: 16px 32px; }
.plot { width: 100%; height: auto; display: block; } .plot text { font: 12px system-ui, sans-serif; fill: var(--text); }
.plot .tick { fill: var(--soft); font-size: 11px; } .grid { stroke: var(--line); fill: none; } .whisker { stroke: var(--text); fill: none; }
.card .plot { max-width: 540px; }
.stroke { fill: none; stroke-width: 2.2; } .group { margin: 10px 0 14px; }
.fill.peer-kuring { fill: var(--kuring); } .fill.peer-kafka { fill: var(--kafka); } .fill.peer-limit { fill: var(--limit); }
.fill.peer-limit-preallocating { fill: var(--strict); } .fill.peer-kuring-before { fill: var(--before); } .stroke.peer-kuring-before { stroke: var(--before); }
.stroke.peer-kuring { stroke: var(--kuring); } .stroke.peer-kafka { stroke: var(--kafka); } .stroke.peer-limit { stroke: var(--limit); }
.key { display: inline-block; width: 12px; height: 12px; border-radius: 2px; margin: 0 5px 0 14px; vertical-align: -1px; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 14px; }
th, td { text-align: left; padding: 5px 10px; border-bottom: 1px solid var(--line); vertical-align: top; } th { color: var(--soft); font-weight: 600; }
td.n, th.n { text-align: right; white-space: nowrap; } tr.missed td { color: var(--bad); } .good { color: var(--good); font-weight: 600; }
.bad { color: var(--bad); font-weight: 600; } code { font-size: 13px; }
.warning { border-left: 4px solid var(--bad); background: var(--panel); padding: 8px 14px; }
"""


def make(report: dict) -> str:
    sections = [head(report), cards(report), target_table(report), excess_section(report), bar_section(report, "Throughput", "MB/s",
                "As fast as the broker takes or gives it. Longer is better. Client and broker are of the same speed only when each has processors of its own."),
                bar_section(report, "Broker CPU per GB", "broker CPU s/GB", "Processor time of the broker, user and system, for each GB in and out. Shorter is better."),
                bar_section(report, "Client CPU per GB", "client CPU s/GB", "What the load generator itself took: the same for all, or the comparison is off."),
                latency_section(report), memory_section(report), start_section(report), table(report), machine(report)]
    return ("<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
            f"<title>kuring beside Apache Kafka and the limit</title><style>{STYLE}</style>" + "".join(sections) + "</html>\n")


def head(report: dict) -> str:
    keys = "".join(f'<span class=key style="background:var(--{name})"></span>{text}' for name, text in (
        ("kuring", "kuring"), ("kafka", "Apache Kafka"), ("limit", "bare limit: receives, checks, appends; sends files; nothing else")))
    warnings = "".join(f"<p class=warning>{escape(warning)}</p>" for warning in report["warnings"])
    peers = ", ".join(report["peers"].values())
    return (f"<h1>kuring beside Apache Kafka and the limit</h1><p class=soft>{escape(report['made'])} · {escape(peers)} · "
            f"{report['rounds']} rounds in turn, medians; whiskers and brackets are the least and the most</p><p class=small>{keys}</p>{warnings}")


def cards(report: dict) -> str:
    if report.get("cold"):
        # Ratios to a peer that still compiles itself say nothing.
        return ""
    wanted = (("produce", "1-topic-1-partition-1kb", "broker CPU s/GB", "less broker CPU per GB produced"),
              ("fetch", "1-topic-1-partition-1kb-catch-up", "broker CPU s/GB", "less broker CPU per GB fetched"),
              ("throughput", "1-topic-1-partition-1kb", "MB/s", "the throughput of one partition"),
              ("latency", "1-topic-1-partition-1kb-rate-2000", "p99 ms", "lower p99 end to end, 2,000 records/s"),
              ("start", "start", "start to first record ms", "sooner ready after a start"),
              ("memory", "memory", "loaded MiB", "less memory, 1,000 partitions and connections"))
    made = []
    for _, name, figure, text in wanted:
        kuring, kafka = value(report, name, "kuring", figure), value(report, name, "kafka", figure)
        if not kuring or not kafka:
            continue
        times = kuring / kafka if figure in MORE_IS_BETTER else kafka / kuring
        made.append(f"<div class=card><b>{times:.1f}×</b>{text}<br><span>{number(kuring)} beside Kafka's {number(kafka)} {unit(figure)}</span></div>")
    return f"<div class=cards>{''.join(made)}</div>" if made else ""


def target_table(report: dict) -> str:
    lines = []
    for row in report["targets"]:
        shown = {MET: '<td class=good>met</td>', MISSED: "<td class=bad>missed</td>"}.get(row["verdict"], "<td class=soft>not measured</td>")
        lines.append(f"<tr class={row['verdict'].replace(' ', '-')}><td>{escape(row['what'])}<td class=n>{escape(row['asked'])}"
                     f"<td class=n>{escape(row['seen'])}{shown}<td class=soft><code>{escape(row['workload'])}</code></tr>")
    return ("<h2>What it is held to</h2><p class=soft>The table of DESIGN.md, section 6.</p><div class=scroll><table><tr><th>what<th class=n>asked for"
            f"<th class=n>seen<th><th>workload</tr>{''.join(lines)}</table></div>")


def excess_section(report: dict) -> str:
    """For each missed row: what kuring and what it is held to spend, by what they were doing."""
    tables = []
    for row in report.get("excess", []):
        ours, base = (sum(group[side] for group in row["groups"]) for side in ("kuring", "base"))
        lines = "".join(f"<tr><td>{escape(group['group'])}<td class=n>{number(group['kuring'])}<td class=n>{number(group['base'])}"
                        f"<td class=n>{group['kuring'] - group['base']:+.3g}<td class=n>{share(group['kuring'] - group['base'], ours - base)}</tr>"
                        for group in row["groups"])
        tables.append(f"<h3><code>{escape(row['workload'])}</code></h3><div class=scroll><table><tr><th>{escape(row['figure'])}<th class=n>kuring"
                      f"<th class=n>{escape(row['base'])}<th class=n>excess<th class=n>of the excess</tr>{lines}<tr><th>sum<th class=n>{number(ours)}"
                      f"<th class=n>{number(base)}<th class=n>{ours - base:+.3g}<th></tr></table></div>")
    if not tables:
        return ""
    return ("<h2>Where the excess goes</h2><p class=soft>Rows that are missed, in a profiled run of their own: samples of all threads, "
            f"by what the kernel or the program was doing.</p>{''.join(tables)}")


def share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole > 0 else ""


def bar_section(report: dict, title: str, figure: str, text: str) -> str:
    groups = []
    for workload in report["workloads"]:
        group = bar_group(workload, figure)
        if group:
            groups.append(f"<div class=group><h3>{escape(workload['name'])}</h3><div class='soft small'>{escape(workload['about'])}</div>{charts.bars(group)}</div>")
    if not groups:
        return ""
    return f"<h2>{title}</h2><p class=soft>{text} Bars of one workload are to scale with each other.</p><div class=grid2>{''.join(groups)}</div>"


def bar_group(workload: dict, figure: str) -> list[Bar]:
    peers = workload["peers"]
    found = {name: peers[name]["summary"][figure] for name in ORDER if figure in peers.get(name, {}).get("summary", {})}
    limit = found.get("limit", {}).get("median")
    group = []
    for name, its in found.items():
        text = f"{number(its['median'])} {unit(figure)}"
        if limit and name != "limit":
            text += f" · {its['median'] / limit:.2f}× the limit"
        group.append(Bar(name, SHORT[name], its["median"], its["least"], its["most"], text))
    return group


def latency_section(report: dict) -> str:
    plots = []
    for workload in report["workloads"]:
        if not workload["rate"]:
            continue
        lines = [Line(name, SHORT[name], workload["peers"][name]["curve"]) for name in ORDER if name in workload["peers"] and name != "limit-preallocating"]
        drawn = charts.curves(lines)
        if drawn:
            plots.append(f"<div class=card><h3>{escape(workload['name'])}</h3><div class='soft small'>{escape(workload['about'])}</div>{drawn}</div>")
    if not plots:
        return ""
    return ("<h2>Latency</h2><p class=soft>Open loop, from the time each record was due: from there to the reader, or to the answer where nothing "
            "reads. Each step to the right is ten times rarer, each step up ten times longer; the run with the median p99. Lower is better.</p>"
            f"<div class=grid2>{''.join(plots)}</div>")


def memory_section(report: dict) -> str:
    plots = []
    for workload in report["workloads"]:
        if workload["kind"] not in ("memory", "sustained"):
            continue
        lines = [Line(name, SHORT[name], workload["peers"][name]["memory"]) for name in ORDER if name in workload["peers"]]
        drawn = charts.over_time(lines, "MiB")
        if drawn:
            plots.append(f"<div class=card><h3>{escape(workload['name'])}</h3><div class='soft small'>{escape(workload['about'])}</div>{drawn}</div>")
    if not plots:
        return ""
    return f"<h2>Memory over time</h2><p class=soft>Resident memory of the broker while the load runs.</p><div class=grid2>{''.join(plots)}</div>"


def start_section(report: dict) -> str:
    workload = next((workload for workload in report["workloads"] if workload["name"] == "start"), None)
    if workload is None:
        return ""
    groups = [(figure, bar_group(workload, figure)) for figure in (
        "start to first record ms", "empty directory to ready ms", "CPU of the start ms", "SIGTERM to end ms")]
    drawn = "".join(f"<div class=group><h3>{figure.removesuffix(' ms')}</h3>{charts.bars(group)}</div>" for figure, group in groups if group)
    return f"<h2>Start-up</h2><p class=soft>{escape(workload['about'])}</p><div class=grid2>{drawn}</div>"


def table(report: dict) -> str:
    lines = []
    for workload in report["workloads"]:
        peers = workload["peers"]
        names = list(dict.fromkeys([*TABLE, *(name for peer in peers.values() for name in peer["summary"])]))
        figures = [name for name in names if name != "records/s" and any(name in peer["summary"] for peer in peers.values())]
        notes = "; ".join(f"{SHORT.get(name, name)}: {peer.get('error') or peer['note']}" for name, peer in peers.items()
                          if peer.get("error") or peer["note"])
        for position, figure in enumerate(figures or [""]):
            first = f"<td rowspan={len(figures) or 1}><code>{escape(workload['name'])}</code><div class='soft small'>{escape(notes[:300])}</div>" if position == 0 else ""
            cells = "".join(f"<td class=n>{spread(peers.get(name, {}).get('summary', {}).get(figure))}" for name in shown_peers(report))
            lines.append(f"<tr>{first}<td>{escape(figure)}{cells}<td class=n>{times(workload, figure, 'kafka')}<td class=n>{times(workload, figure, 'limit')}</tr>")
    return ("<h2>All figures</h2><div class=scroll><table><tr><th>workload<th>figure" + "".join(f"<th class=n>{SHORT[name]}" for name in shown_peers(report)) +
            f"<th class=n>Kafka ÷ kuring<th class=n>kuring ÷ limit</tr>{''.join(lines)}</table></div>")


def shown_peers(report: dict) -> list[str]:
    return [name for name in ORDER if name in report["peers"] and name != "limit-preallocating"]


def times(workload: dict, figure: str, other: str) -> str:
    of = lambda name: workload["peers"].get(name, {}).get("summary", {}).get(figure, {}).get("median")
    kuring, its = of("kuring"), of(other)
    if not kuring or not its:
        return ""
    return f"{(its / kuring if other == 'kafka' else kuring / its):.2f}×"


def machine(report: dict) -> str:
    lines = "".join(f"<tr><td>{escape(name)}<td>{escape(text)}</tr>" for name, text in report["machine"].items())
    return (f"<h2>Where and how</h2><table>{lines}</table><p class='soft small'>All peers keep their files on the same disk, are reached over "
            "loopback by the same load generator and get the same topic settings. The limit is one thread: it says what the kernel's work alone "
            "costs. How to run this and how to read it: docs/PERFORMANCE.md.</p>")


def value(report: dict, workload: str, peer: str, figure: str) -> float | None:
    found = next((its for its in report["workloads"] if its["name"] == workload), None)
    return found and found["peers"].get(peer, {}).get("summary", {}).get(figure, {}).get("median")


def spread(figure: dict | None) -> str:
    if figure is None:
        return ""
    text = number(figure["median"])
    if figure["most"] > figure["least"]:
        text += f" <span class='soft small'>[{number(figure['least'])}–{number(figure['most'])}]</span>"
    return text


def unit(figure: str) -> str:
    for known in ("MB/s", "s/GB", "µs/request", "ms", "MiB", "records/s"):
        if figure.endswith(known):
            return known
    return ""


def number(value: float) -> str:
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
