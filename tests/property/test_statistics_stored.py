"""Statistics of what lies in a store, against plain loops over what should be visible.

Points are rewritten, episodes restarted, and the store seals in between: some of what is read comes
out of sealed tiles, some out of the log, and nothing that was superseded may show.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from metrana_async.query import BlockingQueryClient, Episode, RLStep
from metrana_async.server.ingest.service import IngestService
from metrana_async.server.query.service import QueryService
from metrana_async.server.store.memory import MemoryStore
from metrana_async.server.store.sqlite.store import SqliteStore
from metrana_async.wire.model import Family
from tests.unit.server.query.stored_run import EndpointTransport, StoredRun

from .naive_statistics import bucket, close, reduce, two_stages

VALUES = st.one_of(
    st.floats(-1e6, 1e6, width=32), st.sampled_from([math.nan, math.inf, -math.inf, 1e9])
)
FUNCTIONS = ("mean", "std", "min", "max", "quantile:0.1", "quantile:0.9")
ENVS = ("e0", "e1", "e2")

STRETCHES = st.tuples(
    st.just("points"), st.integers(0, 1), st.integers(0, 40), st.lists(VALUES, max_size=12)
)
SEGMENTS = st.tuples(
    st.just("segment"),
    st.sampled_from(ENVS),
    st.integers(0, 2),
    st.integers(0, 2),
    st.lists(VALUES, min_size=1, max_size=6),
)
RESTARTS = st.tuples(
    st.just("restart"),
    st.sampled_from(ENVS),
    st.integers(0, 2),
    st.lists(VALUES, min_size=1, max_size=4),
)
RETURNS = st.tuples(
    st.just("return"), st.sampled_from(ENVS), st.integers(0, 4), st.integers(0, 3), VALUES
)
SEALS = st.tuples(st.just("seal"))
HISTORIES = st.lists(st.one_of(STRETCHES, SEGMENTS, RESTARTS, RETURNS, SEALS), max_size=25)


class Told:
    """A history told to a store, and in dicts what of it is visible."""

    def __init__(self, store, history):
        self.store = store
        self.runs = [StoredRun("a", store=store), StoredRun("b", store=store)]
        self.writers = [run.writer(run.row.name * 32) for run in self.runs]
        self.loss = [run.series("loss") for run in self.runs]
        self.reward = self.runs[0].series("reward", Family.ENV_STEP, episodic=True)
        self.ret = self.runs[0].series("ret", Family.EPISODE)
        self.visible_loss = [{}, {}]
        self.visible_ret = {}
        self.episodes = {}  # (env, episode): [generation, rl_step, [(rl_step, value)]]
        for kind, *what in history:
            getattr(self, kind)(*what)

    def points(self, run, start, values):
        rows = [(start + at, value) for at, value in enumerate(values)]
        if rows:
            self.runs[run].points(self.loss[run], self.writers[run], rows)
        self.visible_loss[run].update((step, float(np.float32(v))) for step, v in rows)

    def segment(self, env, episode, later, values):
        known = self.episodes.setdefault((env, episode), [0, 0, []])
        known[1] += later
        generation, rl_step, points = known
        row = (env, episode, generation, rl_step, len(points), values)
        self.runs[0].segments(self.reward, self.writers[0], [row])
        points += [(rl_step, float(np.float32(value))) for value in values]

    def restart(self, env, episode, values):
        if (env, episode) not in self.episodes:
            return
        known = self.episodes[env, episode]
        generation, discarded = known[0] + 1, len(known[2])
        known[:] = [generation, 0, [(0, float(np.float32(value))) for value in values]]
        row = (env, episode, generation, 0, 0, values)
        cut = (env, episode, generation, discarded)
        self.runs[0].segments(self.reward, self.writers[0], [row], cut=cut)

    def seal(self):
        for unit in self.store.due(now_s=0.0, everything=True):
            IngestService(self.store).seal(unit)  # with true heads: readers look at them

    def rewards(self):
        """(env, episode, env_step, rl_step, value), in reading order."""
        order = list(self.runs[0].envs)
        return [
            (env, episode, step, rl_step, value)
            for (env, episode), (_, _, points) in sorted(
                self.episodes.items(), key=lambda item: (order.index(item[0][0]), item[0][1])
            )
            for step, (rl_step, value) in enumerate(points)
        ]


setattr(  # an operation's name that is a word of the language
    Told,
    "return",
    lambda told, env, episode, rl_step, value: (
        told.runs[0].episodes(told.ret, told.writers[0], [(env, episode, rl_step, value)]),
        told.visible_ret.update({(env, episode): (rl_step, float(np.float32(value)))}),
    ),
)


def in_both_stores(check):
    """Tell the history to a memory store and to a disk that seals, and check both."""

    def run(history, *more):
        with tempfile.TemporaryDirectory() as folder:
            for store in (MemoryStore(), SqliteStore(Path(folder) / "store")):
                told = Told(store, history)
                service = QueryService(store)
                try:
                    with BlockingQueryClient("proj", transport=EndpointTransport(service)) as asked:
                        check(told, asked, *more)
                finally:
                    service.close()
                    store.close()

    return run


def assert_statistics(found, expected, group=0):
    """A group's rows are those of `two_stages`."""
    rows = found.of(group)
    assert rows["x"].tolist() == sorted(expected)
    for at, x in enumerate(rows["x"].tolist()):
        assert rows["count"][at] == expected[x]["count"]
        for function in FUNCTIONS:
            assert close(rows[function][at], expected[x][function]), (x, function)


