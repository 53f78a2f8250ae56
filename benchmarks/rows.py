"""Lines of the table of `make bench`, the yardsticks they are held against, and the baseline.

Absolute times move with the machine and its neighbours. What is compared with an earlier run is a
figure divided by a yardstick that was taken beside it, in the same process and within seconds.
"""

from __future__ import annotations

import collections
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

APPEND = "deque.append"
COPY = "copy of 64x128 float32"
_ROUNDS = 5


@dataclass(frozen=True)
class Row:
    """One figure; smaller is better in all of them."""

    what: str
    figure: float
    unit: str
    aim: float | None = None
    yardstick: str = ""
    """What it is divided by before it is compared; "" = it does not depend on the machine."""
    factor: float = 1.5
    """How many times the baseline it may be before that is said; 0 = it is not compared."""
    relative: float = 0.0
    """The figure in yardsticks of the same run."""


def yardsticks() -> dict[str, float]:
    """Microseconds of CPU of the barest things a logger could do, now: the best of some rounds."""
    queue: collections.deque[Any] = collections.deque(maxlen=1_000)
    block = np.zeros((64, 128), np.float32)

    def append(number: int) -> None:
        queue.append((number, 0.5))

    def copy(number: int) -> None:
        np.array(block)

    return {
        what: min(_cpu_us(call, calls) for _ in range(_ROUNDS))
        for what, call, calls in ((APPEND, append, 50_000), (COPY, copy, 5_000))
    }


def _cpu_us(call: Callable[[int], None], calls: int) -> float:
    start_s = time.thread_time()
    for number in range(calls):
        call(number)
    return (time.thread_time() - start_s) / calls * 1e6


def beside_yardsticks(measure: Callable[[], Sequence[Row]]) -> list[Row]:
    """Rows of one section, each with its figure in yardsticks taken before and behind it."""
    before = yardsticks()
    rows = measure()
    behind = yardsticks()
    means = {name: (before[name] + behind[name]) / 2 for name in before}
    return [replace(row, relative=row.figure / means.get(row.yardstick, 1.0)) for row in rows]


def line(row: Row) -> str:
    """One row as text."""
    aim = "" if row.aim is None else f"{row.aim:g}"
    relative = f"{row.relative:10.4g} x {row.yardstick}" if row.yardstick else ""
    return f"{row.what:62} {row.figure:12.4g} {row.unit:12} {aim:>6} {relative}".rstrip()


def table(rows: Sequence[Row]) -> list[str]:
    """All rows, in Markdown."""
    lines = ["| what | figure | unit | aim | in yardsticks |", "|---|---:|---|---:|---:|"]
    for row in rows:
        aim = "" if row.aim is None else f"{row.aim:g}"
        relative = f"{row.relative:,.3g} x {row.yardstick}" if row.yardstick else ""
        lines.append(f"| {row.what} | {row.figure:,.3g} | {row.unit} | {aim} | {relative} |")
    return lines


def compared(rows: Sequence[Row], baseline: Mapping[str, float]) -> list[str]:
    """In words: what is worse than the baseline by more than its factor, better, or missing there.

    `baseline` has `Row.relative` by `Row.what`.
    """
    worse, better, new = [], [], []
    for row in rows:
        if not row.factor:
            continue
        earlier = baseline.get(row.what)
        if earlier is None:
            new.append(row.what)
        elif earlier <= 0 or row.relative <= 0:
            continue
        elif row.relative > row.factor * earlier:
            worse.append(_change(row, earlier))
        elif row.relative * row.factor < earlier:
            better.append(_change(row, earlier))
    lines = []
    for title, found in (
        ("worse than the baseline", worse),
        ("better than the baseline", better),
        ("not in the baseline", new),
    ):
        lines += [f"{title}:", *(f"  {what}" for what in found)] if found else []
    return lines or ["nothing moved against the baseline by more than its factor"]


def _change(row: Row, earlier: float) -> str:
    unit = f"x {row.yardstick}" if row.yardstick else row.unit
    return (
        f"{row.what}: {row.relative:.4g} {unit}, was {earlier:.4g} "
        f"({row.relative / earlier:.2f} times; said beyond {row.factor:g})"
    )


def read_baseline(path: Path) -> dict[str, float]:
    """`Row.relative` by `Row.what`; empty where there is no such file."""
    if not path.exists():
        return {}
    return {row["what"]: row["relative"] for row in json.loads(path.read_text())["rows"]}
