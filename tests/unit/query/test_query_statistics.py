"""Curves, groups and environments as a reader asks for them, over endpoints in memory."""

from __future__ import annotations

import math

import numpy as np
import pytest

from metrana_async.errors import (
    InvalidQueryError,
    NotFoundError,
    UnsupportedAggregationError,
    UsageError,
)
from metrana_async.query import BlockingQueryClient, Episode, Latest, RLStep
from metrana_async.server.query.service import QueryService
from metrana_async.server.store.base import AttributeRow, Commit
from metrana_async.wire.model import Family, Ordering
from tests.unit.server.query.stored_run import EndpointTransport, StoredRun


class World:
    """Two runs in one store and a client that reads them."""

    def __init__(self):
        self.a = StoredRun("a")
        self.b = StoredRun("b", store=self.a.store)
        self.writers = {run: run.writer(name * 32) for run, name in ((self.a, "a"), (self.b, "b"))}
        self.service = QueryService(self.a.store)
        transport = EndpointTransport(self.service)
        self.client = BlockingQueryClient("proj", transport=transport)

    def points(self, run, metric, rows, **pins):
        run.points(run.series(metric, **pins), self.writers[run], rows, dtype=np.float64)

    def env_attribute(self, run, env, path, value):
        row = AttributeRow(run.run_no, run.env(env), None, path, value)
        run.store.commit(Commit(attributes=[row]))


@pytest.fixture
def world():
    world = World()
    yield world
    world.client.close()
    world.service.close()


# --- buckets --------------------------------------------------------------------------------------
def test_curves_of_many_runs_share_one_grid(world):
    """Lines of two runs and two metrics have the same edges; a missing series says so."""
    world.points(world.a, "loss", [(s, float(s)) for s in range(1000)])
    world.points(world.b, "loss", [(s, 1.0) for s in range(0, 5000, 2)])
    world.points(world.b, "lr", [(7, 0.5)])
    found = world.client.buckets(["a", "b"], ["loss", "lr"], n=20, exact=False)
    assert [(x.run, x.metric, x.found, x.points_count) for x in found.lines] == [
        ("a", "loss", True, 1000),
        ("a", "lr", False, 0),
        ("b", "loss", True, 2500),
        ("b", "lr", True, 1),
    ]
    assert 20 < found.buckets_count <= 40
    assert found.width == 128
    assert (found.x % found.width == 0).all()
    assert found.edges[0] == 0
    assert found.edges[-1] == 4992
    dense = found.dense("mean")
    assert dense.shape == (4, found.buckets_count)
    assert dense[0, 1] == np.arange(128, 256).mean()
    assert np.isnan(dense[0, 8:]).all()
    assert np.isnan(dense[1]).all()
    line = found.of(0)
    assert line["count"].sum() == 1000
    assert (line["first"][0], line["last"][-1]) == (0.0, 999.0)
    assert (line["x_first"][0], line["x_last"][-1]) == (0, 999)


def test_a_short_curve_is_its_points(world):
    """At most 2n points come as they are, NaN and infinities too; more come as buckets."""
    values = [1.0, math.nan, math.inf, -4.0]
    world.points(world.a, "x", list(zip([3, 10, 11, 2**40], values, strict=True)))
    found = world.client.buckets("a", "x", n=2)
    assert found.lines[0].exact
    assert found.x.tolist() == [3, 10, 11, 2**40]
    for name in ("mean", "min", "max", "first", "last"):
        assert np.array_equal(found[name], values, equal_nan=True)
    assert found.count.tolist() == [1, 0, 0, 1]
    with pytest.raises(UsageError, match="exact=False"):
        found.dense("mean")
    found = world.client.buckets("a", "x", n=1)
    assert not found.lines[0].exact
    assert found.count.tolist() == [1, 1]
    assert (found.nan_count.tolist(), found.positive_inf_count.tolist()) == ([1, 0], [1, 0])
    assert found["max"].tolist() == [1.0, -4.0]
    assert (found.x_first.tolist(), found.x_last.tolist()) == ([3, 2**40], [11, 2**40])


