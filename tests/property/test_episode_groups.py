"""Groups by attributes of single episodes, against plain loops over what each episode has."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metrana_async.errors import NotFoundError
from metrana_async.query import BlockingQueryClient
from metrana_async.server.query.service import QueryService
from metrana_async.server.store.base import AttributeRow, Commit
from metrana_async.wire.model import Family
from tests.unit.server.query.stored_run import EndpointTransport, StoredRun

from .naive_statistics import close, two_stages

ENVS = ("e0", "e1", "e2")
FUNCTIONS = ("mean", "std", "min", "max", "quantile:0.5")
LEVELS = st.sampled_from(["easy", "hard", 1, 1.0, True, None])
RETURNS = st.dictionaries(
    st.tuples(st.sampled_from(ENVS), st.integers(0, 4)),
    st.tuples(st.integers(0, 3), st.one_of(st.floats(-1e3, 1e3, width=32), st.just(math.nan))),
    min_size=1,
    max_size=12,
)
OF_ENVS = st.dictionaries(st.sampled_from(ENVS), LEVELS)
OF_EPISODES = st.dictionaries(
    st.tuples(st.sampled_from(ENVS), st.integers(0, 5)), LEVELS, min_size=1
)


class World:
    """A run with returns and rewards of the same episodes, and attributes."""

    def __init__(self, returns):
        self.run = run = StoredRun("a")
        writer = run.writer("a" * 32)
        rows = [(env, ep, rl_step, value) for (env, ep), (rl_step, value) in returns.items()]
        run.episodes(run.series("ret", Family.EPISODE), writer, rows)
        reward = run.series("reward", Family.ENV_STEP, episodic=True)
        segments = [(env, ep, 0, rl_step, 0, [value, 1.0]) for env, ep, rl_step, value in rows]
        run.segments(reward, writer, segments)
        self.service = QueryService(run.store)
        self.client = BlockingQueryClient("proj", transport=EndpointTransport(self.service))

    def attribute(self, env, episode, path, value):
        row = AttributeRow(self.run.run_no, self.run.env(env), episode, path, value)
        self.run.store.commit(Commit(attributes=[row]))

    def close(self):
        self.client.close()
        self.service.close()


def key(value):
    """What makes two values one group: 1 and 1.0 are, 1 and true are not."""
    return (isinstance(value, bool), value)


@given(RETURNS, OF_ENVS, OF_EPISODES, st.sampled_from(["rl_step", "episode"]))
@settings(max_examples=60, deadline=None)
def test_episodes_are_grouped_by_what_they_have(returns, of_envs, of_episodes, over):
    """An episode's own value, else its environment's; in each group environments weigh the same."""
    world = World(returns)
    try:
        for env, value in of_envs.items():
            world.attribute(env, None, "level", value)
        for (env, episode), value in of_episodes.items():
            world.attribute(env, episode, "level", value)
        level = {unit: key(of_episodes.get(unit, of_envs.get(unit[0]))) for unit in returns}
        for metric in ("ret", "reward"):
            found = world.client.aggregate_environments(
                "a", metric, over=over, by="level", fn=FUNCTIONS
            )
            groups = {key(group.by["level"]): at for at, group in enumerate(found.groups)}
            assert set(groups) == set(level.values())
            for wanted, at in groups.items():
                points = [
                    (rl_step if over == "rl_step" else episode, env, float(np.float32(v)))
                    for (env, episode), (rl_step, value) in returns.items()
                    for v in ([value] if metric == "ret" else [value, 1.0])
                    if level[env, episode] == wanted
                ]
                check(found.of(at), two_stages(points, "mean", FUNCTIONS))
                assert set(found.groups[at].members) == {env for _, env, _ in points}
    finally:
        world.close()


@given(RETURNS, OF_ENVS, OF_EPISODES)
@settings(max_examples=60, deadline=None)
def test_only_episodes_of_a_value(returns, of_envs, of_episodes):
    """env_where under such a path takes the episodes that have it, own or inherited."""
    world = World(returns)
    try:
        for env, value in of_envs.items():
            world.attribute(env, None, "level", value)
        for (env, episode), value in of_episodes.items():
            world.attribute(env, episode, "level", value)
        found = world.client.aggregate_environments(
            "a", "ret", fn=FUNCTIONS, env_where={"level": "hard"}
        )
        points = [
            (rl_step, env, float(np.float32(value)))
            for (env, episode), (rl_step, value) in returns.items()
            if of_episodes.get((env, episode), of_envs.get(env)) == "hard"
        ]
        check(found.of(0), two_stages(points, "mean", FUNCTIONS))
    finally:
        world.close()


def check(rows, expected):
    assert rows["x"].tolist() == sorted(expected)
    for at, x in enumerate(rows["x"].tolist()):
        for function in FUNCTIONS:
            assert close(rows[function][at], expected[x][function]), (x, function)


def test_paths_of_environments_and_of_episodes_combine():
    """Groups by both; what can be grouped by is listed, and a path nobody has is a mistake."""
    world = World({("e0", 0): (0, 1.0), ("e0", 1): (0, 3.0), ("e1", 0): (0, 5.0)})
    try:
        world.attribute("e0", None, "terrain", "rough")
        world.attribute("e1", None, "terrain", "plain")
        world.attribute("e0", 1, "won", True)
        found = world.client.aggregate_environments("a", "ret", by=["terrain", "won"])
        assert [(dict(g.by), g.members) for g in found.groups] == [
            ({"terrain": "rough", "won": None}, ("e0",)),
            ({"terrain": "rough", "won": True}, ("e0",)),
            ({"terrain": "plain", "won": None}, ("e1",)),
        ]
        assert found["mean"].tolist() == [1.0, 3.0, 5.0]
        plain = world.client.aggregate_environments(
            "a", "ret", env_where={"terrain": "rough", "won": True}, env_ids=["e0", "e1"]
        )
        assert plain["mean"].tolist() == [3.0]
        info = world.client.rl_info("a")
        assert (info.env_attributes, info.episode_attributes) == (("terrain",), ("won",))
        with pytest.raises(NotFoundError, match="'wan'.*did you mean 'won'"):
            world.client.aggregate_environments("a", "ret", by="wan")
    finally:
        world.close()
