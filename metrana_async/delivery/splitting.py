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
        rest: SegmentTable | None = segments
        while rest is not None and rest.points_count:
            room = target_bytes - part.nbytes - _TABLE_BYTES
            n = _points_that_fit(rest, room, limits.BATCH_POINTS - part.points_count)
            if n < 1 and not part.is_empty():
                yield part
                part = Part()
                continue
            head, rest = _cut_segments(rest, max(1, n))
            part.segments.append(head)
            part.nbytes += _TABLE_BYTES + _segments_bytes(head)
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


def _segments_bytes(table: SegmentTable) -> int:
    return len(table.count) * _SEGMENT_BYTES + table.points_count * _point_bytes(table)


def _points_that_fit(table: SegmentTable, room_bytes: int, room_points: int) -> int:
    """Most leading points whose values and segments cost at most `room_bytes`."""
    if _segments_bytes(table) <= room_bytes and table.points_count <= room_points:
        return table.points_count
    point_bytes = _point_bytes(table)
    ends = np.cumsum(table.count)
    costs = ends * point_bytes + np.arange(1, len(ends) + 1) * _SEGMENT_BYTES
    whole = int(np.searchsorted(costs, room_bytes, side="right"))
    done_points = int(ends[whole - 1]) if whole else 0
    done_bytes = int(costs[whole - 1]) if whole else 0
    inside = max(0, (room_bytes - done_bytes - _SEGMENT_BYTES) // point_bytes)
    return min(done_points + inside, table.points_count, room_points)


def _cut_segments(table: SegmentTable, n: int) -> tuple[SegmentTable, SegmentTable | None]:
    """The first n points, and the others (None when there are none)."""
    if n >= table.points_count:
        return table, None
    ends = np.cumsum(table.count)
    last = int(np.searchsorted(ends, n, side="left"))
    taken = n - (int(ends[last - 1]) if last else 0)
    is_inside = taken < int(table.count[last])
    head_count = table.count[: last + 1].copy()
    head_count[last] = taken
    first = last if is_inside else last + 1
    tail_start, tail_count = table.start[first:].copy(), table.count[first:].copy()
    if is_inside:
        tail_start[0] += taken
        tail_count[0] -= taken
    head = replace(
        table,
        env=table.env[: last + 1],
        episode=table.episode[: last + 1],
        rl_step=table.rl_step[: last + 1],
        start=table.start[: last + 1],
        count=head_count,
        time_ms=table.time_ms[: last + 1],
        value=table.value[:n],
        point_time_ms=None if table.point_time_ms is None else table.point_time_ms[:n],
    )
    tail = replace(
        table,
        env=table.env[first:],
        episode=table.episode[first:],
        rl_step=table.rl_step[first:],
        start=tail_start,
        count=tail_count,
        time_ms=table.time_ms[first:],
        value=table.value[n:],
        point_time_ms=None if table.point_time_ms is None else table.point_time_ms[n:],
    )
    return head, tail
