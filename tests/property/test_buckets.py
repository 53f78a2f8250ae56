"""The bucket grid against plain loops: no extreme lost, nothing re-flows, pieces add up."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from metrana_async.server.query import buckets as grid
from metrana_async.server.query.buckets import (
    Treatment,
    coarsen,
    concatenate,
    join,
    level_for,
    points_as_rows,
    summarise,
    value_columns,
)

from .naive_statistics import bucket, close, reduce

X = st.one_of(st.integers(0, 60), st.integers(-300, 300), st.integers(2**62, 2**62 + 50))
VALUES = st.one_of(
    st.floats(-1e6, 1e6, width=32), st.sampled_from([math.nan, math.inf, -math.inf, 0.0])
)
POINTS = st.lists(st.tuples(X, VALUES), min_size=1, max_size=60).map(
    lambda points: sorted(points, key=lambda p: p[0])
)
LEVELS = st.integers(0, 9)


def columns(points):
    return (
        np.array([x for x, _ in points], dtype=np.int64),
        np.array([value for _, value in points], dtype=np.float64),
    )


def assert_same(made, expected):
    """Every row of `made` is what the plain loop found."""
    values = value_columns(made, grid.FUNCTIONS)
    assert made.bucket.tolist() == sorted(expected)
    for at, number in enumerate(made.bucket.tolist()):
        found = expected[number]
        partials = made.partials
        assert (made.x_first[at], made.x_last[at]) == (found["x"][0], found["x"][-1])
        assert partials.finite_count[at] == len(found["finite"])
        counts = partials.nan_count, partials.positive_inf_count, partials.negative_inf_count
        assert tuple(c[at] for c in counts) == (found["nan"], found["+"], found["-"])
        for function in grid.FUNCTIONS:
            assert close(values[function][at], reduce(found["finite"], function)), function


@given(POINTS, LEVELS)
def test_buckets_match_plain_loops(points, level):
    """count, mean, min, max, first, last, sum, std and non-finite counts of every bucket."""
    assert_same(summarise(*columns(points), level), bucket(points, level))


@given(POINTS, LEVELS, st.integers(0, 60))
def test_pieces_join_to_the_whole(points, level, cut):
    """Blocks that were summarised apart, and met in the middle of a bucket, give the same rows."""
    parts = [points[:cut], points[cut:]]
    made = [summarise(*columns(part), level) for part in parts if part]
    assert_same(join(made), bucket(points, level))


@given(POINTS, LEVELS, LEVELS)
def test_levels_nest_exactly(points, fine, coarser_by):
    """A finer grid coarsened is the coarser grid: what is kept at one level serves all above."""
    made = coarsen(summarise(*columns(points), fine), fine + coarser_by)
    assert_same(made, bucket(points, fine + coarser_by))


@given(POINTS, st.integers(1, 40))
def test_there_are_between_n_and_2n_buckets(points, n):
    """Never more than twice what was asked for; more than that, where there are so many numbers."""
    first, last = points[0][0], points[-1][0]
    level = level_for(first, last, n)
    count = (last >> level) - (first >> level) + 1
    assert count <= 2 * n
    assert level == 0 or count > n


@given(POINTS, POINTS, st.integers(1, 40))
def test_a_growing_series_keeps_its_buckets(points, more, n):
    """Until the width doubles, buckets before the newest points do not change by a single bit."""
    start = points[-1][0] + 1
    grown = [*points, *((start + abs(x) % 1000, value) for x, value in more)]
    grown.sort(key=lambda p: p[0])
    before = level_for(points[0][0], points[-1][0], n)
    after = level_for(grown[0][0], grown[-1][0], n)
    assert after >= before
    old, new = summarise(*columns(points), after), summarise(*columns(grown), after)
    kept = len(old) - 1  # the last bucket may have got more points
    assert old.bucket[:kept].tolist() == new.bucket[:kept].tolist()
    for function in grid.FUNCTIONS:
        left = value_columns(old, [function])[function][:kept]
        right = value_columns(new, [function])[function][:kept]
        assert left.tobytes() == right.tobytes(), function


@given(st.data(), st.integers(1, 300), st.integers(1, 64))
def test_a_planted_spike_is_in_every_grid(data, n_points, n):
    """One point above and one below the noise are the max and the min of their own buckets."""
    value = np.zeros(n_points)
    up, down = data.draw(st.lists(st.integers(0, n_points - 1), min_size=2, max_size=2))
    value[up], value[down] = 1e6, -1e6
    x = np.arange(n_points) * 3
    level = level_for(0, int(x[-1]), n)
    made = summarise(x, value, level)
    found = value_columns(made, ["min", "max"])
    at = made.bucket.tolist()
    assert found["min"][at.index(int(x[down]) >> level)] == -1e6
    if up != down:
        assert found["max"][at.index(int(x[up]) >> level)] == 1e6
    assert (made.x_first[0], made.x_last[-1]) == (x[0], x[-1])


@given(st.integers(0, 2**32 - 1), LEVELS, st.integers(1, 4))
def test_a_deviation_survives_a_mean_of_a_billion(seed, level, pieces):
    """A std is right to 1e-6 at a mean of 1e9, however the points were summarised."""
    rng = np.random.default_rng(seed)
    value = 1e9 + rng.normal(size=257)
    x = np.arange(257)
    parts = np.array_split(np.arange(257), pieces)
    made = join([summarise(x[rows], value[rows], 0) for rows in parts])
    made = coarsen(made, level)
    found = value_columns(made, ["std", "mean"])
    for at, number in enumerate(made.bucket.tolist()):
        part = value[(x >> level) == number].tolist()
        expected = reduce(part, "std")
        assert abs(found["std"][at] - expected) <= 1e-6 * max(expected, 1e-12)
        assert abs(found["mean"][at] - reduce(part, "mean")) <= 1e-6


@given(st.lists(st.tuples(st.integers(0, 3), POINTS), min_size=1, max_size=4), LEVELS)
def test_lines_never_mix(lines, level):
    """Lines that share x keep rows of their own."""
    lines = dict(sorted(lines, key=lambda item: item[0]))
    line = np.concatenate([np.full(len(p), number) for number, p in lines.items()])
    x, value = (np.concatenate(c) for c in zip(*map(columns, lines.values()), strict=True))
    made = summarise(x, value, level, line=line)
    alone = concatenate([summarise(*columns(points), level) for points in lines.values()])
    assert made.bucket.tolist() == alone.bucket.tolist()
    assert made.partials.total.tobytes() == alone.partials.total.tobytes()
    assert made.line.tolist() == [
        number for number, points in lines.items() for _ in bucket(points, level)
    ]


@given(POINTS, LEVELS)
def test_infinities_take_part_where_asked_for(points, level):
    """Under AGGREGATE a bucket's numbers are those of its values with the infinities."""
    x, value = columns(points)
    made = summarise(x, value, level, treatment=Treatment.AGGREGATE)
    for function in grid.FUNCTIONS:
        found = value_columns(made, [function], treatment=Treatment.AGGREGATE)[function]
        for at, number in enumerate(made.bucket.tolist()):
            expected = reduce(value[(x >> level) == number].tolist(), function)
            assert close(found[at], expected), function


