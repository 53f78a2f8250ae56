"""How a run ends: closed, failed, stopped, or with its engine."""

from __future__ import annotations

import time

import numpy as np
import pytest

import metrana_async as metrana
from metrana_async.errors import (
    InvalidTypeError,
    RunClosedError,
)
from tests.unit.client.runs import open_run

pytestmark = pytest.mark.usefixtures("alone")


@pytest.mark.asyncio
async def test_close_is_bounded_and_counts_what_it_leaves(server):
    """Against a server that is gone, close returns in time and says what was lost."""
    run = await open_run(server)
    server.is_reachable = False
    run.log("m", [1.0, 2.0])
    started = time.monotonic()
    info = await run.close(0.5)
    assert time.monotonic() - started < 1.5
    assert info.statistics.lost == {"closed": 2}
    assert info.statistics.is_balanced
    assert not info.is_complete
    with pytest.raises(RunClosedError):
        run.log("m", 1.0)


@pytest.mark.asyncio
async def test_close_twice_is_the_same_close(server):
    """Closing is idempotent and refuses calls from then on."""
    run = await open_run(server)
    run.log("m", 1.0)
    run.log("m", 2.0)
    first = await run.close(20)
    assert (await run.close(20)) == first
    assert not run.is_initialized()
    with pytest.raises(RunClosedError):
        run.log("m", 1.0)
    with pytest.raises(RunClosedError):
        await run.flush()


@pytest.mark.asyncio
async def test_an_exception_fails_the_run(server):
    """The end state tells how the program left."""

    async def program() -> None:
        async with open_run(server) as run:
            run.log("m", 1.0)
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        await program()
    row = server.store.runs()[0]
    assert (row.state, row.exception_type) == ("failed", "ValueError")


@pytest.mark.asyncio
async def test_an_interrupt_stops_the_run(server):
    """A cancelled or interrupted program is stopped, not failed."""
    with pytest.raises(SystemExit):
        async with open_run(server):
            raise SystemExit(3)
    assert server.store.runs()[0].state == "stopped"


@pytest.mark.asyncio
async def test_shutdown_leaves_the_run_open(server):
    """shutdown_logger() is for a resume: the run is not over."""
    run = await open_run(server)
    run.log("m", 1.0)
    assert (await run.shutdown_logger(20)).is_complete
    assert server.store.runs()[0].state == "running"


@pytest.mark.asyncio
async def test_an_engine_death_is_told_by_the_next_call(server):
    """A dead task stops the intake, and its cause is raised; nothing hangs."""
    run = await open_run(server)
    run.log("m", 1.0)
    await run.flush(20)
    writer = run.front.writer

    writer._series.collect = lambda items: (_ for _ in ()).throw(KeyError("broken"))
    run.log("m", 2.0)
    with pytest.raises(metrana.InternalError, match="pump"):
        await run.flush(20)
    with pytest.raises(metrana.InternalError, match="pump"):
        run.log("m", 3.0)
    info = await run.close(1)
    assert not info.is_complete
    assert info.statistics.is_balanced


@pytest.mark.asyncio
async def test_a_timeout_that_is_no_number_is_refused_and_closes_nothing(server):
    """Wrong seconds are named; the run takes calls as before."""
    async with open_run(server) as run:
        with pytest.raises(InvalidTypeError, match="timeout_secs is '1', not a number of seconds"):
            await run.flush("1")
        with pytest.raises(InvalidTypeError, match="close_timeout is None, not a number"):
            await run.close(None)
        await run.log("loss", 1.0)
        assert (await run.flush(np.float32(20))).committed == 1
