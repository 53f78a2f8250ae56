"""Batches to frames and back.

The body of a batch frame::

    u32 length of the description | description (JSON) | zero padding to 8
    | column bytes, each padded to 8

The description names the batch's identity and pages and lists its tables; each table lists its
columns as descriptors (wire.packing) in the order their bytes follow. Column order is fixed:
`PointTable`: series, step, time_ms, value[, env, rl_step]; `SegmentTable`: env, episode, rl_step,
start, count, time_ms, value[, point_time_ms].
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import orjson

from metrana_async.errors import ProtocolError
from metrana_async.wire import limits
from metrana_async.wire.frames import FRAME_BATCH, Frame, encode_frame
from metrana_async.wire.model import (
    AUTOMATIC,
    NO_EPISODE,
    AttributeOp,
    AttributeUpdate,
    Batch,
    FloatArray,
    Int64Array,
    PointTable,
    SegmentTable,
    StepMode,
)
from metrana_async.wire.packing import (
    Descriptor,
    pack_floats,
    pack_integers,
    packed_bytes,
    unpack_floats,
    unpack_integers,
)

_ALIGN: Final = 8


class _BodyWriter:
    """Collects descriptors and the aligned bytes behind them."""

    def __init__(self) -> None:
        self.chunks: list[bytes | memoryview] = []

    def integers(self, values: Int64Array) -> Descriptor:
        return self._add(pack_integers(values))

    def floats(self, values: FloatArray) -> Descriptor:
        return self._add(pack_floats(values))

    def _add(self, packed: tuple[Descriptor, bytes | memoryview]) -> Descriptor:
        descriptor, data = packed
        if len(data):
            self.chunks.append(data)
            if len(data) % _ALIGN:
                self.chunks.append(bytes(-len(data) % _ALIGN))
        return descriptor


class _BodyReader:
    """Hands out the bytes behind descriptors, checking every length first."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._offset = 0

    def _take(self, descriptor: Any) -> memoryview:
        n_bytes = packed_bytes(descriptor)
        if descriptor[1] > limits.BATCH_POINTS:
            raise ProtocolError(f"a column of {descriptor[1]} rows is over {limits.BATCH_POINTS}")
        end = self._offset + n_bytes
        if end > len(self._data):
            raise ProtocolError(f"column of {n_bytes} bytes is cut at {len(self._data)}")
        taken = self._data[self._offset : end]
        self._offset = end + -n_bytes % _ALIGN
        return taken

    def integers(self, descriptor: Any) -> Int64Array:
        return unpack_integers(descriptor, self._take(descriptor))

    def floats(self, descriptor: Any) -> FloatArray:
        return unpack_floats(descriptor, self._take(descriptor))

    def finish(self) -> None:
        if self._offset < len(self._data):
            raise ProtocolError(f"{len(self._data) - self._offset} bytes belong to no column")


def encode_batch(batch: Batch, *, compress: bool = False) -> bytes:
    """Encode a sealed batch as one frame. The same batch always gives the same bytes."""
    writer = _BodyWriter()
    description: dict[str, Any] = {
        "run": batch.run_uid,
        "writer": batch.writer_id,
        "prev": batch.prev_digest,
        "wall": batch.wall_ms,
        "mono": batch.monotonic_ms,
        "series_pages": batch.series_pages,
        "env_pages": batch.env_pages,
        "points": [_describe_points(table, writer) for table in batch.points],
        "segments": [_describe_segments(table, writer) for table in batch.segments],
    }
    if batch.attributes:
        description["attributes"] = [
            [u.op.value, u.path, u.value, u.env_id, u.episode] for u in batch.attributes
        ]
    if batch.lost:
        description["lost"] = batch.lost
    if batch.before:
        description["before"] = batch.before
    if batch.stands_for:
        description["stands_for"] = batch.stands_for
    head = orjson.dumps(description)
    padding = bytes(-(4 + len(head)) % _ALIGN)
    return encode_frame(
        FRAME_BATCH,
        len(head).to_bytes(4, "little"),
        head,
        padding,
        *writer.chunks,
        seq=batch.seq,
        lane=batch.lane,
        points_count=batch.points_count,
        compress=compress,
    )


