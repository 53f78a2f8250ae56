"""The checker bites: faults put into the product on purpose are found within a few worlds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from metrana_async.delivery import lane, outbox, sender, spooling
from metrana_async.errors import TransportError
from metrana_async.server.ingest import requests, service
from metrana_async.server.store.base import Commit, LaneRow
from metrana_async.spool import writer as spool_writer
from metrana_async.wire.acks import BatchStatus
from tests.simulation.server import SimStore
from tests.simulation.world import run_seed

SEEDS = 150

Mutant = AbstractContextManager[Any]


def acks_before_the_commit() -> Mutant:
    """The server answers first and stores a moment later."""
    waiting: dict[SimStore, Commit] = {}

    def commit(self: SimStore, changes: Commit) -> None:
        # One commit behind: what the last one held is lost with the server.
        late, waiting[self] = waiting.get(self), changes
        if late is not None:
            real(self, late)

    def opened(self: SimStore, generation: str) -> SimStore:
        waiting.pop(self, None)
        return reopen(self, generation)

    real, reopen = SimStore.commit, SimStore.opened
    return _both(patch.object(SimStore, "commit", commit), patch.object(SimStore, "opened", opened))


def forgets_what_it_stored() -> Mutant:
    """The server does not know sequences again: whatever comes is stored."""

    def reply_to(self: Any, sent: Any, pages: Any) -> Any:
        key = (self.judge.writer, sent.frame.lane)
        prev = 0 if sent.batch is None else sent.batch.prev_digest
        self.changes.lanes[key] = LaneRow(*key, sent.frame.seq - 1, prev)
        return real(self, sent, pages)

    real = requests.RequestJudge.reply_to
    return patch.object(requests.RequestJudge, "reply_to", reply_to)


def takes_gaps() -> Mutant:
    """The server stores a batch though one before it is missing."""

    def reply_to(self: Any, sent: Any, pages: Any) -> Any:
        key = (self.judge.writer, sent.frame.lane)
        mark = self.changes.lanes.get(key) or self.run.lanes.get(key) or LaneRow(*key, 0, 0)
        if sent.batch is not None and sent.frame.seq > mark.seq + 1:
            self.changes.lanes[key] = LaneRow(*key, sent.frame.seq - 1, sent.batch.prev_digest)
        return real(self, sent, pages)

    real = requests.RequestJudge.reply_to
    return patch.object(requests.RequestJudge, "reply_to", reply_to)


def half_applies_a_failed_commit() -> Mutant:
    """A run whose commit failed stays in memory as if it had not."""
    return patch.object(service.IngestService, "_forget", lambda self, run_no: None)


def takes_a_cut_for_success() -> Mutant:
    """The client counts a batch as stored when the connection was cut."""

    async def failed(self: Any, request: Any, error: Any) -> float:
        if error.code == TransportError.code:
            for sealed in request.batches:
                mine = self._outbox.lanes[sealed.lane]
                if mine.queue and mine.queue[0] is sealed:
                    done = mine._pop()
                    done.committed = done.points_count
                    mine._ledger.committed += done.points_count
                    mine._retain(done, 0.0)
        return await real(self, request, error)

    real = sender.Sender._failed
    return patch.object(sender.Sender, "_failed", failed)


def drops_a_sync() -> Mutant:
    """The spool says "durable" without a sync."""

    def sync(self: Any) -> None:
        if self._segments:
            self._segments[-1].synced_bytes = self._segments[-1].nbytes

    return patch.object(spool_writer.SpoolWriter, "sync", sync)


def never_writes_ahead() -> Mutant:
    """Nothing goes to the disk before a close."""
    return patch.object(spooling.Spooler, "_write_due_s", lambda self, oldest: float("inf"))


def removes_before_it_is_acknowledged() -> Mutant:
    """Spool segments go as soon as they are synced."""

    def forget(self: Any, acked: Any) -> None:
        real(self, dict.fromkeys(range(16), 1 << 60))

    real = spool_writer.SpoolWriter.forget
    return patch.object(spool_writer.SpoolWriter, "forget", forget)


def loses_what_was_rolled_back() -> Mutant:
    """The client does not queue again what a restored server has lost."""

    def rewind(self: Any, seq: int) -> None:
        self._ledger.committed += 0

    return _both(
        patch.object(lane.Lane, "rewind", rewind),
        patch.object(outbox.Outbox, "on_marks", lambda *given, **named: None),
    )


def counts_no_drops() -> Mutant:
    """Points that the full inbox dropped are not in the ledger."""

    def snapshot(self: Any, *, in_flight: int) -> Any:
        found = real(self, in_flight=in_flight)
        return replace(found, lost={k: n for k, n in found.lost.items() if k != "drop_new"})

    real = outbox.Ledger.snapshot
    return patch.object(outbox.Ledger, "snapshot", snapshot)


def says_duplicate_to_all() -> Mutant:
    """The server calls every tenth batch a duplicate and stores nothing of it."""
    seen = [0]

    def store_batch(self: Any, frame: Any, batch: Any, pages: Any) -> Any:
        seen[0] += 1
        if seen[0] % 10:
            return real(self, frame, batch, pages)
        self._advance(frame, batch.stands_for)
        return requests._reply(frame, BatchStatus.DUPLICATE)

    real = requests.RequestJudge._store_batch
    return patch.object(requests.RequestJudge, "_store_batch", store_batch)


@contextmanager
def _both(first: Mutant, second: Mutant) -> Iterator[None]:
    with first, second:
        yield


MUTANTS: tuple[Callable[[], Mutant], ...] = (
    acks_before_the_commit,
    forgets_what_it_stored,
    takes_gaps,
    half_applies_a_failed_commit,
    takes_a_cut_for_success,
    drops_a_sync,
    never_writes_ahead,
    removes_before_it_is_acknowledged,
    loses_what_was_rolled_back,
    counts_no_drops,
    says_duplicate_to_all,
)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_fault_of_ours_is_found(mutant):
    """Some world among the first ones has a finding."""
    with mutant():
        found = next((seed for seed in range(SEEDS) if run_seed(seed).findings), None)
    assert found is not None
    print(f"found by seed {found}")