def test_a_window_is_inclusive_on_any_axis(world):
    """from_ and to cut by step, by time and by time since the run was created."""
    world.points(world.a, "x", [(s, float(s), 1001 + 10 * s) for s in range(10)])
    assert world.client.buckets("a", "x", from_=3, to=5).x.tolist() == [3, 4, 5]
    assert world.client.buckets("a", "x", from_=8).x.tolist() == [8, 9]
    by_time = world.client.buckets("a", "x", axis="time", from_=1011, to=1031)
    assert by_time["mean"].tolist() == [1.0, 2.0, 3.0]
    since = world.client.buckets("a", "x", axis="relative_time", to=20)
    assert since.x.tolist() == [0, 10, 20]
    assert len(world.client.buckets("a", "x", from_=100, to=200)) == 0
    assert world.client.buckets("a", "x", from_=0, to=1000, n=4, exact=False).width == 128


def test_a_rewritten_step_counts_once(world):
    """The newer value of a step is the one in the bucket."""
    series = world.a.series("x")
    world.a.points(series, world.writers[world.a], [(s, 1.0) for s in range(100)])
    world.a.points(series, world.writers[world.a], [(s, 3.0) for s in range(80, 120)])
    found = world.client.buckets("a", "x", n=2)
    assert found.count.sum() == 120
    assert found["sum"].sum() == 80 + 120


def test_a_merge_series_offers_four(world):
    """Extremes and ends over all its points; mean is not offered, and NaN where not asked for."""
    rows = [(s, v, t) for s in range(50) for v, t in ((1.0, 2), (9.0, 1))]
    world.points(world.a, "rank", rows, ordering=Ordering.MERGE)
    found = world.client.buckets("a", "rank", n=4)
    assert set(found["min"]) == {1.0}
    assert set(found["max"]) == {9.0}
    assert set(found["last"]) == {1.0}
    assert np.isnan(found["mean"]).all()
    assert found.count.sum() == 100
    by_step = world.client.buckets("a", "rank", n=25, fn=("first", "last"))
    assert by_step.lines[0].exact
    assert by_step.x.tolist() == list(range(50))
    assert set(by_step["first"]) == {9.0}
    with pytest.raises(UnsupportedAggregationError, match="min, max, first, last"):
        world.client.buckets("a", "rank", fn="mean")


def test_an_rl_curve_is_of_one_environment(world):
    """With env_id the axis is the env step, the episode or the rl_step."""
    run = world.a
    reward = run.series("reward", Family.ENV_STEP, episodic=True)
    rows = [("e0", 0, 0, 5, 0, [1.0, 2.0]), ("e0", 1, 0, 6, 0, [3.0]), ("e1", 0, 0, 5, 0, [50.0])]
    run.segments(reward, world.writers[run], rows)
    run.episodes(run.series("ret", Family.EPISODE), world.writers[run], [("e0", 4, 6, 9.0)])
    client = world.client
    found = client.buckets("a", "reward", env_id="e0", axis="rl_step")
    assert (found.x.tolist(), found["mean"].tolist()) == ([5, 5, 6], [1.0, 2.0, 3.0])
    assert client.buckets("a", "reward", env_id="e0", episode=0).x.tolist() == [0, 1]
    assert client.buckets("a", "ret", env_id="e0").x.tolist() == [4]
    world.points(run, "loss", [(0, 1.0)])
    with pytest.raises(InvalidQueryError, match="rl_step, episode and generation are of an RL"):
        client.buckets("a", "loss", axis="rl_step")


def test_what_cannot_be_answered_is_refused_by_name(world):
    """Unknown runs, metrics, functions, axes and counts beyond a bound; nothing is cut."""
    world.points(world.a, "x", [(0, 1.0)])
    client = world.client
    with pytest.raises(NotFoundError, match="'y'"):
        client.buckets(["a", "b"], "y")
    with pytest.raises(NotFoundError, match="'c'"):
        client.buckets(["a", "c"], "x")
    with pytest.raises(InvalidQueryError, match="named twice"):
        client.buckets(["a", client.run("a")], "x")
    with pytest.raises(InvalidQueryError, match=r"2 runs × 501 metrics are 1002 lines"):
        client.buckets(["a", "b"], ["x"] * 501)
    with pytest.raises(InvalidQueryError, match="n of the query is 5000; it is an integer from 1"):
        client.buckets("a", "x", n=5000)
    with pytest.raises(InvalidQueryError, match="axis of the query is 'epoch'; it is one of step"):
        client.buckets("a", "x", axis="epoch")
    with pytest.raises(UnsupportedAggregationError, match="'median' is not offered of buckets"):
        client.buckets("a", "x", fn="median")
    with pytest.raises(InvalidQueryError, match="names no run"):
        client.buckets([], "x")
    with pytest.raises(InvalidQueryError, match="runs of the query is"):
        client.buckets(object(), "x")


