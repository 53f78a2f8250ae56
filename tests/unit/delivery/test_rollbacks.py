"""A server that goes back in time at the worst moments: while somebody says goodbye, or replays."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

import metrana_async as metrana
from metrana_async.delivery import outbox as outbox_module
from metrana_async.delivery.outbox import Outbox
from metrana_async.delivery.spooling import SYNC_AFTER_S, WRITE_AFTER_S
from metrana_async.engine.clock import SystemClock
from metrana_async.engine.inbox import Inbox
from metrana_async.errors import UnavailableError
from metrana_async.intake import Intake
from metrana_async.replay import DELIVERED, KEPT, Replayer
from metrana_async.statistics import Ledger
from metrana_async.testing import MemoryServer
from metrana_async.transport.base import Transport
from metrana_async.wire.messages import JSON_TYPE
from metrana_async.writers.collect import SeriesWriters
from metrana_async.writers.registry import SeriesRegistry
from tests.simulation.server import SimStore
from tests.unit.delivery.test_spooling import DIRECTORY, Kept

BATCHES = 100
"""More than one request holds."""


class Restored:
    """A server that is put back to `backup` once, just before or after a request."""

    def __init__(self, *, at: str, is_answered: bool = False, kept_after: str = "") -> None:
        self._at = at
        self._is_answered = is_answered
        self._kept_after = kept_after
        self.refusals_left = 0
        """How many introductions the restored server does not answer at first."""
        self.server = MemoryServer(SimStore(random.Random(1)))
        self.server.start()
        self.backup = self.server.store.copy()
        self.is_over = False

    def keep(self, path: str) -> None:
        """Take the backup after the first request of a kind."""
        if path == self._kept_after:
            self._kept_after = ""
            self.backup = self.server.store.copy()

    def restore(self) -> None:
        """Whoever asks now asks a server on the older store."""
        store = SimStore(random.Random(2))
        store.restore(self.backup)
        self.server = MemoryServer(store)
        self.server.start()
        self.is_over = True

    @property
    def stored_points(self) -> int:
        """What the server counts as stored; nothing may be declared lost."""
        (run,) = self.server.store.runs()
        assert not [name for name, n in run.counters.items() if n and name.startswith("lost")]
        return run.counters["stored"]

    def transport(self) -> Transport:
        return _Way(self)

    def is_moment(self, path: str, *, is_answered: bool) -> bool:
        return (path, is_answered, self.is_over) == (self._at, self._is_answered, False)


class _Way:
    """The way to whichever server there is."""

    def __init__(self, place: Restored) -> None:
        self._place = place

    async def post(
        self, path: str, body: bytes, *, timeout_s: float, content_type: str = JSON_TYPE
    ) -> bytes:
        place = self._place
        if place.is_moment(path, is_answered=False):
            place.restore()
        if place.is_over and path == "/writers/open" and place.refusals_left:
            place.refusals_left -= 1
            raise UnavailableError("it is still reading its store")
        way = place.server.transport()
        answer = await way.post(path, body, timeout_s=timeout_s, content_type=content_type)
        place.keep(path)
        if place.is_moment(path, is_answered=True):
            place.restore()
        return answer

    async def close(self) -> None: ...


@pytest.fixture
def place() -> Iterator[Callable[..., Restored]]:
    """Makes the server; stops every one there was."""
    made: list[Restored] = []

    def make(**options) -> Restored:
        made.append(Restored(**options))
        return made[-1]

    yield make
    for one in made:
        one.server.stop()


@pytest.mark.asyncio
@pytest.mark.parametrize("kept_after", ["", "/writers/open", "/ingest"])
async def test_a_goodbye_to_a_restored_server_gives_it_everything_again(place, kept_after):
    """What was stored a moment ago is stored again before the run is called complete."""
    there = place(at="/writers/leave", kept_after=kept_after)
    run = await metrana.init("p", "r", transport=there.transport(), quiet=True)
    run.log("a", 1.0)
    await run.flush(30)
    run.log("a", [2.0, 3.0])
    info = await run.close(60)
    assert there.is_over
    assert info.is_complete
    assert there.stored_points == 3


@pytest.mark.asyncio
@pytest.mark.parametrize("at", ["/writers/heartbeat", "/writers/leave"])
@pytest.mark.parametrize("kept_after", ["", "/writers/open"])
async def test_nobody_calls_stored_what_a_restored_server_has_not_said_it_has(
    place, at, kept_after
):
    """It answers, and not yet what it knows of this writer: that is no success."""
    there = place(at=at, kept_after=kept_after)
    there.refusals_left = 3
    run = await metrana.init("p", "r", transport=there.transport(), quiet=True)
    run.log("a", [1.0, 2.0, 3.0])
    await run.flush(30)
    if at == "/writers/heartbeat":
        assert there.stored_points == 3
    info = await run.close(60)
    assert there.is_over
    assert not there.refusals_left
    assert info.is_complete
    assert there.stored_points == 3


class _Left(Kept):
    """What a process left that was killed in an outage."""

    async def leave(self) -> None:
        self.seal(*[3] * BATCHES)
        await self.step(WRITE_AFTER_S)
        await self.step(SYNC_AFTER_S)
        self.medium._views[0].die()

    async def deliver(self, there: Restored) -> str:
        replayer = Replayer(
            self.medium.view(), self.hop, there.transport(), SystemClock(), timeout_s=30.0
        )
        return (await replayer.deliver(DIRECTORY)).state


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "when",
    [
        {"at": "/ingest", "is_answered": True},
        {"at": "/writers/leave"},
        {"at": "/writers/leave", "kept_after": "/writers/open"},
    ],
)
async def test_leftovers_stay_until_a_restored_server_has_them_again(place, monkeypatch, when):
    """Nothing is declared lost that is on the disk, and nothing is removed."""
    monkeypatch.setattr(outbox_module, "RETENTION_BYTES", 0)
    left = _Left()
    await left.leave()
    there = place(**when)
    assert await left.deliver(there) == KEPT
    assert there.is_over
    assert await left.deliver(there) == DELIVERED
    assert there.stored_points == 3 * BATCHES


@pytest.mark.asyncio
async def test_what_a_rollback_queues_again_after_giving_up_is_lost_once():
    """Points on the disk stay counted there, however often the rest is given up."""
    world = Kept()
    world.seal(3)
    world.store()
    world.seal(4)
    await world.step(WRITE_AFTER_S)
    await world.step(SYNC_AFTER_S)
    intake = _intake(world.outbox, world.ledger)
    assert intake.give_up("closed") == 0
    world.outbox.on_marks({})
    assert intake.publish().in_flight == 3
    assert intake.give_up("closed") == 3
    assert intake.publish().in_flight == 0
    assert (world.ledger.spooled, world.ledger.committed) == (4, 0)
    assert +world.ledger.lost == {"closed": 3}


def _intake(outbox: Outbox, ledger: Ledger) -> Intake:
    series = SeriesWriters(SeriesRegistry())
    inbox = Inbox(1 << 20, 1 << 20, lambda: None)
    return Intake(inbox, series, outbox, ledger, SystemClock())