def _describe_points(table: PointTable, writer: _BodyWriter) -> list[Descriptor]:
    columns = [
        writer.integers(table.series),
        writer.integers(table.step),
        writer.integers(table.time_ms),
        writer.floats(table.value),
    ]
    if table.env is not None:
        assert table.rl_step is not None
        columns += [writer.integers(table.env), writer.integers(table.rl_step)]
    return columns


def _describe_segments(table: SegmentTable, writer: _BodyWriter) -> dict[str, Any]:
    columns = [
        writer.integers(table.env),
        writer.integers(table.episode),
        writer.integers(table.rl_step),
        writer.integers(table.start),
        writer.integers(table.count),
        writer.integers(table.time_ms),
        writer.floats(table.value),
    ]
    if table.point_time_ms is not None:
        columns.append(writer.integers(table.point_time_ms))
    return {"series": table.series, "mode": table.mode.value, "columns": columns}


class BatchHead(NamedTuple):
    """What a batch says of itself, without its columns."""

    run_uid: str
    writer_id: str
    prev_digest: int
    before: int
    pages: tuple[str, ...]
    lost: dict[str, int]


def read_head(frame: Frame) -> BatchHead:
    """Read the head of a batch frame; none of its columns is looked at.

    Raises:
        ProtocolError: the description is malformed.
    """
    description, _ = _description(frame.body)
    try:
        pages = (*description["series_pages"], *description["env_pages"])
        return BatchHead(
            run_uid=_hex_id(description["run"]),
            writer_id=_hex_id(description["writer"]),
            prev_digest=_natural(description["prev"]),
            before=_natural(description.get("before", 0)),
            pages=tuple(_hex_id(digest) for digest in pages),
            lost=_read_lost(description.get("lost", {})),
        )
    except (KeyError, TypeError) as error:
        raise ProtocolError(f"batch description is malformed: {error!r}") from error


def _description(body: memoryview) -> tuple[dict[str, Any], memoryview]:
    """The description of a batch body, and the column bytes behind it."""
    if len(body) < 4:
        raise ProtocolError("batch body is shorter than its length field")
    head_len = int.from_bytes(body[:4], "little")
    data_at = 4 + head_len + -(4 + head_len) % _ALIGN
    if 4 + head_len > len(body):
        raise ProtocolError(f"description of {head_len} bytes is cut at {len(body)}")
    try:
        description = orjson.loads(body[4 : 4 + head_len])
    except orjson.JSONDecodeError as error:
        raise ProtocolError(f"description is not JSON: {error}") from error
    if not isinstance(description, dict):
        raise ProtocolError("description is not an object")
    return description, body[min(data_at, len(body)) :]


