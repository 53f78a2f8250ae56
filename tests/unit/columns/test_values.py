"""Values: the table of dtypes, what is noted, what is refused and how it is named."""

from __future__ import annotations

import array
import collections
import datetime as dt
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from metrana_async.columns.values import (
    INT_BEYOND_2_53,
    OVERFLOW_TO_INF,
    WIDENED_FLOAT32,
    check_dtype,
    coerce_values,
)
from metrana_async.errors import InvalidShapeError, InvalidTypeError, InvalidValueError

F32 = np.float32


class Tensor:
    """Speaks torch's dialect: no __array__ while it needs a gradient, no numpy bfloat16."""

    def __init__(self, data, dtype="torch.float32", *, requires_grad=False):
        self.data, self.dtype, self.requires_grad = data, dtype, requires_grad
        self.shape = np.shape(data)

    def detach(self):
        return Tensor(self.data, self.dtype)

    def cpu(self):
        return self

    def float(self):
        return Tensor(np.asarray(self.data, dtype=F32))

    def numpy(self):
        if self.requires_grad or self.dtype == "torch.bfloat16":
            raise TypeError("not in numpy")
        return self.data

    __array__ = None


class OnDevice:
    """Speaks cupy's dialect: refuses to become an array without being told."""

    __cuda_array_interface__ = {}

    def get(self):
        return np.array([1.0, 2.0])

    def __array__(self, *args, **kwargs):
        raise TypeError("implicit conversion")


class OnlyDlpack:
    """Speaks DLPack and nothing else."""

    def __init__(self, data):
        self._data = data

    def __dlpack__(self, **kwargs):
        return self._data.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self._data.__dlpack_device__()


@pytest.mark.parametrize(
    ("value", "stored", "dtype"),
    [
        (1, 1.0, "float64"),
        (True, 1.0, None),
        (np.int8(-5), -5.0, "float64"),
        (np.int64(2**40), 1099511627776.0, "float64"),
        (np.uint64(2**63), 9223372036854775808.0, "float64"),
        (np.float16(0.1), 0.0999755859375, "float32"),
        (F32(0.1), 0.10000000149011612, "float32"),
        (np.float64(0.1), 0.10000000149011612, "float32"),
        (0.1, 0.10000000149011612, "float32"),
        (np.array(3.0), 3.0, "float32"),
        (np.bool_(True), 1.0, "float32"),
        (Tensor(np.array(2.0, F32)), 2.0, "float32"),
        (Tensor(np.array(2.0, F32), requires_grad=True), 2.0, "float32"),
        (Tensor(np.array(1.5, F32), "torch.bfloat16"), 1.5, "float32"),
    ],
)
def test_scalars_of_every_kind(value, stored, dtype):
    """US-40: each scalar is stored as the number it denotes, in the default width of its kind."""
    values = coerce_values(value)
    assert values.array.shape == ()
    assert float(values.array) == stored
    assert dtype is None or values.array.dtype == dtype


@pytest.mark.parametrize(
    "value",
    [
        [1.5, 2.5],
        (1.5, 2.5),
        collections.deque([1.5, 2.5]),
        array.array("d", [1.5, 2.5]),
        np.array([1.5, 2.5]),
        np.array([1.5, 9, 2.5, 9])[::2],
        np.array([1.5, 2.5], dtype=">f8"),
        Tensor(np.array([1.5, 2.5], F32)),
        [np.float64(1.5), F32(2.5)],
        [Tensor(np.array(1.5, F32)), Tensor(np.array(2.5, F32))],
        OnlyDlpack(np.array([1.5, 2.5])),
        memoryview(np.array([1.5, 2.5])),
    ],
)
def test_rows_of_every_kind(value):
    """Lists, tensors and buffers are read alike and never aliased."""
    values = coerce_values(value)
    assert values.array.tolist() == [1.5, 2.5]
    assert values.array.dtype == F32
    assert values.array.flags.owndata or values.array.base is not value


def test_device_arrays_are_fetched():
    """An array that lives on a device is copied to the host by its own method."""
    assert coerce_values(OnDevice()).array.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("dtype", [F32, np.float64, np.int64, np.bool_])
def test_the_callers_memory_is_copied(dtype):
    """Writing to the array after the call changes nothing."""
    given = np.ones((2, 3), dtype=dtype)
    values = coerce_values(given)
    given[:] = 0
    assert values.array.tolist() == [[1.0] * 3] * 2
    assert values.array.flags.c_contiguous


@pytest.mark.parametrize("stored_as", [None, "float32", "float64", "float16", "int64"])
def test_explicit_dtypes_copy_too(stored_as):
    """No dtype makes the column an alias."""
    given = np.ones(3, dtype="float64")
    values = coerce_values(given, stored_as)
    assert not np.shares_memory(values.array, given)


