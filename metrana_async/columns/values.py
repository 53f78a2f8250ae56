"""Values as they are stored: float32 unless that would lose what the caller meant, else float64.

Pure. What comes in is a number, a nest of lists, or anything with an array protocol; what goes out
is an owned float column that aliases nothing of the caller's. What cannot be a number is refused
by position; what can only be stored wider, or rounded, is noted so that it is warned once.

==============================  =====================================================
arrives as                      stored as (``dtype=None``)
==============================  =====================================================
float of any width              float32, round half to even
int of any width                float64, the nearest double beyond 2**53 (noted)
bool                            0.0 / 1.0
a finite float beyond float32   the whole block as float64 (noted), never as inf
==============================  =====================================================

Casts are prepared so that none overflows, instead of silenced by `np.errstate`: that sets a context
variable, and a finalizer that logs while the interpreter sets one crashes it (CPython up to 3.11).
It is the fallback for callers who have numpy raise.
"""

from __future__ import annotations

import operator
from itertools import repeat
from typing import Any, Final, NamedTuple

import numpy as np

from metrana_async.columns.arrays import (
    AnyArray,
    BoolArray,
    first_position,
    flatten_sequence,
    is_sequence,
    locate,
    masked_leaves,
    position_text,
    to_numpy,
)
from metrana_async.errors import InvalidShapeError, InvalidTypeError, InvalidValueError
from metrana_async.wire.model import FloatArray

WIDENED_FLOAT32: Final = "widened_float32"
INT_BEYOND_2_53: Final = "int_beyond_2**53"
OVERFLOW_TO_INF: Final = "overflow_to_inf"

NOTE_TEXTS: Final = {
    WIDENED_FLOAT32: "a finite value is beyond float32's range: its block is kept in float64",
    INT_BEYOND_2_53: "an integer beyond 2**53 is stored as the nearest float64",
    OVERFLOW_TO_INF: "a finite value is beyond the range of the dtype asked for: stored as inf",
}
"""What each kind of note means, for the warning."""

FLOAT32_OVERFLOW: Final = 3.4028235677973366e38
"""The least magnitude that the cast to float32 (round half to even) turns into inf."""

_FLOAT64_OVERFLOW: Final = np.ldexp(np.longdouble(1), 1024) - np.ldexp(np.longdouble(1), 970)
_OVERFLOWS: Final = {"float16": 65520.0, "float32": FLOAT32_OVERFLOW}
_EXACT_INT_MAX: Final = 2**53
_DTYPES: Final = ("float16", "float32", "float64", "int32", "int64")
_FLOAT32: Final = np.dtype(np.float32)
_PYTHON_NUMBERS: Final = frozenset({float, int, bool})


class Values(NamedTuple):
    """Validated values.

    Attributes:
        array: float32 or float64, C-contiguous, owned; shape as given. Masked cells hold anything.
        mask: bool of that shape, False = not a point; None where all are.
        notes: kinds of `NOTE_TEXTS` that occurred.
    """

    array: FloatArray
    mask: BoolArray | None = None
    notes: tuple[str, ...] = ()


class _Source(NamedTuple):
    """Values as numpy numbers, not yet in their stored width.

    `array` has kind f, i, u or b; `is_exact` marks the cells of a float64 `array` that arrived as
    integers (and must not lose exactness), where some did and some did not.
    """

    array: AnyArray
    mask: BoolArray | None = None
    is_exact: BoolArray | None = None
    notes: tuple[str, ...] = ()


def coerce_values(
    value: Any, dtype: Any = None, *, what: str = "value", keep: BoolArray | None = None
) -> Values:
    """Copy `value` into an owned float column.

    Args:
        value: a number, a nest of lists or tuples, or an array of any library; masked arrays keep
            their mask.
        dtype: None for the table above; else float16, float32, float64, int32 or int64 in any
            spelling.
        what: what messages call the argument.
        keep: bool of the value's shape; cells where it is False are not looked at.

    Raises:
        InvalidTypeError: an element is no number (str, None, complex, …); named by position.
        InvalidValueError: an element cannot be stored under `dtype`; named by position.
        InvalidShapeError: the value is ragged, or `keep` has another shape.
    """
    if type(value) is float and dtype is None and keep is None:
        if -FLOAT32_OVERFLOW < value < FLOAT32_OVERFLOW or value - value != 0.0:
            return Values(np.array(value, dtype=np.float32))
        return Values(np.array(value), None, (WIDENED_FLOAT32,))
    if type(value) is np.ndarray and value.dtype == _FLOAT32 and dtype is None and keep is None:
        return Values(np.array(value, order="C"))
    wanted = None if dtype is None else check_dtype(dtype)
    source = _source(value, what, keep, is_integer=wanted in {"int32", "int64"})
    if keep is not None:
        source = _hide(source, keep, what)
    if wanted is None:
        return _stored_by_default(source)
    if wanted.startswith("int"):
        return _stored_as_integer(source, wanted, what)
    return _stored_as_float(source, wanted)


