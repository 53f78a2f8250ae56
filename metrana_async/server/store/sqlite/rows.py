"""Rows: points of one unit as equal-length columns, whatever their family. Pure.

`key` is what a tile is sorted by: the environment of RL series, the series of STANDARD ones.
Columns that a family lacks are zero and cost nothing stored. Order is arrival order, within a key
at least; everything here keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from metrana_async.server.store.base import AcceptedPoints, AcceptedSegments
from metrana_async.server.store.sqlite.codec import constant, is_constant
from metrana_async.wire.model import FloatArray, Int64Array

BoolArray = npt.NDArray[np.bool_]
Selection = BoolArray | npt.NDArray[np.int64] | slice

INTEGER_NAMES = ("key", "rl_step", "episode", "step", "generation", "time_ms", "writer_no")
"""The integer columns in the order they are stored."""


@dataclass(slots=True)
class Rows:
    """n points. Every integer column is int64 [n], `value` float32 or float64 [n]."""

    key: Int64Array
    rl_step: Int64Array
    episode: Int64Array
    step: Int64Array
    generation: Int64Array
    time_ms: Int64Array
    writer_no: Int64Array
    value: FloatArray

    def __len__(self) -> int:
        return len(self.step)

    def integers(self) -> list[Int64Array]:
        """The integer columns in the order of INTEGER_NAMES."""
        return [getattr(self, name) for name in INTEGER_NAMES]

    def take(self, selection: Selection) -> Rows:
        """The selected rows: a mask, positions or a slice."""
        value = self.value[selection]
        n = len(value)
        columns: list[Any] = [
            constant(int(c[0]), n) if n and is_constant(c) else c[selection]
            for c in self.integers()
        ]
        columns.append(value)
        return Rows(*columns)

    def plain(self) -> Rows:
        """The same rows in contiguous, writable columns, for those who know nothing of ours."""
        columns: list[Any] = [*self.integers(), self.value]
        return Rows(*(np.require(column, requirements=("C", "W")) for column in columns))

    def sorted_by_key(self) -> Rows:
        """By key; arrival order within a key."""
        key = self.key
        if len(key) < 2 or bool((key[1:] >= key[:-1]).all()):
            return self
        return self.take(np.argsort(key, kind="stable"))


@dataclass(frozen=True, slots=True)
class Filter:
    """What a reader asks for; None asks for everything. Ranges are inclusive.

    `keys` and `episode_set` are sorted and unique; the set goes without the range `episodes`.
    """

    keys: Int64Array | None = None
    rl_steps: tuple[int, int] | None = None
    episodes: tuple[int, int] | None = None
    steps: tuple[int, int] | None = None
    episode_set: Int64Array | None = None

    @property
    def asks_for_nothing(self) -> bool:
        """Whether no row can be wanted."""
        sets = (self.keys, self.episode_set)
        return any(wanted is not None and not len(wanted) for wanted in sets)

    def ranges(self) -> list[tuple[str, tuple[int, int]]]:
        """Column name and range of those that are limited."""
        episodes = self.episodes
        if self.episode_set is not None:
            episodes = int(self.episode_set[0]), int(self.episode_set[-1])
        named = (("rl_step", self.rl_steps), ("episode", episodes), ("step", self.steps))
        return [(name, limits) for name, limits in named if limits is not None]

    def has(self, name: str, column: Int64Array, limits: tuple[int, int]) -> BoolArray:
        """Which elements of a limited column are asked for."""
        if name == "episode" and self.episode_set is not None:
            return np.isin(column, self.episode_set)
        return within(column, limits)

    def has_key(self, column: Int64Array) -> BoolArray:
        """Which of these keys are asked for: bool, the shape of `column`."""
        if self.keys is None:
            return np.ones(len(column), dtype=bool)
        is_wanted: BoolArray
        is_wanted = column == self.keys[0] if len(self.keys) == 1 else np.isin(column, self.keys)
        return is_wanted


def within(column: Int64Array, limits: tuple[int, int]) -> BoolArray:
    """Which elements lie in the inclusive range."""
    return (column >= limits[0]) & (column <= limits[1])


def empty_rows() -> Rows:
    """No rows."""
    none = np.empty(0, dtype=np.int64)
    return Rows(none, none, none, none, none, none, none, np.empty(0, dtype=np.float32))


def concat_rows(parts: Sequence[Rows]) -> Rows:
    """All rows, part after part; float64 where any part is."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return empty_rows()
    columns: list[Any] = [
        _concat(list(c)) for c in zip(*(p.integers() for p in parts), strict=True)
    ]
    columns.append(np.concatenate([part.value for part in parts]))
    return Rows(*columns)


