"""Facts about the awaitables of logging calls, under asyncio, trio and in plain threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import threading
import time
import warnings

import pytest
import trio

from metrana_async.engine.inbox import Inbox
from metrana_async.errors import WaitTimeoutError
from metrana_async.waiting import READY, RoomWait, arrive


def full_inbox() -> Inbox:
    inbox = Inbox(1, 1 << 20, lambda: None)
    inbox.append_blocks(["a", "b"], 5, 10)
    return inbox


@pytest.mark.asyncio
async def test_ready_works_with_every_way_of_awaiting():
    """One shared object can be awaited, made a task, gathered and waited for."""
    await READY
    await asyncio.create_task(READY)
    await asyncio.gather(READY, READY)
    await asyncio.wait_for(READY, 10)
    READY.block()


def test_ready_works_under_trio():
    """The same object is awaited under trio, checkpoints included."""

    async def main() -> None:
        for _ in range(10):
            await READY
            await trio.sleep(0.002)

    trio.run(main)


@pytest.mark.asyncio
async def test_a_loop_of_awaits_lets_others_run():
    """A tight loop that only awaits logging calls gives way about once a millisecond."""
    turns = 0
    is_over = False

    async def other() -> None:
        nonlocal turns
        while not is_over:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    ends = time.thread_time() + 0.1  # our own time, however busy the machine is
    while time.thread_time() < ends:
        await READY
    is_over = True
    await task
    assert turns > 20


def test_a_forgotten_await_warns_nothing():
    """Neither the shared object nor a wait for room complains when nobody awaits it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wait = RoomWait(full_inbox())
        del wait
        gc.collect()


@pytest.mark.asyncio
@pytest.mark.parametrize("as_task", [False, True])
async def test_waiting_for_room_ends_with_room(as_task):
    """The wait lasts while the inbox is over its bounds and ends when it was emptied."""
    inbox = full_inbox()
    wait = RoomWait(inbox)
    task = asyncio.create_task(wait) if as_task else asyncio.ensure_future(_await(wait))
    await asyncio.sleep(0)
    assert not task.done()
    inbox.take()
    await asyncio.wait_for(task, 10)


async def _await(wait: RoomWait) -> None:
    await wait


@pytest.mark.asyncio
async def test_cancelling_a_wait_takes_nothing_back():
    """All of the block stays in, whatever happens to the wait."""
    inbox = full_inbox()
    task = asyncio.create_task(RoomWait(inbox))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert inbox.points_count == 5


def test_waiting_for_room_under_trio():
    """Trio waits cooperatively too."""

    async def main() -> None:
        inbox = full_inbox()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_await, RoomWait(inbox))
            await trio.sleep(0)
            inbox.take()

    trio.run(main)


def test_waiting_for_room_in_a_thread():
    """A blocked thread continues when the engine takes."""
    inbox = full_inbox()
    thread = threading.Thread(target=RoomWait(inbox).block)
    thread.start()
    inbox.take()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.asyncio
async def test_engine_work_arrives_under_asyncio():
    """Results and errors cross the bridge."""
    done: concurrent.futures.Future[int] = concurrent.futures.Future()
    threading.Timer(0.01, done.set_result, [7]).start()
    assert await arrive(done, 10) == 7
    failed: concurrent.futures.Future[int] = concurrent.futures.Future()
    failed.set_exception(WaitTimeoutError("late"))
    with pytest.raises(WaitTimeoutError, match="late"):
        await arrive(failed, 10)


def test_engine_work_arrives_under_trio():
    """Trio gets the same result by polling."""

    async def main() -> int:
        done: concurrent.futures.Future[int] = concurrent.futures.Future()
        threading.Timer(0.01, done.set_result, [7]).start()
        return await arrive(done, 10)

    assert trio.run(main) == 7


@pytest.mark.asyncio
async def test_cancelling_a_wait_does_not_cancel_the_work():
    """A cancelled flush or close goes on in the engine."""
    work: concurrent.futures.Future[int] = concurrent.futures.Future()
    task = asyncio.ensure_future(arrive(work, 10))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not work.cancelled()
    work.set_result(1)
