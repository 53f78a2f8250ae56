"""Rules of STANDARD and EPISODE rows, as pure functions."""

from __future__ import annotations

import numpy as np
import pytest

from metrana_async.server.ingest.rules.points import (
    PointCursors,
    has_no_numbers_left,
    judge_ordered,
)
from metrana_async.server.ingest.rules.verdict import Writers
from metrana_async.wire.acks import Outcome
from tests.unit.server.ingest.helpers import i64

VIEW = Writers({1: (10, "a"), 2: (20, "b"), 3: (30, "c")}, lambda w: w != 3)


def nothing_visible(key, steps):
    del key, steps
    return i64([]), i64([])


def judge(cursors, keys, steps, *, writer=1, visible=nothing_visible):
    return judge_ordered(cursors, i64(keys), i64(steps), writer, VIEW, visible=visible)


@pytest.fixture
def cursors() -> PointCursors:
    made = PointCursors()
    made.reserve(8)
    return made


def test_automatic_rows_continue_behind_the_highest(cursors) -> None:
    """An automatic row gets the highest step so far plus one, an explicit one raises it."""
    verdict = judge(cursors, [0] * 6, [-1, -1, 10, -1, 3, -1])
    assert verdict.step.tolist() == [0, 1, 10, 11, 3, 12]
    assert verdict.is_stored.all()
    assert cursors.max_step[0] == 12


def test_keys_do_not_disturb_each_other(cursors) -> None:
    """Interleaved keys are numbered each on its own."""
    verdict = judge(cursors, [2, 0, 2, 1, 0, 2], [-1, 5, -1, -1, -1, 9])
    assert verdict.step.tolist() == [0, 5, 1, 0, 6, 9]


def test_numbers_near_the_largest_step_do_not_overflow(cursors) -> None:
    """Group offsets that would leave int64 fall back to ranks."""
    top = 2**63 - 1
    verdict = judge(cursors, [0, 1, 0, 1], [top - 2, 3, -1, -1])
    assert verdict.step.tolist() == [top - 2, 3, top - 1, 4]


@pytest.mark.parametrize(
    ("steps", "is_out"),
    [
        ([2**63 - 1, 4, -1], False),
        ([-1, 2**63 - 1], False),
        ([2**63 - 1, -1], True),
        ([2**63 - 3, -1, -1], False),
        ([2**63 - 3, -1, -1, -1], True),
    ],
)
def test_numbers_run_out_axis_by_axis(steps, is_out) -> None:
    """Only automatic rows behind a step count from it, and only those of its own key."""
    keys = [0, 1, 1] if steps[1] == 4 else [0] * len(steps)
    assert has_no_numbers_left(i64(keys), i64(steps), i64([-1] * len(steps))) is is_out


def test_numbers_run_out_behind_what_is_stored() -> None:
    """The highest stored step counts as a step before the first row."""
    top = 2**63 - 1
    assert not has_no_numbers_left(i64([0, 0]), i64([-1, -1]), i64([top - 2, top - 2]))
    assert has_no_numbers_left(i64([0, 0]), i64([-1, -1]), i64([top - 1, top - 1]))


def test_a_repeated_step_replaces_and_warns_once_with_its_count(cursors) -> None:
    """Within one table the later row of a step wins; both are stored, one is replaced."""
    verdict = judge(cursors, [0, 0, 0], [3, 3, 3])
    assert verdict.counts == {Outcome.STORED: 3, Outcome.REPLACED: 2}
    ((telling),) = verdict.tellings
    assert (telling.kind, telling.recipient, telling.points_count) == ("DuplicateStep", 1, 2)


def test_a_step_of_a_newer_writer_is_not_replaced(cursors) -> None:
    """What a newer incarnation wrote stays; free steps are filled."""
    judge(cursors, [0, 0], [4, 6], writer=2)
    verdict = judge(cursors, [0, 0], [4, 5], writer=1, visible=lambda _k, _s: (i64([4]), i64([2])))
    assert verdict.is_stored.tolist() == [False, True]
    assert verdict.counts == {Outcome.STORED: 1, Outcome.SUPERSEDED: 1}


def test_an_older_writers_step_is_replaced_without_a_warning(cursors) -> None:
    """A resume rewrites the overlap silently, and it is counted."""
    judge(cursors, [0, 0], [4, 6], writer=1)
    verdict = judge(cursors, [0, 0], [4, 5], writer=2, visible=lambda _k, _s: (i64([4]), i64([1])))
    assert verdict.is_stored.all()
    assert verdict.counts == {Outcome.STORED: 2, Outcome.REPLACED: 1}
    assert [t.kind for t in verdict.tellings] == ["SecondWriter", "SecondWriter"]


def test_automatic_rows_of_a_dead_writer_behind_its_successor_are_late() -> None:
    """They get the next numbers, and are counted."""
    view = Writers({1: (10, "a"), 2: (20, "b")}, lambda w: w == 2)
    cursors = PointCursors()
    cursors.reserve(1)
    judge_ordered(cursors, i64([0]), i64([-1]), 2, view, visible=nothing_visible)
    verdict = judge_ordered(cursors, i64([0, 0]), i64([-1, -1]), 1, view, visible=nothing_visible)
    assert verdict.step.tolist() == [1, 2]
    assert verdict.counts == {Outcome.STORED: 2, Outcome.LATE: 2}


def test_two_live_writers_are_told_once_per_series(cursors) -> None:
    """The second table of either tells nobody again."""
    judge(cursors, [0], [-1], writer=1)
    told = judge(cursors, [0], [-1], writer=2).tellings
    assert {(t.recipient, t.other) for t in told} == {(1, 2), (2, 1)}
    assert judge(cursors, [0], [-1], writer=1).tellings == []


def test_random_tables_match_a_loop() -> None:
    """Numbers of random tables are those of a row-by-row loop."""
    rng = np.random.default_rng(5)
    for _ in range(300):
        n, keys_count = int(rng.integers(1, 40)), int(rng.integers(1, 6))
        keys = rng.integers(0, keys_count, n)
        steps = np.where(rng.random(n) < 0.5, -1, rng.integers(0, 12, n))
        cursors = PointCursors()
        cursors.reserve(8)
        first = judge(cursors, keys, steps)
        highest: dict[int, int] = {}
        for key, step, given in zip(keys.tolist(), steps.tolist(), first.step, strict=True):
            expected = highest.get(key, -1) + 1 if step == -1 else step
            highest[key] = max(highest.get(key, -1), expected)
            assert given == expected
        assert {k: cursors.max_step[k] for k in highest} == highest
