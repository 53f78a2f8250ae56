"""Integer and float columns to bytes and back, without a loop per point.

A column is described by a small JSON list, its *descriptor*, and zero or more bytes:

=============================  ==========================================  =================
descriptor                     means                                       bytes
=============================  ==========================================  =================
``["c", n, v]``                n times the integer v                       none
``["a", n, v, d]``             v, v + d, v + 2d, … (n of them)             none
``["n", n, v, "u1|u2|u4"]``    v + an unsigned narrow integer each         n * width
``["i8", n]``                  int64 as they are                           8 n
``["f4", n]``, ``["f8", n]``   float32 / float64                           4 n, 8 n
=============================  ==========================================  =================

Everything is little-endian. Decoding checks kind, count and length before it allocates, and that
no decoded integer leaves int64.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import numpy as np

from metrana_async.errors import ProtocolError
from metrana_async.wire.model import FloatArray, Int64Array

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1

_NARROW: Final = (("u1", 0xFF), ("u2", 0xFFFF), ("u4", 0xFFFF_FFFF))
_NARROW_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    name: np.dtype(name).newbyteorder("<") for name, _ in _NARROW
}
_FLOAT_DTYPES: Final[dict[str, np.dtype[Any]]] = {"f4": np.dtype("<f4"), "f8": np.dtype("<f8")}

assert sys.byteorder == "little", "columns travel little-endian and are used in place"

Descriptor = list[Any]


def pack_integers(values: Int64Array) -> tuple[Descriptor, bytes]:
    """Describe an int64 column in the fewest bytes the plain forms allow."""
    n = len(values)
    if n == 0:
        return ["c", 0, 0], b""
    low, high = int(values.min()), int(values.max())
    if low == high:
        return ["c", n, low], b""
    first, stride = int(values[0]), int(values[1]) - int(values[0])
    # The last element decides cheaply whether an arithmetic row is possible at all.
    is_candidate = int(values[-1]) == first + stride * (n - 1)
    if is_candidate and bool((np.diff(values) == stride).all()):
        return ["a", n, first, stride], b""
    span = high - low
    for name, top in _NARROW:
        if span <= top:
            return ["n", n, low, name], (values - low).astype(_NARROW_DTYPES[name]).tobytes()
    return ["i8", n], values.astype("<i8", copy=False).tobytes()


def pack_floats(values: FloatArray) -> tuple[Descriptor, bytes | memoryview]:
    """Describe a float32 or float64 column; the bytes are the array's own when contiguous."""
    name = "f4" if values.dtype == np.float32 else "f8"
    contiguous = np.ascontiguousarray(values, dtype=_FLOAT_DTYPES[name])
    return [name, len(values)], contiguous.data.cast("B") if len(values) else b""


def packed_bytes(descriptor: Descriptor) -> int:
    """Number of bytes a descriptor claims; ProtocolError when it is not a descriptor."""
    try:
        kind, n = descriptor[0], descriptor[1]
    except (TypeError, IndexError, KeyError) as error:
        raise ProtocolError(f"column descriptor {descriptor!r} is not a list") from error
    if type(n) is not int or n < 0:
        raise ProtocolError(f"column count {n!r} is not a natural number")
    if kind in ("c", "a"):
        return 0
    if kind == "n":
        dtype = _NARROW_DTYPES.get(descriptor[3]) if len(descriptor) == 4 else None
        if dtype is None:
            raise ProtocolError(f"column descriptor {descriptor!r} has no known width")
        return n * int(dtype.itemsize)
    if kind == "i8":
        return n * 8
    if kind in _FLOAT_DTYPES:
        return n * int(_FLOAT_DTYPES[kind].itemsize)
    raise ProtocolError(f"column kind {kind!r} is unknown")


def _checked_integer(value: Any, what: str) -> int:
    if type(value) is not int or not INT64_MIN <= value <= INT64_MAX:
        raise ProtocolError(f"{what} {value!r} is not an int64")
    return value


def unpack_integers(descriptor: Descriptor, data: memoryview) -> Int64Array:
    """Rebuild an int64 column. `data` holds exactly `packed_bytes(descriptor)` bytes."""
    kind, n = descriptor[0], descriptor[1]
    if kind == "c" and len(descriptor) == 3:
        return np.full(n, _checked_integer(descriptor[2], "constant"), dtype=np.int64)
    if kind == "a" and len(descriptor) == 4:
        first = _checked_integer(descriptor[2], "start")
        stride = _checked_integer(descriptor[3], "stride")
        if n:
            _checked_integer(first + stride * (n - 1), "end of an arithmetic column")
        return first + stride * np.arange(n, dtype=np.int64)
    if kind == "n" and len(descriptor) == 4:
        base = _checked_integer(descriptor[2], "base")
        narrow = np.frombuffer(data, dtype=_NARROW_DTYPES[descriptor[3]])
        if n:
            _checked_integer(base + int(narrow.max()), "top of a narrow column")
        return narrow.astype(np.int64) + base
    if kind == "i8":
        return np.frombuffer(data, dtype="<i8").astype(np.int64, copy=False)
    raise ProtocolError(f"{descriptor!r} does not describe an integer column")


def unpack_floats(descriptor: Descriptor, data: memoryview) -> FloatArray:
    """Rebuild a float column as a read-only view of `data`."""
    dtype = _FLOAT_DTYPES.get(descriptor[0])
    if dtype is None:
        raise ProtocolError(f"{descriptor!r} does not describe a float column")
    values: FloatArray = np.frombuffer(data, dtype=dtype)
    return values
