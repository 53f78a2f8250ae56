"""Outcomes as one table, what they come to as ratios, and what must hold of this client's."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from benchmarks.hosted.scenarios import Outcome

Outcomes = Mapping[tuple[str, str], Sequence[Outcome]]
"""By scenario and client."""

KILLS = ("kill_paced", "kill_full_speed")
DAMAGES = ("flip_byte",)
_HEADS = (
    "scenario",
    "client",
    "runs",
    "logged",
    "promised",
    "survived",
    "said lost",
    "uncounted",
    "run is",
)


def spread(figures: Iterable[float], form: str = "{:,.0f}") -> str:
    """Median, and the range where there is one."""
    ordered = sorted(figures)
    middle, low, high = (
        form.format(f) for f in (statistics.median(ordered), ordered[0], ordered[-1])
    )
    return middle if low == high else f"{middle} ({low}-{high})"


def table(outcomes: Outcomes) -> list[str]:
    """The table, in Markdown."""
    lines = [f"| {' | '.join((*_HEADS, 'figures'))} |", f"|{'---|' * (len(_HEADS) + 1)}"]
    for (scenario, client), runs in outcomes.items():
        columns = [
            spread(getattr(run, name) for run in runs)
            for name in ("logged", "promised", "stored", "reported", "uncounted")
        ]
        states = ", ".join(sorted({run.state for run in runs}))
        cells = (scenario, client, str(len(runs)), *columns, states, ", ".join(_figures(runs)))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _figures(runs: Sequence[Outcome]) -> list[str]:
    found = []
    for name, form, factor in (
        ("rate", "{:,.0f} points/s", 1),
        ("log", "logging {:.1f} s", 1),
        ("close", "close {:.1f} s", 1),
        ("flush", "flush {:.1f} ms", 1e3),
        ("bare", "bare fdatasync {:.1f} ms", 1e3),
    ):
        figures = [figure * factor for run in runs for figure in run.figures.get(name, [])]
        if figures:
            found.append(form.format(statistics.median(figures)))
    if any("rate" in run.figures for run in runs):
        found.append("tail {} s".format(spread(tails(runs), "{:.2f}")))
    return found


def tails(runs: Sequence[Outcome]) -> list[float]:
    """Seconds of logging that a kill took along."""
    return [(run.logged - run.stored) / run.figures["rate"][0] for run in runs]


def ratios(outcomes: Outcomes) -> list[str]:
    """Theirs divided by ours, of what can be divided."""
    questions: tuple[tuple[str, str, Callable[[Sequence[Outcome]], list[float]]], ...] = (
        ("kill_paced", "seconds lost to kill -9 at 100 points/s", tails),
        ("kill_full_speed", "seconds lost to kill -9 at full speed", tails),
        ("kill_full_speed", "points logged a second", lambda runs: _of(runs, "rate")),
        ("flush_latency", "duration of a flush", lambda runs: _of(runs, "flush")),
        ("flip_byte", "points gone for one flipped byte", _gone),
        ("cap_reached", "points kept in 1 MB", lambda runs: [float(run.stored) for run in runs]),
        (
            "close_server_mute",
            "duration of close(10), mute server",
            lambda runs: _of(runs, "close"),
        ),
    )
    lines = []
    for scenario, what, figures in questions:
        ours, theirs = (outcomes.get((scenario, who)) for who in ("ours", "theirs"))
        if ours and theirs and (below := statistics.median(figures(ours))):
            ratio = statistics.median(figures(theirs)) / below
            lines.append(f"{what}: theirs / ours = {ratio:.3g}")
    return lines


def _of(runs: Sequence[Outcome], name: str) -> list[float]:
    return [figure for run in runs for figure in run.figures[name]]


def _gone(runs: Sequence[Outcome]) -> list[float]:
    return [float(run.logged - run.stored) for run in runs]


def violations(outcomes: Outcomes) -> list[str]:
    """What does not hold of this client, and must."""
    found = []
    for (scenario, client), runs in outcomes.items():
        if client == "ours":
            found += [
                f"{scenario} run {n}: {fault}"
                for n, run in enumerate(runs)
                for fault in _faults(scenario, run)
            ]
    return found


def _faults(scenario: str, run: Outcome) -> list[str]:
    faults = []
    if run.wrong:
        faults.append(f"{run.wrong} points have another's value")
    if scenario in DAMAGES:
        # The disk broke the promise; then every point of it that is gone has to be told.
        if run.missing_promised > run.reported:
            faults.append(f"{run.missing_promised} promised points gone, {run.reported} reported")
    elif run.missing_promised:
        faults.append(f"{run.missing_promised} points that flush had promised are gone")
    if scenario in KILLS:
        # Nobody is left to report what died in memory: it may only be the end of what was logged,
        # and one call may have been under way when it was counted.
        if not run.is_prefix or run.uncounted < -1:
            faults.append(f"{run.stored} of {run.logged} survived, and they are not the first ones")
        if run.state != "crashed":
            faults.append(f"its writer was killed, and readers are told that it is {run.state}")
    elif run.uncounted:
        faults.append(
            f"{run.logged} logged, {run.stored} stored, {run.reported} reported lost: "
            f"{run.uncounted} not accounted for"
        )
    return faults
