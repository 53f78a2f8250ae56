"""From a gymnasium vector environment through a tracker and a real server, and back."""

from __future__ import annotations

import asyncio
import concurrent.futures
import signal

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import metrana_async
import metrana_sync_shim as metrana
from tests.conformance.runner import ServerProcess

from .conftest import JOB_VARIABLES, Place

ENVS, ROWS, UPDATES = 4, 16, 12


def cartpoles(mode):
    """Vector CartPole under a short time limit."""
    return SyncVectorEnv(
        [
            lambda: gymnasium.make("CartPole-v1", max_episode_steps=12, disable_env_checker=True)
            for _ in range(ENVS)
        ],
        autoreset_mode=mode,
    )


class Rollouts:
    """What a loop over CartPoles collects; the truth is kept row by row."""

    def __init__(self, mode):
        self.env, self.mode = cartpoles(mode), mode
        self.env.reset(seed=3)
        self.env.action_space.seed(3)
        # Per environment: the episodes, each a list of the steps' values.
        self.truth: list[list[list[float]]] = [[[]] for _ in range(ENVS)]
        self.is_reset_row = np.zeros(ENVS, dtype=bool)
        self.value = 0.0

    def collect(self):
        rows = []
        resets = np.zeros(ENVS, dtype=bool)
        for _ in range(ROWS):
            terminated, truncated = self.env.step(self.env.action_space.sample())[2:4]
            values = self.value + np.arange(ENVS, dtype=np.float32)  # distinct: order shows
            self.value += ENVS
            for env in np.flatnonzero(~self.is_reset_row):
                self.truth[env][-1].append(float(values[env]))
            done = terminated | truncated
            for env in np.flatnonzero(done):
                self.truth[env].append([])
            rows.append((values, terminated, truncated, resets))
            self.is_reset_row = done if self.mode is AutoresetMode.NEXT_STEP else done & False
            resets = np.zeros(ENVS, dtype=bool)
            if self.mode is AutoresetMode.DISABLED and done.any():
                self.env.reset(options={"reset_mask": done})
                resets = done
        self.pending = resets
        return tuple(map(np.array, zip(*rows, strict=True)))

    def check(self, reader, run, *, tracker):
        for env, episodes in enumerate(self.truth):
            env_id = tracker.env_ids[env]
            found = reader.env_series(run, "reward", env_id=env_id)
            wanted = [
                (number, step, value)
                for number, values in enumerate(episodes)
                for step, value in enumerate(values)
            ]
            columns = (found.episode.tolist(), found.env_step.tolist(), found.value.tolist())
            assert sorted(zip(*columns, strict=True)) == wanted
            ended = reader.episode_series(run, "episode_return", env_id=env_id)
            assert ended.episode.tolist() == list(range(len(episodes) - 1))
            assert ended.value.tolist() == [np.float32(sum(e)) for e in episodes[:-1]]
            lengths = reader.episode_series(run, "episode_length", env_id=env_id)
            assert lengths.value.tolist() == [len(e) for e in episodes[:-1]]
        assert sum(len(e) - 1 for e in self.truth) > 40


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
@pytest.mark.parametrize("steps", ["automatic", "explicit"])
def test_what_is_read_back_is_what_happened(place, mode, steps):
    """Rollouts logged through a tracker read back as the episodes that were played."""
    rollouts = Rollouts(mode)
    tracker = metrana.EpisodeTracker(ENVS, rollouts.env.metadata["autoreset_mode"])
    place.init()
    for rl_step in range(UPDATES):
        rewards, terminated, truncated, resets = rollouts.collect()
        block = tracker.update(rewards, terminated, truncated, resets=resets, layout="TM")
        tracker.reset(rollouts.pending)
        more = {"env_step": block.env_step} if steps == "explicit" else {}
        metrana.log_rl_environment_step(
            "reward", rewards, rl_step=rl_step, **block.arguments, **more
        )
        ended = block.ended
        for name, value in (("episode_return", ended.returns), ("episode_length", ended.lengths)):
            metrana.log_rl_episode(name, value, rl_step=rl_step, **ended.arguments)
    assert metrana.close().is_complete
    with place.reader() as reader:
        rollouts.check(reader, "run", tracker=tracker)


def test_the_async_surface_takes_the_same(place):
    """Awaited calls take a block as the blocking ones do; one row at a time here."""
    rollouts = Rollouts(AutoresetMode.NEXT_STEP)
    tracker = metrana_async.EpisodeTracker(ENVS, AutoresetMode.NEXT_STEP)

    async def train():
        async with metrana_async.init(
            project_name=place.project, run_name="run", data_dir=place.data_dir, quiet=True
        ) as run:
            for rl_step in range(UPDATES):
                for reward, terminated, truncated, _ in zip(*rollouts.collect(), strict=True):
                    block = tracker.update(reward, terminated, truncated)
                    await run.log_rl_environment_step(
                        "reward", block.reward, rl_step, **block.arguments
                    )
                    ended = block.ended
                    await run.log_rl_episode(
                        "episode_return", ended.returns, rl_step, **ended.arguments
                    )
                    await run.log_rl_episode(
                        "episode_length", ended.lengths, rl_step, **ended.arguments
                    )

    asyncio.run(train())
    with place.reader() as reader:
        rollouts.check(reader, "run", tracker=tracker)


