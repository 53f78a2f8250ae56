"""A reader who asks only for what changed, against one who always asks for everything.

Histories rewrite steps, append, go back in time, and grow until the grid gets coarser; the reader
of changes must hold, bit by bit, what the other one is answered.
"""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from metrana_async.query import BlockingQueryClient
from metrana_async.server.query.service import QueryService
from metrana_async.server.query.versions import KeptVersions, first_difference, version_of
from metrana_async.wire.model import Family
from tests.unit.server.query.stored_run import EndpointTransport, StoredRun

from .naive_statistics import bucket

VALUES = st.one_of(st.floats(-1e6, 1e6, width=32), st.sampled_from([math.nan, math.inf, 0.0]))
STEPS = st.one_of(st.integers(0, 40), st.integers(0, 5000))
WRITES = st.tuples(
    st.integers(0, 2), STEPS, st.lists(VALUES, min_size=1, max_size=30), st.booleans()
)
HISTORIES = st.lists(WRITES, min_size=1, max_size=12)


class World:
    """Three series of two runs, and a client; `visible` is what each shows."""

    def __init__(self):
        self.runs = [StoredRun("a")]
        self.runs.append(StoredRun("b", store=self.runs[0].store))
        self.writers = [run.writer(run.row.name * 32) for run in self.runs]
        self.places = [(0, "loss"), (1, "loss"), (1, "lr")]
        self.series = [self.runs[run].series(metric) for run, metric in self.places]
        self.visible = [{} for _ in self.places]
        self.service = QueryService(self.runs[0].store)
        self.client = BlockingQueryClient("proj", transport=EndpointTransport(self.service))

    def write(self, which, start, values):
        run = self.places[which][0]
        rows = [(start + at, value) for at, value in enumerate(values)]
        self.runs[run].points(self.series[which], self.writers[run], rows)
        self.visible[which].update((step, float(np.float32(v))) for step, v in rows)

    def close(self):
        self.client.close()
        self.service.close()


def assert_same(left, right):
    """Two answers have the same curves, bit by bit."""
    assert (left.width, left.first_edge, left.buckets_count) == (
        right.width,
        right.first_edge,
        right.buckets_count,
    )
    assert left.lines == right.lines
    for name, column in right.columns().items():
        assert left.columns()[name].tobytes() == column.tobytes(), name