def check_dtype(dtype: Any) -> str:
    """Name the storage dtype that `dtype` spells: a str, a numpy dtype or type, float or int.

    Raises:
        InvalidTypeError: it is none of float16, float32, float64, int32, int64.
    """
    if isinstance(dtype, str):
        name = "float64" if dtype == "float" else "int64" if dtype == "int" else dtype
    else:
        try:
            name = np.dtype(dtype).name
        except (TypeError, ValueError):
            name = str(dtype)  # torch.float32, and what other libraries call their own
    name = name.rpartition(".")[2]
    if name not in _DTYPES:
        raise InvalidTypeError(f"dtype {dtype!r} is none of {', '.join(_DTYPES)}")
    return name


# --- in ------------------------------------------------------------------------------------------


def _source(value: Any, what: str, keep: BoolArray | None, *, is_integer: bool) -> _Source:
    if type(value) in _PYTHON_NUMBERS:
        return _from_python_numbers([value], (), what, is_integer=is_integer)
    if not is_sequence(value):
        return _from_array(to_numpy(value, what), what)
    leaves, shape = flatten_sequence(value, what)
    if keep is not None and keep.shape == shape:
        leaves = masked_leaves(leaves, keep, 0.0)
    if set(map(type, leaves)) <= _PYTHON_NUMBERS:
        return _from_python_numbers(leaves, shape, what, is_integer=is_integer)
    return _from_arrays(leaves, shape, what)


def _from_array(array: AnyArray, what: str) -> _Source:
    mask: BoolArray | None = None
    if isinstance(array, np.ma.MaskedArray):
        hidden = np.ma.getmask(array)
        mask = ~np.ma.getmaskarray(array) if np.any(hidden) else None
        array = np.ma.getdata(array)
    array = np.asarray(array)
    kind = array.dtype.kind
    if kind not in "fiub":
        name = array.dtype.name
        # bfloat16, float8_…, int4 and their like come from ml_dtypes, whatever kind they claim.
        if name.startswith(("bfloat", "float")):
            array = array.astype(np.float32)
        elif name.startswith(("int", "uint")):
            array = array.astype(np.int64)
        else:
            _refuse_array(array, what)
    elif kind == "f" and array.dtype.itemsize > 8:
        _check_long_double(array, what)
    return _Source(array, mask)


def _check_long_double(array: AnyArray, what: str) -> None:
    bad = _beyond(array, _FLOAT64_OVERFLOW)
    if bad is not None:
        raise InvalidValueError(f"{what}{first_position(bad)[1]} is beyond the range of float64")


def _refuse_array(array: AnyArray, what: str) -> None:
    if array.dtype.kind == "O" and array.size:
        leaves = array.ravel().tolist()
        where = locate(leaves, array.shape, lambda leaf: type(leaf) not in _PYTHON_NUMBERS)
        raise InvalidTypeError(
            f"{what}{where} is in an array of Python objects, not of numbers: give it a dtype"
        )
    raise InvalidTypeError(f"{what} is an array of {array.dtype}, not of numbers")


def _from_python_numbers(
    leaves: list[Any], shape: tuple[int, ...], what: str, *, is_integer: bool
) -> _Source:
    types = set(map(type, leaves))
    if types <= {float}:
        return _Source(np.array(leaves, dtype=np.float64).reshape(shape))
    if is_integer and float not in types:
        return _Source(_int64_array(leaves, shape, what))
    try:
        array = np.array(leaves, dtype=np.float64).reshape(shape)
    except OverflowError as error:
        where = locate(leaves, shape, _is_beyond_double)
        raise InvalidValueError(
            f"{what}{where} is an integer beyond the range of float64"
        ) from error
    is_exact = np.fromiter(
        map(operator.is_not, map(type, leaves), repeat(float)), dtype=bool, count=len(leaves)
    ).reshape(shape)
    return _Source(array, None, is_exact, _notes_of_ints(leaves, array))


