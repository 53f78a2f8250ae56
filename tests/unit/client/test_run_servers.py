"""A run and its server: joined, resumed, away, put back in time, shared with a clone."""

from __future__ import annotations

import asyncio
import copy
import threading
from dataclasses import replace

import pytest

import metrana_async as metrana
from metrana_async.delivery import spooling
from metrana_async.errors import InitError, RunAlreadyExistsError, RunClosedError, WaitTimeoutError
from metrana_async.server.store.memory import MemoryStore
from metrana_async.writer import Writer
from tests.unit.client.runs import open_run, values

pytestmark = pytest.mark.usefixtures("alone")


@pytest.mark.asyncio
async def test_a_resumed_run_goes_on(server):
    """A new writer is seeded: automatic steps continue after the last stored one."""
    async with open_run(server) as run:
        run.log("m", [1.0, 2.0])
    async with open_run(server, resume_strategy="allow") as run:
        assert await run.get_last_step("m") == 1
        run.log("m", 3.0)
    assert values(server, "m") == {0: 1.0, 1: 2.0, 2: 3.0}


@pytest.mark.asyncio
async def test_a_stranger_is_refused(server):
    """Under "never" another job does not get into the run."""
    await (await open_run(server, orchestration_id="one")).close(20)
    with pytest.raises(RunAlreadyExistsError):
        await open_run(server, orchestration_id="two")


@pytest.mark.asyncio
async def test_no_server_is_an_init_error(server):
    """The handshake must succeed in time."""
    server.is_reachable = False
    with pytest.raises(InitError, match="0.3 s"):
        await open_run(server, init_timeout_secs=0.3)


@pytest.mark.asyncio
async def test_an_outage_delays_and_loses_nothing(server):
    """Flush says honestly that nothing is stored; later everything is, once."""
    run = await open_run(server)
    server.is_reachable = False
    for n in range(50):
        await run.log("m", float(n))
    with pytest.raises(WaitTimeoutError, match="50 points"):
        await run.flush(0.3)
    assert run.get_metrics().in_flight == 50
    assert run.get_metrics().is_balanced
    server.is_reachable = True
    assert (await run.flush(20)).committed == 50
    assert values(server, "m") == {n: float(n) for n in range(50)}
    await run.close(20)


@pytest.mark.asyncio
async def test_one_writer_per_process_and_run(server):
    """A second init of the same run shares the writer; the last close ends it."""
    transport = server.transport()
    first = await metrana.init(project_name="p", run_name="r", transport=transport, quiet=True)
    second = await metrana.init(project_name="p", run_name="r", transport=transport, quiet=True)
    assert first.front.writer is second.front.writer
    first.log("m", 1.0)
    assert (await first.close(20)).status == "running"
    with pytest.raises(RunClosedError):
        first.log("m", 1.0)
    second.log("m", 2.0)
    assert (await second.close(20)).status == "finished"
    assert len(server.store.run_contents(1).writers) == 1
    assert values(server, "m") == {0: 1.0, 1: 2.0}


def snapshot(store: MemoryStore) -> MemoryStore:
    """A backup: what the store holds now, under a new generation."""
    backup = MemoryStore()
    for name, kept in vars(store).items():
        if isinstance(kept, dict):
            setattr(backup, name, copy.deepcopy(kept))
    return backup


@pytest.mark.fault_row("D9")
@pytest.mark.asyncio
async def test_a_server_restored_from_a_backup_gets_everything_again(server, start_server):
    """What the backup misses is sent again from the retention, once, and in order."""
    run = await open_run(server)
    run.log("m", [1.0, 2.0])
    await run.flush(20)
    backup = snapshot(server.store)
    run.log("m", [3.0, 4.0])
    await run.flush(20)
    restored = start_server(backup)
    run.front.writer.membership._transport._server = restored
    run.log("m", 5.0)
    statistics = await run.flush(20)
    assert statistics.committed == 5
    assert statistics.is_balanced
    assert values(restored, "m") == {n: n + 1.0 for n in range(5)}
    await run.close(20)


