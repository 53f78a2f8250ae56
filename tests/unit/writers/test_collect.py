"""From items in call order to the tables of each lane, and what was last logged."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metrana_async.columns.blocks import GridBlock, PointBlock
from metrana_async.wire.messages import Seeds
from metrana_async.wire.model import (
    AUTOMATIC,
    AttributeOp,
    AttributeUpdate,
    Family,
    Ordering,
    SeriesDef,
    StepMode,
)
from metrana_async.writers.collect import SeriesWriters
from metrana_async.writers.registry import SeriesRegistry


class World:
    """A registry with a few series, and its writers."""

    def __init__(self):
        self.registry = SeriesRegistry()
        self.writers = SeriesWriters(self.registry)

    def standard(self, metric, ordering=Ordering.ORDERED):
        return self.registry.series_no(SeriesDef(Family.STANDARD, metric, "ML_STEP", (), ordering))

    def episodes(self, metric, ordering=Ordering.ORDERED):
        return self.registry.series_no(SeriesDef(Family.EPISODE, metric, "EPISODE", (), ordering))

    def grid(self, ids, value, rl_step=0, episode=0, metric="r", labels=()):
        definition = SeriesDef(
            Family.ENV_STEP, metric, "ENVIRONMENT_STEP", labels, Ordering.ORDERED, True
        )
        number, env_nos = self.registry.claim_grid(definition, ids, StepMode.AUTO)
        value = np.array(value, np.float32)
        return GridBlock(number, StepMode.AUTO, env_nos, value, rl_step, episode, None, None, 1)


@pytest.fixture
def world():
    return World()


def test_scalars_become_one_table(world):
    """Columns in call order; float32 while every value is a float that fits."""
    a, b = world.standard("a"), world.standard("b")
    loads = world.writers.collect([(a, AUTOMATIC, 1, 0.1), (b, 7, 2, 0.5), (a, 3, 3, math.nan)])
    (table,) = loads[0].points
    assert list(loads) == [0]
    assert table.series.tolist() == [a, b, a]
    assert table.step.tolist() == [AUTOMATIC, 7, 3]
    assert table.time_ms.tolist() == [1, 2, 3]
    assert table.value.dtype == np.float32
    assert (table.env, table.rl_step) == (None, None)
    assert loads[0].points_count == 3


def test_each_value_is_what_its_own_call_would_have_stored(world):
    """Beside a wide value a float is still float32's; an int stays exact, inf stays inf."""
    a = world.standard("a")
    given = [0.1, 16777217, 1e300, math.inf, True, -math.inf, 3.5e38, 2**53]
    (table,) = world.writers.collect([(a, i, 0, v) for i, v in enumerate(given)])[0].points
    assert table.value.dtype == np.float64
    assert table.value.tolist() == [
        0.10000000149011612, 16777217.0, 1e300, math.inf, 1.0, -math.inf, 3.5e38, 2.0**53,
    ]  # fmt: skip


def test_small_ints_need_no_doubles(world):
    """An int that float32 holds exactly does not widen its table."""
    a = world.standard("a")
    (table,) = world.writers.collect([(a, 0, 0, 3), (a, 1, 0, 0.1)])[0].points
    assert table.value.dtype == np.float32
    assert table.value[0] == 3


def test_order_is_kept_between_scalars_and_blocks(world):
    """A block between scalars lies between them; step k stands for k, k+1, …."""
    a = world.standard("a")
    block = PointBlock(a, np.array([1.0, 2.0], np.float32), 5, 9)
    stepped = PointBlock(a, np.array([0.1]), np.array([8]), np.array([4]))
    (table,) = world.writers.collect([(a, 4, 1, 0.5), block, stepped, (a, 9, 2, 0.5)])[0].points
    assert table.step.tolist() == [4, 5, 6, 8, 9]
    assert table.time_ms.tolist() == [1, 9, 9, 4, 2]
    assert table.value.tolist() == [0.5, 1.0, 2.0, 0.1, 0.5]


def test_merge_series_spread_over_their_lanes(world):
    """Ordered series share lane 0; a merge series stays on lane 1 or 2."""
    ordered = world.standard("o")
    merged = [world.standard(f"m{i}", Ordering.MERGE) for i in range(4)]
    items = [(n, 1, 0, float(n)) for n in (ordered, *merged, *merged)]
    loads = world.writers.collect([*items, PointBlock(merged[0], np.ones(2, np.float32), 5, 0)])
    assert set(loads) == {0, 1, 2}
    lanes = {n: {lane for lane, x in loads.items() if (x.points[0].series == n).any()}
             for n in (ordered, *merged)}  # fmt: skip
    assert lanes[ordered] == {0}
    assert all(len(where) == 1 and 0 not in where for where in lanes.values() if where != {0})
    assert sum(load.points_count for load in loads.values()) == len(items) + 2


def test_families_have_tables_of_their_own(world):
    """A table never mixes STANDARD and EPISODE rows."""
    a, ret = world.standard("a"), world.episodes("ret")
    env_no = world.registry.env_nos(("e", "f"))
    rows = PointBlock(ret, np.ones(2, np.float32), AUTOMATIC, 1, env_no, np.array([4, 4]))
    loads = world.writers.collect([(a, AUTOMATIC, 1, 0.5), rows, (a, AUTOMATIC, 1, 0.5), rows])
    plain, episodes = loads[0].points
    assert (plain.points_count, plain.env) == (2, None)
    assert episodes.env.tolist() == [0, 1, 0, 1]
    assert episodes.rl_step.tolist() == [4] * 4
    assert episodes.step.tolist() == [AUTOMATIC] * 4