def _notes_of_ints(leaves: list[Any], array: AnyArray) -> tuple[str, ...]:
    if not (np.abs(array) >= _EXACT_INT_MAX).any():
        return ()
    is_noted = any(type(leaf) is int and abs(leaf) > _EXACT_INT_MAX for leaf in leaves)
    return (INT_BEYOND_2_53,) if is_noted else ()


def _int64_array(leaves: list[Any], shape: tuple[int, ...], what: str) -> AnyArray:
    try:
        return np.array(leaves, dtype=np.int64).reshape(shape)
    except OverflowError as error:
        where = locate(leaves, shape, lambda leaf: not -(2**63) <= leaf < 2**63)
        raise InvalidValueError(f"{what}{where} is out of range for int64") from error


def _is_beyond_double(leaf: Any) -> bool:
    try:
        float(leaf)
    except OverflowError:
        return True
    return False


def _from_arrays(leaves: list[Any], shape: tuple[int, ...], what: str) -> _Source:
    """Leaves some of which belong to a library: a list of 0-d tensors, of rows, of numpy scalars.

    One look at each leaf: each is an object of its own, there are no columns yet.
    """
    parts = [
        _from_leaf(leaf, what + position_text(flat, shape)) for flat, leaf in enumerate(leaves)
    ]
    inner = parts[0].array.shape
    for flat, part in enumerate(parts):
        if part.array.shape != inner:
            raise InvalidShapeError(
                f"{what} is ragged: {what}{position_text(0, shape)} has shape {list(inner)}, "
                f"{what}{position_text(flat, shape)} {list(part.array.shape)}"
            )
    full = shape + inner
    mask = None
    if any(part.mask is not None for part in parts):
        everything = np.ones(inner, dtype=bool)
        masks = [everything if part.mask is None else part.mask for part in parts]
        mask = np.stack(masks).reshape(full)
    notes = {note for part in parts for note in part.notes}
    if len({part.array.dtype.kind for part in parts}) == 1:
        return _Source(
            np.stack([part.array for part in parts]).reshape(full), mask, None, tuple(notes)
        )
    notes.update(note for part in parts for note in _notes_of_int_array(part.array))
    is_exact = np.array([part.array.dtype.kind != "f" for part in parts])
    array = np.stack([part.array.astype(np.float64) for part in parts])
    is_exact = np.broadcast_to(is_exact.reshape(-1, *repeat(1, len(inner))), array.shape)
    return _Source(array.reshape(full), mask, is_exact.reshape(full), tuple(notes))


def _from_leaf(leaf: Any, what: str) -> _Source:
    if type(leaf) is int and not -(2**63) <= leaf < 2**63:
        # Beyond every integer dtype: the nearest double, as for a bare int of this size.
        return _from_python_numbers([leaf], (), what, is_integer=False)
    if type(leaf) in _PYTHON_NUMBERS:
        return _Source(np.array(leaf))
    return _from_array(to_numpy(leaf, what), what)


def _notes_of_int_array(array: AnyArray) -> tuple[str, ...]:
    if array.dtype.kind not in "iu" or array.dtype.itemsize < 8 or not array.size:
        return ()
    is_beyond = int(array.max()) > _EXACT_INT_MAX or int(array.min()) < -_EXACT_INT_MAX
    return (INT_BEYOND_2_53,) if is_beyond else ()


def _check_mask_shape(keep: BoolArray, shape: tuple[int, ...], what: str) -> None:
    if keep.shape != shape:
        raise InvalidShapeError(
            f"mask has shape {list(keep.shape)}, {what} has shape {list(shape)}"
        )


def _hide(source: _Source, keep: BoolArray, what: str) -> _Source:
    """Combine the masks and put zeros where nobody may look."""
    _check_mask_shape(keep, source.array.shape, what)
    mask = keep if source.mask is None else keep & source.mask
    if mask.all():
        return source._replace(mask=None)
    return source._replace(array=np.where(mask, source.array, 0), mask=mask)