@pytest.mark.parametrize("value", [1e300, [1e300, 0.1], np.array([1e300, 0.1]), -3.5e38])
def test_a_finite_value_never_becomes_inf(value):
    """Beyond float32 the whole block stays in float64, and that is noted."""
    values = coerce_values(value)
    assert values.array.dtype == np.float64
    assert values.array.tolist() == (value if isinstance(value, float) else list(value))
    assert values.notes == (WIDENED_FLOAT32,)


def test_the_last_float_that_rounds_into_float32():
    """Widening looks at the cast: a double that rounds to float32's maximum stays narrow."""
    highest = float(np.finfo(F32).max)
    assert coerce_values(highest + 1e30).array.dtype == F32
    assert coerce_values([highest + 1e30]).array.dtype == F32
    tie = 3.4028235677973366e38
    assert coerce_values(tie).array.dtype == coerce_values([tie]).array.dtype == np.float64
    assert coerce_values(-tie).array == -tie


def test_real_infinities_and_nan_widen_nothing():
    """inf, -inf and NaN are float32 values like others."""
    values = coerce_values([math.inf, 0.5, -math.inf, math.nan])
    assert values.array.dtype == F32
    assert values.notes == ()
    assert str(values.array.tolist()) == "[inf, 0.5, -inf, nan]"
    for scalar in (math.inf, -math.inf, math.nan):
        assert coerce_values(scalar).array.dtype == F32


def test_mixed_lists_keep_their_ints_exact():
    """An int that float32 cannot hold takes the list to float64; others do not."""
    assert coerce_values([16777217, 0.5]).array.tolist() == [16777217.0, 0.5]
    assert coerce_values([3, 0.1]).array.dtype == F32
    assert coerce_values([np.int64(16777217), F32(0.5)]).array.tolist() == [16777217.0, 0.5]


@pytest.mark.parametrize("value", [2**53 + 2, [2**60, 1], np.array([2**60]), np.uint64(2**63)])
def test_ints_beyond_2_53_are_noted(value):
    """The nearest double is stored and said once."""
    assert coerce_values(value).notes == (INT_BEYOND_2_53,)


@pytest.mark.parametrize("value", [2**53, -(2**53), [2**53, 1], np.array([2**53])])
def test_ints_up_to_2_53_are_exact(value):
    """2**53 itself is exact: no note."""
    values = coerce_values(value)
    assert values.notes == ()
    assert values.array.max() in {2.0**53, -(2.0**53)}


def test_int_rounds_to_2_53_but_is_noted():
    """2**53 + 1 becomes 2**53 and is noted, although the stored number is not beyond."""
    assert coerce_values(2**53 + 1).notes == (INT_BEYOND_2_53,)
    assert coerce_values([2**53 + 1, 0.5]).notes == (INT_BEYOND_2_53,)


@pytest.mark.parametrize("value", [10**400, [1, 10**400], [0.5, -(10**400)]])
def test_ints_beyond_float64_are_refused(value):
    """There is no nearest double."""
    with pytest.raises(InvalidValueError, match="float64"):
        coerce_values(value)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("3", "value"),
        (b"3", "value"),
        (None, "value"),
        (1j, "value"),
        (Decimal("0.1"), "value"),
        (Fraction(1, 4), "value"),
        (dt.datetime(2024, 1, 1), "value"),
        (object(), "value"),
        ({"a": 1.0}, "value"),
        ({1.0}, "value"),
        ((x for x in [1.0]), "value"),
        ([1.0, "x"], "value[1]"),
        ([[1.0, 2.0], [3.0, None]], "value[1, 1]"),
        (np.array([1.0, "x"], dtype=object), "value[1]"),
        (np.array(["x"]), "value"),
        (np.array([1j]), "value"),
        (np.array(["2024-01-01"], dtype="M8[D]"), "value"),
        (np.array([1], dtype="m8[s]"), "value"),
        (np.zeros(2, dtype=[("a", "f4")]), "value"),
        ([b"x", 1.0], "value[0]"),
        ([1.0, Decimal(2)], "value[1]"),
    ],
)
def test_what_is_no_number_is_named(value, named):
    """Nothing is parsed; the message names the element, and the error is a TypeError too."""
    with pytest.raises(InvalidTypeError) as caught:
        coerce_values(value)
    assert caught.value.message.startswith(f"{named} ")
    assert isinstance(caught.value, TypeError | ValueError)


@pytest.mark.parametrize(
    "value",
    [[[1.0], [1.0, 2.0]], [[1.0], 2.0], [2.0, [1.0]], [np.zeros(2), np.zeros(3)], [[1], []]],
)
def test_ragged_values_are_refused(value):
    """The odd row is named."""
    with pytest.raises(InvalidShapeError, match="ragged"):
        coerce_values(value)


@pytest.mark.parametrize("value", [[], np.zeros((0, 3)), [[], []]])
def test_empty_values_are_accepted(value):
    """An empty array logs nothing."""
    assert coerce_values(value).array.size == 0


