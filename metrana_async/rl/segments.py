"""A block cut into stretches of one episode of one environment. Pure, no loop over points.

A *segment* begins at the first cell of a row, behind an end of an episode, or where the caller
reset the environment. Its first cells may be no transitions: the row in which gymnasium's next-step
autoreset happens, or whatever follows an end while nobody has reset the environment.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from metrana_async.columns.arrays import BoolArray
from metrana_async.errors import ValidationError
from metrana_async.wire.model import Int64Array


class Autoreset(str, enum.Enum):
    """What a vectorised environment does after the end of an episode.

    NEXT_STEP: the next call of `step` resets it and is no transition (gymnasium's own, EnvPool).
    SAME_STEP: it is reset within the same step (Stable-Baselines3, Isaac Lab, Brax, gymnax).
    DISABLED: nothing; the caller resets it, and what comes before that is no transition.
    """

    NEXT_STEP = "next_step"
    SAME_STEP = "same_step"
    DISABLED = "disabled"

    @classmethod
    def of(cls, mode: Any) -> Autoreset:
        """Read a mode: a member, its name in any spelling, or gymnasium's `AutoresetMode`.

        Raises:
            ValidationError: it is none of these.
        """
        word = str(getattr(mode, "value", mode)).replace("_", "").lower()
        for member in cls:
            if member.value.replace("_", "") == word:
                return member
        raise ValidationError(
            f"autoreset is {mode!r:.60}; it is 'next_step', 'same_step' or 'disabled'"
        )


@dataclass(frozen=True)
class Segments:
    """S segments of a grid [B, T], row by row; each row has at least one.

    Attributes:
        shape: (B, T).
        row: int64 [S].
        start: int64 [S], flat cell; ascending.
        stop: int64 [S], flat cell behind the last one that holds something.
        idle: int64 [S], cells from `start` on that are no transitions.
        is_first: bool [S], the first of its row.
        is_done: bool [S], the environment ended the episode in the last cell.
        is_cut: bool [S], the caller reset the environment behind the last cell.
    """

    shape: tuple[int, int]
    row: Int64Array
    start: Int64Array
    stop: Int64Array
    idle: Int64Array
    is_first: BoolArray
    is_done: BoolArray
    is_cut: BoolArray

    @property
    def count(self) -> Int64Array:
        """Transitions of each segment, int64 [S]."""
        return self.stop - self.start - self.idle

    @cached_property
    def last_of_rows(self) -> Int64Array:
        """The last segment of each row, int64 [B]."""
        return np.append(np.flatnonzero(self.is_first)[1:], len(self.row)) - 1

    def mask(self) -> BoolArray:
        """Flags [B, T], False where a cell is no transition."""
        ends = np.append(self.start[1:], self.shape[0] * self.shape[1])
        runs = np.stack([self.idle, self.count, ends - self.stop], axis=1).reshape(-1)
        flags = np.tile(np.array([False, True, False]), len(self.row))
        return np.repeat(flags, runs).reshape(self.shape)

    def paint(self, values: Int64Array) -> Int64Array:
        """Each segment's value in all its cells, int64 [B, T]."""
        ends = np.append(self.start[1:], self.shape[0] * self.shape[1])
        return np.repeat(values, ends - self.start).reshape(self.shape)


def cut(
    done: BoolArray,
    resets: BoolArray | None,
    mode: Autoreset,
    is_pending: BoolArray,
    lengths: Int64Array | None = None,
) -> Segments:
    """Cut a grid into segments.

    Args:
        done: bool [B, T], B and T at least 1; the episode ended with this cell. Ends in cells that
            are no transitions do not count.
        resets: bool [B, T], the caller reset the environment before this cell; the first column
            is False.
        mode: what follows an end.
        is_pending: bool [B], an end came before the first column, and no reset since.
        lengths: int64 [B], cells of each row that hold something, at least 1; None for all.
    """
    rows, width = done.shape
    reset_at = np.flatnonzero(resets) if resets is not None else np.empty(0, np.int64)
    done_at = _that_count(np.flatnonzero(done), reset_at, width, mode, is_pending)
    row_starts = np.arange(rows) * width
    row_stops = row_starts + (width if lengths is None else lengths)
    # Cell by cell: is it the first of a segment, is it the first behind an end.
    is_start = np.zeros(rows * width + 1, dtype=bool)
    is_behind = np.zeros(rows * width + 1, dtype=bool)
    is_behind[done_at + 1] = True
    is_behind[row_starts] = is_pending
    is_behind[reset_at] = False
    inside = done_at + 1 < row_stops[done_at // width]
    is_start[done_at[inside] + 1] = True
    is_start[reset_at] = True
    is_start[row_starts] = True
    start = np.flatnonzero(is_start[:-1])
    row = start // width
    is_first = start == row_starts[row]
    stop = row_stops[row]
    stop[:-1] = np.where(is_first[1:], stop[:-1], start[1:])
    is_end = np.zeros(rows * width, dtype=bool)
    is_end[done_at] = True
    is_done = is_end[stop - 1]
    is_cut = ~is_done
    is_cut[:-1] &= ~is_first[1:]
    is_cut[-1] = False
    idle = np.zeros(len(start), dtype=np.int64)
    if mode is Autoreset.NEXT_STEP:
        idle[is_behind[start]] = 1
    elif mode is Autoreset.DISABLED:
        idle = np.where(is_behind[start], stop - start, 0)
    return Segments(done.shape, row, start, stop, idle, is_first, is_done, is_cut)


def _that_count(
    done_at: Int64Array,
    reset_at: Int64Array,
    width: int,
    mode: Autoreset,
    is_pending: BoolArray,
) -> Int64Array:
    """Those of the ends, flat and ascending, that fall on transitions."""
    if not len(done_at) or mode is Autoreset.SAME_STEP:
        return done_at
    row, column = np.divmod(done_at, width)
    if mode is Autoreset.DISABLED:
        # The first end since the last reset counts.
        resets_so_far = np.searchsorted(reset_at, done_at, side="right")
        resets_of_row = resets_so_far - np.searchsorted(reset_at, row * width)
        is_new = np.ones(len(done_at), dtype=bool)
        is_new[1:] = (row[1:] != row[:-1]) | (resets_so_far[1:] != resets_so_far[:-1])
        counts: BoolArray = is_new & ~(is_pending[row] & (resets_of_row == 0))
        return done_at[counts]
    # The row behind an end is none, so of ends in a row without a gap every other one counts.
    is_after = np.where(column == 0, is_pending[row], False)
    is_after[1:] |= (column[1:] > 0) & (np.diff(done_at) == 1)
    if len(reset_at):
        is_after &= ~np.isin(done_at, reset_at, assume_unique=True)
    if not is_after.any():
        return done_at
    position = np.arange(len(done_at))
    begins = ~is_after | (column == 0)
    begin = np.maximum.accumulate(np.where(begins, position, 0))
    behind = position - begin + is_after[begin]
    is_even: BoolArray = behind % 2 == 0
    return done_at[is_even]
