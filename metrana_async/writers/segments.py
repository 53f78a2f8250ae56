"""Grids cut into segments: runs of one (env, episode) whose numbers count up by one.

Pure but for the numbering it asks. Values leave environment by environment (row by row), masked
cells gone. Nothing here loops over points, environments or segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, NamedTuple

import numpy as np

from metrana_async.columns.blocks import GridBlock
from metrana_async.columns.spans import EpisodeSpans
from metrana_async.wire.model import NO_EPISODE, FloatArray, Int64Array, StepMode
from metrana_async.writers.numbering import MinorNumbering

_SHORT_MAX: Final = 1 << 16


@dataclass(slots=True)
class SegmentColumns:
    """Segments of one grid, as `SegmentTable` holds them: k rows, values segment after segment."""

    env: Int64Array
    episode: Int64Array
    rl_step: Int64Array
    start: Int64Array
    count: Int64Array
    time_ms: Int64Array
    value: FloatArray
    point_time_ms: Int64Array | None


@dataclass(slots=True)
class _Cells:
    """The points of a grid and where its segments begin.

    `row` [k] is each segment's row, `first` [k] its first point's place among the points, `kept`
    the flat cells of the points (None where all cells are points).
    """

    row: Int64Array
    first: Int64Array
    count: Int64Array
    kept: Int64Array | None
    points_count: int

    def at_points(self, grid: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """A [M, T] column as one element per point."""
        flat = grid.reshape(-1)
        return flat if self.kept is None else flat[self.kept]

    def at_segments(self, x: int | Int64Array | EpisodeSpans) -> Int64Array:
        """An int, [M] or [M, T] column as one element per segment: that of its first point."""
        if isinstance(x, EpisodeSpans):
            return x.episode  # the segments were cut along these runs
        if not isinstance(x, np.ndarray):
            return np.full(len(self.row), x, dtype=np.int64)
        if x.ndim == 1:
            return x[self.row]
        return np.asarray(self.at_points(x)[self.first])


def cut_segments(blocks: Sequence[GridBlock], numbering: MinorNumbering) -> list[SegmentColumns]:
    """Cut the grids of one series and mode, in call order; each has at least one point.

    Consecutive grids of the same environments are cut together (rollouts, and loops that log one
    env step of all), and so are those of one rl_step whose rows are one segment each (a loop that
    logs one environment a call): such loops cost little more than whole rollouts.
    """
    cut: list[SegmentColumns] = []
    rest_from = at = 0
    while at < len(blocks):
        end = _end_of_calls(blocks, at)
        if end - at > 1:
            # What lies before is numbered before.
            cut += _cut_apart(blocks[rest_from:at], numbering)
            calls = blocks[at:end]
            together = _cut_calls(calls, numbering)
            cut += _cut_apart(calls, numbering) if together is None else [together]
            rest_from = end
        at = end
    return cut + _cut_apart(blocks[rest_from:], numbering)


def _end_of_calls(blocks: Sequence[GridBlock], at: int) -> int:
    """Where the run of automatic grids of the same environments ends that starts at `at`.

    Within the run each grid is of another rl_step than the one before it.
    """
    first, end = blocks[at], at + 1
    if first.mode is StepMode.EXPLICIT or _is_grid(first.time_ms):
        return end
    while end < len(blocks):
        block = blocks[end]
        if (
            block.env_nos is not first.env_nos
            or block.rl_step == blocks[end - 1].rl_step
            or _is_grid(block.time_ms)
        ):
            break
        end += 1
    return end


def _cut_calls(blocks: Sequence[GridBlock], numbering: MinorNumbering) -> SegmentColumns | None:
    """Cut K grids of the same M environments at once; None where an episode may come back."""
    rows = _whole_rows(blocks) if all(map(_has_plain_rows, blocks)) else _cut_rows_of(blocks)
    env = blocks[0].env_nos[rows.row]
    columns = (rows.rl_step, env, rows.episode, rows.count)
    starts = numbering.starts_of_calls(blocks[0].series_no, *map(rows.by_row, columns))
    if starts is None:
        return None
    start = rows.by_call(starts)
    return SegmentColumns(
        env,
        rows.episode,
        rows.rl_step,
        start,
        rows.count,
        rows.time_ms,
        np.concatenate(rows.value),
        None,
    )


@dataclass(slots=True)
class _Rows:
    """Segments of several calls over M environments, in call order.

    Attributes:
        row, episode, rl_step, count, time_ms: int64 [k].
        value: the values of each call.
        calls: K where every call has one segment a row (k = K * M), else None.
    """

    row: Int64Array
    episode: Int64Array
    rl_step: Int64Array
    count: Int64Array
    time_ms: Int64Array
    value: list[FloatArray]
    calls: int | None = None
    _sorted: Int64Array | None = None

    def by_row(self, column: Int64Array) -> Int64Array:
        """A column in the order of rows, and of calls within a row."""
        if self.calls is not None:
            return column.reshape(self.calls, -1).T.reshape(-1)
        return column[self._order()]

    def by_call(self, column: Int64Array) -> Int64Array:
        """The inverse of `by_row`."""
        if self.calls is not None:
            return column.reshape(-1, self.calls).T.reshape(-1)
        ordered = np.empty_like(column)
        ordered[self._order()] = column
        return ordered

    def _order(self) -> Int64Array:
        if self._sorted is None:
            # Radix sort: stable, and linear where 16 bits are enough.
            key = self.row.astype(np.uint16) if int(self.row.max()) < _SHORT_MAX else self.row
            self._sorted = np.argsort(key, kind="stable").astype(np.int64, copy=False)
        return self._sorted


def _whole_rows(blocks: Sequence[GridBlock]) -> _Rows:
    """Grids whose rows are one segment each."""
    calls, m = len(blocks), len(blocks[0].env_nos)

    def per_call(name: str) -> Int64Array:
        """An int or [M] column of every call."""
        columns = [getattr(block, name) for block in blocks]
        if any(isinstance(column, np.ndarray) for column in columns):
            return np.concatenate([np.broadcast_to(column, m) for column in columns])
        return np.repeat(np.array(columns, dtype=np.int64), m)

    is_episodic = blocks[0].episode is not None
    return _Rows(
        np.tile(np.arange(m, dtype=np.int64), calls),
        per_call("episode") if is_episodic else np.full(calls * m, NO_EPISODE, np.int64),
        per_call("rl_step"),
        np.repeat(np.array([block.value.shape[1] for block in blocks], dtype=np.int64), m),
        per_call("time_ms"),
        [block.value.reshape(-1) for block in blocks],
        calls,
    )


def _cut_rows_of(blocks: Sequence[GridBlock]) -> _Rows:
    """Grids of any kind without a time for each cell."""
    cells = [_cut(block) for block in blocks]
    sizes = [len(cut.row) for cut in cells]

    def per_segment(name: str) -> Int64Array:
        columns = [getattr(block, name) for block in blocks]
        if all(type(column) is int for column in columns):
            return np.repeat(np.array(columns, dtype=np.int64), sizes)
        return np.concatenate(
            [cut.at_segments(column) for cut, column in zip(cells, columns, strict=True)]
        )

    k = sum(sizes)
    is_episodic = blocks[0].episode is not None
    return _Rows(
        np.concatenate([cut.row for cut in cells]),
        per_segment("episode") if is_episodic else np.full(k, NO_EPISODE, np.int64),
        per_segment("rl_step"),
        np.concatenate([cut.count for cut in cells]),
        per_segment("time_ms"),
        [cut.at_points(block.value) for cut, block in zip(cells, blocks, strict=True)],
    )


def _cut_apart(blocks: Sequence[GridBlock], numbering: MinorNumbering) -> list[SegmentColumns]:
    cut: list[SegmentColumns] = []
    for (_, is_plain), run in groupby(blocks, key=lambda b: (b.rl_step, _has_plain_rows(b))):
        if is_plain:
            cut.append(_cut_rows(list(run), numbering))
        else:
            cut.extend(_cut_grid(block, numbering) for block in run)
    return cut


def _has_plain_rows(block: GridBlock) -> bool:
    return block.mask is None and not (
        isinstance(block.episode, EpisodeSpans)
        or _is_grid(block.episode)
        or _is_grid(block.env_step)
        or _is_grid(block.time_ms)
    )


def _cut_rows(blocks: list[GridBlock], numbering: MinorNumbering) -> SegmentColumns:
    rows = [len(block.env_nos) for block in blocks]

    def per_row(name: str) -> Int64Array:
        columns = [getattr(block, name) for block in blocks]
        if any(isinstance(column, np.ndarray) for column in columns):
            full = [
                column if isinstance(column, np.ndarray) else np.full(m, column, dtype=np.int64)
                for column, m in zip(columns, rows, strict=True)
            ]
            return np.concatenate(full)
        return np.repeat(np.array(columns, dtype=np.int64), rows)

    env = np.concatenate([block.env_nos for block in blocks])
    is_episodic = blocks[0].episode is not None
    episode = per_row("episode") if is_episodic else np.full(len(env), NO_EPISODE, np.int64)
    count = np.repeat([block.value.shape[1] for block in blocks], rows)
    if blocks[0].mode is StepMode.EXPLICIT:
        start = per_row("env_step")  # each call says where its segments start
    else:
        units = _units(env, episode, count, are_rows_distinct=len(blocks) == 1)
        start = _automatic(blocks[0], env, episode, units, numbering)
    return SegmentColumns(
        env,
        episode,
        np.full(len(env), blocks[0].rl_step, dtype=np.int64),
        start,
        count,
        per_row("time_ms"),
        np.concatenate([block.value.reshape(-1) for block in blocks]),
        None,
    )


def _cut_grid(block: GridBlock, numbering: MinorNumbering) -> SegmentColumns:
    cells = _cut(block)
    env = block.env_nos[cells.row]
    episode = cells.at_segments(NO_EPISODE if block.episode is None else block.episode)
    steps = block.env_step
    units = _units(env, episode, cells.count, are_rows_distinct=True)
    if _is_grid(steps):
        start = cells.at_segments(np.asarray(steps))
    elif steps is not None:
        start = cells.at_segments(steps) + units.offset
    else:
        start = _automatic(block, env, episode, units, numbering)
    return SegmentColumns(
        env,
        episode,
        np.full(len(env), block.rl_step, dtype=np.int64),
        start,
        cells.count,
        cells.at_segments(block.time_ms),
        cells.at_points(block.value),
        cells.at_points(np.asarray(block.time_ms)) if _is_grid(block.time_ms) else None,
    )


def _cut(block: GridBlock) -> _Cells:
    m, t = block.value.shape
    if isinstance(block.episode, EpisodeSpans):
        assert block.mask is None
        assert not _is_grid(block.env_step)
        first = block.episode.first
        return _Cells(first // t, first, np.diff(first, append=m * t), None, m * t)
    per_point = [x for x in (block.episode, block.env_step) if _is_grid(x)]
    if block.mask is None and not per_point:
        rows = np.arange(m, dtype=np.int64)
        return _Cells(rows, rows * t, np.full(m, t, dtype=np.int64), None, m * t)
    kept = None if block.mask is None else np.flatnonzero(block.mask)
    n = m * t if kept is None else len(kept)
    begins = np.zeros(n, dtype=bool)
    if kept is None:
        row = None
        begins[::t] = True
    else:
        row = kept // t
        begins[0] = True
        np.not_equal(row[1:], row[:-1], out=begins[1:])
    if _is_grid(block.episode):
        episode = _flat(block.episode, kept)
        begins[1:] |= episode[1:] != episode[:-1]
    if _is_grid(block.env_step):
        step = _flat(block.env_step, kept)
        begins[1:] |= step[1:] - 1 != step[:-1]
    first = np.flatnonzero(begins)
    count = np.diff(first, append=n)
    return _Cells(first // t if row is None else row[first], first, count, kept, n)


def _is_grid(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.ndim == 2


def _flat(x: int | Int64Array | None, kept: Int64Array | None) -> Int64Array:
    flat = np.reshape(np.asarray(x, dtype=np.int64), -1)
    return flat if kept is None else flat[kept]


class _Units(NamedTuple):
    """How the segments of one grid belong to units (env, episode).

    `offset` [k]: points of the same unit in earlier segments. `first`: the segment at which each
    unit is listed; `of` [k]: each segment's unit; `total`: points of each unit. Units of one
    environment lie together, in the order in which they were last logged.
    """

    offset: Int64Array
    first: Int64Array
    of: Int64Array
    total: Int64Array


def _units(
    env: Int64Array, episode: Int64Array, count: Int64Array, *, are_rows_distinct: bool
) -> _Units:
    k = len(env)
    one_each = np.arange(k, dtype=np.int64)
    # An environment's segments lie together: while its episodes rise, none recurs.
    if are_rows_distinct and bool(((env[1:] != env[:-1]) | (episode[1:] > episode[:-1])).all()):
        return _Units(np.zeros(k, dtype=np.int64), one_each, one_each, count)
    order = np.lexsort((one_each, episode, env))
    is_new = np.ones(k, dtype=bool)
    is_new[1:] = (env[order][1:] != env[order][:-1]) | (episode[order][1:] != episode[order][:-1])
    unit_at = np.flatnonzero(is_new)
    unit = np.cumsum(is_new) - 1
    total = np.add.reduceat(count[order], unit_at)
    before = np.cumsum(count[order]) - count[order]
    offset, of = np.empty(k, np.int64), np.empty(k, np.int64)
    offset[order] = before - before[unit_at][unit]
    # Segments are in call order, so its last segment says when a unit was last logged.
    last = order[np.append(unit_at[1:], k) - 1]
    by_last = np.lexsort((last, env[last]))
    rank = np.empty(len(by_last), np.int64)
    rank[by_last] = np.arange(len(by_last))
    of[order] = rank[unit]
    return _Units(offset, last[by_last], of, total[by_last])


def _automatic(
    block: GridBlock,
    env: Int64Array,
    episode: Int64Array,
    units: _Units,
    numbering: MinorNumbering,
) -> Int64Array:
    starts = numbering.starts(
        block.series_no, block.rl_step, env[units.first], episode[units.first], units.total
    )
    return starts[units.of] + units.offset
