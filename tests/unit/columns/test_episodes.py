"""Columns of log_rl_episode."""

from __future__ import annotations

import numpy as np
import pytest

from metrana_async.columns.episodes import episode_columns
from metrana_async.errors import InvalidShapeError, InvalidStepError, InvalidTypeError
from metrana_async.wire.model import AUTOMATIC


def columns(value, rl_step, episode=None, env_id=None, **kw):
    return episode_columns(value, rl_step, episode, env_id, now_ms=1, **kw)


def test_a_scalar_is_one_episode():
    """Without env_id and episode it is the next one of the default environment."""
    made = columns(2.5, 4)
    assert (made.value.tolist(), made.env_ids, made.rl_step.tolist()) == ([2.5], ("default",), [4])
    assert made.episode == AUTOMATIC
    assert made.time_ms == 1


def test_columns_of_episodes():
    """x-05: value, rl_step, env_id and episode of [N]; ids may repeat."""
    made = columns([10.0, 20.0, 30.0, 40.0], [4, 4, 5, 5], [7, 3, 8, 3], ["a", "b", "a", "b"])
    assert made.env_ids == ("a", "b", "a", "b")
    assert made.rl_step.tolist() == [4, 4, 5, 5]
    assert made.episode.tolist() == [7, 3, 8, 3]


def test_scalars_broadcast():
    """rl_step, env_id, timestamp and (over distinct environments) episode broadcast."""
    made = columns([1.0, 2.0], 3, 9, ["a", "b"], timestamp=5)
    assert (made.rl_step.tolist(), made.episode.tolist(), made.time_ms) == ([3, 3], [9, 9], 5)
    assert columns([1.0, 2.0], 3, [0, 1], "a").env_ids == ("a", "a")
    assert columns([1.0, 2.0], 3, None, ["a"]).env_ids == ("a", "a")


def test_one_episode_has_one_value():
    """A scalar episode with several values of one environment is refused, naming it."""
    with pytest.raises(InvalidShapeError, match="'a'"):
        columns([1.0, 2.0], 3, 9, ["a", "a"])
    with pytest.raises(InvalidShapeError, match="'default'"):
        columns([1.0, 2.0], 3, 9)


@pytest.mark.parametrize(
    ("rl_step", "episode", "env_id"),
    [([6, 6, 6], [9, 9], ["a", "b"]), (6, [9], ["a", "b"]), (6, None, ["a", "b", "c"])],
)
def test_lengths_must_agree(rl_step, episode, env_id):
    """x-05: an argument is a scalar or as long as value."""
    with pytest.raises(InvalidShapeError, match="2 points"):
        columns([1.0, 2.0], rl_step, episode, env_id)


def test_refused_episodes():
    """A bool is a misplaced evaluation; grids, fractions and a missing rl_step are refused."""
    with pytest.raises(InvalidTypeError, match="evaluation"):
        columns(1.0, 0, True)
    with pytest.raises(InvalidShapeError, match=r"\[1, 2\]"):
        columns([[1.0, 2.0]], 0)
    with pytest.raises(InvalidStepError, match=r"episode\[1\]"):
        columns([1.0, 2.0], 0, [1, 2.5])
    with pytest.raises(InvalidTypeError, match="rl_step"):
        columns(1.0, None)


def test_masked_rows_are_dropped():
    """Every column loses the masked rows."""
    value = np.ma.masked_array([1.0, 2.0, 3.0], mask=[1, 0, 0])
    made = columns(value, [1, 2, 3], [4, 5, 6], ["a", "b", "c"], timestamp=[7, 8, 9])
    assert made.env_ids == ("b", "c")
    assert [c.tolist() for c in (made.rl_step, made.episode, made.time_ms)] == [
        [2, 3],
        [5, 6],
        [8, 9],
    ]


def test_no_rows():
    """An empty column logs nothing."""
    assert columns([], 0, [], []).value.size == 0
