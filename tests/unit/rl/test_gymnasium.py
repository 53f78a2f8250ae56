"""The tracker on real gymnasium vector environments: the truth is what the environments saw."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics

from metrana_async.rl import EpisodeTracker


class Episodes(gymnasium.Env):
    """Episodes of 1 to 7 steps with random rewards, ended in every way; it remembers them."""

    observation_space = gymnasium.spaces.Box(0, 1e6, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.truth: list[list[float]] = []

    def reset(self, *, seed=None, options=None):
        self.length = int(self.rng.integers(1, 8))
        self.truth.append([])
        return np.zeros(1, np.float32), {}

    def step(self, action):
        reward = float(self.rng.normal())
        self.truth[-1].append(reward)
        is_over, kind = len(self.truth[-1]) >= self.length, int(self.rng.integers(0, 3))
        return np.zeros(1, np.float32), reward, is_over and kind != 1, is_over and kind != 0, {}


class Followed:
    """A vector environment and its tracker; collects what the tracker says, and what gymnasium."""

    def __init__(self, make, m, mode, rows):
        self.env = SyncVectorEnv(
            [lambda i=i: RecordEpisodeStatistics(make(i)) for i in range(m)], autoreset_mode=mode
        )
        self.mode, self.rows = mode, rows
        self.tracker = EpisodeTracker(m, self.env.metadata["autoreset_mode"])
        self.m = m
        self.points: dict[tuple[int, int, int], float] = {}
        self.episodes: dict[tuple[int, int], tuple[float, int]] = {}
        self.aborted = 0
        self.recorded: list[tuple[int, float, int]] = []
        self.buffer: list[tuple[np.ndarray, ...]] = []
        self.resets = np.zeros(m, dtype=bool)
        self.env.reset(seed=0)
        self.tracker.reset()

    def step(self, wants_reset):
        """One vector step; `wants_reset` [M] are reset behind it where the mode leaves it to us."""
        actions = self.env.action_space.sample()
        _, reward, terminated, truncated, infos = self.env.step(actions)
        self.buffer.append((reward, terminated, truncated, self.resets))
        self.resets = np.zeros(self.m, dtype=bool)
        self._record(infos.get("final_info", infos))
        if self.mode is AutoresetMode.DISABLED:
            self.resets = terminated | truncated | wants_reset
            if self.resets.any():
                self.env.reset(options={"reset_mask": self.resets})
        if len(self.buffer) == self.rows:
            self.flush()

    def _record(self, infos):
        for i in np.flatnonzero(infos.get("_episode", ())):
            found = infos["episode"]
            self.recorded.append((int(i), float(found["r"][i]), int(found["l"][i])))

    def flush(self):
        rewards, terminated, truncated, resets = map(np.array, zip(*self.buffer, strict=True))
        self.buffer.clear()
        block = self.tracker.update(rewards, terminated, truncated, resets=resets, layout="TM")
        for t, env in zip(*np.nonzero(block.mask), strict=True):
            key = (int(env), int(block.episode[t, env]), int(block.env_step[t, env]))
            assert key not in self.points
            self.points[key] = float(block.reward[t, env])
        ended = block.ended
        for row in zip(ended.env, ended.episode, ended.returns, ended.lengths, strict=True):
            self.episodes[int(row[0]), int(row[1])] = (float(row[2]), int(row[3]))
        self.aborted += len(block.aborted)

    def check(self, truth):
        """`truth`: per environment, its episodes as lists of rewards. Returns points, episodes."""
        wanted = {
            (env, number, step): reward
            for env, episodes in enumerate(truth)
            for number, rewards in enumerate(e for e in episodes if e)
            for step, reward in enumerate(rewards)
        }
        assert self.points == wanted
        by_env = {e: [] for e in range(self.m)}
        for (env, _), found in sorted(self.episodes.items()):
            by_env[env].append(found)
        for env in range(self.m):
            recorded = [(r, n) for e, r, n in self.recorded if e == env]
            assert [n for _, n in by_env[env]] == [n for _, n in recorded]
            assert np.allclose(
                [r for r, _ in by_env[env]], [r for r, _ in recorded], rtol=1e-6, atol=1e-6
            )
        return len(wanted), len(self.episodes)


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
@pytest.mark.parametrize("rows", [1, 4, 7, 128])
def test_points_and_episodes_are_what_the_environments_saw(mode, rows):
    """Every point lies where its environment saw it; returns are `RecordEpisodeStatistics`'s."""
    m, seed = 5, rows
    rng = np.random.default_rng(seed)
    followed = Followed(lambda i: Episodes(1000 * seed + i), m, mode, rows)
    for _ in range(-(-3000 // rows) * rows):
        followed.step(rng.random(m) < 0.05)
    points, episodes = followed.check([e.unwrapped.truth for e in followed.env.envs])
    assert points > 10_000
    assert episodes > 2_000
    assert (followed.aborted > 0) == (mode is AutoresetMode.DISABLED)


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_cartpole_and_its_time_limit(mode):
    """CartPole under a time limit of 12: terminated and truncated episodes, as gymnasium counts."""
    followed = Followed(
        lambda _: gymnasium.make("CartPole-v1", max_episode_steps=12, disable_env_checker=True),
        4, mode, rows=16,
    )  # fmt: skip
    for _ in range(320):
        followed.step(np.zeros(4, dtype=bool))
    lengths = [n for _, n in followed.episodes.values()]
    assert len(lengths) == len(followed.recorded) > 50
    assert max(lengths) == 12
    assert sorted(lengths) == sorted(n for _, _, n in followed.recorded)
    assert all(total == n for total, n in followed.episodes.values())
    in_episodes = sum(lengths) + int(followed.tracker.open_lengths.sum())
    assert len(followed.points) == in_episodes


def test_flags_one_row_later_say_the_same():
    """A buffer of episode starts, as CleanRL and Stable-Baselines3 keep them, is read alike."""
    for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
        env = SyncVectorEnv([lambda i=i: Episodes(i) for i in range(3)], autoreset_mode=mode)
        env.reset()
        at_end, at_start = EpisodeTracker(3, mode), EpisodeTracker(3, mode)
        previous = np.ones(3, dtype=bool) if mode is AutoresetMode.SAME_STEP else np.zeros(3, bool)
        ended: list[list[tuple]] = [[], []]
        for _ in range(40):
            rows = [env.step(env.action_space.sample())[1:4] for _ in range(6)]
            rewards, terminated, truncated = map(np.array, zip(*rows, strict=True))
            done = terminated | truncated
            starts = np.concatenate([previous[None], done[:-1]])
            previous = done[-1]
            one = at_end.update(rewards, terminated, truncated, layout="TM")
            other = at_start.update(rewards, starts, layout="TM", flags="start")
            assert np.array_equal(one.mask, other.mask)
            assert np.array_equal(one.episode[one.mask], other.episode[one.mask])
            assert np.array_equal(one.env_step, other.env_step)
            for block, into in zip((one, other), ended, strict=True):
                e = block.ended
                into += zip(
                    e.env.tolist(), e.episode.tolist(), e.lengths.tolist(), e.returns.tolist(),
                    strict=True,
                )  # fmt: skip
        assert len(ended[1]) > 100
        late = set(ended[0]) - set(ended[1])
        assert {env for env, *_ in late} <= set(np.flatnonzero(previous).tolist())
        assert set(ended[1]) <= set(ended[0])
