"""EpisodeTracker against a loop over single rows: every mode, rollout border, reset and order."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from metrana_async.rl import Autoreset, EpisodeTracker


@dataclass
class OneEnvironment:
    """The rules, one row at a time."""

    mode: Autoreset
    episode: int = 0
    count: int = 0
    total: float = 0.0
    is_pending: bool = False
    points: dict[tuple[int, int], float] = field(default_factory=dict)
    ended: list[tuple] = field(default_factory=list)
    aborted: list[tuple] = field(default_factory=list)

    def close(self, into, terminated, truncated, column):
        into.append((self.episode, self.total, self.count, terminated, truncated, column))
        self.episode, self.count, self.total = self.episode + 1, 0, 0.0

    def reset(self, column=-1):
        if self.count:
            self.close(self.aborted, False, False, column)
        self.is_pending = False

    def end(self, terminated, truncated, column):
        self.close(self.ended, terminated, truncated, column)
        self.is_pending = self.mode is not Autoreset.SAME_STEP

    def row(self, reward, terminated, truncated, is_reset, column, *, is_start):
        """Returns (episode, step), or None for a row that is no transition."""
        if is_start and (terminated or truncated):
            if self.count:
                self.end(terminated, truncated, column - 1)
            is_reset = is_reset or self.mode is Autoreset.DISABLED
        if is_reset:
            self.reset(column - 1)
        if self.is_pending:
            self.is_pending = self.mode is not Autoreset.NEXT_STEP
            return None
        place = (self.episode, self.count)
        assert place not in self.points
        self.points[place] = reward
        self.count, self.total = self.count + 1, self.total + reward
        if not is_start and (terminated or truncated):
            self.end(terminated, truncated, column)
        return place


def flags(shape, likely):
    return hnp.arrays(bool, shape, elements=st.sampled_from([True] * likely + [False] * 3))


def columns_of(found, env):
    """The closed episodes of one environment, as the loop lists them."""
    return [
        (int(e), float(r), int(n), bool(te), bool(tr), int(c))
        for m, e, r, n, te, tr, c in zip(
            found.env,
            found.episode,
            found.returns,
            found.lengths,
            found.terminated,
            found.truncated,
            found.column,
            strict=True,
        )
        if m == env
    ]


def compare(tracker, envs, block, rows, is_start):
    """Feed `rows` (env, reward, terminated, truncated, reset; in time order) to the loop."""
    for e in envs:
        e.ended.clear()
        e.aborted.clear()
    episode, step, mask, reward = block.episode, block.env_step, block.mask, block.reward
    if block.reward.ndim == 1:
        episode, step, mask, reward = (a[:, None] for a in (episode, step, mask, reward))
    elif block.layout == "TM":
        episode, step, mask, reward = (a.T for a in (episode, step, mask, reward))
    row_of = {env_id: i for i, env_id in enumerate(block.env_id)}
    seen: dict[int, int] = {}
    for env, *given_row in rows:
        column = seen[env] = seen.get(env, -1) + 1
        place = envs[env].row(*given_row, column, is_start=is_start)
        at = (row_of[tracker.env_ids[env]], column)
        assert mask[at] == (place is not None)
        assert reward[at] == given_row[0]
        if place is not None:
            assert (episode[at], step[at]) == place
        else:
            assert step[at] == 0
            assert episode[at] >= 0
    assert mask.sum() <= sum(n + 1 for n in seen.values())
    for env, one in enumerate(envs):
        assert columns_of(block.ended, env) == one.ended
        assert columns_of(block.aborted, env) == one.aborted
    assert (np.diff(block.ended.column) >= 0).all()
    assert tracker.open_lengths.tolist() == [e.count for e in envs]
    assert tracker.open_episodes.tolist() == [e.episode for e in envs]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_every_point_and_episode_is_the_loops(data):
    """Grids and long rollouts, with resets inside and between, under every mode."""
    mode = data.draw(st.sampled_from(list(Autoreset)))
    m = data.draw(st.integers(1, 4))
    likely = data.draw(st.integers(0, 3))
    is_start = data.draw(st.booleans())
    tracker = EpisodeTracker(m, mode)
    envs = [OneEnvironment(mode) for _ in range(m)]
    for _ in range(data.draw(st.integers(1, 4))):
        if data.draw(st.booleans()):
            chosen = data.draw(st.none() | hnp.arrays(bool, m))
            before = [e.aborted.clear() for e in envs]
            cut = tracker.reset(chosen)
            for env, _ in enumerate(before):
                if chosen is None or chosen[env]:
                    envs[env].reset()
                assert columns_of(cut, env) == envs[env].aborted
        t = data.draw(st.integers(0, 7))
        rewards = data.draw(hnp.arrays(np.float32, (t, m), elements=st.integers(-9, 9)))
        ends = [data.draw(flags((t, m), likely)) for _ in range(2)]
        resets = data.draw(st.none() | flags((t, m), 1))
        arrays = [rewards, *ends, np.zeros((t, m), bool) if resets is None else resets]
        form = data.draw(st.sampled_from(["TM", "MT", "row", "long", "some", "rows"]))
        order = np.broadcast_to(np.arange(m), (t, m))
        kwargs = {"flags": "start" if is_start else "end"}
        if form in ("TM", "MT", "rows"):
            turned = [a.T if form == "MT" else a for a in arrays]
            kwargs["layout"] = "MT" if form == "MT" else "TM"
            if form == "rows":  # whole rows of some environments
                some = np.flatnonzero(data.draw(hnp.arrays(bool, m)))[::-1]
                order = np.broadcast_to(some, (t, len(some)))
                turned = [a[:, some] for a in arrays]
                kwargs["envs"] = some
        elif form == "row":
            turned, order = [a[0] if t else np.zeros(m, a.dtype) for a in arrays], np.arange(m)
            arrays = [a[None] for a in turned]
        else:  # long
            order = data.draw(hnp.arrays(np.int64, t * m, elements=st.integers(0, m - 1)))
            if form == "some":
                order = np.flatnonzero(data.draw(hnp.arrays(bool, m)))
            turned = [a.reshape(-1)[: len(order)] for a in arrays]
            if len(turned[0]) < len(order):
                order = order[: len(turned[0])]
            kwargs["envs"] = order
        given_resets = turned[3] if resets is not None else None
        block = tracker.update(*turned[:3], resets=given_resets, **kwargs)
        by_time = [a.T if form == "MT" else a for a in turned]
        flat = [np.reshape(a, -1).tolist() for a in (order, *by_time)]
        compare(tracker, envs, block, zip(*flat, strict=True), is_start)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_where_rollouts_end_changes_nothing(data):
    """A rollout cut anywhere gives the points and episodes of the whole."""
    mode = data.draw(st.sampled_from(list(Autoreset)))
    t, m = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 3))
    rewards = data.draw(hnp.arrays(np.float64, (m, t), elements=st.integers(-9, 9)))
    ends, resets = data.draw(flags((m, t), 1)), data.draw(flags((m, t), 1))
    flag = data.draw(st.sampled_from(["end", "start"]))
    whole = EpisodeTracker(m, mode).update(rewards, ends, resets=resets, flags=flag, layout="MT")
    cuts = [0, *sorted(data.draw(st.lists(st.integers(0, t), max_size=4))), t]
    pieces = EpisodeTracker(m, mode)
    parts = [
        pieces.update(rewards[:, a:b], ends[:, a:b], resets=resets[:, a:b], flags=flag, layout="MT")
        for a, b in zip(cuts, cuts[1:], strict=False)
    ]
    for name in ("mask", "env_step"):
        joined = np.concatenate([getattr(p, name) for p in parts], axis=1)
        assert np.array_equal(joined, getattr(whole, name))
    joined = np.concatenate([p.episode for p in parts], axis=1)
    assert np.array_equal(joined[whole.mask], whole.episode[whole.mask])

    def columns(blocks, kind):
        names = ("env", "episode", "returns", "lengths", "terminated")
        rows = [zip(*(getattr(getattr(b, kind), n) for n in names), strict=True) for b in blocks]
        return sorted(tuple(map(float, row)) for part in rows for row in part)

    for kind in ("ended", "aborted"):
        assert columns(parts, kind) == columns([whole], kind)


@pytest.mark.parametrize("mode", list(Autoreset))
@pytest.mark.parametrize("rows", [1, 4, 7, 128])
def test_long_random_runs_equal_the_loop(mode, rows):
    """Long runs with real rewards: sums differ by rounding only."""
    rng = np.random.default_rng(rows)
    m = 5
    tracker, envs = EpisodeTracker(m, mode), [OneEnvironment(mode) for _ in range(m)]
    for _ in range(max(2, 400 // rows)):
        shape = (rows, m)
        rewards = rng.normal(size=shape)
        ends, cuts = rng.random(shape) < 0.2, rng.random(shape) < 0.1
        resets = rng.random(shape) < (0.5 if mode is Autoreset.DISABLED else 0.02)
        for e in envs:
            e.ended.clear()
        block = tracker.update(rewards, ends, cuts, resets=resets, layout="TM")
        for t in range(rows):
            for env in range(m):
                one = (float(rewards[t, env]), bool(ends[t, env]), bool(cuts[t, env]))
                place = envs[env].row(*one, bool(resets[t, env]), t, is_start=False)
                assert block.mask[t, env] == (place is not None)
                if place:
                    assert place == (block.episode[t, env], block.env_step[t, env])
        for env in range(m):
            found = columns_of(block.ended, env)
            assert [f[::2] for f in found] == [e[::2] for e in envs[env].ended]
            wanted = [e[1] for e in envs[env].ended]
            assert np.allclose([f[1] for f in found], wanted, rtol=1e-12, atol=1e-12)
