"""Aggregations against plain Python on friendly and hostile columns."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrana_async.errors import InvalidQueryError, UnsupportedAggregationError
from metrana_async.server.query import aggregate as module
from metrana_async.server.query.aggregate import (
    FUNCTIONS,
    aggregate,
    check_function,
    evaluate,
    group,
    merge,
    quantile_of,
    summarise,
)

FLOATS = st.floats(-1e12, 1e12) | st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1e300])


def by_hand(values, function):
    """The definition, one value at a time."""
    kept = [v for v in values if not math.isnan(v)]
    if function == "count":
        return float(len(kept))
    if function == "sum":
        if math.inf in kept and -math.inf in kept:
            return math.nan
        return math.fsum(kept)
    if not kept:
        return math.nan
    if function == "mean":
        if any(map(math.isinf, kept)):
            return by_hand(values, "sum")
        return float(statistics.fmean(kept))
    if function == "std":
        return math.nan if any(map(math.isinf, kept)) else statistics.pstdev(kept)
    return {"min": min(kept), "max": max(kept), "first": kept[0], "last": kept[-1]}[function]


def close(left, right, scale):
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) and math.isnan(right)
    # Squares of deviations below 1e-160 are nothing in float64; documented.
    return left == right or abs(left - right) <= 1e-12 * scale + 1e-150


@given(st.lists(FLOATS, max_size=40), st.sampled_from(FUNCTIONS))
def test_functions_match_their_definitions(values, function):
    """Every function, over NaN, infinities, huge and no values, is what its definition says."""
    got = aggregate(np.array(values, dtype=np.float64), function)
    scale = max([abs(v) for v in values if math.isfinite(v)], default=1) * max(len(values), 1)
    if function == "std" and scale >= 1e150:
        return  # beyond what squares can hold; documented
    # A deviation is only as exact as the largest value allows.
    assert close(got, by_hand(values, function), scale), (got, by_hand(values, function))


@given(st.lists(st.lists(FLOATS.filter(lambda v: abs(v) != 1e300), max_size=8), max_size=12))
def test_merged_parts_equal_the_whole(parts):
    """Summaries of pieces, merged in order, give the numbers of the whole."""
    whole = [v for part in parts for v in part]
    merged = summarise(np.empty(0))
    for part in parts:
        merged = merge(merged, summarise(np.array(part, dtype=np.float64)))
    scale = max([abs(v) for v in whole if math.isfinite(v)], default=1) * max(len(whole), 1)
    for function in FUNCTIONS:
        got = float(evaluate(merged, function)[0])
        assert close(got, by_hand(whole, function), scale), function
    assert merged.nan_count.tolist() == [sum(map(math.isnan, whole))]


@given(st.lists(st.lists(FLOATS, min_size=1, max_size=6), min_size=1, max_size=10))
def test_groups_equal_each_group_alone(groups):
    """Many groups at once give what each gives alone."""
    starts = np.cumsum([0, *map(len, groups)])[:-1]
    together = group(np.array([v for g in groups for v in g], dtype=np.float64), starts)
    for at, values in enumerate(groups):
        alone = summarise(np.array(values, dtype=np.float64))
        for function in FUNCTIONS:
            left, right = evaluate(together, function)[at], evaluate(alone, function)[0]
            assert math.isclose(left, right, rel_tol=1e-9) or repr(left) == repr(right), function


def test_a_standard_deviation_of_one_survives_a_mean_of_1e9():
    """Deviations, not squares: 1e9 ± 1 has std 1 to twelve digits, also over many chunks."""
    value = np.tile([1e9 - 1, 1e9 + 1], 200_000)
    assert len(value) > 3 * module._CHUNK_ROWS
    assert aggregate(value, "std") == pytest.approx(1.0, rel=1e-12)
    assert aggregate(value, "mean") == 1e9


def test_a_constant_column_has_its_own_mean_and_no_deviation():
    """A million times 0.1 has mean 0.1 and std 0, exactly."""
    value = np.full(1_000_000, 0.1)
    assert aggregate(value, "mean") == 0.1
    assert aggregate(value, "std") == 0.0


def test_float32_is_summed_in_double():
    """Ten million float32 ones are ten million."""
    assert aggregate(np.ones(10_000_000, dtype=np.float32), "sum") == 1e7


def test_the_mean_of_huge_numbers_does_not_overflow():
    """The mean of values near the largest double is finite."""
    value = np.array([1.7e308, 1.7e308, 1.6e308, -1.7e308] * 3)
    assert aggregate(value, "mean") == pytest.approx(0.825e308)


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60),
    st.floats(0, 1),
)
def test_quantiles_are_linear_and_exact(values, quantile):
    """A quantile is numpy's linear one."""
    got = aggregate(np.array(values), f"quantile:{quantile!r}")
    assert got == pytest.approx(float(np.quantile(values, quantile)), rel=1e-9, abs=1e-9)


def test_quantiles_skip_nan_and_let_infinities_take_part():
    """NaN does not shift the ranks; a quantile beside an infinity is that infinity."""
    value = np.array([1.0, math.nan, 3.0])
    assert aggregate(value, "median") == 2.0
    assert aggregate(np.array([math.inf, math.inf]), "p50") == math.inf
    assert aggregate(np.array([-math.inf, 0.0]), "p25") == -math.inf
    assert aggregate(np.array([-math.inf, 5.0, math.inf]), "p50") == 5.0
    assert math.isnan(aggregate(np.array([-math.inf, math.inf]), "median"))
    assert math.isnan(aggregate(np.array([math.nan]), "median"))
    assert math.isnan(aggregate(np.empty(0), "p99.9"))


def test_quantile_names():
    """median, pN and quantile:q are quantiles; other names are not."""
    assert quantile_of("median") == 0.5
    assert quantile_of("p99.9") == pytest.approx(0.999)
    assert quantile_of("quantile:0.25") == 0.25
    assert quantile_of("mean") is None
    for bad in ("p101", "quantile:1.5", "quantile:x", "quantile:nan"):
        with pytest.raises(InvalidQueryError):
            quantile_of(bad)


def test_a_merge_series_offers_four_functions_and_points_to_the_rl_path():
    """The refusal names min, max, first, last and log_rl_episode with explicit episodes."""
    for function in ("min", "max", "first", "last"):
        check_function(function, is_merge=True)
    for function in ("mean", "sum", "std", "count", "median", "nonsense"):
        with pytest.raises(UnsupportedAggregationError) as caught:
            check_function(function, is_merge=True)
        for word in ("min", "max", "first", "last", "log_rl_episode", "episode", function):
            assert word in str(caught.value)


def test_an_unknown_function_is_refused_with_those_offered():
    """The message lists what is offered."""
    with pytest.raises(UnsupportedAggregationError, match=r"'average'.*mean.*quantile"):
        check_function("average", is_merge=False)
