"""The log row: every accepted table of one commit as one blob. Pure.

::

    u32 length of the description | description (JSON) | zero padding to 8
    | column bytes, each padded to 8

The description lists, a table each, its scalars and the descriptors (wire.packing) of its columns
in the order their bytes follow. Values are the bytes that came; nothing is compressed: a row lives
for a minute at most.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from metrana_async.errors import InternalError, ProtocolError
from metrana_async.server.store.base import AcceptedPoints, AcceptedSegments
from metrana_async.wire.model import FloatArray, Int64Array, StepMode
from metrana_async.wire.packing import (
    Descriptor,
    pack_floats,
    pack_integers,
    packed_bytes,
    unpack_floats,
    unpack_integers,
)

_ALIGN: Final = 8
_POINT_COLUMNS: Final = ("series_no", "env_no", "step", "rl_step", "time_ms")
_SEGMENT_COLUMNS: Final = (
    *("env_no", "episode", "generation", "rl_step", "minor", "step", "count", "time_ms"),
)


class _Writer:
    """Collects aligned column bytes."""

    def __init__(self) -> None:
        self.chunks: list[bytes | memoryview] = []

    def integers(self, values: Int64Array) -> Descriptor:
        return self._add(*pack_integers(values))

    def floats(self, values: FloatArray) -> Descriptor:
        return self._add(*pack_floats(values))

    def _add(self, descriptor: Descriptor, data: bytes | memoryview) -> Descriptor:
        if len(data):
            self.chunks += [data, bytes(-len(data) % _ALIGN)]
        return descriptor


class _Reader:
    """Hands out the bytes behind descriptors, in their order."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def _take(self, descriptor: Descriptor) -> memoryview:
        n_bytes = packed_bytes(descriptor)
        taken = self._data[self._at : self._at + n_bytes]
        if len(taken) != n_bytes:
            raise ProtocolError(f"a column of {n_bytes} bytes is cut at {len(taken)}")
        self._at += n_bytes + -n_bytes % _ALIGN
        return taken

    def integers(self, descriptor: Descriptor) -> Int64Array:
        return unpack_integers(descriptor, self._take(descriptor))

    def floats(self, descriptor: Descriptor) -> FloatArray:
        return unpack_floats(descriptor, self._take(descriptor))


def encode_log_row(points: list[AcceptedPoints], segments: list[AcceptedSegments]) -> bytes:
    """Encode the tables of one commit."""
    writer = _Writer()
    description = {
        "points": [
            [t.run_no, t.writer_no, t.has_envs, _describe(t, _POINT_COLUMNS, writer)]
            for t in points
        ],
        "segments": [_describe_segments(t, writer) for t in segments],
    }
    head = orjson.dumps(description)
    padding = bytes(-(4 + len(head)) % _ALIGN)
    return b"".join([len(head).to_bytes(4, "little"), head, padding, *writer.chunks])


def _describe(table: Any, names: tuple[str, ...], writer: _Writer) -> list[Descriptor]:
    return [*(writer.integers(getattr(table, n)) for n in names), writer.floats(table.value)]


def _describe_segments(table: AcceptedSegments, writer: _Writer) -> list[Any]:
    columns = _describe(table, _SEGMENT_COLUMNS, writer)
    if table.point_time_ms is not None:
        columns.append(writer.integers(table.point_time_ms))
    return [table.run_no, table.writer_no, table.series_no, table.mode.value, columns]


def decode_log_row(blob: bytes) -> list[AcceptedPoints | AcceptedSegments]:
    """Decode what `encode_log_row` made, in its order; columns may be read-only views of `blob`.

    Raises:
        InternalError: the blob is not one of ours.
    """
    head_len = int.from_bytes(blob[:4], "little")
    data_at = 4 + head_len + -(4 + head_len) % _ALIGN
    try:
        description = orjson.loads(blob[4 : 4 + head_len])
        reader = _Reader(memoryview(blob)[data_at:])
        points = [_read_points(row, reader) for row in description["points"]]
        segments = [_read_segments(row, reader) for row in description["segments"]]
    except (ProtocolError, ValueError, TypeError, KeyError, IndexError) as error:
        raise InternalError(f"a log row of {len(blob)} bytes is malformed: {error!r}") from error
    return [*points, *segments]


def _read_points(row: list[Any], reader: _Reader) -> AcceptedPoints:
    run_no, writer_no, has_envs, columns = row
    integers = [reader.integers(c) for c in columns[:-1]]
    return AcceptedPoints(
        run_no,
        writer_no,
        **dict(zip(_POINT_COLUMNS, integers, strict=True)),
        value=reader.floats(columns[-1]),
        has_envs=has_envs,
    )


def _read_segments(row: list[Any], reader: _Reader) -> AcceptedSegments:
    run_no, writer_no, series_no, mode, columns = row
    n = len(_SEGMENT_COLUMNS)
    integers = [reader.integers(c) for c in columns[:n]]
    return AcceptedSegments(
        run_no,
        writer_no,
        series_no,
        StepMode(mode),
        **dict(zip(_SEGMENT_COLUMNS, integers, strict=True)),
        value=reader.floats(columns[n]),
        point_time_ms=reader.integers(columns[n + 1]) if len(columns) > n + 1 else None,
    )