def test_rows_of_a_pool_read_back_by_environment(place):
    """Batches of some environments in any order, packed by the tracker, read back in order."""
    rng = np.random.default_rng(11)
    tracker = metrana.EpisodeTracker(8, "next_step")
    truth: dict[str, list[float]] = {}
    place.init()
    for rl_step in range(5):
        envs = np.array([rng.permutation(8)[:3] for _ in range(20)])
        values = np.arange(envs.size, dtype=np.float32).reshape(envs.shape) + 1000 * rl_step
        block = tracker.update(values, envs < 0, envs=envs, layout="TM")
        for env, value in zip(envs.ravel().tolist(), values.ravel().tolist(), strict=True):
            truth.setdefault(f"env{env}", []).append(value)
        metrana.log_rl_environment_step("reward", block.reward, rl_step, **block.arguments)
        metrana.log_rl_environment_step("half", block.grid(values / 2), rl_step, **block.arguments)
    metrana.close()
    with place.reader() as reader:
        for env_id, values in truth.items():
            found = reader.env_series("run", "reward", env_id=env_id, episode=0)
            assert found.value.tolist() == values
            assert found.env_step.tolist() == list(range(len(values)))
            half = reader.env_series("run", "half", env_id=env_id, episode=0)
            assert half.value.tolist() == [value / 2 for value in values]


def test_a_resumed_run_goes_on_with_new_episodes(place):
    """The cut-off episode stays as it was; the next process begins behind the last number."""
    place.init()
    tracker = metrana.EpisodeTracker(["cart"], "same_step")
    block = tracker.update([[1, 2, 3, 4]], [[0, 1, 0, 0]], layout="MT")
    metrana.log_rl_environment_step("reward", block.reward, 0, **block.arguments)
    metrana.shutdown_logger()
    place.init(resume_strategy="allow")
    rl_step, episode = metrana.get_env_last_rl_step_and_episode("cart")
    tracker = metrana.EpisodeTracker(["cart"], "same_step", first_episode=episode + 1)
    block = tracker.update([[9, 8]], [[0, 0]], layout="MT")
    metrana.log_rl_environment_step("reward", block.reward, rl_step + 1, **block.arguments)
    metrana.close()
    with place.reader() as reader:
        found = reader.env_series("run", "reward", env_id="cart")
    rows = zip(found.episode.tolist(), found.env_step.tolist(), found.value.tolist(), strict=True)
    assert sorted(rows) == [(0, 0, 1), (0, 1, 2), (1, 0, 3), (1, 1, 4), (2, 0, 9), (2, 1, 8)]


def test_string_keys_are_numbers_with_an_attribute(place):
    """An episode known by a string is found by it."""
    place.init()
    keys = metrana.EpisodeKeys()
    for key, value in (("a3f", 1.0), ("b71", 2.0)):
        number = keys.number("env0", key, on_new=metrana.log_env_attributes)
        metrana.log_rl_episode("episode_return", value, 0, episode=number, env_id="env0")
    metrana.close()
    with place.reader() as reader:
        found = {a.value: (a.env_id, a.episode) for a in reader.attributes("run")
                 if a.path == "episode_key"}  # fmt: skip
    assert found == {"a3f": ("env0", 0), "b71": ("env0", 1)}


WORKER = """
import numpy as np
index = int(os.environ["WORKER"])
rng = np.random.default_rng(index)
metrana.init(project_name=PROJECT, run_name="run")
leases = metrana.EpisodeLeases(metrana.reserve_episodes, size=4)
tracker = metrana.EpisodeTracker(["cart"], "same_step", numbers=leases)
for rl_step in range(12):
    done = rng.random((1, 8)) < 0.3
    block = tracker.update(np.full((1, 8), float(index)), done, layout="MT")
    metrana.log_rl_environment_step("reward", block.reward, rl_step, **block.arguments)
    ended = block.ended
    metrana.log_rl_episode("episode_return", ended.returns, rl_step, **ended.arguments)
metrana.close()
"""


def test_workers_of_one_environment_share_its_episodes_by_leases(place):
    """Three processes at once on one environment id: no episode holds points of two of them."""
    job = {"METRANA_ORCHESTRATION_ID": "job"}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        done = list(pool.map(lambda i: place.script(WORKER, WORKER=str(i), **job), (1, 2, 3)))
    assert all(d.returncode == 0 for d in done), [d.stderr for d in done]
    with place.reader() as reader:
        found = reader.env_series("run", "reward", env_id="cart")
        ended = reader.episode_series("run", "episode_return", env_id="cart")
    assert len(found) == 3 * 12 * 8
    owners = {}
    for episode, value in zip(found.episode.tolist(), found.value.tolist(), strict=True):
        owners.setdefault(episode, set()).add(value)
    assert all(len(values) == 1 for values in owners.values())
    lengths = np.bincount(found.episode)
    for episode, total in zip(ended.episode.tolist(), ended.value.tolist(), strict=True):
        (owner,) = owners[episode]
        assert total == owner * lengths[episode]
    assert {value for values in owners.values() for value in values} == {1, 2, 3}


@pytest.mark.e2e
def test_a_killed_server_gives_no_lease_twice(tmp_path, monkeypatch):
    """Leases are durable before they are answered: behind a SIGKILL they go on where they were."""
    for name in JOB_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    server = ServerProcess(tmp_path / "data")
    place = Place("leases", str(server.data_dir))
    given = []
    try:
        place.init()
        for n in (3, 5, 2):
            given.append((metrana.reserve_episodes("cart", n), n))
            server.stop(signal.SIGKILL)
            server = ServerProcess(tmp_path / "data")
        given.append((metrana.reserve_episodes("cart", 4), 4))
        metrana.close()
    finally:
        server.stop()
    assert given == [(0, 3), (3, 5), (8, 2), (10, 4)]
