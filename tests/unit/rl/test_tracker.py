"""What a tracker takes and refuses, and worked examples."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from metrana_async.errors import (
    InvalidShapeError,
    InvalidTypeError,
    InvalidValueError,
    ValidationError,
)
from metrana_async.rl import Autoreset, EpisodeTracker

DONE = {
    "next_step": [[0, 0, 1, 0, 0, 0, 1, 0, 0], [0, 0, 0, 1, 0, 0, 0, 0, 1]],
    "same_step": [[0, 0, 1, 0, 0, 1, 0, 0, 1], [0, 0, 0, 1, 0, 0, 0, 1, 0]],
}
EPISODES = {
    "next_step": [[7, 7, 7, 8, 8, 8, 8, 9, 9], [4, 4, 4, 4, 5, 5, 5, 5, 5]],
    "same_step": [[7, 7, 7, 8, 8, 8, 9, 9, 9], [4, 4, 4, 4, 5, 5, 5, 5, 6]],
}
STEPS = {
    "next_step": [[0, 1, 2, 0, 0, 1, 2, 0, 0], [0, 1, 2, 3, 0, 0, 1, 2, 3]],
    "same_step": [[0, 1, 2, 0, 1, 2, 0, 1, 2], [0, 1, 2, 3, 0, 1, 2, 3, 0]],
}
MASKED = {"next_step": [(0, 3), (0, 7), (1, 4)], "same_step": []}
ENDED = {
    "next_step": [(0, 7, 3, 2), (1, 4, 4, 3), (0, 8, 3, 6), (1, 5, 4, 8)],
    "same_step": [(0, 7, 3, 2), (1, 4, 4, 3), (0, 8, 3, 5), (1, 5, 4, 7), (0, 9, 3, 8)],
}


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_a_rollout_as_worked_out_by_hand(mode):
    """Two environments at episodes 7 and 4: episodes, steps, mask, ends and what stays open."""
    tracker = EpisodeTracker(["left", "right"], mode, first_episode=[7, 4])
    block = tracker.update(np.ones((2, 9)), DONE[mode], layout="MT")
    assert block.episode.tolist() == EPISODES[mode]
    assert block.env_step.tolist() == STEPS[mode]
    assert [tuple(map(int, at)) for at in np.argwhere(~block.mask)] == MASKED[mode]
    ended = block.ended
    rows = zip(ended.env, ended.episode, ended.lengths, ended.column, strict=True)
    assert [tuple(map(int, row)) for row in rows] == ENDED[mode]
    assert ended.returns.tolist() == ended.lengths.tolist()
    assert ended.env_id == tuple(("left", "right")[e] for e in ended.env)
    assert ended.terminated.all()
    assert not ended.truncated.any()
    assert tracker.open_episodes.tolist() == {"next_step": [9, 6], "same_step": [10, 6]}[mode]
    assert tracker.open_lengths.tolist() == {"next_step": [1, 0], "same_step": [0, 1]}[mode]
    # The end in the last column hides the first row of the next rollout under next-step reset.
    after = tracker.update([1.0, 1.0], [False, False])
    assert after.mask.tolist() == [True, mode == "same_step"]


def test_disabled_autoreset_waits_for_the_callers_reset():
    """Rows behind an end are no transitions until `reset`, which cuts off nothing then."""
    tracker = EpisodeTracker(2, Autoreset.DISABLED)
    block = tracker.update([[1, 2, 4], [1, 2, 4]], [[0, 1, 0], [0, 0, 0]], layout="MT")
    assert block.mask.tolist() == [[True, True, False], [True, True, True]]
    assert tracker.update([8, 8], [1, 0]).mask.tolist() == [False, True]
    assert len(tracker.reset([True, False])) == 0
    block = tracker.update([16, 16], [0, 0])
    assert block.episode.tolist() == [1, 0]
    cut_off = tracker.reset()
    assert cut_off.episode.tolist() == [1, 0]
    assert cut_off.returns.tolist() == [16, 31]
    assert not (cut_off.terminated | cut_off.truncated).any()
    assert tracker.open_episodes.tolist() == [2, 1]


def test_both_ends_count_once_and_are_both_kept():
    """A step that terminates and truncates ends one episode."""
    block = EpisodeTracker(1, "same_step").update([1.0], [True], [True])
    assert block.ended.terminated.tolist() == block.ended.truncated.tolist() == [True]


def test_a_bad_reward_stays_in_its_episode():
    """NaN and infinities reach the return of their own episode only, without a warning."""
    rewards = [[np.nan, 1.0, np.inf, -np.inf, 2.0, 3.0]]
    block = EpisodeTracker(1, "next_step").update(rewards, [[1, 0, 0, 1, 0, 1]], layout="MT")
    # The second cell is a reset, whatever it holds.
    assert np.isnan(block.ended.returns[:2]).all()
    assert block.ended.returns[2:].tolist() == [3.0]


def test_rows_of_some_environments_in_any_order():
    """Batches of a pool that answers in its own order become one row for each environment."""
    tracker = EpisodeTracker(4, "next_step")
    envs = [[0, 2], [2, 3], [0, 2]]
    rewards = np.array([[1.0, 2.0], [4.0, 8.0], [16.0, 32.0]], dtype=np.float32)
    block = tracker.update(rewards, [[0, 0], [1, 0], [0, 0]], envs=envs, layout="TM")
    assert block.env_id == ("env0", "env2", "env3")
    assert block.reward.tolist() == [[1, 16, 0], [2, 4, 32], [8, 0, 0]]
    assert block.mask.tolist() == [[1, 1, 0], [1, 1, 0], [1, 0, 0]]
    assert block.grid(rewards + 1).tolist() == [[2, 17, 0], [3, 5, 33], [9, 0, 0]]
    assert block.ended.env_id == ("env2",)
    assert block.ended.returns.tolist() == [6.0]
    assert tracker.open_lengths.tolist() == [2, 0, 0, 1]


def test_gymnasiums_modes_and_every_spelling_are_read():
    """A mode may come from `env.metadata`, by name, or as a member."""
    from gymnasium.vector import AutoresetMode

    for mode in AutoresetMode:
        assert Autoreset.of(mode) is Autoreset[mode.name]
        assert Autoreset.of(mode.name) is Autoreset.of(mode.value) is Autoreset[mode.name]
    with pytest.raises(ValidationError, match="'sometimes'"):
        EpisodeTracker(1, "sometimes")


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (InvalidShapeError, {"rewards": np.ones((3, 3))}),  # which way round?
        (InvalidShapeError, {"rewards": np.ones((2, 3)), "layout": "MT", "terminations": None}),
        (InvalidShapeError, {"rewards": np.ones(2)}),
        (InvalidShapeError, {"rewards": np.ones((1, 1, 3))}),
        (InvalidShapeError, {"terminations": np.zeros(2)}),
        (InvalidShapeError, {"truncations": [[0, 0, 0]]}),
        (InvalidShapeError, {"envs": [0, 1]}),
        (InvalidValueError, {"envs": [0, 1, 3]}),
        (InvalidValueError, {"terminations": [0, 2, 0]}),
        (InvalidTypeError, {"terminations": ["no", "no", "yes"]}),
        (InvalidTypeError, {"rewards": ["a", "b", "c"]}),
        (ValidationError, {"flags": "first"}),
        (ValidationError, {"layout": "MN"}),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(error, call):
    """A refused rollout leaves the tracker as it was."""
    tracker = EpisodeTracker(3, "next_step")
    tracker.update([1, 1, 1], [0, 1, 0])
    before = pickle.dumps(tracker)
    with pytest.raises(error):
        tracker.update(**{"rewards": np.ones(3), "terminations": np.zeros(3), **call})
    assert pickle.dumps(tracker) == before


@pytest.mark.parametrize(
    "arguments",
    [
        {"envs": 0},
        {"envs": []},
        {"envs": "cart"},
        {"envs": ["a", "a"]},
        {"first_env_step": 2},
        {"first_episode": [1, 2]},
        {"first_episode": 1, "numbers": object()},
    ],
)
def test_a_tracker_that_makes_no_sense_is_refused(arguments):
    """Environments, first numbers and steps are checked where the tracker is made."""
    with pytest.raises(ValidationError):
        EpisodeTracker(**{"envs": 3, "autoreset": "same_step", **arguments})


def test_masks_that_are_no_masks_are_refused():
    """`reset` takes one bool for each environment."""
    tracker = EpisodeTracker(3, "same_step")
    for mask, error in (([True], InvalidShapeError), ([1, 0, 1], InvalidTypeError)):
        with pytest.raises(error):
            tracker.reset(mask)


def test_the_callers_arrays_are_left_alone():
    """Nothing is written to, and what the tracker keeps is its own."""
    rewards, done = np.ones((4, 2)), np.zeros((4, 2), dtype=bool)
    for array in (rewards, done):
        array.flags.writeable = False
    tracker = EpisodeTracker(2, "next_step")
    block = tracker.update(rewards, done, layout="TM", resets=done)
    assert block.reward is rewards
    assert block.arguments["mask"] is None
    assert tracker.open_lengths.tolist() == [4, 4]
    with pytest.raises(InvalidShapeError):
        block.grid(rewards.T)


def test_a_rollout_of_nothing_is_nothing():
    """No rows, or no environments among the rows: an empty block."""
    tracker = EpisodeTracker(2, "next_step")
    for block in (
        tracker.update(np.ones((0, 2)), np.ones((0, 2)), layout="TM"),
        tracker.update([], [], envs=[]),
    ):
        assert block.episode.size == block.mask.size == block.env_step.size == 0
        assert len(block.ended) == len(block.aborted) == 0
    assert tracker.open_lengths.tolist() == [0, 0]