# --- groups ---------------------------------------------------------------------------------------
def test_runs_are_grouped_by_what_they_have(world):
    """Groups by config; ragged lengths keep what there is, and n says how many had data."""
    third = StoredRun("c", store=world.a.store)
    world.writers[third] = third.writer("c" * 32)
    for run, lr, values in (
        (world.a, 0.1, [1.0, 2.0, 3.0]),
        (world.b, 0.1, [3.0, math.nan]),
        (third, 1, [10.0]),
    ):
        run.attributes(config__lr=lr)
        world.points(run, "ret", list(enumerate(values)))
    found = world.client.group_runs(["a", "b", "c"], "ret", by="config.lr")
    assert [(dict(g.by), g.members) for g in found.groups] == [
        ({"config.lr": 0.1}, ("a", "b")),
        ({"config.lr": 1}, ("c",)),
    ]
    first = found.of(0)
    assert first["x"].tolist() == [0, 1, 2]
    assert first["mean"].tolist() == [2.0, 2.0, 3.0]
    assert first["std"].tolist() == [1.0, 0.0, 0.0]
    assert first["count"].tolist() == [2, 1, 1]
    assert first["members_count"].tolist() == [2, 2, 1]
    assert first["nan_count"].tolist() == [0, 1, 0]
    assert found.of(1)["mean"].tolist() == [10.0]
    alone = world.client.group_runs(world.client.runs(), "ret", fn=("median", "p100"))
    assert alone["median"].tolist() == [3.0, 2.0, 3.0]
    with pytest.raises(NotFoundError, match=r"'config.rl' .* did you mean 'config.lr'"):
        world.client.group_runs(["a"], "ret", by="config.rl")
    with pytest.raises(UnsupportedAggregationError, match="'last' is not offered across"):
        world.client.group_runs(["a"], "ret", fn="last")
    with pytest.raises(UnsupportedAggregationError, match="'median' is not offered as the first"):
        world.client.group_runs(["a"], "ret", first="median")


def test_a_run_weighs_the_same_however_often_it_logs(world):
    """In a bucket each run is one number; runs without the series are named."""
    empty = StoredRun("c", store=world.a.store)
    world.points(world.a, "x", [(s, 1.0) for s in range(1000)])
    world.points(world.b, "x", [(0, 3.0), (500, math.inf)])
    found = world.client.group_runs(["a", "b", empty.row.name], "x", n=4)
    assert found.missing == ("c",)
    assert found.width == 128
    assert (found["mean"][0], found.count[0]) == (2.0, 2)
    at = found.x.tolist().index(384)
    assert (found.count[at], found.members_count[at], found.nan_count[at]) == (1, 2, 1)
    with pytest.raises(NotFoundError, match="'y'"):
        world.client.group_runs(["a", "b"], "y")


def test_merge_series_of_runs_compare_their_last(world):
    """A merge step is one number by its last value; a mean over its points is not offered."""
    for run, value in ((world.a, 1.0), (world.b, 5.0)):
        rows = [(0, value, 3), (0, 100.0, 1)]
        world.points(run, "rank", rows, ordering=Ordering.MERGE)
    assert world.client.group_runs(["a", "b"], "rank")["mean"].tolist() == [3.0]
    assert world.client.group_runs(["a", "b"], "rank", first="max")["mean"].tolist() == [100.0]
    with pytest.raises(UnsupportedAggregationError, match="log_distributed"):
        world.client.group_runs(["a", "b"], "rank", first="mean")


def test_runs_with_many_environments_are_means_of_environments(world):
    """all_envs: environment first, then the run, then across runs."""
    for run, extra in ((world.a, 0.0), (world.b, 10.0)):
        rows = [("e0", k, 7, 1.0 + extra) for k in range(3)] + [("e1", 0, 7, 3.0 + extra)]
        run.episodes(run.series("ret", Family.EPISODE), world.writers[run], rows)
    found = world.client.group_runs(["a", "b"], "ret", axis="rl_step", all_envs=True)
    assert (found.x.tolist(), found["mean"].tolist(), found.count.tolist()) == ([7], [7.0], [2])
    assert found.points_count.tolist() == [8]


