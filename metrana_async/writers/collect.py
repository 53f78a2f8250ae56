"""What was enqueued, turned into the tables of each lane. Owned by the engine thread.

`SeriesWriters.collect` takes the inbox's items in call order and returns, per lane, point tables,
segment tables and attribute updates with run-level numbers in their `series` and `env` columns.
Lane 0 carries everything ordered: its call order is the order. Merge series need none and spread
over lanes 1 and 2 by their number, so that a series stays on one lane.

Every value leaves as its own call would have stored it: what shares a float64 table with wider
values was rounded to float32 before.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby, repeat
from typing import Any, Final, cast

import numpy as np

from metrana_async.columns.blocks import GridBlock, PointBlock, ScalarItem
from metrana_async.wire.model import (
    AUTOMATIC,
    AttributeUpdate,
    Family,
    FloatArray,
    Int64Array,
    Ordering,
    PointTable,
    SegmentTable,
    StepMode,
)
from metrana_async.writers.last import LastSeen
from metrana_async.writers.numbering import MinorNumbering
from metrana_async.writers.registry import SeriesRegistry
from metrana_async.writers.segments import SegmentColumns, cut_segments

ORDERED_LANE: Final = 0
MERGE_LANES: Final = (1, 2)

Item = ScalarItem | PointBlock | GridBlock | AttributeUpdate


@dataclass(slots=True)
class LaneLoad:
    """What one lane has to send: tables in call order, numbers of the run's registry."""

    points: list[PointTable] = field(default_factory=list)
    segments: list[SegmentTable] = field(default_factory=list)
    attributes: list[AttributeUpdate] = field(default_factory=list)

    @property
    def points_count(self) -> int:
        """Points of all tables."""
        return sum(t.points_count for t in self.points) + sum(t.points_count for t in self.segments)


@dataclass(slots=True)
class _Parts:
    """Pieces of one lane, not yet joined: tables by family, grids by (series, mode).

    The modes of a series feed different environments, so their order does not matter.
    """

    points: dict[Family, list[PointTable]] = field(default_factory=dict)
    grids: dict[tuple[int, StepMode], list[GridBlock]] = field(default_factory=dict)
    attributes: list[AttributeUpdate] = field(default_factory=list)


class SeriesWriters:
    """All series writers of one run: numbers positions and keeps what was last logged."""

    def __init__(self, registry: SeriesRegistry, numbering: MinorNumbering | None = None) -> None:
        self._registry = registry
        self._numbering = MinorNumbering() if numbering is None else numbering
        self._last = LastSeen(registry)
        self._lanes = np.zeros(0, np.int64)

    def collect(self, items: Sequence[Item]) -> dict[int, LaneLoad]:
        """Turn items, in call order, into what each lane has to send. Lanes without load lack."""
        lanes: dict[int, _Parts] = {}
        self._know_lanes()
        for kind, run in groupby(items, key=type):
            if kind is tuple:
                self._add_scalars(lanes, cast("list[ScalarItem]", list(run)))
            elif kind is PointBlock:
                for block in cast("list[PointBlock]", list(run)):
                    self._add_points(lanes, block)
            elif kind is GridBlock:
                for grid in cast("list[GridBlock]", list(run)):
                    _add_grid(lanes, grid)
            else:
                updates = cast("list[AttributeUpdate]", list(run))
                lanes.setdefault(ORDERED_LANE, _Parts()).attributes.extend(updates)
        loads = {lane: self._joined(parts) for lane, parts in lanes.items()}
        for load in loads.values():
            self._last.note(load)
        return loads

    def last_step(self, series_no: int) -> int | None:
        """Highest step of a STANDARD series: seeded, explicit, or predicted for automatic ones."""
        return self._last.last_step(series_no)

    def last_rl_step_and_episode(self, env_no: int) -> tuple[int | None, int | None]:
        """Two independent maxima of an environment over both RL functions and all labels."""
        return self._last.last_rl_step_and_episode(env_no)

    def set_environments_aside(self) -> tuple[Int64Array, Int64Array]:
        """Forget what was logged of environments, and return it for `add_environments`."""
        return self._last.set_environments_aside()

    def add_environments(self, rl_step: Int64Array, episode: Int64Array) -> None:
        """Take in highest rl_steps and episodes by env_no, -1 where there is none."""
        self._last.add_environments(rl_step, episode)

    def _know_lanes(self) -> None:
        known, count = len(self._lanes), self._registry.series_count
        if known < count:
            added = [self._lane_of(number) for number in range(known, count)]
            self._lanes = np.concatenate([self._lanes, np.array(added, dtype=np.int64)])

    def _lane_of(self, series_no: int) -> int:
        definition = self._registry.definition(series_no)
        if definition.ordering is Ordering.ORDERED or definition.family is Family.ENV_STEP:
            return ORDERED_LANE
        return MERGE_LANES[series_no % len(MERGE_LANES)]

    def _add_scalars(self, lanes: dict[int, _Parts], run: list[ScalarItem]) -> None:
        series, step, time_ms, value = zip(*run, strict=True)
        table = PointTable(
            np.array(series, dtype=np.int64),
            np.array(step, dtype=np.int64),
            np.array(time_ms, dtype=np.int64),
            _scalar_values(value),
        )
        lane = self._lanes[table.series]
        if not lane.any():
            _add(lanes, ORDERED_LANE, Family.STANDARD, table)
            return
        for number in (ORDERED_LANE, *MERGE_LANES):
            mine = np.flatnonzero(lane == number)
            if mine.size:
                _add(lanes, number, Family.STANDARD, _rows(table, mine))

    def _add_points(self, lanes: dict[int, _Parts], block: PointBlock) -> None:
        n = block.points_count
        if not n:
            return
        table = PointTable(
            np.full(n, block.series_no, dtype=np.int64),
            _steps(block.step, n),
            _column(block.time_ms, n),
            block.value,
            block.env_no,
            block.rl_step,
        )
        family = Family.STANDARD if block.env_no is None else Family.EPISODE
        _add(lanes, int(self._lanes[block.series_no]), family, table)

    def _joined(self, parts: _Parts) -> LaneLoad:
        return LaneLoad(
            [_joined_points(tables) for tables in parts.points.values()],
            [
                _joined_segments(series_no, mode, cut_segments(grids, self._numbering))
                for (series_no, mode), grids in parts.grids.items()
            ],
            parts.attributes,
        )


