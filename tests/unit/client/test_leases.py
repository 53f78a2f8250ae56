"""`reserve_episodes`: what a client is given, also where answers get lost or nobody answers."""

from __future__ import annotations

import asyncio

import pytest

import metrana_async as metrana
from metrana_async.errors import (
    InvalidNameError,
    InvalidStepError,
    InvalidTypeError,
    UnavailableError,
    ValidationError,
)
from metrana_async.testing import FaultyTransport
from tests.unit.client.runs import open_run

pytestmark = pytest.mark.usefixtures("alone")


@pytest.mark.asyncio
async def test_leases_follow_each_other(server):
    """By handle and by module, beyond what was logged and flushed."""
    async with open_run(server) as run:
        assert await run.reserve_episodes("cart", 10) == 0
        assert await metrana.reserve_episodes("cart", 5) == 10
        assert await run.reserve_episodes("other", 1) == 0
        await run.log_rl_episode("return", 1.0, 0, episode=40, env_id="cart")
        await run.flush(20)
        assert await run.reserve_episodes("cart", 1) == 41


@pytest.mark.asyncio
async def test_many_at_once_never_meet(server):
    """Leases asked for at the same time are disjoint."""
    async with open_run(server) as run:
        firsts = await asyncio.gather(*(run.reserve_episodes("cart", n) for n in range(1, 30)))
    numbers = [first + k for first, n in zip(firsts, range(1, 30), strict=True) for k in range(n)]
    assert sorted(numbers) == list(range(sum(range(1, 30))))


@pytest.mark.asyncio
async def test_a_lost_answer_takes_no_second_lease(server):
    """Half of the answers get lost; what is given is without a gap all the same."""
    transport = FaultyTransport(
        server.transport(), seed=5, lose_answer=0.5, paths={"/episodes/reserve"}
    )
    async with metrana.init(project_name="p", transport=transport, quiet=True) as run:
        firsts = [await run.reserve_episodes("cart", 3) for _ in range(12)]
    assert transport.faults["answer_lost"] > 3
    assert firsts == list(range(0, 36, 3))


@pytest.mark.asyncio
async def test_what_is_no_lease_is_refused(server):
    """An id that is none, and numbers of episodes that are none."""
    async with open_run(server) as run:
        for error, env_id, n in (
            (InvalidNameError, "a/b", 1),
            (InvalidTypeError, 3, 1),
            (ValidationError, "cart", 0),
            (ValidationError, "cart", 2**32 + 1),
            (InvalidStepError, "cart", 1.5),
            (InvalidTypeError, "cart", True),
        ):
            with pytest.raises(error):
                await run.reserve_episodes(env_id, n)
        assert await run.reserve_episodes("cart", 1) == 0


@pytest.mark.asyncio
async def test_offline_nobody_can_lease(tmp_path):
    """Without a server there is no lease; the error says what there is instead."""
    run = await metrana.init(
        project_name="p", run_name="r", init_mode="offline", data_dir=str(tmp_path), quiet=True
    )
    with pytest.raises(UnavailableError, match="EpisodeAllocator"):
        await run.reserve_episodes("cart", 1)
    await run.close()


@pytest.mark.asyncio
async def test_a_disabled_run_counts_by_itself():
    """A program that leases runs unchanged where logging is off."""
    async with metrana.init(project_name="p", init_mode="disabled") as run:
        assert [await run.reserve_episodes("a", 3) for _ in range(2)] == [0, 3]
        assert await run.reserve_episodes("b", 1) == 0
