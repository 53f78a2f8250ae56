"""Columns of log and log_distributed, and mappings."""

from __future__ import annotations

import numpy as np
import pytest

from metrana_async.columns.points import flatten_mapping, standard_columns
from metrana_async.errors import (
    InvalidNameError,
    InvalidShapeError,
    InvalidStepError,
    InvalidTypeError,
)
from metrana_async.wire.model import AUTOMATIC

NOW = 1_700_000_000_000


def columns(value, step=None, timestamp=None, dtype=None, *, step_required=False):
    return standard_columns(value, step, timestamp, dtype, NOW, step_required=step_required)


def test_a_scalar_is_one_point():
    """A bare number asks for the next number, now."""
    made = columns(0.5)
    assert (made.value.tolist(), made.step, made.time_ms) == ([0.5], AUTOMATIC, NOW)


def test_one_step_and_several_values():
    """step=k stands for k..k+n-1."""
    assert columns([1.0, 2.0], 7).step == 7
    assert columns([1.0, 2.0], np.int64(7)).step == 7


def test_one_step_per_value():
    """A sequence of steps has one for each value, also for a scalar."""
    assert columns([1.0, 2.0], [5, 3]).step.tolist() == [5, 3]
    assert columns(1.0, [5]).step.tolist() == [5]


def test_masked_points_go_with_their_steps():
    """Masked points of a masked array are not logged; the others keep their own steps."""
    value = np.ma.masked_array([1.0, 2.0, 3.0], mask=[0, 1, 0])
    assert columns(value, 10).step.tolist() == [10, 12]
    assert columns(value, [4, 5, 6], [1, 2, 3]).time_ms.tolist() == [1, 3]
    assert columns(value).step == AUTOMATIC
    assert columns(value).value.tolist() == [1.0, 3.0]


def test_the_end_of_the_axis():
    """The last step be 2**63-1 and not more."""
    assert columns([1.0, 2.0], 2**63 - 2).step == 2**63 - 2
    with pytest.raises(InvalidStepError, match=r"2\*\*63-1"):
        columns([1.0, 2.0], 2**63 - 1)
    assert columns([], 2**63 - 1).value.size == 0


@pytest.mark.parametrize("step", [True, 1.5, "3", -1, 2**63, [1.0, 2.5]])
def test_steps_that_are_none(step):
    """The worked cases std-17a..e and std-19: refused, never truncated or parsed."""
    with pytest.raises((InvalidStepError, InvalidTypeError), match="step"):
        columns([1.0, 2.0], step)


def test_merge_series_need_a_step():
    """log_distributed without step is a TypeError."""
    with pytest.raises(TypeError, match="step"):
        columns(1.0, step_required=True)


def test_lengths_are_said():
    """A step or timestamp of another length, and a grid, are refused with both shapes."""
    with pytest.raises(InvalidShapeError, match=r"\[3\].*2 points"):
        columns([1.0, 2.0], [1, 2, 3])
    with pytest.raises(InvalidShapeError, match=r"timestamp has shape \[1\].*2 points"):
        columns([1.0, 2.0], None, [1])
    with pytest.raises(InvalidShapeError, match=r"\[1, 2\].*log_rl_environment_step"):
        columns([[1.0, 2.0]])


def test_timestamps():
    """One for all, or one each."""
    assert columns([1.0, 2.0], None, 5.0).time_ms == 5
    assert columns([1.0, 2.0], None, [5, 6]).time_ms.tolist() == [5, 6]


def test_mappings_flatten():
    """A mapping in a mapping is joined by a slash; an empty one contributes nothing."""
    flat = flatten_mapping({"train": {"loss": 1.0, "deep": {"x": 2.0}}, "a": 3.0, "none": {}})
    assert flat == [("train/loss", 1.0), ("train/deep/x", 2.0), ("a", 3.0)]
    assert flatten_mapping({}) == []


def test_what_a_mapping_may_not_hold():
    """A key that is no str, one name twice, and a mapping that contains itself."""
    with pytest.raises(InvalidTypeError, match="under 'a/' is 3"):
        flatten_mapping({"a": {3: 1.0}})
    with pytest.raises(InvalidNameError, match="'a/b' is given twice"):
        flatten_mapping({"a": {"b": 1.0}, "a/b": 2.0})
    endless: dict = {}
    endless["x"] = endless
    with pytest.raises(InvalidNameError, match="too deeply"):
        flatten_mapping(endless)