# --- out -----------------------------------------------------------------------------------------


def _stored_by_default(source: _Source) -> Values:
    array, mask = source.array, source.mask
    if mask is not None:
        array = np.where(mask, array, array.dtype.type(0))
    kind = array.dtype.kind
    if kind == "b" or (kind == "f" and array.dtype.itemsize <= 4):
        return Values(np.array(array, dtype=np.float32, order="C"), mask, source.notes)
    if kind in "iu":
        notes = source.notes + _notes_of_int_array(array)
        return Values(np.array(array, dtype=np.float64, order="C"), mask, notes)
    return _narrowed(source._replace(array=array))


def _narrowed(source: _Source) -> Values:
    """Float64 (or wider) to float32 where nothing that was meant is lost by it."""
    array, mask, is_exact, notes = source.array, source.mask, source.is_exact, source.notes
    if _beyond(array, FLOAT32_OVERFLOW) is not None:
        notes = tuple({*notes, WIDENED_FLOAT32})
        return Values(np.array(array, dtype=np.float64, order="C"), mask, notes)
    narrow = _cast(array, "float32")
    if is_exact is not None and (is_exact.all() or (is_exact & (narrow != array)).any()):
        return Values(np.array(array, dtype=np.float64, order="C"), mask, notes)
    return Values(narrow, mask, notes)


def _stored_as_float(source: _Source, wanted: str) -> Values:
    array = source.array
    if source.mask is not None:
        array = np.where(source.mask, array, array.dtype.type(0))
    notes = {*source.notes, *_notes_of_int_array(array)}
    limit = _OVERFLOWS.get(wanted)
    far = None if limit is None else _beyond(array, limit)
    if far is not None:
        notes.add(OVERFLOW_TO_INF)
        array = np.where(far, np.where(array < 0, -np.inf, np.inf), array)
    # One rounding only: straight to half, then wider without loss.
    cast = _cast(array, wanted)
    if wanted == "float16":
        cast = cast.astype(np.float32)
    return Values(cast, source.mask, tuple(sorted(notes)))


def _beyond(array: AnyArray, limit: Any) -> BoolArray | None:
    """Where a finite value is of magnitude `limit` or more; None where none is."""
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        array = array.astype(np.float64)  # the magnitude of -2**63 is no int64
    if not array.size or (array.min() > -limit and array.max() < limit):
        return None
    magnitude = np.abs(array)
    far = magnitude >= limit
    if not far.any():
        return None
    far &= magnitude != np.inf
    return far if far.any() else None


def _cast(array: AnyArray, wanted: str) -> AnyArray:
    """An owned copy in another dtype, in one rounding."""
    try:
        return np.array(array, dtype=wanted, order="C")
    except FloatingPointError:
        # np.seterr(all="raise") is for the caller's own sums: a value that fades to 0 is logged.
        with np.errstate(all="ignore"):
            return np.array(array, dtype=wanted, order="C")


def _stored_as_integer(source: _Source, wanted: str, what: str) -> Values:
    array, mask = source.array, source.mask
    if mask is not None:
        array = np.where(mask, array, array.dtype.type(0))
    bits = int(wanted[3:])
    notes = {*source.notes, *_notes_of_int_array(array)}
    if array.dtype.kind == "f":
        array = np.trunc(array)
        low, high = -(2.0 ** (bits - 1)), 2.0 ** (bits - 1)
        bad = ~((array >= low) & (array < high))  # NaN compares false: refused as well
        if not bad.any() and (np.abs(array) > _EXACT_INT_MAX).any():
            notes.add(INT_BEYOND_2_53)
    elif array.dtype.kind == "b":
        bad = np.zeros(array.shape, dtype=bool)
    else:
        bad = (array < -(2 ** (bits - 1))) | (array > 2 ** (bits - 1) - 1)
    if bad.any():
        flat, where = first_position(bad)
        shown = source.array.ravel()[flat]
        raise InvalidValueError(f"{what}{where} is {shown!s}, which {wanted} cannot hold")
    return Values(np.array(array, dtype=np.float64, order="C"), mask, tuple(sorted(notes)))
