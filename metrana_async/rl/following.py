"""From the open episodes and a rollout to the next open episodes, and what ended between.

Pure. Rows are the rows of the rollout; which environments they are is the tracker's business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from metrana_async.columns.arrays import BoolArray
from metrana_async.rl.rollouts import Rollout
from metrana_async.rl.segments import Autoreset, Segments, cut
from metrana_async.wire.model import Int64Array

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class OpenEpisodes:
    """The open episode of each row; equal-length columns.

    Attributes:
        episode: int64, its number.
        count: int64, its transitions so far.
        returns: float64, the sum of their rewards.
        is_pending: bool, an end came, and the reset that follows it has not been seen.
    """

    episode: Int64Array
    count: Int64Array
    returns: Float64Array
    is_pending: BoolArray

    def of(self, rows: Int64Array) -> OpenEpisodes:
        """Those of some rows."""
        return OpenEpisodes(*(getattr(self, f.name)[rows] for f in fields(self)))

    def replaced(self, rows: Int64Array, by: OpenEpisodes) -> OpenEpisodes:
        """A copy in which some rows are others."""
        columns = [getattr(self, f.name).copy() for f in fields(self)]
        for column, f in zip(columns, fields(self), strict=True):
            column[rows] = getattr(by, f.name)
        return OpenEpisodes(*columns)


class Closed(NamedTuple):
    """Episodes that ended; columns as those of `blocks.EndedEpisodes`, by `row`."""

    row: Int64Array
    episode: Int64Array
    returns: Float64Array
    lengths: Int64Array
    terminated: BoolArray
    truncated: BoolArray
    column: Int64Array

    def behind(self, earlier: Closed) -> Closed:
        """These behind others, all in the order of their ends."""
        columns: list[Any] = list(self)
        if len(earlier.row):
            columns = [np.concatenate(pair) for pair in zip(earlier, self, strict=True)]
        order = np.argsort(columns[-1], kind="stable")
        return Closed(*(column[order] for column in columns))


class Outcome(NamedTuple):
    """What a rollout came to.

    Attributes:
        open: the open episodes behind it.
        segments: the rollout, cut.
        numbers: int64 [S], the episode of each segment.
        first_count: int64 [S], transitions of the episode before the segment.
        mask: bool [B, T], False where a cell is no transition; None where all are.
        ended: what the environment ended.
        aborted: what a reset of the caller ended.
    """

    open: OpenEpisodes
    segments: Segments
    numbers: Int64Array
    first_count: Int64Array
    mask: BoolArray | None
    ended: Closed
    aborted: Closed


class _Flags(NamedTuple):
    """Flags of a rollout, told after the step; the first column of `resets` is False.

    `*_before` are [B]: what the first row says of the time before it.
    """

    terminated: BoolArray
    truncated: BoolArray
    resets: BoolArray | None
    terminated_before: BoolArray
    truncated_before: BoolArray
    is_reset_before: BoolArray


def follow(
    before: OpenEpisodes,
    rollout: Rollout,
    mode: Autoreset,
    take: Callable[[Int64Array], Int64Array],
    *,
    is_start: bool,
) -> Outcome:
    """Follow a rollout of at least one row and one column.

    Args:
        before: the open episodes of its rows.
        rollout: its arrays.
        mode: what follows an end.
        take: gives a new number to each of some rows, which may repeat; called once.
        is_start: whether flags say that a step begins an episode, instead of that it ends one.
    """
    flags = _told_a_row_later(rollout, mode) if is_start else _told_after(rollout)
    is_ended = (flags.terminated_before | flags.truncated_before) & (before.count > 0)
    is_aborted = flags.is_reset_before & (before.count > 0) & ~is_ended
    is_closed = is_ended | is_aborted
    is_pending = (before.is_pending | is_ended) & ~flags.is_reset_before
    done = flags.terminated | flags.truncated
    segments = cut(done, flags.resets, mode, is_pending, rollout.lengths)
    has_gaps = rollout.lengths is not None or bool(segments.idle.any())
    mask = segments.mask() if has_gaps else None

    is_carried = segments.is_first & ~is_closed[segments.row]
    first_count = np.where(is_carried, before.count[segments.row], 0)
    count = first_count + segments.count
    values = rollout.values if mask is None else np.where(mask, rollout.values, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):  # inf - inf is the caller's NaN
        returns = np.add.reduceat(values.reshape(-1), segments.start)
        returns = np.where(is_carried, before.returns[segments.row] + returns, returns)

    is_cut = segments.is_cut & (count > 0)
    closes = segments.is_done | is_cut
    rows_before = np.flatnonzero(is_closed)
    new = take(np.concatenate([rows_before, segments.row[closes]]))
    held = before.episode.copy()
    held[rows_before] = new[: len(rows_before)]
    numbers, next_numbers = _numbered(segments, closes, held, new[len(rows_before) :])

    def closed(in_block: BoolArray, at_first: BoolArray) -> Closed:
        end = segments.stop[in_block] - 1
        row = np.flatnonzero(at_first)
        earlier = Closed(
            row,
            before.episode[row],
            before.returns[row],
            before.count[row],
            flags.terminated_before[row],
            flags.truncated_before[row],
            np.full(len(row), -1),
        )
        found = Closed(
            segments.row[in_block],
            numbers[in_block],
            returns[in_block],
            count[in_block],
            flags.terminated.reshape(-1)[end],
            flags.truncated.reshape(-1)[end],
            end % segments.shape[1],
        )
        return found.behind(earlier)

    last = segments.last_of_rows
    is_over = segments.is_done[last]
    after = OpenEpisodes(
        next_numbers,
        np.where(is_over, 0, count[last]),
        np.where(is_over, 0.0, returns[last]),
        _pending_after(segments, mode),
    )
    ended, aborted = closed(segments.is_done, is_ended), closed(is_cut, is_aborted)
    return Outcome(after, segments, numbers, first_count, mask, ended, aborted)


def abort(
    before: OpenEpisodes, chosen: BoolArray, take: Callable[[Int64Array], Int64Array]
) -> tuple[OpenEpisodes, Closed]:
    """The caller resets the `chosen` rows: the next open episodes, and those cut off."""
    row = np.flatnonzero(chosen & (before.count > 0))
    new = take(row)
    no, never = np.zeros(len(row), dtype=bool), np.full(len(row), -1)
    closed = Closed(row, before.episode[row], before.returns[row], before.count[row], no, no, never)
    episode = before.episode.copy()
    episode[row] = new
    after = OpenEpisodes(
        episode,
        np.where(chosen, 0, before.count),
        np.where(chosen, 0.0, before.returns),
        before.is_pending & ~chosen,
    )
    return after, closed


def _told_after(rollout: Rollout) -> _Flags:
    never = np.zeros(rollout.shape[0], dtype=bool)
    resets, is_reset = _parted(rollout.resets, never)
    return _Flags(rollout.terminated, rollout.truncated, resets, never, never, is_reset)


def _told_a_row_later(rollout: Rollout, mode: Autoreset) -> _Flags:
    """Move flags of the beginning row back to the row that ended the episode before."""
    terminated, truncated = rollout.terminated, rollout.truncated
    begins = terminated | truncated
    resets = rollout.resets
    if mode is Autoreset.DISABLED:
        # An episode that begins without autoreset was begun by the caller.
        resets = begins if resets is None else begins | resets
    resets, is_reset = _parted(resets, np.zeros(len(begins), dtype=bool))
    return _Flags(
        _moved(terminated), _moved(truncated), resets, terminated[:, 0], truncated[:, 0], is_reset
    )


def _moved(flag: BoolArray) -> BoolArray:
    moved = np.zeros_like(flag)
    moved[:, :-1] = flag[:, 1:]
    return moved


def _parted(resets: BoolArray | None, never: BoolArray) -> tuple[BoolArray | None, BoolArray]:
    """Resets inside the rollout, and those before its first row."""
    if resets is None:
        return None, never
    inside = resets.copy()
    inside[:, 0] = False
    return inside, resets[:, 0]


def _numbered(
    segments: Segments, closes: BoolArray, held: Int64Array, new: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Numbers of the segments [S], and of what is open behind the rollout [B].

    `held` [B] are the numbers at the first column; `new`, one for each segment that `closes`, is
    the number of what follows it.
    """
    if not len(new):
        return held[segments.row], held
    closed: Int64Array = np.cumsum(closes)
    earlier: Int64Array = closed - closes
    at_first: Int64Array = earlier[segments.is_first]
    numbers = np.where(
        earlier == at_first[segments.row], held[segments.row], new[np.maximum(earlier - 1, 0)]
    )
    last = segments.last_of_rows
    next_numbers = np.where(closes[last], new[np.maximum(closed[last] - 1, 0)], numbers[last])
    return numbers, next_numbers


def _pending_after(segments: Segments, mode: Autoreset) -> BoolArray:
    last = segments.last_of_rows
    if mode is Autoreset.NEXT_STEP:
        return segments.is_done[last]
    if mode is Autoreset.DISABLED:
        # Nothing but idle cells: the row still waits for its reset.
        return segments.is_done[last] | (segments.idle[last] > 0)
    return np.zeros(len(last), dtype=bool)
