"""Columns that answer a query, and numbers that JSON has no word for.

A columns answer (``COLUMNS_TYPE``)::

    u32 length of the header | header (JSON) | zero padding to 8
    | column bytes, each padded to 8

The header is ``{"columns": [[name, descriptor], ...], "scalars": {...}}``; descriptors are those of
`wire.packing`, and the bytes follow in their order, little-endian. All columns of one answer have
the same number of rows. `scalars` are small JSON facts beside the columns (names behind codes).

JSON has no NaN and no infinity, and an answer never turns them into null or a bare token:
`encode_number` writes them as the strings ``"nan"``, ``"inf"`` and ``"-inf"`` in the fields that
say so. NaN keeps no payload and no sign there; columns keep every bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import orjson

from metrana_async.errors import ProtocolError
from metrana_async.wire import limits
from metrana_async.wire.model import FloatArray, Int64Array
from metrana_async.wire.packing import (
    Descriptor,
    pack_floats,
    pack_integers,
    packed_bytes,
    unpack_floats,
    unpack_integers,
)

Column = Int64Array | FloatArray

_ALIGN: Final = 8
_COLUMNS_COUNT: Final = 32
_FLOAT_KINDS: Final = ("f4", "f8")
_NON_FINITE: Final = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True, slots=True)
class Columns:
    """A decoded answer.

    Attributes:
        columns: int64, float32 or float64 arrays of one length, by name.
        scalars: the JSON facts beside them.
    """

    columns: dict[str, Column]
    scalars: dict[str, Any] = field(default_factory=dict)

    def integers(self, name: str) -> Int64Array:
        """The int64 column of this name; ProtocolError when there is none."""
        column: Int64Array = self._column(name)
        if column.dtype != np.int64:
            raise ProtocolError(f"column {name!r} holds {column.dtype}, not integers")
        return column

    def floats(self, name: str) -> FloatArray:
        """The float32 or float64 column of this name; ProtocolError when there is none."""
        column: FloatArray = self._column(name)
        if column.dtype not in (np.float32, np.float64):
            raise ProtocolError(f"column {name!r} holds {column.dtype}, not floats")
        return column

    def _column(self, name: str) -> Any:
        try:
            return self.columns[name]
        except KeyError:
            raise ProtocolError(f"the answer has no column {name!r}") from None


def encode_columns(
    columns: Mapping[str, Column], scalars: Mapping[str, Any] | None = None
) -> bytes:
    """Encode columns of one length.

    A float64 column whose values are all exactly float32 travels and arrives as float32: what a
    reader gets depends on the values, not on which others shared a batch with them.

    Args:
        columns: int64, float32 or float64 [n] each.
        scalars: JSON values; numbers that may not be finite go through `encode_number` first.
    """
    described: list[tuple[str, Descriptor]] = []
    chunks: list[bytes | memoryview] = []
    for name, column in columns.items():
        assert len(column) == len(next(iter(columns.values()))), (
            f"column {name!r} differs in length"
        )
        is_integers = column.dtype == np.int64
        descriptor, data = (
            pack_integers(column)  # type: ignore[arg-type]  # mypy does not narrow by dtype
            if is_integers
            else pack_floats(narrowest(column))  # type: ignore[arg-type]  # as above
        )
        described.append((name, descriptor))
        chunks += (data, bytes(-len(data) % _ALIGN))
    header = orjson.dumps({"columns": described, "scalars": dict(scalars or {})})
    padding = bytes(-(4 + len(header)) % _ALIGN)
    return b"".join([len(header).to_bytes(4, "little"), header, padding, *chunks])


def narrowest(values: FloatArray) -> FloatArray:
    """The values as float32 where that changes none of them (NaN stays NaN)."""
    if values.dtype == np.float32:
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = values.astype(np.float32)
    is_exact = (narrow == values) | (np.isnan(narrow) & np.isnan(values))
    return narrow if bool(is_exact.all()) else values


def decode_columns(data: bytes | memoryview) -> Columns:
    """Decode what `encode_columns` made. Float columns are read-only views of `data`.

    Raises:
        ProtocolError: a length, kind or count is not what it must be; nothing is allocated for a
            column before all of them have been checked.
    """
    data = memoryview(data)
    header, offset = _read_header(data)
    try:
        described = [(str(name), descriptor) for name, descriptor in header["columns"]]
        scalars = dict(header["scalars"])
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"columns header is malformed: {error!r}") from error
    if len(described) > _COLUMNS_COUNT or len(dict(described)) != len(described):
        raise ProtocolError(f"{len(described)} columns: too many, or two of one name")
    places = []
    for name, descriptor in described:
        n_bytes = packed_bytes(descriptor)
        if descriptor[1] != described[0][1][1] or descriptor[1] > limits.ANSWER_ROWS:
            raise ProtocolError(f"column {name!r} claims {descriptor[1]!r} rows")
        if offset + n_bytes > len(data):
            raise ProtocolError(f"column {name!r} of {n_bytes} bytes is cut at {len(data)}")
        places.append(data[offset : offset + n_bytes])
        offset += n_bytes + -n_bytes % _ALIGN
    if offset != len(data):
        raise ProtocolError(f"an answer of {len(data)} bytes should have {offset}")
    columns = {
        name: _unpack(descriptor, place)
        for (name, descriptor), place in zip(described, places, strict=True)
    }
    return Columns(columns, scalars)


def _read_header(data: memoryview) -> tuple[dict[str, Any], int]:
    """The JSON header and the offset of the first column."""
    header_end = 4 + int.from_bytes(data[:4], "little")
    if len(data) < 4 or header_end > len(data):
        raise ProtocolError(f"columns header of {header_end} bytes is cut at {len(data)}")
    try:
        header = orjson.loads(data[4:header_end])
    except orjson.JSONDecodeError as error:
        raise ProtocolError(f"columns header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise ProtocolError("columns header is not an object")
    return header, header_end + -header_end % _ALIGN


def _unpack(descriptor: Descriptor, place: memoryview) -> Column:
    if descriptor[0] in _FLOAT_KINDS:
        return unpack_floats(descriptor, place)
    return unpack_integers(descriptor, place)


def encode_number(value: float) -> float | str:
    """A number as JSON can hold it: itself when finite, else ``"nan"``, ``"inf"``, ``"-inf"``."""
    if math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")


def decode_number(value: Any) -> float:
    """Undo `encode_number`; ProtocolError for anything else."""
    if isinstance(value, str) and value in _NON_FINITE:
        return _NON_FINITE[value]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise ProtocolError(f"{value!r} is not a number")
