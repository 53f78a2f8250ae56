"""Remembers who wrote the visible rows of a stretch of steps, per axis.

A run that was resumed from an older checkpoint rewrites its overlap row by row, on every series.
Without this, each batch would look the store up once per series; with it, once per stretch.

A window ends at the axis' greatest step, so rows that only extend the axis lie behind it: it has to
hear of every table that looked it up, and of no other.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import numpy as np

from metrana_async.wire.model import Int64Array

WINDOW_STEPS: Final = 4096
"""How far a look-up reads ahead."""
_ROWS_KEPT: Final = 1 << 22

AxisKey = tuple[int, "int | None"]
"""(series_no, env_no or None)."""


@dataclass(slots=True)
class _Window:
    """Visible rows of steps low..high: `steps` ascending, and their writers."""

    low: int
    high: int
    steps: Int64Array
    writers: Int64Array


class VisibleWindows:
    """One window per axis, least recently used forgotten first."""

    def __init__(self, rows_kept: int = _ROWS_KEPT) -> None:
        self._rows_kept = rows_kept
        self._rows = 0
        self._windows: OrderedDict[AxisKey, _Window] = OrderedDict()

    def find(self, axis: AxisKey, steps: Int64Array) -> tuple[Int64Array, Int64Array] | None:
        """Those of `steps` (sorted, distinct) that hold a row, and who wrote it; None: unknown."""
        window = self._windows.get(axis)
        if window is None or int(steps[0]) < window.low or int(steps[-1]) > window.high:
            return None
        self._windows.move_to_end(axis)
        if not len(window.steps):
            return steps[:0], steps[:0]
        at = np.minimum(np.searchsorted(window.steps, steps), len(window.steps) - 1)
        is_held = window.steps[at] == steps
        return steps[is_held], window.writers[at[is_held]]

    def put(
        self, axis: AxisKey, bounds: tuple[int, int], steps: Int64Array, writers: Int64Array
    ) -> None:
        """Remember the visible rows of an inclusive range, read just now."""
        old = self._windows.pop(axis, None)
        self._rows += len(steps) - (0 if old is None else len(old.steps))
        self._windows[axis] = _Window(*bounds, steps, writers)
        while self._rows > self._rows_kept and len(self._windows) > 1:
            _, gone = self._windows.popitem(last=False)
            self._rows -= len(gone.steps)

    def note(self, axis: AxisKey, steps: Int64Array, writer: int) -> None:
        """Rows at these steps (any order) were stored; those outside the window do not matter."""
        window = self._windows.get(axis)
        if window is None:
            return
        steps = steps if len(steps) == 1 else np.unique(steps)
        steps = steps[(steps >= window.low) & (steps <= window.high)]
        if not len(window.steps):
            window.steps, window.writers = steps, np.full(len(steps), writer, np.int64)
            self._rows += len(steps)
            return
        at = np.searchsorted(window.steps, steps)
        is_held = window.steps[np.minimum(at, len(window.steps) - 1)] == steps
        window.writers[at[is_held]] = writer
        if not is_held.all():
            fresh = at[~is_held]
            window.steps = np.insert(window.steps, fresh, steps[~is_held])
            window.writers = np.insert(window.writers, fresh, writer)
            self._rows += len(fresh)
