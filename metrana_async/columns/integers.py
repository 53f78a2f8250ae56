"""Integers that place a point: step, rl_step, episode, env_step, timestamp.

Pure. Accepted exactly or refused: nothing is truncated, wrapped or parsed. A bool is refused
although Python calls it an int: as a step or an episode it is always a misplaced argument.
"""

from __future__ import annotations

from typing import Any, Final

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
from metrana_async.errors import InvalidShapeError, InvalidStepError, InvalidTypeError
from metrana_async.wire.limits import STEP_MAX, TIME_MS_MAX
from metrana_async.wire.model import Int64Array

_STEP_RANGE: Final = (0, STEP_MAX)
_TIME_RANGE: Final = (-TIME_MS_MAX, TIME_MS_MAX)
_RANGE_TEXTS: Final = {_STEP_RANGE: "0..2**63-1", _TIME_RANGE: "within 2**53 ms of 1970"}


def coerce_integer(x: Any, what: str) -> int:
    """Return `x` as an int in 0..2**63-1, exactly.

    Accepted: int, an integral float, numpy integers, 0-d arrays and tensors of these.

    Raises:
        InvalidTypeError: a bool, str, None or anything else that is no number.
        InvalidStepError: not integral, NaN, or out of range.
        InvalidShapeError: an array of more than no dimensions.
    """
    if type(x) is int and 0 <= x <= STEP_MAX:
        return x
    return _exact_int(x, what, _STEP_RANGE)


def coerce_integers(x: Any, what: str, *, keep: BoolArray | None = None) -> Int64Array:
    """Return a list or array as an owned int64 array of its shape, every element as above.

    `keep` (bool, used where it has the shape of `x`): cells where it is False are not looked at
    and hold 0. Raises as `coerce_integer`, naming the element: ``step[2]``.
    """
    return _exact_ints(x, what, _STEP_RANGE, keep)


def coerce_time(x: Any, what: str = "timestamp") -> int:
    """Return one Unix time in ms, within 2**53 of 0. Raises as `coerce_integer`."""
    return _exact_int(x, what, _TIME_RANGE)


def coerce_times(x: Any, what: str = "timestamp", *, keep: BoolArray | None = None) -> Int64Array:
    """Return Unix times in ms as an owned int64 array. See `coerce_integers`."""
    return _exact_ints(x, what, _TIME_RANGE, keep)


def is_scalar(x: Any) -> bool:
    """True for one number (also as a 0-d array or tensor); False for a list or array of them."""
    if type(x) in {int, float} or isinstance(x, np.generic):
        return True
    shape = getattr(x, "shape", None)
    # Asked by length: tensorflow's empty shape is truthy.
    return not is_sequence(x) and (shape is None or len(shape) == 0)


def shape_of(x: Any, what: str) -> tuple[int, ...]:
    """Shape of a nest of lists or an array of any library.

    Raises:
        InvalidShapeError: it is ragged.
    """
    try:
        return tuple(int(extent) for extent in np.shape(x))
    except ValueError as error:
        if is_sequence(x):
            flatten_sequence(x, what)  # names the odd row where rows are lists
        raise InvalidShapeError(f"{what} is ragged") from error


def _exact_int(x: Any, what: str, limits: tuple[int, int]) -> int:
    if isinstance(x, bool | np.bool_):
        raise InvalidTypeError(f"{what} is the bool {x}, not an integer")
    if isinstance(x, int):
        number = int(x)
    elif isinstance(x, float | np.floating):
        if not np.isfinite(x) or x != np.trunc(x):
            raise InvalidStepError(f"{what} is {x}, which is not an integer")
        number = int(x)
    elif isinstance(x, np.integer):
        number = int(x)
    else:
        array = to_numpy(x, what) if x is not None and not is_sequence(x) else None
        if array is None:
            raise InvalidTypeError(f"{what} is {x!r:.60}, not an integer")
        if array.ndim:
            raise InvalidShapeError(f"{what} has shape {list(array.shape)}; it is one integer")
        return int(_from_array(array, what, limits, None))
    if not limits[0] <= number <= limits[1]:
        raise InvalidStepError(f"{what} is {number}; it must be {_RANGE_TEXTS[limits]}")
    return number


def _exact_ints(x: Any, what: str, limits: tuple[int, int], keep: BoolArray | None) -> Int64Array:
    if not is_sequence(x):
        return _from_array(to_numpy(x, what), what, limits, keep)
    leaves, shape = flatten_sequence(x, what)
    if keep is not None and keep.shape == shape:
        leaves = masked_leaves(leaves, keep, 0)
    if leaves and not all(map(is_scalar, leaves)):
        rows = [to_numpy(row, what + position_text(i, shape)) for i, row in enumerate(leaves)]
        if len({row.shape for row in rows}) > 1:
            raise InvalidShapeError(f"{what} is ragged: its rows have several shapes")
        return _from_array(np.stack(rows).reshape(shape + rows[0].shape), what, limits, keep)
    if not set(map(type, leaves)) <= {int}:
        leaves = [
            leaf if type(leaf) is int else
            _exact_int(leaf, what + position_text(flat, shape), limits)
            for flat, leaf in enumerate(leaves)
        ]  # fmt: skip
    try:
        array = np.array(leaves, dtype=np.int64).reshape(shape)
    except OverflowError:
        where = locate(leaves, shape, lambda leaf: not limits[0] <= leaf <= limits[1])
        raise InvalidStepError(f"{what}{where} must be {_RANGE_TEXTS[limits]}") from None
    _check_range(array, what, limits)
    return array


def _from_array(
    array: AnyArray, what: str, limits: tuple[int, int], keep: BoolArray | None
) -> Int64Array:
    if isinstance(array, np.ma.MaskedArray):
        hidden = np.ma.getmaskarray(array)
        if keep is not None and keep.shape == hidden.shape:
            hidden = hidden & keep
        if hidden.any():
            raise InvalidStepError(f"{what}{first_position(hidden)[1]} is masked but its value not")
        array = np.ma.getdata(array)
    if array.dtype.kind not in "iuf":
        if array.dtype.name.startswith(("bfloat", "float", "int", "uint")):
            array = array.astype(np.float64)  # ml_dtypes; every value of them fits
        else:
            raise InvalidTypeError(f"{what} is an array of {array.dtype}, not of integers")
    if keep is not None and keep.shape == array.shape:
        array = np.where(keep, array, array.dtype.type(0))
    if array.dtype.kind == "f":
        bad = ~(np.isfinite(array) & (array == np.trunc(array)))
        if bad.any():
            flat, where = first_position(bad)
            raise InvalidStepError(f"{what}{where} is {array.ravel()[flat]}, not an integer")
    _check_range(array, what, limits)
    return np.array(array, dtype=np.int64, order="C")


def _check_range(array: AnyArray, what: str, limits: tuple[int, int]) -> None:
    """Refuse by position. The array is integral and finite, so `int` of its extremes is exact."""
    if not array.size:
        return
    low, high = limits
    has_top = array.dtype != np.int64 or high < STEP_MAX  # else int64 is the bound itself
    if int(array.min()) < low:
        flat = int(np.argmin(array))
    elif has_top and int(array.max()) > high:
        flat = int(np.argmax(array))
    else:
        return
    here = what + position_text(flat, array.shape)
    raise InvalidStepError(f"{here} is {array.ravel()[flat]}; it must be {_RANGE_TEXTS[limits]}")
