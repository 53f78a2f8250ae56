"""The one series that is logged, the file it is read back from, and the diary of a writer.

Nothing but numpy is imported: both clients' environments run this.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

METRIC = "m"

RECORD = np.dtype([("step", "<i8"), ("value", "<f4")])
"""A point in a file of stored points."""

_SPREAD = 2654435761
_VALUES = 1 << 24


def value_of(step: int) -> float:
    """The value that belongs to a step: exact in float32, and hard to compress."""
    return (step * _SPREAD & (_VALUES - 1)) / _VALUES


def values_of(first_step: int, count: int) -> np.ndarray:
    """`value_of` of `count` steps from `first_step` on, float32."""
    steps = np.arange(first_step, first_step + count, dtype=np.int64)
    return ((steps * _SPREAD & (_VALUES - 1)) / _VALUES).astype(np.float32)


def good_steps(points: np.ndarray) -> tuple[np.ndarray, int]:
    """The distinct steps of stored points, sorted, and how many points have another's value."""
    right = (points["step"] * _SPREAD & (_VALUES - 1)) / _VALUES == points["value"]
    return np.unique(points["step"][right]), int(np.count_nonzero(~right))


class Diary:
    """Two counts that survive the death of the process that keeps them: a mapped file.

    Attributes `logged` (calls' points, counted when the call returned) and `promised` (points that
    were logged when a `flush` began that returned without an error).
    """

    def __init__(self, path: Path) -> None:
        """Open the file, made if it is not there."""
        if not path.exists():
            path.write_bytes(bytes(16))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 16)
        self._counts = memoryview(self._map).cast("q")

    @property
    def logged(self) -> int:
        """Points of calls that returned."""
        return self._counts[0]

    @logged.setter
    def logged(self, points: int) -> None:
        self._counts[0] = points

    @property
    def promised(self) -> int:
        """Points that a flush declared safe."""
        return self._counts[1]

    @promised.setter
    def promised(self, points: int) -> None:
        self._counts[1] = points
