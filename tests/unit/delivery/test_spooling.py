"""Facts about the task between outbox and spool, on a disk that may refuse and lose power."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from metrana_async.delivery.spooling import RETRY_AFTER_S, SYNC_AFTER_S, WRITE_AFTER_S, Spooler
from metrana_async.spool import layout
from metrana_async.spool.reader import SpoolReader
from metrana_async.spool.writer import SpoolWriter
from metrana_async.wire.messages import LeaveRequest, OpenRequest
from tests.simulation.model_disk import ModelDisk
from tests.unit.delivery.test_lane import RUN, WRITER, World

DIRECTORY = f"/spool/v1/{'1' * 16}/{'2' * 16}/{RUN}/{WRITER}"
REQUEST = OpenRequest("w", "p", "r", "o", "never", WRITER)


class Clock:
    """Time that is moved by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def time_ms(self) -> int:
        return int(self.now_s * 1000)

    def monotonic_s(self) -> float:
        return self.now_s


class Kept(World):
    """A world with a spooler; `step` lets it do what is due."""

    def __init__(self, *, quota_bytes: int = 1 << 30) -> None:
        super().__init__()
        self.medium = ModelDisk(random.Random(3))
        self.clock = Clock()
        self.failures: list[OSError] = []
        disk = self.medium.view()
        meta = layout.Meta("s", "online", RUN, REQUEST)
        spool = SpoolWriter(disk, DIRECTORY, meta, quota_bytes=quota_bytes)
        self.spooler = Spooler(
            self.outbox,
            spool,
            disk,
            self.outbox._pages,
            hop=self.hop,
            clock=self.clock,
            on_change=lambda: None,
            on_failure=self.failures.append,
        )

    async def hop(self, call: Callable):
        await asyncio.sleep(0)
        return call()

    def seal(self, *points: int, lane: int = 0) -> None:
        super().seal(*points, lane=lane)
        for sealed in self.outbox.fresh:
            sealed.sealed_s = sealed.sealed_s or self.clock.now_s

    async def step(self, seconds: float = 0.0) -> None:
        self.clock.now_s += seconds
        await self.spooler._step()

    def on_disk(self) -> list[int]:
        """Sequences that an heir finds after a power cut."""
        self.medium.lose_power()
        reader = SpoolReader(self.medium.view(), DIRECTORY)
        found = []
        while batches := reader.read():
            found += [frame.seq for frame, _ in batches]
        return found


@pytest.mark.asyncio
async def test_a_healthy_run_touches_no_disk():
    """What is acknowledged in time is never written."""
    world = Kept()
    world.seal(3, 4)
    await world.step(WRITE_AFTER_S / 2)
    world.store()
    await world.step(10.0)
    assert not world.spooler.spool.is_made
    assert world.medium.view().entries("/") == []


@pytest.mark.asyncio
async def test_what_waits_is_written_and_then_synced():
    """After 100 ms it is written, after half a second it is durable, and counted as such then."""
    world = Kept()
    world.seal(3, 4)
    await world.step(WRITE_AFTER_S)
    assert world.spooler.spool.nbytes > 0
    assert world.ledger.spooled == 0
    await world.step(SYNC_AFTER_S)
    assert world.ledger.spooled == 7
    world.assert_balanced()
    assert world.on_disk() == [1, 2]


@pytest.mark.asyncio
async def test_what_a_rollback_queued_again_is_written_without_being_asked():
    """Marks come with a heartbeat's answer, too: then nobody else wakes the spooler."""
    world = Kept()
    world.seal(3, 4)
    world.store()
    world.clock.now_s += 10.0
    keeping = asyncio.ensure_future(world.spooler.run())
    await _some_turns()
    assert world.spooler.spool.nbytes == 0
    world.outbox.on_marks({0: 1})
    await _some_turns()
    keeping.cancel()
    assert world.spooler.spool.nbytes > 0


