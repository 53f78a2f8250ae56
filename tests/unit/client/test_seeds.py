"""A run of very many series is joined at once; what it holds already comes in parts behind."""

from __future__ import annotations

import numpy as np
import pytest

import metrana_async as metrana
from metrana_async import current, membership, opening
from metrana_async.server.ingest import service
from metrana_async.testing import FaultyTransport, MemoryServer

SERIES = 11
SEEDS_PATH = "/writers/seeds"


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(opening, "SEEDS_WITH_ADMISSION", 4)
    monkeypatch.setattr(service, "SEEDS_PART", 3)
    monkeypatch.setattr(current, "_current", None)


class Counting(FaultyTransport):
    """Counts the parts that were asked for."""

    def __init__(self, inner):
        super().__init__(inner, paths={SEEDS_PATH})


@pytest.fixture
def server():
    with MemoryServer() as started:
        yield started


def open_run(server, transport=None):
    return metrana.init(
        transport=transport or server.transport(),
        project_name="p", run_name="r", orchestration_id="job", quiet=True,
        resume_strategy="allow",
    )  # fmt: skip


async def fill(server):
    async with await open_run(server) as run:
        for n in range(SERIES):
            run.log(f"m{n}", np.arange(n + 1.0))
        run.log_rl_environment_step("reward", np.ones((2, 3)), 5, env_id=["x", "y"], episode=2)
        run.log_rl_episode("return", 1.0, 6, env_id="x", episode=2)


@pytest.mark.asyncio
async def test_seeds_come_in_parts_and_questions_wait_for_them(server):
    """The first question is answered as if all had come at once; automatic steps go on."""
    await fill(server)
    transport = Counting(server.transport())
    async with await open_run(server, transport) as run:
        run.log(f"m{SERIES - 1}", 9.0)
        for n in range(SERIES - 1):
            assert await run.get_last_step(f"m{n}") == n
        assert await run.get_last_step(f"m{SERIES - 1}") == SERIES
        assert await run.get_env_last_rl_step_and_episode("x") == (6, 2)
        assert await run.get_env_last_rl_step_and_episode("y") == (5, 2)
    assert transport.served == -(-(SERIES + 2) // 3)
    async with await open_run(server) as run:
        assert await run.get_last_step("m0") == 0
        with pytest.raises(metrana.PinConflictError):
            run.log_distributed("m0", 1.0, step=3)


@pytest.mark.asyncio
async def test_a_small_run_is_seeded_with_its_admission(server):
    """Nothing is asked for where all of it came."""
    async with await open_run(server) as run:
        run.log("m0", [1.0, 2.0])
    transport = Counting(server.transport())
    async with await open_run(server, transport) as run:
        assert await run.get_last_step("m0") == 1
    assert transport.served == 0


@pytest.mark.asyncio
async def test_seeds_that_never_come_stop_nothing(server, monkeypatch):
    """What is logged is stored behind what was there, and the failure is told."""
    monkeypatch.setattr(membership, "SEEDS_PATIENCE_S", 0.2)
    await fill(server)
    transport = Counting(server.transport())
    transport.is_refusing = True

    async def log_one():
        async with await open_run(server, transport) as run:
            run.log("m3", 5.0)
            return await run.flush(20)

    with pytest.warns(metrana.MetranaWarning):
        statistics = await log_one()
    assert (statistics.committed, statistics.in_flight) == (1, 0)
    async with await open_run(server) as run:
        assert await run.get_last_step("m3") == 4