@given(POINTS)
def test_points_as_rows_are_the_points(points):
    """Every point at its own x with its own value, NaN and infinities too."""
    x, value = columns(points)
    made = points_as_rows(x, value)
    assert made.x.tolist() == x.tolist()
    for name in ("min", "max", "first", "last"):
        assert np.array_equal(getattr(made.partials, name), value, equal_nan=True)


def test_blocks_beyond_one_block_are_folded():
    """A column longer than a block gives the same numbers as a whole."""
    n = (1 << 18) + 12345
    value = np.sin(np.arange(n)).astype(np.float32)
    value[200_000] = 50.0
    made = summarise(np.arange(n), value, 9)
    found = value_columns(made, ["mean", "max", "std"])
    assert made.partials.finite_count.sum() == n
    assert found["max"].max() == 50.0
    for at in (0, 300, 512, len(made) - 1):
        part = value[at << 9 : (at + 1) << 9].astype(np.float64)
        assert math.isclose(found["mean"][at], part.mean(), rel_tol=1e-9, abs_tol=1e-12)
        assert math.isclose(found["std"][at], part.std(), rel_tol=1e-9)


def test_nothing_is_no_bucket():
    """No points, no rows, at any level."""
    none = np.empty(0, dtype=np.int64)
    made = summarise(none, np.empty(0), 3)
    assert len(coarsen(made, 5)) == len(points_as_rows(none, np.empty(0))) == 0