@given(HISTORIES, st.integers(1, 20), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_reader_of_changes_holds_what_a_full_answer_has(history, n, exact, windowed):
    """Whatever was written in between, seldom or often asked, held + changes = everything."""
    world = World()
    try:
        window = {"from_": 20, "to": 3000, "pad": 0.1} if windowed else {}
        ask = lambda **more: world.client.buckets(
            ["a", "b"], ["loss", "lr"], n=n, exact=exact, **window, **more
        )
        held = ask(if_version=())
        for which, start, values, is_asked in history:
            world.write(which, start, values)
            if not is_asked:
                continue
            news, full = ask(if_version=held), ask()
            assert news.versions == full.versions
            before, held = held, held.updated_by(news)
            assert_same(held, full)
            check_minimal(before, news, full)
        again = ask(if_version=held)
        if held.versions == again.versions:
            assert len(again) == 0
            assert all(line.unchanged for line in again.lines if line.found)
        assert_same(held.updated_by(again), ask())
    finally:
        world.close()


def check_minimal(before, news, full):
    """No row came that the reader had; the first that changed did."""
    for at, line in enumerate(news.lines):
        if not line.found or line.is_complete:
            continue
        old, new, sent = before.of(at), full.of(at), news.of(at)
        if line.unchanged:
            assert len(sent["x"]) == 0
            assert old["x"].tolist() == new["x"].tolist()
            continue
        same = [row(old, k) == row(new, k) for k in range(min(len(old["x"]), len(new["x"])))]
        first = same.index(False) if False in same else len(same)
        xs = [table["x"][first] for table in (old, new) if first < len(table["x"])]
        assert line.revised_from == min(xs)
        assert sent["x"].tolist() == [x for x in new["x"].tolist() if x >= line.revised_from]


def row(table, at):
    """A row's bits; answers are as narrow as their values allow, which says nothing about a row."""
    wide = {name: column.astype(np.float64) for name, column in table.items() if name != "line"}
    return [column[at].tobytes() for column in wide.values()]


@given(HISTORIES, st.integers(1, 20), st.integers(0, 4000), st.integers(0, 2000), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_padding_answers_both_sides_of_the_window(history, n, first, more, pad):
    """The rows are those of the wider window; the grid is that of the window itself."""
    world = World()
    try:
        for which, start, values, _ in history:
            world.write(which, start, values)
        last = first + more
        found = world.client.buckets("b", "loss", n=n, from_=first, to=last, pad=pad, exact=False)
        plain = world.client.buckets("b", "loss", n=n, from_=first, to=last, exact=False)
        assert found.width == plain.width
        level = found.width.bit_length() - 1
        wider = math.ceil(pad * (last - first + 1))
        points = [(x, v) for x, v in world.visible[1].items() if first - wider <= x <= last + wider]
        expected = bucket(points, level)
        rows = found.of(0)
        assert (rows["x"] >> level).tolist() == sorted(expected)
        for at, number in enumerate(sorted(expected)):
            assert rows["count"][at] == len(expected[number]["finite"])
            assert rows["x_first"][at] == expected[number]["x"][0]
            assert rows["x_last"][at] == expected[number]["x"][-1]
        if points:
            found.dense("mean")  # the padding is on the grid as well
    finally:
        world.close()


@given(HISTORIES, st.integers(1, 30), st.integers(0, 200), st.integers(0, 400))
@settings(max_examples=60, deadline=None)
def test_padding_makes_no_window_exact_that_is_not(history, n, first, more):
    """Points instead of buckets: at most 2n in the window, as without padding."""
    world = World()
    try:
        for which, start, values, _ in history:
            world.write(which, start, values)
        ask = lambda **how: world.client.buckets(
            "b", "loss", n=n, from_=first, to=first + more, **how
        )
        plain, padded = ask().lines[0], ask(pad=0.5).lines[0]
        wider = math.ceil(0.5 * (more + 1))
        inside = [x for x in world.visible[1] if first <= x <= first + more]
        around = [x for x in world.visible[1] if first - wider <= x <= first + more + wider]
        assert plain.exact == (len(inside) <= 2 * n)
        assert padded.exact == (len(inside) <= 2 * n and len(around) <= 4 * n)
        assert (plain.points_count, padded.points_count) == (len(inside), len(around))
    finally:
        world.close()


def test_an_open_side_has_no_padding():
    """Where the window ends with the points, nothing is behind it; the cut side has its share."""
    world = World()
    try:
        world.write(0, 0, [float(n) for n in range(101)])
        ask = lambda **how: world.client.buckets("a", "loss", pad=0.5, **how)
        assert ask().x.tolist() == list(range(101))
        assert ask(from_=60).x.tolist() == list(range(60 - 21, 101))
        assert ask(to=20).x.tolist() == list(range(20 + 11 + 1))
        assert ask(from_=10, to=19).x.tolist() == list(range(5, 25))
    finally:
        world.close()


def test_a_restarted_episode_is_told_from_where_it_differs():
    """Superseded points are replaced in what the reader holds, and shorter curves get shorter."""
    world = World()
    try:
        run, writer = world.runs[0], world.writers[0]
        reward = run.series("reward", Family.ENV_STEP, episodic=True)
        run.segments(reward, writer, [("e0", 0, 0, 0, 0, [1.0, 2.0, 3.0, 4.0])])
        ask = lambda **how: world.client.buckets("a", "reward", env_id="e0", **how)
        held = ask(if_version=())
        run.segments(reward, writer, [("e0", 0, 1, 0, 0, [1.0, 2.0, 5.0])], cut=("e0", 0, 1, 4))
        news = ask(if_version=held)
        assert news.lines[0].revised_from == 2
        assert news.x.tolist() == [2]
        assert held.updated_by(news)["mean"].tolist() == [1.0, 2.0, 5.0]
    finally:
        world.close()


def test_versions_need_no_memory_and_changes_do():
    """Without what was kept (a server started anew), equal is still equal, the rest complete."""
    world = World()
    try:
        world.write(0, 0, [1.0, 2.0, 3.0])
        held = world.client.buckets("a", "loss", if_version=())
        world.service.versions = KeptVersions(bytes_max=0)
        assert world.client.buckets("a", "loss", if_version=held).lines[0].unchanged
        world.write(0, 3, [4.0])
        news = world.client.buckets("a", "loss", if_version=held)
        assert news.lines[0].is_complete
        assert news.x.tolist() == [0, 1, 2, 3]
    finally:
        world.close()


def test_what_is_kept_is_bounded():
    """The questions not asked for longest go first, and four versions of one are most."""
    rows = lambda n: {"x": np.arange(1000) + n}
    kept = KeptVersions(bytes_max=40_000)
    for n in range(6):
        kept.keep(b"q", str(n), rows(n))
    assert [kept.find(b"q", {str(n)}) is not None for n in range(6)] == [False] * 2 + [True] * 4
    kept.keep(b"other", "v", rows(9))
    assert kept.find(b"q", {"5"}) is None
    assert kept.find(b"other", {"v"}) is not None


@given(st.lists(st.floats(width=32), max_size=6), st.lists(st.floats(width=32), max_size=6))
def test_the_first_difference_is_bit_by_bit(old, new):
    """NaN equals the same NaN, and 0.0 is not -0.0; a beginning differs where it ends."""
    left, right = ({"v": np.array(values, dtype=np.float64)} for values in (old, new))
    raw = [[np.float64(v).tobytes() for v in values] for values in (old, new)]
    expected = next((k for k, (a, b) in enumerate(zip(*raw, strict=False)) if a != b), None)
    assert first_difference(left, right) == (
        min(len(old), len(new)) if expected is None else expected
    )
    assert (version_of(b"q", left) == version_of(b"q", right)) == (raw[0] == raw[1])
    assert version_of(b"q", left) != version_of(b"other", left)
