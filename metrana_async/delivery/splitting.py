"""Cut a lane's load into parts of bounded size without changing what it says. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import numpy as np
import orjson

from metrana_async.wire import limits
from metrana_async.wire.model import AttributeUpdate, PointTable, SegmentTable

# Upper estimates of what a row costs on the wire: every integer column at full width.
_STANDARD_ROW_BYTES: Final = 3 * 8
_EPISODE_ROW_BYTES: Final = 5 * 8
_SEGMENT_BYTES: Final = 6 * 8
_ATTRIBUTE_BYTES: Final = 64
_TABLE_BYTES: Final = 256


class Load(Protocol):
    """What one lane is to carry: tables with run-level numbers, in call order."""

    points: list[PointTable]
    segments: list[SegmentTable]
    attributes: list[AttributeUpdate]


@dataclass(slots=True)
class Part:
    """Content of one batch, still with run-level numbers."""

    points: list[PointTable] = field(default_factory=list)
    segments: list[SegmentTable] = field(default_factory=list)
    attributes: list[AttributeUpdate] = field(default_factory=list)
    nbytes: int = 0
    points_count: int = 0

    def is_empty(self) -> bool:
        """True when there is nothing to carry."""
        return not (self.points or self.segments or self.attributes)


def split_load(load: Load, target_bytes: int = limits.BATCH_TARGET_BYTES) -> Iterator[Part]:
    """Yield parts of about `target_bytes` at most, in order; their concatenation is the load.

    A table is cut between rows, a segment between points: the later half starts where the
    earlier one ended. One attribute update is never cut.
    """
    part = Part()
    for update in load.attributes:
        nbytes = _ATTRIBUTE_BYTES + len(update.path) + len(orjson.dumps(update.value))
        if part.nbytes and part.nbytes + nbytes > target_bytes:
            yield part
            part = Part()
        part.attributes.append(update)
        part.nbytes += nbytes
    for table in load.points:
        row_bytes = _row_bytes(table)
        at = 0
        while at < table.points_count:
            room = (target_bytes - part.nbytes - _TABLE_BYTES) // row_bytes
            if room < 1 and not part.is_empty():
                yield part
                part = Part()
                continue
            n = max(1, min(room, table.points_count - at, limits.BATCH_POINTS))
            _put_points(part, _slice_points(table, at, at + n), n * row_bytes)
            at += n
    for segments in load.segments:
        cutter = _SegmentCutter(segments)
        while not cutter.is_done:
            room = target_bytes - part.nbytes - _TABLE_BYTES
            n = cutter.points_that_fit(room, limits.BATCH_POINTS - part.points_count)
            if n < 1 and not part.is_empty():
                yield part
                part = Part()
                continue
            head, nbytes = cutter.take(max(1, n))
            part.segments.append(head)
            part.nbytes += _TABLE_BYTES + nbytes
            part.points_count += head.points_count
    if not part.is_empty():
        yield part


def _put_points(part: Part, table: PointTable, nbytes: int) -> None:
    part.points.append(table)
    part.nbytes += _TABLE_BYTES + nbytes
    part.points_count += table.points_count


def _row_bytes(table: PointTable) -> int:
    fixed = _STANDARD_ROW_BYTES if table.env is None else _EPISODE_ROW_BYTES
    return fixed + int(table.value.itemsize)


def _slice_points(table: PointTable, start: int, stop: int) -> PointTable:
    if start == 0 and stop == table.points_count:
        return table
    rows = slice(start, stop)
    return PointTable(
        series=table.series[rows],
        step=table.step[rows],
        time_ms=table.time_ms[rows],
        value=table.value[rows],
        env=None if table.env is None else table.env[rows],
        rl_step=None if table.rl_step is None else table.rl_step[rows],
    )


def _point_bytes(table: SegmentTable) -> int:
    return int(table.value.itemsize) + (0 if table.point_time_ms is None else 8)


class _SegmentCutter:
    """Takes points off the front of a segment table; what is summed up is summed up once."""

    def __init__(self, table: SegmentTable) -> None:
        self._table = table
        self._point_bytes = _point_bytes(table)
        self._ends = np.cumsum(table.count)
        # Bytes of everything up to and with each segment.
        places = np.arange(1, len(self._ends) + 1, dtype=np.int64)
        self._costs = self._ends * self._point_bytes + places * _SEGMENT_BYTES
        self._at = 0

    @property
    def is_done(self) -> bool:
        """True when every point was taken."""
        return self._at >= self._table.points_count

    def _segment_of(self, point: int) -> int:
        """The segment that holds the point."""
        return int(np.searchsorted(self._ends, point, side="right"))

    def points_that_fit(self, room_bytes: int, room_points: int) -> int:
        """Most next points whose values and segments cost at most `room_bytes`."""
        left = self._table.points_count - self._at
        first = self._segment_of(self._at)
        # What is spent already: whole segments before, and the taken points of a cut one.
        spent = first * _SEGMENT_BYTES + self._at * self._point_bytes
        whole = int(np.searchsorted(self._costs, spent + room_bytes, side="right"))
        if whole <= first:
            reached, paid = self._at, 0
        else:
            reached, paid = int(self._ends[whole - 1]), int(self._costs[whole - 1]) - spent
        inside = max(0, (room_bytes - paid - _SEGMENT_BYTES) // self._point_bytes)
        return min(reached - self._at + inside, left, room_points)

    def take(self, n: int) -> tuple[SegmentTable, int]:
        """The next n points as a table of their own, and what they cost."""
        table, start_at, stop_at = self._table, self._at, self._at + n
        self._at = stop_at
        if start_at == 0 and stop_at == table.points_count:
            return table, int(self._costs[-1])
        first, last = self._segment_of(start_at), self._segment_of(stop_at - 1)
        rows, cells = slice(first, last + 1), slice(start_at, stop_at)
        start, count = table.start[rows].copy(), table.count[rows].copy()
        cut_off = start_at - (int(self._ends[first - 1]) if first else 0)
        start[0] += cut_off
        count[0] -= cut_off
        count[-1] -= int(self._ends[last]) - stop_at
        head = replace(
            table,
            env=table.env[rows],
            episode=table.episode[rows],
            rl_step=table.rl_step[rows],
            start=start,
            count=count,
            time_ms=table.time_ms[rows],
            value=table.value[cells],
            point_time_ms=None if table.point_time_ms is None else table.point_time_ms[cells],
        )
        return head, len(count) * _SEGMENT_BYTES + n * self._point_bytes
