"""Two-stage statistics against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrana_async.errors import UnsupportedAggregationError
from metrana_async.server.query.across import check_across, reduce_across, reduce_each
from metrana_async.server.query.aggregate import (
    FUNCTIONS,
    aggregate_groups,
    fold,
    group,
    merge,
    quantile_linear,
)

from .naive_statistics import close, reduce, two_stages

VALUES = st.one_of(
    st.floats(-1e6, 1e6, width=32), st.sampled_from([math.nan, math.inf, -math.inf, 1e9])
)
ROWS = st.lists(
    st.tuples(st.one_of(st.integers(0, 4), st.just(2**63 - 1)), st.integers(0, 5), VALUES),
    max_size=60,
)
ACROSS = ("count", "mean", "std", "min", "max", "quantile:0.1", "quantile:0.5", "quantile:1")


def columns(rows):
    return (
        np.array([row[0] for row in rows], dtype=np.int64),
        np.array([row[1] for row in rows], dtype=np.int64),
        np.array([row[2] for row in rows], dtype=np.float64),
    )


@given(ROWS, st.sampled_from((*FUNCTIONS, "quantile:0.25")))
def test_two_stages_match_plain_loops(rows, first):
    """Each environment first, then across them; NaN skipped at both stages."""
    made = reduce_across(reduce_each(*columns(rows), first), np.zeros(6, dtype=np.int64), ACROSS)
    expected = two_stages(rows, first, ACROSS)
    assert made.x.tolist() == sorted(expected)
    for at, x in enumerate(made.x.tolist()):
        here = [row for row in rows if row[0] == x]
        assert made.points_count[at] == len(here)
        assert made.nan_count[at] == sum(math.isnan(row[2]) for row in here)
        assert made.members_count[at] == len({row[1] for row in here})
        assert made.count[at] == expected[x]["count"]
        for function in ACROSS:
            assert close(made.values[function][at], expected[x][function]), function


@given(ROWS)
def test_groups_of_environments_are_apart(rows):
    """Each group's rows are those of its members alone."""
    group_of = np.array([0, 1, 0, 2, 1, 0])
    made = reduce_across(reduce_each(*columns(rows), "mean"), group_of, ["mean", "std"])
    for wanted in range(3):
        mine = [row for row in rows if group_of[row[1]] == wanted]
        expected = two_stages(mine, "mean", ["mean", "std"])
        at = np.flatnonzero(made.group == wanted)
        assert made.x[at].tolist() == sorted(expected)
        for place, x in zip(at, made.x[at].tolist(), strict=True):
            assert close(made.values["mean"][place], expected[x]["mean"])
            assert close(made.values["std"][place], expected[x]["std"])


@given(st.lists(st.lists(VALUES, min_size=1, max_size=7), min_size=1, max_size=6))
def test_every_function_of_every_group(groups):
    """aggregate_groups is aggregate, group by group, quantiles too."""
    value = np.array([v for part in groups for v in part])
    starts = np.cumsum([0, *(len(part) for part in groups[:-1])])
    names = (*FUNCTIONS, "quantile:0", "quantile:0.3", "quantile:1")
    made = aggregate_groups(value, starts, names)
    for at, part in enumerate(groups):
        for name in names:
            assert close(made[name][at], reduce(part, name)), name
        if (finite := [v for v in part if math.isfinite(v)]) == part:
            assert made["quantile:0.3"][at] == quantile_linear(np.array(finite), 0.3)


@given(st.lists(st.lists(VALUES, min_size=1, max_size=5), min_size=1, max_size=8))
def test_folding_is_merging_one_after_the_other(parts):
    """Any number of summaries folded at once are what merging them in turn gives."""
    value = np.array([v for part in parts for v in part])
    starts = np.cumsum([0, *(len(part) for part in parts[:-1])])
    partials = group(value, starts)
    one_by_one = partials[0:1]
    for at in range(1, len(parts)):
        one_by_one = merge(one_by_one, partials[at : at + 1])
    folded = fold(partials, np.array([0]))
    for name in folded.__dataclass_fields__:
        left, right = getattr(folded, name)[0], getattr(one_by_one, name)[0]
        assert close(float(left), float(right), relative=1e-7), name


@pytest.mark.parametrize("function", ["first", "last", "sum", "average"])
def test_what_has_no_order_has_no_first(function):
    """Across environments there is no first and no last; the refusal names what there is."""
    with pytest.raises(UnsupportedAggregationError, match="count, mean, std, min, max"):
        check_across(function)
