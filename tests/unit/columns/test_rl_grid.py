"""Grids of log_rl_environment_step: the shapes table, masks, layouts, bounds."""

from __future__ import annotations

import numpy as np
import pytest

from metrana_async.columns.rl_grid import EnvIdCache, grid_columns
from metrana_async.errors import (
    InvalidNameError,
    InvalidShapeError,
    InvalidStepError,
    InvalidTypeError,
    ValidationError,
)
from metrana_async.wire.model import StepMode

TOP = 2**63 - 1


def grid(value, env_id=None, episode=None, env_step=None, rl_step=0, **kw):
    return grid_columns(
        value, rl_step, EnvIdCache().resolve(env_id), episode, env_step, now_ms=1, **kw
    )


@pytest.mark.parametrize(
    ("env_id", "value", "shape"),
    [
        (None, 1.0, (1, 1)),
        ("a", 1.0, (1, 1)),
        ("a", [1.0, 2.0, 3.0], (1, 3)),
        ("a", [[1.0, 2.0, 3.0]], (1, 3)),
        (["a"], 1.0, (1, 1)),
        (["a"], [1.0, 2.0], (1, 2)),
        (["a", "b"], [1.0, 2.0], (2, 1)),
        (("a", "b"), [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], (2, 3)),
        (np.array(["a", "b"]), np.zeros((2, 3)), (2, 3)),
        (["a", "b"], np.zeros((2, 0)), (2, 0)),
        ([], [], (0, 1)),
    ],
)
def test_the_shapes_table(env_id, value, shape):
    """Each row of the table gives [M, T], C-contiguous."""
    made = grid(value, env_id)
    assert made.value.shape == shape
    assert made.value.flags.c_contiguous
    assert made.points_count == shape[0] * shape[1]


@pytest.mark.parametrize(
    ("env_id", "value"),
    [
        (["a", "b"], 1.0),
        (["a", "b"], [1.0, 2.0, 3.0]),
        (["a", "b"], [[1.0, 2.0]]),
        ("a", [[1.0], [2.0], [3.0]]),
        ("a", [[[1.0]]]),
    ],
)
def test_values_that_do_not_fit(env_id, value):
    """es-16a..e: refused with both shapes; values are never broadcast across environments."""
    with pytest.raises(InvalidShapeError) as caught:
        grid(value, env_id)
    assert str(list(np.shape(value))) in caught.value.message
    assert ("[2, T]" if env_id != "a" else "[1, T]") in caught.value.message


def test_broadcast_columns():
    """episode, env_step and timestamp: scalar, [M], [M, T], and [T] for one environment."""
    made = grid(np.zeros((2, 3)), ["a", "b"], 5, 0, timestamp=7)
    assert (made.episode, made.env_step, made.time_ms) == (5, 0, 7)
    made = grid(np.zeros((2, 3)), ["a", "b"], [1, 2], [3, 4], timestamp=[5, 6])
    assert made.episode.tolist() == [1, 2]
    assert made.env_step.tolist() == [3, 4]
    assert made.time_ms.tolist() == [5, 6]
    made = grid([1.0, 2.0, 3.0], "a", [1, 1, 2], [4, 5, 6])
    assert made.episode.tolist() == [[1, 1, 2]]
    assert made.env_step.tolist() == [[4, 5, 6]]
    assert grid([1.0, 2.0], "a", [4]).episode.tolist() == [4]


def test_a_column_that_could_be_either_is_per_environment():
    """When M == T a 1-D array means [M]."""
    made = grid(np.zeros((2, 2)), ["a", "b"], [4, 5])
    assert made.episode.tolist() == [4, 5]


@pytest.mark.parametrize("episode", [[1, 2, 3], [[1, 2]], np.zeros((3, 2), int), [[1], [2]]])
def test_columns_that_do_not_fit(episode):
    """Refused with both shapes; several environments have no [T]."""
    with pytest.raises(InvalidShapeError, match=r"episode has shape .* value has shape \[2, 3\]"):
        grid(np.zeros((2, 3)), ["a", "b"], episode)


