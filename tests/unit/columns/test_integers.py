"""Integers: accepted exactly or refused, and named."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pytest

from metrana_async.columns.integers import (
    coerce_integer,
    coerce_integers,
    coerce_time,
    coerce_times,
    is_scalar,
)
from metrana_async.errors import InvalidShapeError, InvalidStepError, InvalidTypeError


@pytest.mark.parametrize(
    ("x", "number"),
    [
        (4096.0, 4096),
        (np.int64(7), 7),
        (np.float32(8.0), 8),
        (np.array(9), 9),
        (np.uint64(2**63 - 1), 2**63 - 1),
        (2**31, 2**31),
        (2**53 + 1, 2**53 + 1),
        (np.int64(2**53 + 1), 2**53 + 1),
        (np.array(2**53 + 1), 2**53 + 1),
        (2**63 - 1, 2**63 - 1),
        (0, 0),
        (-0.0, 0),
    ],
)
def test_integral_values_are_exact(x, number):
    """US-83: an integral value of any type is that integer, also beyond 2**53."""
    assert coerce_integer(x, "step") == number
    assert type(coerce_integer(x, "step")) is int


@pytest.mark.parametrize(
    "x", [True, np.True_, "10", None, b"1", 1j, Decimal(3), [1], object(), {1}]
)
def test_other_types_are_refused(x):
    """US-83: a bool is no step, nothing is parsed; the message names the argument."""
    with pytest.raises(InvalidTypeError, match="step"):
        coerce_integer(x, "step")


@pytest.mark.parametrize(
    "x",
    [-1, 4096.5, math.nan, math.inf, -math.inf, 2**63, 2.0**63, np.uint64(2**63), np.int8(-1),
     np.array(1.5), np.array(math.inf), np.float64(-3.0), 10**400],
)  # fmt: skip
def test_what_is_not_in_range_is_refused(x):
    """US-83: fractions, NaN and what passes 0..2**63-1; the message names the argument."""
    with pytest.raises(InvalidStepError, match="step"):
        coerce_integer(x, "step")


def test_an_array_is_not_one_integer():
    """A scalar argument does not take [1]."""
    with pytest.raises(InvalidShapeError, match=r"rl_step has shape \[1\]"):
        coerce_integer(np.array([3]), "rl_step")


@pytest.mark.parametrize(
    "x",
    [
        [1, 2.0, np.int64(3)],
        (1, 2, 3),
        range(1, 4),
        np.array([1, 2, 3], np.int8),
        np.array([1.0, 2.0, 3.0], np.float32),
        np.array([1, 2, 3], ">i8"),
        [np.array(1), np.array(2), 3],
    ],
)
def test_columns(x):
    """Lists and arrays of integral numbers become owned int64."""
    column = coerce_integers(x, "step")
    assert column.tolist() == [1, 2, 3]
    assert column.dtype == np.int64


def test_rows_of_arrays():
    """A list of arrays is a grid."""
    assert coerce_integers([np.array([1, 2]), np.array([3, 4])], "episode").shape == (2, 2)


def test_columns_are_copied():
    """Writing to the caller's array changes nothing."""
    given = np.array([1, 2, 3])
    column = coerce_integers(given, "step")
    given[:] = 9
    assert column.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("x", "named"),
    [
        ([1, 2, 2.5], "step[2]"),
        ([1, -1], "step[1]"),
        ([1, True], "step[1]"),
        ([[0, 1], [2, "3"]], "step[1, 1]"),
        ([0, 2**63], "step[1]"),
        ([0, None], "step[1]"),
        (np.array([0.0, np.nan]), "step[1]"),
        (np.array([0.0, np.inf]), "step[1]"),
        (np.array([[0, 1], [-4, 1]]), "step[1, 0]"),
        (np.array([0, 2**63], np.uint64), "step[1]"),
        (np.array([0.0, 2.0**63]), "step[1]"),
        (np.array([True]), "step"),
        (np.array(["1"]), "step"),
        (np.ma.masked_array([1, 2], mask=[0, 1]), "step[1]"),
    ],
)
def test_refusals_name_the_element(x, named):
    """The position of the first element that is no step."""
    with pytest.raises((InvalidStepError, InvalidTypeError)) as caught:
        coerce_integers(x, "step")
    assert caught.value.message.startswith(f"{named} ")


def test_hidden_cells_are_not_looked_at():
    """Cells that the mask hides may hold NaN, -1 or None."""
    keep = np.array([True, False])
    for x in ([1, None], [1, -1], [1, "x"], np.array([1.0, np.nan]), np.array([1, -1])):
        assert coerce_integers(x, "episode", keep=keep)[0] == 1


def test_times():
    """Times may be negative; within 2**53 ms."""
    assert coerce_time(-5) == -5
    assert coerce_times([0, -(2**53), 2**53]).tolist() == [0, -(2**53), 2**53]
    for x in (2**53 + 1, -(2**53) - 1, 1.5, True, "now"):
        with pytest.raises((InvalidStepError, InvalidTypeError), match="timestamp"):
            coerce_time(x)
    with pytest.raises(InvalidStepError, match=r"timestamp\[1\]"):
        coerce_times(np.array([0, 2**53 + 1]))


def test_scalars_are_told_from_columns():
    """One number, however wrapped, is a scalar; a list or [n] is not."""
    assert all(map(is_scalar, [1, 1.0, np.int64(1), np.array(1), "x", None]))
    assert not any(map(is_scalar, [[1], (1,), np.array([1]), range(2)]))
