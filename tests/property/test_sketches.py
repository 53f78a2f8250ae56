"""Charts of long series out of summaries say what the points say.

The oracle is the memory store, which has no summaries: there every chart is made of points. Tiles
have their real size, so a history is a few stretches of tens of thousands of points.
"""

from __future__ import annotations

import dataclasses
import sqlite3
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metrana_async.server.ingest.service import IngestService
from metrana_async.server.query import sketches
from metrana_async.server.query.curves import buckets
from metrana_async.server.query.service import QueryService
from metrana_async.server.query.statistics import Table, group_runs
from metrana_async.server.store.base import AcceptedPoints, Commit
from metrana_async.server.store.memory import MemoryStore
from metrana_async.server.store.sqlite.files import DATABASE_NAME
from metrana_async.server.store.sqlite.store import SqliteStore
from metrana_async.wire.statistics import StatisticsQuery
from tests.unit.server.query.stored_run import StoredRun

STRETCH = st.tuples(
    st.integers(0, 1),  # series
    st.integers(0, 90_000),  # first step, before or after what is there
    st.integers(1, 45_000),  # points
    st.sampled_from([1, 1, 3, 1_000]),  # stride
    st.sampled_from(["noise", "far", "odd", "none"]),
    st.booleans(),  # whether the store seals behind it
)


def values(kind: str, n: int, seed: int) -> np.ndarray:
    """Noise of 1, noise of 1 around 1e9, noise with NaN and infinities, or only NaN."""
    random = np.random.default_rng(seed)
    noise = random.standard_normal(n)
    if kind == "far":
        return noise + 1e9
    if kind == "odd":
        odd = random.choice([np.nan, np.inf, -np.inf], n)
        return np.where(random.random(n) < 0.01, odd, noise)
    return np.full(n, np.nan) if kind == "none" else noise.astype(np.float32)


def commit(run: StoredRun, series_no: int, writer_no: int, step, value) -> None:
    """Store rows of one series."""
    zeros = np.zeros(len(step), dtype=np.int64)
    column = np.full(len(step), series_no, dtype=np.int64)
    table = AcceptedPoints(run.run_no, writer_no, column, zeros, step, zeros, step * 10, value)
    run.store.commit(Commit(points=[table]))


def seal(store) -> None:
    """Seal all there is, with true cursors."""
    for unit in store.due(now_s=0.0, everything=True):
        IngestService(store).seal(unit)


def told(store, history) -> QueryService:
    """A service on a store that the history was told to."""
    run = StoredRun("run", store=store)
    writer = run.writer("a" * 32)
    series = [run.series("x"), run.series("y")]
    for seed, (which, first, n, stride, kind, is_sealed) in enumerate(history):
        step = first + stride * np.arange(n, dtype=np.int64)
        commit(run, series[which], writer, step, values(kind, n, seed))
        if is_sealed:
            seal(store)
    return QueryService(store)


def ask(**fields) -> StatisticsQuery:
    """A chart of both series."""
    return StatisticsQuery(
        **{"workspace": "default", "project": "proj", "runs": ["run"], "metrics": ["x"], **fields}
    )


def same(found: Table, expected: Table, rounded=("mean", "sum", "std")) -> None:
    """Assert equal answers, sums up to their rounding and versions not at all."""
    for name, column in expected.columns.items():
        if name in rounded:
            # Sums of 1e9s have 17 digits of the terms, not of the noise on them.
            np.testing.assert_allclose(found.columns[name], column, 1e-7, 1e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(found.columns[name], column, name)
    for facts in (found.facts, expected.facts):
        for line in facts.get("lines", ()):
            line.pop("version")
    assert found.facts == expected.facts


@pytest.mark.timeout(300)
@settings(max_examples=8, deadline=None)
@given(
    st.lists(STRETCH, min_size=1, max_size=5),
    st.tuples(st.integers(0, 200_000), st.integers(0, 200_000)),
    st.sampled_from([16, 100, 500]),
)
def test_summaries_say_what_points_say(history, window, n) -> None:
    """Overlaps, restarts, cut windows, NaN and large means: a chart is that of the memory store."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sketches, "WORTH_POINTS", 1)
        store = SqliteStore(Path(folder))
        try:
            service, oracle = told(store, history), told(MemoryStore(), history)
            low, high = sorted(window)
            for fields in (
                {},
                {"from_x": low, "to_x": high},
                {"from_x": low, "pad": 0.1},
                {"exact": False},
            ):
                query = ask(buckets=n, metrics=["x", "y"], **fields)
                same(buckets(service, query), buckets(oracle, query))
            for metric in ("x", "y"):
                query = ask(buckets=n, metrics=[metric], to_x=high)
                answers = (outcome(group_runs, of, query) for of in (service, oracle))
                same(*answers, rounded=("mean", "min", "max"))  # all of them of runs' means
        finally:
            store.close()


def outcome(read, service, query) -> Table:
    """An answer; an empty one where there is nothing."""
    return read(service, dataclasses.replace(query, functions=["mean", "min", "max"]))


def test_a_chart_of_whole_tiles_reads_no_points(tmp_path: Path) -> None:
    """With the values of every tile destroyed, a chart of a sealed series is as it was."""
    store = SqliteStore(tmp_path)
    history = [(0, 0, 200_000, 1, "noise", True)]
    service, query = told(store, history), ask(buckets=100)
    before = buckets(service, query)
    assert before.facts["lines"][0]["points_count"] == 200_000
    assert not before.facts["lines"][0]["exact"]
    with sqlite3.connect(tmp_path / DATABASE_NAME) as connection:
        connection.execute("UPDATE tile SET value = x'00'")
    connection.close()
    same(buckets(service, query), before)
    service.close()
    store.close()


def test_what_was_logged_again_is_read_point_by_point(tmp_path: Path) -> None:
    """One value replaced within summarised steps shows in its bucket; nothing counts twice."""
    store = SqliteStore(tmp_path)
    service = told(store, [(0, 0, 200_000, 1, "noise", True), (0, 77_777, 1, 1, "far", False)])
    for _ in range(2):
        answer = buckets(service, ask(buckets=100))
        assert answer.columns["max"].max() > 1e8
        assert answer.columns["count"].sum() == 200_000
        seal(store)
    service.close()
    store.close()
