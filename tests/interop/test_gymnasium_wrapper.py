"""`LogRollouts` on real gymnasium environments and a real server: read back is what happened."""

from __future__ import annotations

import asyncio
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import NormalizeReward

import metrana_async
import metrana_sync_shim as metrana
from metrana_async.errors import MetranaWarning, NotInitializedError, ValidationError
from metrana_async.integrations.gymnasium import LogRollouts
from tests.unit.rl.test_gymnasium import Episodes

ENVS = 3


def vector(mode=AutoresetMode.NEXT_STEP, seed=0):
    """Environments that remember their episodes."""
    return SyncVectorEnv(
        [lambda i=i: Episodes(100 * seed + i) for i in range(ENVS)], autoreset_mode=mode
    )


def play(env, steps):
    """Step it; where the mode leaves resets to the caller, reset what ended, and more."""
    rng = np.random.default_rng(7)
    env.reset(seed=1)
    for _ in range(steps):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if env.metadata["autoreset_mode"] is AutoresetMode.DISABLED:
            mask = terminated | truncated | (rng.random(ENVS) < 0.1)
            if mask.any():
                env.reset(options={"reset_mask": mask})


def truth_of(env):
    """Per environment its episodes that have a step, as lists of rewards, and their lengths."""
    return [[e for e in one.truth if e] for one in env.unwrapped.envs]


def check(place, env, *, prefix="", labels=None):
    """The server has every step and the return of every episode that ended."""
    ended_count = 0
    with place.reader() as reader:
        for index, episodes in enumerate(truth_of(env)):
            env_id = env.tracker.env_ids[index]
            where = {"env_id": env_id, "labels": labels}
            found = reader.env_series("run", prefix + "reward", **where)
            columns = (found.episode.tolist(), found.env_step.tolist(), found.value.tolist())
            assert sorted(zip(*columns, strict=True)) == [
                (number, step, np.float32(value))
                for number, rewards in enumerate(episodes)
                for step, value in enumerate(rewards)
            ]
            ended = reader.episode_series("run", prefix + "episode_return", **where)
            lengths = reader.episode_series("run", prefix + "episode_length", **where)
            assert np.array_equal(ended.episode, lengths.episode)
            assert len(np.unique(ended.episode)) == len(ended)
            for number, total, length in zip(
                ended.episode.tolist(), ended.value, lengths.value, strict=True
            ):
                assert length == len(episodes[number])
                assert np.isclose(total, sum(episodes[number]), rtol=1e-5, atol=1e-6)
            ended_count += len(ended)
    return ended_count


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
@pytest.mark.parametrize("buffer_steps", [1, 64])
def test_steps_and_episodes_read_back_as_played(place, mode, buffer_steps):
    """Every mode, block by block or step by step."""
    place.init()
    env = LogRollouts(vector(mode), steps_per_update=50, buffer_steps=buffer_steps)
    play(env, 330)
    env.close()
    assert metrana.close().is_complete
    assert check(place, env) > 150
    with place.reader() as reader:
        steps = reader.env_series("run", "reward", env_id="env0").rl_step
        assert sorted(set(steps.tolist())) == list(range(7))
        assert (steps == 0).sum() <= 50


def test_a_handle_of_the_async_surface_will_do(place):
    """Also while an event loop runs in the thread; names, labels and ids are the caller's."""

    async def train():
        async with metrana_async.init(
            project_name=place.project, run_name="run", data_dir=place.data_dir, quiet=True
        ) as run:
            env = LogRollouts(
                vector(), run, env_ids=["a", "b", "c"], prefix="eval/", evaluation=True
            )
            play(env, 100)
            env.close()
            return env

    env = asyncio.run(train())
    assert check(place, env, prefix="eval/", labels={"evaluation": "true"}) > 40


def test_a_resumed_run_goes_on_behind_its_episodes(place):
    """The second process counts on; nothing of the first is touched."""
    place.init()
    first = LogRollouts(vector(seed=1), steps_per_update=20)
    play(first, 45)
    first.close()
    metrana.shutdown_logger()
    place.init(resume_strategy="allow")
    second = LogRollouts(vector(seed=2), steps_per_update=20)
    assert second.rl_step == 3
    play(second, 45)
    second.close()
    metrana.close()
    with place.reader() as reader:
        for env in range(ENVS):
            found = reader.env_series("run", "reward", env_id=f"env{env}")
            wanted = [v for part in (first, second) for e in truth_of(part)[env] for v in e]
            order = np.lexsort((found.env_step, found.episode))
            assert found.value[order].tolist() == np.float32(wanted).tolist()


def test_an_update_is_the_callers_to_set(place):
    """Setting `rl_step` logs what waits under the one before."""
    place.init()
    env = LogRollouts(vector())
    env.reset()
    for rl_step, steps in ((5, 3), (9, 4)):
        env.rl_step = rl_step
        for _ in range(steps):
            env.step(env.action_space.sample())
    env.close()
    metrana.close()
    with place.reader() as reader:
        found = reader.env_series("run", "reward", env_id="env1")
    rl_steps = found.rl_step.tolist()
    assert set(rl_steps) == {5, 9}
    assert rl_steps.count(5) <= 3


def test_it_only_listens(place):
    """The wrapped environment's answers are the very objects; a caller's options stay usable."""
    place.init()
    inner = vector(AutoresetMode.DISABLED)
    env = LogRollouts(inner)
    answers = []
    step = inner.step
    inner.step = lambda actions: answers.append(step(actions)) or answers[-1]
    env.reset(seed=3)
    for _ in range(3):
        assert env.step(env.action_space.sample()) is answers[-1]
        mask = np.ones(ENVS, dtype=bool)
        env.reset(options={"reset_mask": mask})
        mask[:] = False  # the wrapper has its own copy
    env.close()
    assert env.tracker.open_episodes.tolist() == [2, 2, 2]


def test_rewards_that_were_changed_are_told(place):
    """Inside a reward wrapper it warns; around one it does not."""
    place.init()
    with pytest.warns(MetranaWarning, match="NormalizeReward"):
        LogRollouts(NormalizeReward(vector()))
    scaled = SyncVectorEnv(
        [lambda: gymnasium.wrappers.TransformReward(Episodes(0), lambda r: 2 * r)] * ENVS
    )
    with pytest.warns(MetranaWarning, match="TransformReward"):
        LogRollouts(scaled)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        NormalizeReward(LogRollouts(vector()))


def test_what_makes_no_sense_is_refused(place):
    """No run, no mode, no room, too few ids."""
    with pytest.raises(NotInitializedError):
        LogRollouts(vector())
    place.init()
    for arguments in ({"buffer_steps": 0}, {"steps_per_update": 0}, {"env_ids": ["a"]}):
        with pytest.raises(ValidationError):
            LogRollouts(vector(), **arguments)
    silent = vector()
    silent.metadata = {}
    with pytest.raises(ValidationError, match="autoreset="):
        LogRollouts(silent)
    assert LogRollouts(silent, autoreset="next_step").tracker.autoreset == "next_step"