def test_nested_lists_and_lists_of_rows():
    """[[…], […]] and a list of arrays are the same grid."""
    assert coerce_values([[1.0, 2.0], [3.0, 4.0]]).array.shape == (2, 2)
    rows = coerce_values([np.array([1.0, 2.0]), np.array([3.0, 4.0])])
    assert rows.array.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_masked_arrays_keep_their_mask():
    """Masked cells are not points; what they hold widens nothing."""
    values = coerce_values(np.ma.masked_array([1.0, 1e300, 3.0], mask=[0, 1, 0]))
    assert values.mask.tolist() == [True, False, True]
    assert values.array.dtype == F32
    assert coerce_values(np.ma.masked_array([1.0, 2.0])).mask is None


def test_hidden_cells_are_not_looked_at():
    """Under `keep` a hidden cell may hold anything, in lists even None."""
    keep = np.array([[True, False], [False, True]])
    values = coerce_values([[1.0, None], ["x", 2.0]], keep=keep)
    assert values.array[keep].tolist() == [1.0, 2.0]
    wide = coerce_values(np.array([[1.0, 1e300], [np.nan, 2.0]]), keep=keep)
    assert wide.array.dtype == F32
    with pytest.raises(InvalidShapeError, match=r"\[2, 2\].*\[3\]"):
        coerce_values([1.0, 2.0, 3.0], keep=keep)


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("float16", "float16"),
        ("float", "float64"),
        (float, "float64"),
        (int, "int64"),
        (np.float32, "float32"),
        (np.dtype("int32"), "int32"),
        ("torch.float32", "float32"),
    ],
)
def test_dtypes_in_every_spelling(spelled, name):
    """str, numpy dtype or type, float and int name one of five dtypes."""
    assert check_dtype(spelled) == name


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float128", "uint8", "complex64", "nonsense", 3, str]
)
def test_other_dtypes_are_refused_by_name(dtype):
    """The message shows what was asked for."""
    with pytest.raises(InvalidTypeError, match="is none of float16"):
        coerce_values(1.0, dtype)


def test_float64_keeps_double():
    """An explicit float64 rounds nothing."""
    assert float(coerce_values(0.1, "float64").array) == 0.1


def test_float16_rounds_once_to_half():
    """Straight from double to half, stored as float32; NaN and inf are kept."""
    values = coerce_values([0.1, math.nan, math.inf], "float16")
    assert values.array.dtype == F32
    assert values.array[0] == np.float16(0.1)
    assert str(values.array[1:].tolist()) == "[nan, inf]"
    # Rounding to float32 first would land on the tie and then on the even neighbour.
    tricky = 1.0 + 2**-11 + 2**-30
    assert coerce_values(tricky, "float16").array == np.float16(tricky)


@pytest.mark.parametrize(("dtype", "value"), [("float16", 1e6), ("float32", 1e300)])
def test_explicit_overflow_is_inf_and_noted(dtype, value):
    """Who asks for a narrow dtype gets its infinity."""
    values = coerce_values([value, -value], dtype)
    assert values.array.tolist() == [math.inf, -math.inf]
    assert values.notes == (OVERFLOW_TO_INF,)
    assert coerce_values(math.inf, dtype).notes == ()


@pytest.mark.parametrize(
    ("value", "dtype", "stored"),
    [
        ([1.9, -1.9], "int64", [1.0, -1.0]),
        ([True, False], "int32", [1.0, 0.0]),
        (np.array([2**31 - 1]), "int32", [2147483647.0]),
        ([2**63 - 1], "int64", [9223372036854775808.0]),
    ],
)
def test_integer_dtypes_truncate(value, dtype, stored):
    """Truncated toward zero and stored as float64."""
    values = coerce_values(value, dtype)
    assert values.array.tolist() == stored
    assert values.array.dtype == np.float64


@pytest.mark.parametrize(
    ("value", "dtype", "named"),
    [
        ([1.0, math.nan], "int64", "value[1]"),
        ([math.inf], "int32", "value[0]"),
        ([0.0, 2.0**31], "int32", "value[1]"),
        ([2**63], "int64", "value[0]"),
        (np.array([0, 2**31]), "int32", "value[1]"),
        (np.array([2**63], dtype="uint64"), "int64", "value[0]"),
        (10**400, "int64", "value"),
    ],
)
def test_what_an_integer_dtype_cannot_hold_is_refused(value, dtype, named):
    """NaN, infinities and what is out of range are named."""
    with pytest.raises(InvalidValueError) as caught:
        coerce_values(value, dtype)
    assert caught.value.message.startswith(f"{named} ")


def test_foreign_failures_are_type_errors():
    """Whatever a library raises when asked for an array, the argument is refused by type."""

    class Tracer:
        def __array__(self, *args, **kwargs):
            raise RuntimeError("abstract value")

    with pytest.raises(InvalidTypeError, match="abstract value"):
        coerce_values(Tracer())