# --- environments ---------------------------------------------------------------------------------
@pytest.fixture
def rl(world):
    """Run a: three environments, two of them rough; one episode restarted."""
    run = world.a
    writer = world.writers[run]
    reward = run.series("reward", Family.ENV_STEP, episodic=True)
    run.segments(reward, writer, [("e0", 0, 0, 0, 0, [100.0, 100.0]), ("e1", 0, 0, 0, 0, [2.0])])
    run.segments(reward, writer, [("e0", 0, 1, 1, 0, [4.0, 6.0])], cut=("e0", 0, 1, 2))
    run.segments(reward, writer, [("e1", 1, 0, 3, 0, [8.0, math.nan]), ("e2", 1, 0, 1, 0, [1.0])])
    returns = [("e0", 0, 1, 10.0), ("e1", 0, 0, 2.0), ("e1", 1, 3, 8.0)]
    run.episodes(run.series("ret", Family.EPISODE), writer, returns)
    flat = run.series("flat", Family.ENV_STEP, episodic=False)
    run.segments(flat, writer, [("e0", -1, 0, 0, 0, [1.0])])
    for env, terrain in (("e0", "rough"), ("e2", "rough"), ("e1", "plain")):
        world.env_attribute(run, env, "cfg/terrain", terrain)
    return world


def test_rl_info_says_what_there_is(rl):
    """Every RL series with what is visible of it, and what environments can be grouped by."""
    info = rl.client.rl_info("a")
    assert (info.envs_count, info.last_rl_step, info.last_episode) == (3, 3, 1)
    assert info.env_attributes == ("cfg/terrain",)
    reward = next(s for s in info.series if s.metric == "reward")
    assert (reward.points_count, reward.envs_count, reward.episodic) == (6, 3, True)
    assert (reward.first_rl_step, reward.last_rl_step) == (0, 3)
    assert (reward.first_episode, reward.last_episode) == (0, 1)
    flat = next(s for s in info.series if s.metric == "flat")
    assert (flat.first_episode, flat.last_episode) == (None, None)
    assert rl.client.rl_info("b").series == ()


def test_a_superseded_episode_is_read_by_its_generation(rl):
    """Of one episode an old generation can be drawn; elsewhere the word means nothing."""
    curve = rl.client.buckets("a", "reward", env_id="e0", episode=0, generation=0)
    assert curve["mean"].tolist() == [100.0, 100.0]
    assert rl.client.buckets("a", "reward", env_id="e0", episode=0)["mean"].tolist() == [4.0, 6.0]
    for more in ({}, {"env_id": "e0"}):
        with pytest.raises(InvalidQueryError, match="generation"):
            rl.client.buckets("a", "reward", generation=0, **more)


def test_many_groups_are_split_once(world):
    """An attribute that differs in every environment gives a group for each."""
    run = world.a
    names = [f"e{i}" for i in range(500)]
    rows = [(name, 0, 0, float(i)) for i, name in enumerate(names)]
    run.episodes(run.series("ret", Family.EPISODE), world.writers[run], rows)
    for i, name in enumerate(names):
        world.env_attribute(run, name, "seed", i)
    found = world.client.aggregate_environments("a", "ret", by="seed")
    assert [(dict(g.by), g.members) for g in found.groups] == [
        ({"seed": i}, (name,)) for i, name in enumerate(names)
    ]
    assert found["mean"].tolist() == [float(i) for i in range(500)]


def test_environments_at_a_slice(rl):
    """Latest is each environment's own; an rl_step and an episode are the same for all."""
    table = rl.client.environment_table("a", ["reward", "ret"], fn=("mean", "last", "count"))
    assert table.env_ids == ("e0", "e1", "e2")
    assert table.rl_step.tolist() == [1, 3, 1]
    assert table.episode.tolist() == [0, 1, 1]
    assert table["reward.mean"].tolist() == [5.0, 8.0, 1.0]
    assert table["reward.last"].tolist() == [6.0, 8.0, 1.0]
    assert table["reward.points_count"].tolist() == [2, 2, 1]
    assert np.array_equal(table["ret.mean"], [10.0, 8.0, math.nan], equal_nan=True)
    at = rl.client.environment_table("a", "reward", at=RLStep(1))
    assert np.array_equal(at["reward.mean"], [5.0, math.nan, 1.0], equal_nan=True)
    assert at["reward.points_count"].tolist() == [2, 0, 1]
    at = rl.client.environment_table("a", ("reward", "ret"), at=Episode(0), fn="max")
    assert np.array_equal(at["reward.max"], [6.0, 2.0, math.nan], equal_nan=True)
    assert np.array_equal(at["ret.max"], [10.0, 2.0, math.nan], equal_nan=True)
    assert rl.client.environment_table("a", at=Latest()).columns()["env_id"].tolist() == [
        "e0",
        "e1",
        "e2",
    ]
    with pytest.raises(InvalidQueryError, match="'flat' is logged without episodes"):
        rl.client.environment_table("a", "flat", at=Episode(0))
    with pytest.raises(InvalidQueryError, match="at of the query is 'now'"):
        rl.client.environment_table("a", "reward", at="now")