def test_time_major_arguments_are_turned_round():
    """x-02: two-dimensional arguments are [T, M]; a 1-D episode stays per environment."""
    made = grid(
        [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
        ["a", "b"],
        [[0, 5], [1, 5], [1, 6]],
        mask=[[True, False], [True, True], [True, True]],
        layout="TM",
    )
    assert made.value.tolist() == [[1.0, 3.0, 5.0], [0.0, 4.0, 6.0]]
    assert made.episode.tolist() == [[0, 1, 1], [0, 5, 6]]
    assert made.mask.tolist() == [[True] * 3, [False, True, True]]
    assert grid(np.zeros((3, 2)), ["a", "b"], [1, 6], layout="TM").episode.tolist() == [1, 6]
    assert grid(np.zeros((3, 1)), "a", layout="TM").value.shape == (1, 3)
    assert grid([1.0, 2.0, 3.0], "a", layout="TM").value.shape == (1, 3)
    with pytest.raises(InvalidShapeError, match=r"\[T, 2\]"):
        grid(np.zeros((2, 3)), ["a", "b"], layout="TM")


def test_other_layouts_are_refused():
    """The message shows what was given."""
    with pytest.raises(ValidationError, match="'NT'"):
        grid(1.0, layout="NT")


def test_masked_cells_are_not_looked_at():
    """They may hold NaN, negative or absent episodes, and values beyond float32."""
    mask = [[True, False], [False, True]]
    made = grid(
        [[1.0, 1e300], [None, 2.0]],
        ["a", "b"],
        [[0, None], [-3, 1]],
        [[0, 2**70], ["x", 1]],
        mask=mask,
        timestamp=np.array([[1.0, np.nan], [np.inf, 2.0]]),
    )
    assert made.points_count == 2
    assert made.value.dtype == np.float32
    row_gone = grid([1.0, 2.0], ["a", "b"], np.array([0.0, np.nan]), mask=[True, False])
    assert row_gone.episode.tolist() == [0, 0]
    with pytest.raises(InvalidStepError, match=r"episode\[0, 0\]"):
        grid(np.zeros((2, 2)), ["a", "b"], [[-1, 0], [0, 0]], mask=mask)


def test_a_call_with_nothing_left_checks_shapes():
    """points_count 0: nothing is to be pinned, but shapes are still judged."""
    made = grid([[1.0], [2.0]], ["a", "b"], np.array([np.nan, -1.0]), mask=[[False], [False]])
    assert made.points_count == 0
    with pytest.raises(InvalidShapeError):
        grid([[1.0], [2.0]], ["a", "b"], [1, 2, 3], mask=[[False], [False]])


def test_masks_are_owned_bools_of_the_values_shape():
    """Numbers are no mask; another shape is refused with both; a full mask is none."""
    given = np.array([True, False])
    made = grid([1.0, 2.0], ["a", "b"], mask=given)
    given[:] = True
    assert made.mask.tolist() == [[True], [False]]
    with pytest.raises(InvalidTypeError, match="mask"):
        grid([1.0, 2.0], ["a", "b"], mask=[1, 0])
    with pytest.raises(InvalidShapeError, match=r"mask has shape \[3\].*\[2\]"):
        grid([1.0, 2.0], ["a", "b"], mask=[True] * 3)
    assert grid([1.0, 2.0], ["a", "b"], mask=[True, True]).mask is None
    masked = np.ma.masked_array([1.0, 2.0], mask=[0, 1])
    assert grid(masked, "a").points_count == 1
    assert grid(masked, "a", mask=[False, True]).points_count == 0


def test_modes():
    """env_step decides; auto_start_from_one needs episodes and no env_step."""
    assert grid(1.0).mode is StepMode.AUTO
    assert grid(1.0, env_step=0).mode is StepMode.EXPLICIT
    assert grid(1.0, episode=0, auto_start_from_one=True).mode is StepMode.AUTO_FROM_ONE
    with pytest.raises(ValidationError, match="episode"):
        grid(1.0, auto_start_from_one=True)
    with pytest.raises(ValidationError, match="env_step"):
        grid(1.0, episode=0, env_step=1, auto_start_from_one=True)
    with pytest.raises(InvalidTypeError, match="evaluation"):
        grid(1.0, episode=True)


def test_the_end_of_the_axis():
    """Start + length may reach 2**63-1, counted per (environment, episode) and unmasked point."""
    assert grid([1.0, 2.0], "a", env_step=TOP - 1).env_step == TOP - 1
    with pytest.raises(InvalidStepError, match=r"2\*\*63-1"):
        grid([1.0, 2.0], "a", env_step=TOP)
    assert grid([1.0, 2.0], "a", [1, 2], env_step=TOP)
    assert grid([1.0, 2.0], "a", env_step=TOP, mask=[True, False])
    with pytest.raises(InvalidStepError):
        grid([1.0, 2.0, 3.0], "a", [1, 2, 1], env_step=TOP)
    with pytest.raises(InvalidStepError):
        grid(np.zeros((2, 2)), ["a", "b"], [1, 1], env_step=[0, TOP])
    assert grid([1.0, 2.0], "a", env_step=[TOP - 1, TOP])


@pytest.mark.parametrize("rl_step", [True, 1.5, "3", -1, None, 2**63])
def test_rl_steps(rl_step):
    """One integer in range."""
    with pytest.raises((InvalidStepError, InvalidTypeError), match="rl_step"):
        grid(1.0, rl_step=rl_step)


def test_the_block_owns_its_columns():
    """Writing to the caller's arrays changes nothing."""
    value, episode = np.ones((2, 2), np.float32), np.ones((2, 2), np.int64)
    made = grid(value, ["a", "b"], episode, episode)
    value[:] = 0
    episode[:] = 0
    assert made.value.sum() == made.episode.sum() == made.env_step.sum() == 4


def test_env_ids_are_recognised_by_content():
    """The same ids give the same tuple; a list changed in place is noticed."""
    cache = EnvIdCache()
    ids = [f"env{i}" for i in range(4)]
    first = cache.resolve(ids)
    assert cache.resolve(list(ids)) is first
    assert cache.resolve(tuple(ids)) is first
    assert cache.resolve(np.array(ids)) is first
    ids[2] = "other"
    assert cache.resolve(ids) == ("env0", "env1", "other", "env3")
    ids[2] = "env2"
    assert cache.resolve(ids) is first
    ids.append("env0")
    with pytest.raises(InvalidNameError, match="positions 0 and 4"):
        cache.resolve(ids)


def test_one_id_however_given_is_one_environment():
    """x-14, q-09: None, "default", and a list of one."""
    cache = EnvIdCache()
    assert cache.resolve(None) is cache.resolve("default") is cache.resolve(["default"])
    assert cache.resolve("a") is cache.resolve(["a"]) is cache.resolve(np.array(["a"]))


@pytest.mark.parametrize("env_id", [3, ["a", 3], [["a"]], {"a"}, [np.array(["a", "b"])]])
def test_what_is_no_env_id(env_id):
    """Refused by type, also after another list was remembered."""
    cache = EnvIdCache()
    cache.resolve(["x", "y"])
    cache.resolve(["x"])
    with pytest.raises(InvalidTypeError, match="env_id"):
        cache.resolve(env_id)


def test_the_cache_is_bounded():
    """More sets of ids than are kept still resolve."""
    cache = EnvIdCache()
    for i in range(200):
        assert cache.resolve([f"a{i}", f"b{i}"]) == (f"a{i}", f"b{i}")
    assert cache.resolve(("a0", "b0")) == ("a0", "b0")