def _add_grid(lanes: dict[int, _Parts], grid: GridBlock) -> None:
    if grid.points_count:
        parts = lanes.setdefault(ORDERED_LANE, _Parts())
        parts.grids.setdefault((grid.series_no, grid.mode), []).append(grid)


def _add(lanes: dict[int, _Parts], lane: int, family: Family, table: PointTable) -> None:
    lanes.setdefault(lane, _Parts()).points.setdefault(family, []).append(table)


def _column(x: int | Int64Array, n: int) -> Int64Array:
    return x if isinstance(x, np.ndarray) else np.full(n, x, dtype=np.int64)


def _steps(step: int | Int64Array, n: int) -> Int64Array:
    if isinstance(step, np.ndarray):
        return step
    if step == AUTOMATIC or n == 1:
        return np.full(n, step, dtype=np.int64)
    return np.arange(step, step + n, dtype=np.int64)


def _rows(table: PointTable, which: Int64Array) -> PointTable:
    return PointTable(
        table.series[which], table.step[which], table.time_ms[which], table.value[which]
    )


def _scalar_values(value: Sequence[float]) -> FloatArray:
    """Scalars as one column, each as its own call would have stored it.

    A float is rounded to float32 unless it is finite and beyond it; an int or bool is kept exact.
    The column is float32 where that holds all of them.
    """
    wide = np.array(value, dtype=np.float64)
    with np.errstate(over="ignore"):
        narrow = wide.astype(np.float32)
    is_kept = np.isinf(narrow) & ~np.isinf(wide)
    if not set(map(type, value)) <= {float}:
        is_number = map(operator.is_not, map(type, value), repeat(float))
        is_kept |= np.fromiter(is_number, dtype=bool, count=len(value))
        is_kept &= narrow != wide  # an integer that float32 holds needs no more
    if not is_kept.any():
        return narrow
    return np.where(is_kept, wide, narrow)


def _joined_points(tables: list[PointTable]) -> PointTable:
    if len(tables) == 1:
        return tables[0]

    def joined(name: str) -> Any:
        return np.concatenate([getattr(table, name) for table in tables])

    has_envs = tables[0].env is not None
    return PointTable(
        joined("series"),
        joined("step"),
        joined("time_ms"),
        joined("value"),  # float32 and float64 give float64, exactly
        joined("env") if has_envs else None,
        joined("rl_step") if has_envs else None,
    )


def _joined_segments(series_no: int, mode: StepMode, pieces: list[SegmentColumns]) -> SegmentTable:
    def joined(name: str) -> Any:
        if len(pieces) == 1:
            return getattr(pieces[0], name)
        return np.concatenate([getattr(piece, name) for piece in pieces])

    times = None
    if any(piece.point_time_ms is not None for piece in pieces):
        times = np.concatenate([_point_times(piece) for piece in pieces])
    return SegmentTable(
        series=series_no,
        mode=mode,
        env=joined("env"),
        episode=joined("episode"),
        rl_step=joined("rl_step"),
        start=joined("start"),
        count=joined("count"),
        time_ms=joined("time_ms"),
        value=joined("value"),
        point_time_ms=times,
    )


def _point_times(piece: SegmentColumns) -> Int64Array:
    if piece.point_time_ms is not None:
        return piece.point_time_ms
    return np.repeat(piece.time_ms, piece.count)
