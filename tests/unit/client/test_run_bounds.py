"""A run whose memory is full, and one that must not lose anything."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from metrana_async.engine.loop_thread import engine
from metrana_async.errors import DataLossError, QueueFullError
from tests.unit.client.runs import awaited, open_run

pytestmark = pytest.mark.usefixtures("alone")


@pytest.mark.asyncio
async def test_all_or_crash_raises_on_a_loss(server):
    """Who asked for it is told by an exception."""
    run = await open_run(server, delivery_policy="all_or_crash")
    server.is_reachable = False
    run.log("m", 1.0)
    with pytest.raises(DataLossError) as caught:
        await run.close(0.4)
    assert caught.value.lost_points == {"closed": 1}


@pytest.mark.asyncio
async def test_raise_policy_refuses_when_full(server):
    """Under `raise` a full inbox refuses the call and stays whole."""
    run = await open_run(server, backpressure_strategy="raise", queue_capacity=10)
    block = hold_engine(run)
    run.log("m", np.ones(10))
    with pytest.raises(QueueFullError, match="2 points"):
        run.log("m", [1.0, 2.0])
    block.set()
    assert (await run.close(20)).statistics.committed == 10


@pytest.mark.asyncio
async def test_drop_policy_drops_and_declares(server):
    """Under `drop_new` the newest points are dropped, counted, and told to the server."""
    run = await open_run(server, backpressure_strategy="drop_new", queue_capacity=10)
    block = hold_engine(run)
    run.log("m", np.ones(10))
    run.log("m", np.ones(3))
    block.set()
    info = await run.close(20)
    assert info.statistics.lost == {"drop_new": 3}
    assert info.statistics.accepted == 13
    assert info.statistics.is_balanced
    assert server.store.runs()[0].counters["lost:drop_new"] == 3


@pytest.mark.asyncio
async def test_block_policy_waits_and_keeps_everything(server):
    """Under `block` the await waits for room; un-awaited calls stop at twice the bound."""
    run = await open_run(server, queue_capacity=10)
    block = hold_engine(run)
    run.log("m", np.ones(10))
    wait = asyncio.ensure_future(awaited(run.log("m", np.ones(5))))
    await asyncio.sleep(0.02)
    assert not wait.done()
    with pytest.raises(QueueFullError):
        run.log("m", np.ones(6))
    block.set()
    await asyncio.wait_for(wait, 20)
    assert (await run.close(20)).statistics.committed == 15


def hold_engine(run) -> threading.Event:
    """Keep the engine thread busy until the event is set, so that the inbox fills."""
    release, is_held = threading.Event(), threading.Event()

    async def hold() -> None:
        is_held.set()
        release.wait(20)

    engine().submit(hold)
    is_held.wait(20)
    return release