async def _some_turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_what_a_failed_sync_had_is_written_again():
    """The kernel may have thrown those pages away: only a new file counts."""
    world = Kept()
    world.seal(3, 4)
    await world.step(WRITE_AFTER_S)
    world.medium.troubles.sync_eio = 1.0
    await world.step(SYNC_AFTER_S)
    assert world.failures
    assert world.ledger.spooled == 0
    world.medium.troubles.sync_eio = 0.0
    await world.step(RETRY_AFTER_S)
    await world.step(SYNC_AFTER_S)
    assert world.ledger.spooled == 7
    assert world.spooler.failure is None
    world.assert_balanced()
    assert world.on_disk() == [1, 2]


@pytest.mark.asyncio
async def test_what_is_delivered_leaves_the_disk():
    """Segments go as their batches are acknowledged; the directory with the last word."""
    world = Kept()
    world.seal(3, 4)
    assert await world.spooler.keep()
    assert world.ledger.spooled == 7
    world.store()
    await world.step()
    assert world.spooler.spool.nbytes == 0
    world.assert_balanced()
    assert await world.spooler.close(LeaveRequest(RUN, WRITER), is_delivered=True) is None
    assert world.medium.view().entries(DIRECTORY) == []


@pytest.mark.asyncio
async def test_an_overflow_lives_on_the_disk_and_comes_back():
    """Memory holds the front; the rest is loaded as the queue empties, and everything is stored."""
    world = Kept()
    world.seal(3)
    world.spooler.overflow()
    world.spooler.is_prompt = True  # nobody takes batches now: nothing is loaded
    for n in range(20):
        world.seal(n + 1)
        await world.step(SYNC_AFTER_S)
    world.spooler.is_prompt = False
    assert [b.seq for b in world.request().batches] == [1]
    while not world.outbox.is_empty():
        if world.outbox.next_request() is not None:
            world.store()
        await world.step(SYNC_AFTER_S)
    assert world.ledger.committed == 3 + sum(range(1, 21))
    assert not world.outbox.is_overflowing
    world.assert_balanced()


@pytest.mark.asyncio
async def test_a_full_spool_keeps_the_rest_in_memory_and_goes_on_when_there_is_room():
    """The quota refuses; nothing is lost, and what the server takes makes room."""
    world = Kept(quota_bytes=2_000)
    world.spooler.overflow()
    world.seal(*[5] * 10)
    await world.step(WRITE_AFTER_S)
    assert world.failures
    assert len(world.outbox.unspooled()) == 10
    assert world.outbox.finish_loading()
    world.store()
    assert world.ledger.committed == 50
    world.assert_balanced()


@pytest.mark.asyncio
async def test_what_went_to_a_spool_before_it_was_full_is_counted_there():
    """The quota ends amid what waits: the first are spooled, and only the rest can be lost."""
    world = Kept(quota_bytes=2_000)
    world.seal(3)
    await world.step(WRITE_AFTER_S)
    world.seal(*[5] * 20)
    assert not await world.spooler.keep()
    assert world.failures
    fits = 1 + (world.ledger.spooled - 3) // 5
    assert 3 < fits < 20
    world.assert_balanced()
    assert world.outbox.abandon() - world.ledger.spooled == 5 * (21 - fits)
    assert world.on_disk() == list(range(1, fits + 1))


@pytest.mark.asyncio
async def test_a_spool_that_vanishes_is_declared_lost_and_the_lane_goes_on():
    """Somebody removed the files: what was on the disk only is counted, later points arrive."""
    world = Kept()
    world.spooler.overflow()
    world.seal(3, 4)
    assert await world.spooler.keep()
    world.medium.remove_tree(DIRECTORY)
    for _ in range(3):
        await world.step(SYNC_AFTER_S)
    assert world.ledger.lost["spool_damaged"] == 7
    world.seal(5)
    world.store()
    assert world.ledger.committed == 5
    world.assert_balanced()


@pytest.mark.asyncio
async def test_a_directory_that_vanishes_is_made_anew():
    """What memory has is spooled again beside what comes; nothing is lost that it holds."""
    world = Kept()
    world.seal(3, 4)
    assert await world.spooler.keep()
    world.medium.remove_tree(DIRECTORY)
    world.seal(5)
    assert not await world.spooler.keep()
    assert world.ledger.spooled == 0
    world.assert_balanced()
    assert await world.spooler.keep()
    assert world.ledger.spooled == 12
    world.assert_balanced()
    assert world.on_disk() == [1, 2, 3]
