"""Resolving rows in numpy against a slow model that looks at one row at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrana_async.server.query.resolve import (
    Generations,
    generation_rows,
    latest_rows,
    merge_rows,
    merge_steps,
)

STEPS = st.one_of(st.integers(0, 4), st.integers(2**63 - 3, 2**63 - 1))
SMALL = st.integers(0, 3)
VALUES = st.sampled_from([1.0, 2.0, -3.5, 0.0, math.nan, math.inf, -math.inf])


def ints(rows, at):
    return np.array([row[at] for row in rows], dtype=np.int64)


def same(left, right):
    return [repr(float(x)) for x in left] == [repr(float(x)) for x in right]


@given(st.lists(st.tuples(SMALL, STEPS), max_size=30))
def test_the_last_arrival_of_a_key_is_the_one_that_shows(rows):
    """Of rows at one (env, step) the newest is kept, and rows come ordered by key."""
    visible = {key: arrival for arrival, key in enumerate(rows)}
    expected = [visible[key] for key in sorted(visible)]

    index = latest_rows(ints(rows, 0), ints(rows, 1))

    assert np.arange(len(rows))[index].tolist() == expected


@given(st.lists(STEPS, unique=True, max_size=30).map(sorted))
def test_rows_in_order_are_not_copied(steps):
    """Strictly increasing steps give a slice, so columns stay views."""
    assert latest_rows(np.array(steps, dtype=np.int64)) == slice(None)


def merged_by_hand(rows):
    """Per step: (count, nan count, min, max, first, last, time of last), rows one at a time."""
    steps = {}
    for arrival, (step, time_ms, writer, value) in enumerate(rows):
        steps.setdefault(step, []).append((time_ms, writer, arrival, value))
    answer = []
    for step in sorted(steps):
        points = sorted(steps[step], key=lambda p: p[:3])
        low = high = math.nan
        nan_count = 0
        for _, _, _, value in points:
            if math.isnan(value):
                nan_count += 1
                continue
            low = value if math.isnan(low) or value < low else low
            high = value if math.isnan(high) or value > high else high
        first, last = points[0][3], points[-1][3]
        answer.append((step, len(points), nan_count, low, high, first, last, points[-1][0]))
    return answer


@given(st.lists(st.tuples(STEPS, SMALL, SMALL, VALUES), max_size=30))
def test_merged_steps_match_the_slow_model(rows):
    """count, min, max, first and last of every step are those of a plain loop."""
    value = np.array([row[3] for row in rows], dtype=np.float32)

    merged = merge_steps(ints(rows, 0), ints(rows, 1), value, ints(rows, 2))

    expected = merged_by_hand(rows)
    assert merged.step.tolist() == [row[0] for row in expected]
    assert merged.count.tolist() == [row[1] for row in expected]
    assert merged.nan_count.tolist() == [row[2] for row in expected]
    assert same(merged.min, [row[3] for row in expected])
    assert same(merged.max, [row[4] for row in expected])
    assert same(merged.first, [row[5] for row in expected])
    assert same(merged.last, [row[6] for row in expected])
    assert merged.time_ms.tolist() == [row[7] for row in expected]


@pytest.mark.fault_row("G9")
@given(st.lists(st.tuples(STEPS, SMALL, SMALL, VALUES), max_size=20), st.randoms())
def test_merging_does_not_depend_on_the_order_of_arrival(rows, random):
    """Rows that differ in time or writer merge to the same steps in any order."""
    rows = list({row[:3]: row for row in rows}.values())
    shuffled = random.sample(rows, len(rows))

    answers = [
        merge_steps(
            ints(part, 0),
            ints(part, 1),
            np.array([r[3] for r in part], dtype=np.float64),
            ints(part, 2),
        )
        for part in (rows, shuffled)
    ]

    for name in answers[0].__dataclass_fields__:
        assert same(getattr(answers[0], name), getattr(answers[1], name))


@given(st.lists(st.tuples(STEPS, SMALL, SMALL), max_size=20))
def test_merge_rows_keeps_every_row(rows):
    """No row of a merge series is dropped; they come by step, time, writer, arrival."""
    index = merge_rows(ints(rows, 0), ints(rows, 1), ints(rows, 2))

    expected = sorted(range(len(rows)), key=lambda at: (*rows[at], at))
    assert np.arange(len(rows))[index].tolist() == expected


EPISODES = st.one_of(st.just(-1), STEPS)


@given(
    st.lists(st.tuples(SMALL, EPISODES, st.integers(0, 5), SMALL), max_size=40),
    st.lists(st.tuples(SMALL, EPISODES, st.integers(1, 3)), max_size=8),
    st.one_of(st.none(), SMALL),
)
def test_only_the_wanted_generation_of_an_episode_shows(rows, cuts, generation):
    """Current is the highest generation among an episode's cuts, 0 without any."""
    current = {}
    for env, episode, of_cut in cuts:
        current[env, episode] = max(of_cut, current.get((env, episode), 0))
    visible = {}
    for arrival, (env, episode, step, of_row) in enumerate(rows):
        wanted = current.get((env, episode), 0) if generation is None else generation
        if of_row == wanted:
            visible[env, episode, step] = arrival
    expected = [visible[key] for key in sorted(visible)]

    env_no, episode, step, of_row = (ints(rows, at) for at in range(4))
    generations = Generations.from_cuts(*(ints(cuts, at) for at in range(3)))
    wanted = generations.of(env_no, episode) if generation is None else generation
    index = generation_rows(env_no, episode, step, of_row, wanted)

    assert np.arange(len(rows))[index].tolist() == expected