def test_grids_of_one_series_become_one_table(world):
    """Successive calls are segments of one table; other labels are another table."""
    first = world.grid(("a", "b"), [[1.0, 2.0], [3.0, 4.0]])
    second = world.grid(("a", "b"), [[5.0], [6.0]])
    third = world.grid(("a", "b"), [[7.0], [8.0]], rl_step=1)
    other = world.grid(("a",), [[9.0]], labels=(("k", "1"),))
    tables = world.writers.collect([first, second, other, third])[0].segments
    assert [t.points_count for t in tables] == [8, 1]
    table = tables[0]
    assert table.env.tolist() == [0, 1, 0, 1, 0, 1]
    assert table.start.tolist() == [0, 0, 2, 2, 0, 0]
    assert table.rl_step.tolist() == [0, 0, 0, 0, 1, 1]
    assert table.value.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert table.point_time_ms is None


def test_a_grid_that_widens_keeps_the_others_rounded(world):
    """x-13: float32 grids beside a float64 one keep their float32 values."""
    narrow = world.grid(("a",), [[0.1]])
    wide = world.grid(("a",), [[0.0]])
    wide.value = np.array([[1e39]])
    (table,) = world.writers.collect([narrow, wide])[0].segments
    assert table.value.tolist() == [0.10000000149011612, 1e39]


def test_attributes_travel_on_the_ordered_lane(world):
    """Updates keep their order."""
    updates = [AttributeUpdate(AttributeOp.SET, f"config/{i}", i) for i in range(3)]
    loads = world.writers.collect([updates[0], (world.standard("a"), 0, 0, 1.0), *updates[1:]])
    assert loads[0].attributes == updates


def test_nothing_gives_nothing(world):
    """No items, and blocks without points, make no load."""
    a = world.standard("a")
    assert world.writers.collect([]) == {}
    assert world.writers.collect([PointBlock(a, np.zeros(0, np.float32), AUTOMATIC, 0)]) == {}
    grid = world.grid(("a",), [[1.0]])
    grid.mask = np.zeros((1, 1), bool)
    assert world.writers.collect([grid]) == {}


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([AUTOMATIC, 0, 3, 9])), max_size=30),
    st.sets(st.integers(0, 29)),
    st.dictionaries(st.integers(0, 2), st.integers(0, 20)),
)
def test_last_steps_follow_the_cursor(calls, flushes, seeded):
    """The predicted last step is what numbering point by point gives, however calls are cut."""
    world = World()
    metrics = ["a", "b", "c"]
    rows = [["standard", m, "ML_STEP", [], "ordered", None, seeded.get(i), {}]
            for i, m in enumerate(metrics)]  # fmt: skip
    world.registry.seed(Seeds(series=rows))
    last = {i: seeded.get(i) for i in range(3)}
    pending = []
    for position, (series_no, step) in enumerate(calls):
        pending.append((series_no, step, 0, 1.0))
        before = -1 if last[series_no] is None else last[series_no]
        last[series_no] = before + 1 if step == AUTOMATIC else max(before, step)
        if position in flushes:
            world.writers.collect(pending)
            pending = []
    world.writers.collect(pending)
    assert {i: world.writers.last_step(i) for i in range(3)} == last


def test_last_rl_step_and_episode_are_two_maxima(world):
    """q-08: independent maxima over both RL functions, seeds among them; None where unknown."""
    world.registry.seed(Seeds(environments=[["s", 40, None], ["e", 2, 1]]))
    world.writers.collect([world.grid(("e",), [[1.0]], rl_step=7, episode=3)])
    world.writers.collect([world.grid(("e",), [[1.0]], rl_step=5, episode=9)])
    ret = world.episodes("ret", Ordering.MERGE)
    env_no = world.registry.env_nos(("e",))
    row = PointBlock(ret, np.ones(1, np.float32), np.array([2]), 1, env_no, np.array([8]))
    world.writers.collect([row])

    def last(env_id):
        return world.writers.last_rl_step_and_episode(int(world.registry.env_nos((env_id,))[0]))

    assert last("e") == (8, 9)
    assert last("s") == (40, None)
    assert last("unseen") == (None, None)


def test_automatic_episodes_are_predicted(world):
    """Each environment counts on from its seed; several episodes of one call count each."""
    world.registry.seed(
        Seeds(
            series=[["rl_episode", "ret", "EPISODE", [], "ordered", None, None, {}]],
            episodes=[[0, "a", 4]],
        )
    )
    ret = world.episodes("ret")
    env_no = world.registry.env_nos(("a", "a", "b"))
    rl_step = np.zeros(3, np.int64)
    block = PointBlock(ret, np.ones(3, np.float32), AUTOMATIC, 1, env_no, rl_step)
    world.writers.collect([block])
    assert world.writers.last_rl_step_and_episode(int(env_no[0])) == (0, 6)
    assert world.writers.last_rl_step_and_episode(int(env_no[2])) == (0, 0)


def test_env_ids_without_episodes_have_none(world):
    """A series without episodes tells the rl_step only."""
    definition = SeriesDef(Family.ENV_STEP, "z", "ENVIRONMENT_STEP", (), Ordering.ORDERED, False)
    number, env_nos = world.registry.claim_grid(definition, ("n",), StepMode.AUTO)
    value = np.ones((1, 1), np.float32)
    block = GridBlock(number, StepMode.AUTO, env_nos, value, 1, None, None, None, 1)
    world.writers.collect([block])
    assert world.writers.last_rl_step_and_episode(int(env_nos[0])) == (1, None)