def decode_batch(frame: Frame) -> Batch:
    """Decode the batch of a batch frame.

    Values are read-only views of the frame's bytes; integer columns are fresh int64 arrays.

    Raises:
        ProtocolError: any length, index, count or enum is not what it must be. Whether pages
            are known and indexes fit them is for the caller, who has the pages.
    """
    description, columns = _description(frame.body)
    reader = _BodyReader(columns)
    try:
        batch = Batch(
            run_uid=_hex_id(description["run"]),
            writer_id=_hex_id(description["writer"]),
            lane=frame.lane,
            seq=frame.seq,
            prev_digest=_natural(description["prev"]),
            before=_natural(description.get("before", 0)),
            stands_for=_natural(description.get("stands_for", 0)),
            wall_ms=int(description["wall"]),
            monotonic_ms=int(description["mono"]),
            series_pages=tuple(_hex_id(d) for d in description["series_pages"]),
            env_pages=tuple(_hex_id(d) for d in description["env_pages"]),
            points=[_read_points(row, reader) for row in description["points"]],
            segments=[_read_segments(table, reader) for table in description["segments"]],
            attributes=[_read_attribute(row) for row in description.get("attributes", ())],
            lost=_read_lost(description.get("lost", {})),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ProtocolError(f"batch description is malformed: {error!r}") from error
    reader.finish()
    if batch.points_count != frame.points_count or batch.points_count > limits.BATCH_POINTS:
        raise ProtocolError(
            f"batch holds {batch.points_count} points, its header says {frame.points_count}"
        )
    if batch.seq < 1 or not 0 <= batch.lane < limits.LANES_COUNT:
        raise ProtocolError(f"lane {batch.lane} / seq {batch.seq} is out of range")
    return batch


def _hex_id(value: Any) -> str:
    if not isinstance(value, str) or len(value) != 32 or set(value) - set("0123456789abcdef"):
        raise ProtocolError(f"{value!r} is not 32 hex digits")
    return value


def _natural(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ProtocolError(f"{value!r} is not an unsigned 64-bit number")
    return value


def _require(condition: bool, what: str) -> None:  # noqa: FBT001
    if not condition:
        raise ProtocolError(what)


def _all_at_least(values: Int64Array, low: int) -> bool:
    return len(values) == 0 or int(values.min()) >= low


def _read_points(columns: Any, reader: _BodyReader) -> PointTable:
    _require(
        isinstance(columns, list) and len(columns) in (4, 6), "a point table has 4 or 6 columns"
    )
    table = PointTable(
        series=reader.integers(columns[0]),
        step=reader.integers(columns[1]),
        time_ms=reader.integers(columns[2]),
        value=reader.floats(columns[3]),
    )
    n = len(table.step)
    if len(columns) == 6:
        table.env, table.rl_step = reader.integers(columns[4]), reader.integers(columns[5])
        _require(len(table.env) == len(table.rl_step) == n, "point columns differ in length")
        _require(_all_at_least(table.env, 0), "an environment index is negative")
        _require(_all_at_least(table.rl_step, 0), "an rl_step is negative")
    same = len(table.series) == len(table.time_ms) == len(table.value) == n
    _require(same, "point columns differ in length")
    _require(_all_at_least(table.series, 0), "a series index is negative")
    _require(_all_at_least(table.step, AUTOMATIC), "a step is below -1")
    return table


def _read_segments(description: Any, reader: _BodyReader) -> SegmentTable:
    columns = description["columns"]
    _require(isinstance(columns, list) and len(columns) in (7, 8), "segments have 7 or 8 columns")
    series = description["series"]
    _require(type(series) is int and series >= 0, "a segment table's series is a natural number")
    env, episode, rl_step, start, count, time_ms = integers = [
        reader.integers(column) for column in columns[:6]
    ]
    table = SegmentTable(
        series=series,
        mode=StepMode(description["mode"]),
        env=env,
        episode=episode,
        rl_step=rl_step,
        start=start,
        count=count,
        time_ms=time_ms,
        value=reader.floats(columns[6]),
        point_time_ms=reader.integers(columns[7]) if len(columns) == 8 else None,
    )
    k = len(table.env)
    _require(all(len(column) == k for column in integers), "segment columns differ in length")
    _require(_all_at_least(table.count, 1), "a segment is empty")
    # Bounded before it is summed, so that a lie cannot overflow into a match.
    _require(k == 0 or int(table.count.max()) <= limits.BATCH_POINTS, "a segment is too long")
    _require(int(table.count.sum()) == len(table.value), "segments do not cover the values")
    times = table.point_time_ms
    _require(times is None or len(times) == len(table.value), "times do not cover the values")
    _require(_all_at_least(table.env, 0), "an environment index is negative")
    _require(_all_at_least(table.episode, NO_EPISODE), "an episode is below -1")
    _require(_all_at_least(table.rl_step, 0), "an rl_step is negative")
    _require(_all_at_least(table.start, 0), "a start is negative")
    _require(
        k == 0 or bool((table.start <= limits.STEP_MAX - (table.count - 1)).all()),
        "a segment runs past the largest step",
    )
    return table


def _read_attribute(row: Any) -> AttributeUpdate:
    op, path, value, env_id, episode = row
    _require(isinstance(path, str) and bool(path), "an attribute path is a non-empty string")
    _require(env_id is None or isinstance(env_id, str), "an attribute's env_id is a string")
    _require(episode is None or type(episode) is int, "an attribute's episode is an integer")
    return AttributeUpdate(AttributeOp(op), path, value, env_id, episode)


def _read_lost(lost: Any) -> dict[str, int]:
    _require(
        isinstance(lost, dict) and all(type(n) is int and n > 0 for n in lost.values()),
        "losses are counts by reason",
    )
    return dict(lost)


def concatenate_floats(parts: list[FloatArray]) -> FloatArray:
    """Join value columns; float64 if any part is, else float32. Every float32 is kept exactly."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts)