def pose_as(clone: Writer, original: Writer) -> None:
    """Give a writer another one's identity, as a cloned machine does."""
    clone.membership.request = replace(clone.membership.request, writer_id=original.writer_id)
    clone._outbox.writer_id = clone._outbox._batcher.writer_id = clone.writer_id


@pytest.mark.fault_row("G10")
@pytest.mark.asyncio
async def test_a_cloned_writer_takes_a_new_name_and_loses_nothing(server):
    """Two processes under one writer identity (a cloned machine): both get their points stored."""
    original, clone = await open_run(server), await open_run(server)
    original.log("original", [1.0, 2.0])
    await original.flush(20)
    writer = clone.front.writer
    pose_as(writer, original.front.writer)
    clone.log("clone", [3.0, 4.0, 5.0])
    statistics = await clone.flush(20)
    assert statistics.committed == 3
    assert statistics.is_balanced
    assert writer.writer_id != original.front.writer.writer_id
    assert values(server, "clone") == {0: 3.0, 1: 4.0, 2: 5.0}
    original.log("original", 6.0)
    assert (await original.close(20)).is_complete
    assert (await clone.close(20)).is_complete


@pytest.mark.fault_row("G10")
@pytest.mark.asyncio
async def test_what_a_cloned_writer_logs_while_it_takes_a_new_name_is_stored(
    server, tmp_path, monkeypatch
):
    """Also what goes to the disk only meanwhile: there it carries the old name."""
    monkeypatch.setattr(spooling, "OVERFLOW_BYTES_LIVE", 1)
    monkeypatch.setattr(spooling, "LOAD_BELOW_BYTES", 0)
    original, clone = await open_run(server), await open_run(server, disk=tmp_path)
    original.log("original", [1.0, 2.0])
    await original.flush(20)
    writer = clone.front.writer
    pose_as(writer, original.front.writer)
    renew, seal = writer.membership.renew, writer._outbox.seal
    is_asked, is_on_disk_only, may_go = threading.Event(), threading.Event(), threading.Event()

    async def slowly(writer_id: str) -> None:
        is_asked.set()
        await asyncio.to_thread(may_go.wait, 20)
        await renew(writer_id)

    def noticed(*args) -> None:
        seal(*args)
        if writer._outbox.queued_bytes > writer._outbox.loaded_bytes:
            is_on_disk_only.set()

    monkeypatch.setattr(writer.membership, "renew", slowly)
    monkeypatch.setattr(writer._outbox, "seal", noticed)
    clone.log("clone", [3.0, 4.0, 5.0])
    assert await asyncio.to_thread(is_asked.wait, 20)
    clone.log("clone", [6.0, 7.0])
    assert await asyncio.to_thread(is_on_disk_only.wait, 20)
    may_go.set()
    statistics = await clone.flush(20)
    assert (statistics.committed, statistics.is_balanced) == (5, True)
    assert values(server, "clone") == {0: 3.0, 1: 4.0, 2: 5.0, 3: 6.0, 4: 7.0}
    assert (await original.close(20)).is_complete
    assert (await clone.close(20)).is_complete


@pytest.mark.asyncio
async def test_a_server_that_has_lost_the_run_gets_all_of_it_again(server, start_server):
    """Put back to before the run existed: it is made anew, and what is retained is sent again."""
    run = await open_run(server)
    run.log("m", [1.0, 2.0])
    await run.flush(20)
    empty = start_server()
    run.front.writer.membership._transport._server = empty
    run.log("m", 3.0)
    statistics = await run.flush(20)
    assert (statistics.committed, statistics.is_balanced) == (3, True)
    assert values(empty, "m") == {0: 1.0, 1: 2.0, 2: 3.0}
    assert (await run.close(20)).is_complete
