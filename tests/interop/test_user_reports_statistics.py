"""What users of other trackers ran into when they read back (`US-nn`), and what happens here.

Each test asserts the right behaviour of its case on the real client and a real server process.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

from metrana_async.errors import InvalidStepError
from metrana_async.query import RLStep


def test_us12_eight_episodes_that_end_at_one_step_are_eight(place):
    """Returns of eight environments at one rl_step are all kept; statistics use all of them."""
    envs = [f"env{i}" for i in range(8)]
    with place.init() as run:
        for i, env in enumerate(envs):
            run.log_rl_episode("return", float(i + 1), rl_step=1000, env_id=env)
            run.log("charts/episodic_return", float(i + 1), step=1000)
        replaced = run.flush().outcomes
    with place.reader() as reader:
        episodes = reader.episode_series_all("run", "return")
        assert sorted(episodes.value.tolist()) == [float(i) for i in range(1, 9)]
        assert set(episodes.rl_step.tolist()) == {1000}
        across = reader.aggregate_environments("run", "return", fn=("mean", "min", "max"))
        assert (across.x.tolist(), across.count.tolist()) == ([1000], [8])
        assert [across[name][0] for name in ("mean", "min", "max")] == [4.5, 1.0, 8.0]
        table = reader.environment_table("run", "return", at=RLStep(1000), order_by="return")
        assert table.env_ids == tuple(envs)
        # One value a step is the rule of log(): the newest, and seven replacements are counted.
        ledger = reader.ledger("run")
        assert (ledger.replaced, ledger.difference) == (7, 0)
    assert replaced["replaced"] == 7
    assert place.points("charts/episodic_return") == [(1000, 8.0)]


def test_us32_reads_are_complete_and_buckets_say_that_they_are(place):
    """100,000 points come back twice alike; a thousand buckets are asked for and deterministic."""
    values = np.random.default_rng(32).normal(size=100_000)
    with place.init() as run:
        run.log("x", values, step=0)
    with place.reader() as reader:
        first, second = reader.series("run", "x"), reader.series("run", "x")
        assert len(first) == 100_000
        assert first.value.tobytes() == second.value.tobytes()
        assert np.array_equal(first.value, values.astype(np.float32))
        one, two = (reader.buckets("run", "x", n=1000) for _ in range(2))
        for name, column in one.columns().items():
            assert column.tobytes() == two.columns()[name].tobytes()
        assert not one.lines[0].exact
        assert (one.lines[0].points_count, one.count.sum()) == (100_000, 100_000)
        assert one["max"].max() == first.value.max()
        assert one["min"].min() == first.value.min()


def test_us80_a_sparse_metric_costs_what_it_is(place):
    """25 points beside a million come alone and fast; read together, neither loses any."""
    with place.init() as run:
        for start in range(0, 1_000_000, 100_000):
            run.log("dense", np.arange(100_000, dtype=np.float32), step=start)
        run.log("sparse", np.arange(25.0), step=np.arange(25) * 40_000)
    with place.reader() as reader:
        reader.projects()  # the connection is there
        started_s = time.monotonic()
        sparse = reader.series("run", "sparse")
        took_s = time.monotonic() - started_s
        assert sparse.step.tolist() == list(range(0, 1_000_000, 40_000))
        assert took_s < 0.6  # 200 ms, and room for a busy machine
        assert len(reader.series("run", "dense")) == 1_000_000
        both = reader.buckets("run", ["dense", "sparse"], n=500)
        assert [line.points_count for line in both.lines] == [1_000_000, 25]
        assert [line.exact for line in both.lines] == [False, True]
        assert both.of(1)["mean"].tolist() == list(range(25))


def test_us95_coverage_is_even_at_every_moment(place):
    """While a curve grows, no hole opens in it and its last point is always there."""
    with place.init() as run, place.reader() as reader:
        for logged in range(500, 20_001, 500):
            run.log("x", np.arange(500.0))
            run.flush()
            found = reader.buckets("run", "x", n=1000)
            assert found.x_last[-1] == logged - 1
            assert found.x_first[0] == 0
            assert found.count.sum() == logged
            gaps = np.diff(found.x)
            assert gaps.max() <= max(5 * logged / 1000, 1)
            assert len(found) <= 2000


@pytest.mark.parametrize("start", [61_010, 2**40, 2**62])
def test_us96_a_run_may_start_anywhere(place, start):
    """5,000 points from any start: by the reader, as a curve, as points and by group."""
    with place.init() as run:
        run.log("x", np.arange(5000.0), step=start)
        with pytest.raises(InvalidStepError):
            run.log("x", 1.0, step=-5)
    with place.reader() as reader:
        assert reader.series("run", "x").step.tolist() == list(range(start, start + 5000))
        curve = reader.buckets("run", "x", n=100)
        assert curve.count.sum() == 5000
        assert (curve.x_first[0], curve.x_last[-1]) == (start, start + 4999)
        assert 100 < curve.buckets_count <= 200
        points = reader.buckets("run", "x", from_=start + 10, to=start + 19)
        assert points["last"].tolist() == list(range(10, 20))
        assert len(reader.group_runs("run", "x")) == 5000
