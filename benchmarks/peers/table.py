"""Answers as tables in Markdown: one a workload, and one of ratios to this client."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.peers.driver import Answer
from benchmarks.peers.workloads import READ, WORKLOADS

Answers = Mapping[tuple[str, str], Sequence[Answer]]
"""By workload and peer; one answer a repeat."""

OURS = "ours"
YARDSTICK = "yardstick"
_CALLER = (
    ("calls", "calls"),
    ("mean_us", "mean"),
    ("p50_us", "p50"),
    ("p99_us", "p99"),
    ("max_us", "max"),
    ("caller_us", "caller CPU"),
)
_WHOLE = (
    ("cpu_us", "CPU / point"),
    ("durable_s", "durable s"),
    ("close_s", "close s"),
    ("memory_mb", "memory MB"),
    ("point_bytes", "bytes / point"),
)
_START = (
    ("import_s", "import s"),
    ("init_s", "init s"),
    ("points", "points"),
    ("durable_s", "log and close s"),
    ("close_s", "close s"),
)
_READ = (
    ("points", "points"),
    ("read_s", "s"),
    ("read_us", "us / point"),
    ("cpu_us", "CPU / point"),
)


def figure(runs: Sequence[Answer], name: str) -> float | None:
    """Median over the repeats; None where there is none."""
    found = [value for run in runs if (value := _derived(run).get(name)) is not None]
    return statistics.median(found) if found else None


def _derived(answer: Answer) -> Answer:
    points = answer["points"]
    more = {"cpu_us": answer["cpu_s"] / points * 1e6}
    if "read_s" in answer:
        more["read_us"] = answer["read_s"] / points * 1e6
    if "bytes" in answer:
        more["point_bytes"] = answer["bytes"] / points
    return answer | more


def tables(answers: Answers) -> list[str]:
    """All of them."""
    lines: list[str] = []
    for workload in dict.fromkeys(workload for workload, _ in answers):
        if workload == READ:
            what, columns, order = "reading a metric of 1M points back", _READ, "read_us"
        elif WORKLOADS[workload].is_pending:
            what, columns, order = "import, init, close behind 1M points", _START, "close_s"
        else:
            what, columns, order = WORKLOADS[workload].what, (*_CALLER, *_WHOLE), "mean_us"
        rows = {peer: runs for (name, peer), runs in answers.items() if name == workload}
        lines += ["", f"### {what}", "", *_table(rows, columns, order)]
    return lines


def _table(
    rows: Mapping[str, Sequence[Answer]], columns: Sequence[tuple[str, str]], order: str
) -> list[str]:
    ours = figure(rows.get(OURS, ()), order)
    lines = [
        f"| client | {' | '.join(head for _, head in columns)} | x ours |",
        f"|---|{'---:|' * (len(columns) + 1)}",
    ]
    for peer in sorted(rows, key=lambda peer: figure(rows[peer], order) or 0.0):
        cells = [number(figure(rows[peer], name)) for name, _ in columns]
        own = figure(rows[peer], order)
        ratio = own / ours if own is not None and ours else None
        lines.append(f"| {peer} | {' | '.join(cells)} | {number(ratio)} |")
    return lines


def ratios(answers: Answers) -> list[str]:
    """What the loop loses a call, in all and as CPU, and CPU a point, as multiples of ours."""
    lines = []
    for name, what in (
        ("mean_us", "mean time of a call"),
        ("caller_us", "caller CPU of a call"),
        ("cpu_us", "CPU of a point"),
    ):
        workloads = [
            workload
            for workload in dict.fromkeys(workload for workload, _ in answers)
            if figure(answers.get((workload, OURS), ()), name)
        ]
        if not workloads:
            continue
        lines += ["", f"### {what}, ours = 1", "", f"| client | {' | '.join(workloads)} |"]
        lines.append(f"|---|{'---:|' * len(workloads)}")
        for peer in dict.fromkeys(peer for _, peer in answers):
            cells = []
            for workload in workloads:
                own = figure(answers.get((workload, peer), ()), name)
                ours = figure(answers[workload, OURS], name)
                cells.append(number(own / ours if own is not None and ours else None))
            lines.append(f"| {peer} | {' | '.join(cells)} |")
    return lines


def number(value: float | None) -> str:
    """Three digits that matter."""
    if value is None:
        return "–"
    if value >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