def test_the_worst_environments_first(rl):
    """Order, limit and choice of rows; NaN last; the answer says how many there are."""
    ask = rl.client.environment_table
    worst = ask("a", "reward", order_by="reward", limit=2)
    assert (worst.env_ids, worst.total_count) == (("e2", "e0"), 3)
    assert ask("a", "ret", order_by="-ret.mean").env_ids == ("e0", "e1", "e2")
    assert ask("a", "ret", order_by="ret").env_ids == ("e1", "e0", "e2")
    assert ask("a", order_by="-env_id").env_ids == ("e2", "e1", "e0")
    assert ask("a", env_ids=["e2", "e0"]).env_ids == ("e0", "e2")
    assert ask("a", env_where={"cfg/terrain": "plain"}).env_ids == ("e1",)
    with pytest.raises(InvalidQueryError, match="order_by of the query is 'age'; it is one of"):
        ask("a", order_by="age")
    with pytest.raises(NotFoundError, match="no environment 'e9'"):
        ask("a", env_ids="e9")
    with pytest.raises(NotFoundError, match=r"attribute 'cfg/terain'.* did you mean"):
        ask("a", env_where={"cfg/terain": "plain"})
    with pytest.raises(InvalidQueryError, match="more columns than"):
        ask("a", ["reward"] * 25)


def test_across_environments_in_two_stages(rl):
    """Each environment first; superseded generations are left out; groups by attribute."""
    ask = rl.client.aggregate_environments
    by_rl_step = ask("a", "reward")
    assert by_rl_step.x.tolist() == [0, 1, 3]
    assert by_rl_step["mean"].tolist() == [2.0, 3.0, 8.0]
    assert by_rl_step["std"].tolist() == [0.0, 2.0, 0.0]
    assert by_rl_step.count.tolist() == [1, 2, 1]
    assert by_rl_step.points_count.tolist() == [1, 3, 2]
    assert by_rl_step.nan_count.tolist() == [0, 0, 1]
    episodes = ask("a", "reward", over="episode", first="sum", fn=("max", "quantile:0.5"))
    assert (episodes.x.tolist(), episodes["max"].tolist()) == ([0, 1], [10.0, 8.0])
    assert episodes["quantile:0.5"].tolist() == [6.0, 4.5]
    steps = ask("a", "reward", over="env_step")
    assert (steps.x.tolist(), steps.count.tolist()) == ([0, 1], [3, 1])
    grouped = ask("a", "reward", by="cfg/terrain", rl_step_range=(1, 3))
    assert [(dict(g.by), g.members) for g in grouped.groups] == [
        ({"cfg/terrain": "rough"}, ("e0", "e2")),
        ({"cfg/terrain": "plain"}, ("e1",)),
    ]
    assert grouped.of(0)["mean"].tolist() == [3.0]
    assert grouped.of(1)["x"].tolist() == [3]
    assert ask("a", "ret", env_ids=("e1",), rl_step_range=(1, 9)).x.tolist() == [3]
    assert ask("a", "ret", env_where={"cfg/terrain": "rough"})["mean"].tolist() == [10.0]


def test_an_axis_that_is_not_there_is_refused(rl):
    """Episodes of a metric without them, env steps of episodes, and what has no order."""
    ask = rl.client.aggregate_environments
    with pytest.raises(InvalidQueryError, match="'flat' is logged without episodes"):
        ask("a", "flat", over="episode")
    with pytest.raises(InvalidQueryError, match="'ret' is logged once an episode"):
        ask("a", "ret", over="env_step")
    with pytest.raises(InvalidQueryError, match="over of the query is 'time'"):
        ask("a", "ret", over="time")
    with pytest.raises(UnsupportedAggregationError, match="'last' is not offered across"):
        ask("a", "ret", fn=("mean", "last"))
    with pytest.raises(UnsupportedAggregationError, match="'average' is no aggregation"):
        ask("a", "ret", first="average")
    with pytest.raises(NotFoundError, match="no series 'rewad'.*did you mean 'reward'"):
        ask("a", "rewad")