def _concat(columns: list[Int64Array]) -> Int64Array:
    """Columns one behind the other; constant ones that agree stay constant."""
    first = columns[0]
    if all(len(c) and is_constant(c) and c[0] == first[0] for c in columns):
        return constant(int(first[0]), sum(map(len, columns)))
    return np.concatenate(columns)


def _writers(tables: Sequence[AcceptedPoints | AcceptedSegments], n_each: list[int]) -> Int64Array:
    """Each table's writer, as often as it has rows."""
    writers = [t.writer_no for t in tables]
    if min(writers) == max(writers):
        return constant(writers[0], sum(n_each))
    return np.repeat(np.array(writers, dtype=np.int64), n_each)


def points_as_rows(tables: Sequence[AcceptedPoints], wanted: Filter) -> Rows:
    """The wanted rows of tables of one unit; `key` is the series, or the environment."""
    has_envs = tables[0].has_envs
    key = _concat([t.env_no if has_envs else t.series_no for t in tables])
    zeros = constant(0, len(key))
    rows = Rows(
        key=key,
        rl_step=_concat([t.rl_step for t in tables]) if has_envs else zeros,
        episode=zeros,
        step=_concat([t.step for t in tables]),
        generation=zeros,
        time_ms=_concat([t.time_ms for t in tables]),
        writer_no=_writers(tables, [len(t.step) for t in tables]),
        value=np.concatenate([t.value for t in tables]),
    )
    if wanted.keys is None and wanted.steps is None:
        return rows
    keep = wanted.has_key(key)
    if wanted.steps is not None:
        keep &= within(rows.step, wanted.steps)
    return rows.take(keep)


def segments_as_rows(
    tables: Sequence[AcceptedSegments], wanted: Filter, *, by_key: bool = False
) -> Rows:
    """The wanted points of tables of one ENV_STEP series, one row a point.

    Segments are chosen (and, with `by_key`, ordered) before any point is touched: environment,
    episode and rl_step are the same throughout a segment.
    """
    env_no = _concat([t.env_no for t in tables])
    keep = wanted.has_key(env_no)
    for name, limits in wanted.ranges():
        if name != "step":
            keep &= wanted.has(name, _concat([getattr(t, name) for t in tables]), limits)
    chosen = np.flatnonzero(keep)
    if by_key:
        chosen = chosen[np.argsort(env_no[chosen], kind="stable")]
    counts = _concat([t.count for t in tables])
    count = counts[chosen]
    # Positions of the chosen points among all, and within their segments.
    at, inside = (np.cumsum(counts) - counts)[chosen], constant(0, len(chosen))
    has_runs = bool((count != 1).any())
    if has_runs:
        inside = np.arange(int(count.sum()), dtype=np.int64)
        inside -= np.repeat(np.cumsum(count) - count, count)
        at = np.repeat(at, count) + inside

    def spread(column: Int64Array) -> Int64Array:
        if is_constant(column) and len(column):
            return constant(int(column[0]), len(at))
        return np.repeat(column[chosen], count) if has_runs else column[chosen]

    def spread_named(name: str) -> Int64Array:
        return spread(_concat([getattr(t, name) for t in tables]))

    has_own_times = any(t.point_time_ms is not None for t in tables)
    return Rows(
        key=spread(env_no),
        rl_step=spread_named("rl_step"),
        episode=spread_named("episode"),
        step=spread_named("step") + inside,
        generation=spread_named("generation"),
        time_ms=_concat([_point_times(t) for t in tables])[at]
        if has_own_times
        else spread_named("time_ms"),
        writer_no=spread(_writers(tables, [len(t.env_no) for t in tables])),
        value=np.concatenate([t.value for t in tables])[at],
    )


def _point_times(table: AcceptedSegments) -> Int64Array:
    if table.point_time_ms is not None:
        return table.point_time_ms
    return np.repeat(table.time_ms, table.count)


def tables_as_rows(
    tables: Sequence[AcceptedPoints | AcceptedSegments], wanted: Filter, *, by_key: bool = False
) -> Rows:
    """The wanted rows of one unit's tables, which are all of one family."""
    points = [t for t in tables if isinstance(t, AcceptedPoints)]
    segments = [t for t in tables if isinstance(t, AcceptedSegments)]
    assert not (points and segments), "a unit holds one family"
    if segments:
        return segments_as_rows(segments, wanted, by_key=by_key)
    if not points:
        return empty_rows()
    rows = points_as_rows(points, wanted)
    return rows.sorted_by_key() if by_key else rows