@given(HISTORIES, st.integers(1, 12))
@settings(max_examples=25, deadline=None)
def test_buckets_of_what_is_visible(history, n):
    """Curves of two runs on one grid: rewritten steps count once, sealed or not."""

    @in_both_stores
    def check(told, client):
        found = client.buckets(["a", "b"], "loss", n=n, exact=False)
        level = found.width.bit_length() - 1
        steps = [step for visible in told.visible_loss for step in visible]
        if steps:
            assert found.edges[0] <= min(steps)
            assert max(steps) < found.edges[-1] + found.width
            assert found.buckets_count <= 2 * n
        for line, visible in enumerate(told.visible_loss):
            rows = found.of(line)
            expected = bucket(visible.items(), level)
            assert (rows["x"] >> level).tolist() == sorted(expected)
            for at, number in enumerate(sorted(expected)):
                values = expected[number]["finite"]
                assert rows["count"][at] == len(values)
                assert rows["nan_count"][at] == expected[number]["nan"]
                for name in ("mean", "min", "max", "first", "last", "sum", "std"):
                    assert close(rows[name][at], reduce(values, name)), name

    check(history)


@given(HISTORIES, st.sampled_from(["mean", "last", "sum", "std", "quantile:0.5"]))
@settings(max_examples=25, deadline=None)
def test_across_environments_of_what_is_visible(history, first):
    """By rl_step, episode and env step; superseded generations never show."""

    @in_both_stores
    def check(told, client):
        rewards, order = told.rewards(), list(told.runs[0].envs)
        for over, place in (("rl_step", 3), ("episode", 1), ("env_step", 2)):
            found = client.aggregate_environments(
                "a", "reward", over=over, first=first, fn=FUNCTIONS
            )
            points = [(row[place], order.index(row[0]), row[4]) for row in rewards]
            assert_statistics(found, two_stages(points, first, (*FUNCTIONS, "count")))
            assert found.points_count.sum() == len(points)
        found = client.aggregate_environments("a", "ret", rl_step_range=(1, 2), fn=FUNCTIONS)
        points = [
            (rl_step, order.index(env), value)
            for (env, _), (rl_step, value) in sorted(told.visible_ret.items())
            if 1 <= rl_step <= 2
        ]
        assert_statistics(found, two_stages(points, "mean", (*FUNCTIONS, "count")))

    check(history)


@given(HISTORIES)
@settings(max_examples=25, deadline=None)
def test_environment_tables_of_what_is_visible(history):
    """Each environment at its latest rl_step, at one rl_step and at one episode."""

    @in_both_stores
    def check(told, client):
        rewards = told.rewards()
        latest = {}
        for env, _, _, rl_step, _ in rewards:
            latest[env] = max(latest.get(env, 0), rl_step)
        for at, is_in in (
            (None, lambda row: row[3] == latest[row[0]]),
            (RLStep(1), lambda row: row[3] == 1),
            (Episode(0), lambda row: row[1] == 0),
        ):
            more = {} if at is None else {"at": at}
            table = client.environment_table("a", "reward", fn=("mean", "last", "std"), **more)
            assert table.env_ids == tuple(told.runs[0].envs)
            for row, env in enumerate(table.env_ids):
                values = [r[4] for r in rewards if r[0] == env and is_in(r)]
                assert table["reward.points_count"][row] == len(values)
                for name in ("mean", "last", "std"):
                    assert close(table[f"reward.{name}"][row], reduce(values, name)), name

    check(history)


@given(
    HISTORIES, st.one_of(st.none(), st.integers(1, 8)), st.sampled_from(["mean", "sum", "count"])
)
@settings(max_examples=25, deadline=None)
def test_groups_of_what_is_visible(history, n, first):
    """Runs of ragged lengths, per step and per bucket; in buckets infinities are left out."""

    @in_both_stores
    def check(told, client):
        found = client.group_runs(["a", "b"], "loss", n=n, first=first, fn=FUNCTIONS)
        points = [
            (step // found.width * found.width, run, value)
            for run, visible in enumerate(told.visible_loss)
            for step, value in sorted(visible.items())
        ]
        expected = two_stages(
            [
                (x, run, math.nan if n is not None and math.isinf(value) else value)
                for x, run, value in points
            ],
            first,
            (*FUNCTIONS, "count"),
        )
        assert_statistics(found, expected)
        assert found.points_count.sum() == len(points)

    check(history)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=5, deadline=None)
def test_deviations_at_a_mean_of_a_billion(seed):
    """Across environments and across runs a std is right to 1e-6 at a mean of 1e9."""
    rng = np.random.default_rng(seed)
    store = MemoryStore()
    runs = [StoredRun(name, store=store) for name in "abcd"]
    values = 1e9 + rng.normal(size=(4, 64))
    for run, row in zip(runs, values, strict=True):
        points = list(enumerate(row.tolist()))
        run.points(run.series("x"), run.writer(run.row.name * 32), points, dtype=np.float64)
    service = QueryService(store)
    with BlockingQueryClient("proj", transport=EndpointTransport(service)) as client:
        found = client.group_runs(list("abcd"), "x", fn="std")
        for at in range(64):
            assert close(found["std"][at], reduce(values[:, at].tolist(), "std"), relative=1e-6)
        curve = client.buckets("a", "x", n=2)
        for at, x in enumerate(curve.x.tolist()):
            part = values[0, x : x + curve.width].tolist()
            assert close(curve["std"][at], reduce(part, "std"), relative=1e-6)
    service.close()
