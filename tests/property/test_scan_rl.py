"""RL series in batches: together what is read at once, each bounded, in memory and sealed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metrana_async.errors import InvalidQueryError, NotFoundError
from metrana_async.query import BlockingQueryClient
from metrana_async.server.ingest.service import IngestService
from metrana_async.server.query.service import QueryService
from metrana_async.server.store.memory import MemoryStore
from metrana_async.server.store.sqlite.store import SqliteStore
from metrana_async.wire.model import Family
from tests.unit.server.query.stored_run import EndpointTransport, StoredRun

SEGMENTS = st.lists(
    st.tuples(st.sampled_from(["e0", "e1", "e2", "e3"]), st.integers(0, 60), st.integers(1, 30)),
    max_size=40,
    unique_by=lambda row: row[:2],
)


class World:
    """A run with an episodic series, one without episodes, and returns."""

    def __init__(self, store, segments, is_sealed):
        self.store = store
        run = self.run = StoredRun("a", store=store)
        writer = run.writer("a" * 32)
        self.series = [
            run.series("reward", Family.ENV_STEP, episodic=True),
            run.series("flat", Family.ENV_STEP, episodic=False),
            run.series("ret", Family.EPISODE),
        ]
        flat = {}
        for at, (env, episode, length) in enumerate(segments):
            values = list(np.arange(length) + 100.0 * at)
            run.segments(self.series[0], writer, [(env, episode, 0, at, 0, values)])
            start = flat.get(env, 0)
            run.segments(self.series[1], writer, [(env, -1, 0, at, start, values)])
            flat[env] = start + length
            run.episodes(self.series[2], writer, [(env, episode, at, float(at))])
            if at == len(segments) // 2 and is_sealed:
                self.seal()
        self.service = QueryService(store)
        self.client = BlockingQueryClient("proj", transport=EndpointTransport(self.service))

    def seal(self):
        for unit in self.store.due(now_s=0.0, everything=True):
            IngestService(self.store).seal(unit)

    def close(self):
        self.client.close()
        self.service.close()
        self.store.close()


def joined(batches, name):
    return [value for batch in batches for value in batch.columns()[name].tolist()]


def rows(table, batches):
    """The rows of batches in the order of the whole table."""
    names = list(table.columns())
    found = list(zip(*(joined(batches, name) for name in names), strict=True))
    whole = list(zip(*(table.columns()[name].tolist() for name in names), strict=True))
    return found, whole


@given(SEGMENTS, st.integers(1, 50), st.booleans(), st.one_of(st.none(), st.integers(0, 40)))
@settings(max_examples=40, deadline=None)
def test_batches_are_the_series(segments, batch_rows, is_sealed, low):
    """Every row once, in order; whole episodes, none empty, not much more than was asked for."""
    with tempfile.TemporaryDirectory() as folder:
        for store in (MemoryStore(), SqliteStore(Path(folder) / "store")):
            world = World(store, segments, is_sealed)
            try:
                check(world, segments, batch_rows, None if low is None else (low, low + 15))
            finally:
                world.close()


def check(world, segments, batch_rows, bounds):
    client = world.client
    options = {"batch_rows": batch_rows, "episode_range": bounds}
    for metric in ("reward", "flat"):
        batches = list(client.scan_env_steps("a", metric, **options))
        found, whole = rows(client.env_series_all("a", metric, episode_range=bounds), batches)
        assert found == whole
        assert all(len(batch) for batch in batches)
        assert all(len(batch) >= batch_rows for batch in batches[:-1])
        units = [set(zip(b.env.tolist(), b.episode.tolist(), strict=True)) for b in batches]
        assert sum(map(len, units)) == len(set().union(*units))  # no episode in two batches
    batches = list(client.scan_episodes("a", "ret", **options))
    found, whole = rows(client.episode_series_all("a", "ret", episode_range=bounds), batches)
    assert sorted(found) == sorted(whole)
    assert all(len(batch) >= batch_rows for batch in batches[:-1])
    for batch in batches:
        assert len(batch)
        order = list(zip(batch.env.tolist(), batch.episode.tolist(), strict=True))
        assert order == sorted(order)
    ends = [batch.episode.max() for batch in batches]
    assert all(b.episode.min() > end for b, end in zip(batches[1:], ends, strict=False))


def test_a_page_does_not_hold_much_more_than_it_should():
    """Long series: a batch is at most a few times what was asked for, and reads are few."""
    world = World(MemoryStore(), [], False)
    try:
        writer = world.run.writer("b" * 32)
        for env in range(8):
            world.run.segments(
                world.series[0], writer, [(f"e{env}", k, 0, k, 0, [1.0] * 20) for k in range(500)]
            )
            world.run.episodes(
                world.series[2], writer, [(f"e{env}", k, k, 1.0) for k in range(500)]
            )
        batches = list(world.client.scan_env_steps("a", "reward", batch_rows=1000))
        assert sum(map(len, batches)) == 80_000
        assert max(map(len, batches)) <= 1020
        batches = list(world.client.scan_episodes("a", "ret", batch_rows=1000))
        assert sum(map(len, batches)) == 4000
        assert max(map(len, batches)) <= 1008
    finally:
        world.close()


def test_what_is_not_there_or_no_cursor_is_said():
    """A metric nobody logged; a cursor that no page gave."""
    world = World(MemoryStore(), [("e0", 0, 3)], False)
    try:
        for scan in (world.client.scan_env_steps, world.client.scan_episodes):
            with pytest.raises(NotFoundError, match="'nothing'"):
                list(scan("a", "nothing"))
        post = EndpointTransport(world.service).post
        body = b'{"workspace":"default","run":"a","metric":"reward","after":"x"}'
        with pytest.raises(InvalidQueryError, match="no cursor"):
            world.client._wait(post("/query/scan_env_steps", body, timeout_s=5))
    finally:
        world.close()
