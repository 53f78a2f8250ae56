"""Facts about the public test helpers: what they promise to users' own tests."""

from __future__ import annotations

import asyncio
import os

import pytest

import metrana_async
import metrana_sync_shim as metrana
from metrana_async import current
from metrana_async.errors import ConnectError, InitError, TransportError, UnavailableError
from metrana_async.testing import FaultyTransport, ManualClock, MemoryServer


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    for name in list(os.environ):
        if name.startswith("METRANA_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("METRANA_ORCHESTRATION_ID", "")
    monkeypatch.setattr(current, "_current", None)


@pytest.fixture
def server():
    with MemoryServer() as server:
        yield server


def open_run(transport, **arguments):
    arguments = {"project_name": "p", "run_name": "r", "quiet": True, **arguments}
    return metrana.init(transport=transport, **arguments)


def reader(server: MemoryServer) -> metrana.QueryClient:
    return metrana.QueryClient(project="p", transport=server.transport())


FAULTS = [
    {"refuse": 0.3},
    {"fail_every": 2},
    {"lose_answer": 0.5},
    {"delay_s": 0.01},
    {"refuse": 0.2, "fail_every": 3, "lose_answer": 0.2, "delay_s": 0.005},
]


@pytest.mark.parametrize("faults", FAULTS, ids=lambda f: "+".join(f))
def test_no_fault_costs_a_point_or_doubles_one(server, faults):
    """Every fault is retried, and a served request whose answer was lost counts once."""
    transport = FaultyTransport(server.transport(), seed=2, **faults)
    with open_run(transport) as run:
        for k in range(8):
            run.log("m", [float(k)] * 10)
            run.flush(20)
    with reader(server) as client:
        assert client.series("r", "m").value.tolist() == [
            float(k) for k in range(8) for _ in "x" * 10
        ]
    kinds = {"refuse": "refused", "fail_every": "failed", "lose_answer": "answer_lost"}
    assert {kinds[fault] for fault in faults if fault in kinds} <= set(transport.faults)
    assert transport.served >= 8


def test_the_seed_decides(server):
    """The same seed and the same requests: the same faults; another seed: others."""

    async def outcomes(seed: int) -> list[str]:
        transport = FaultyTransport(
            server.transport(), seed=seed, refuse=0.3, lose_answer=0.3, paths=None
        )
        found = []
        for _ in range(40):
            try:
                await transport.post("/health", b"", timeout_s=5)
                found.append("served")
            except TransportError as error:
                found.append(type(error).__name__)
        return found

    first = asyncio.run(outcomes(1))
    assert first == asyncio.run(outcomes(1)) != asyncio.run(outcomes(2))
    assert set(first) == {"served", "ConnectError", "TransportError"}


def test_faults_can_be_switched_during_a_test(server):
    """Refusing and swallowing delay what is logged meanwhile, and lose nothing."""
    transport = FaultyTransport(server.transport(), paths=None)
    run = open_run(transport)
    transport.is_refusing = True
    run.log("m", 1.0)
    with pytest.raises(metrana.WaitTimeoutError):
        run.flush(0.3)
    transport.is_refusing = False
    assert run.flush(20).committed == 1
    assert run.close(20).is_complete
    assert transport.faults["refused"] >= 1


def test_a_black_hole_runs_into_the_time_out(server):
    """Nothing is sent and nothing answered: init ends in time and says so."""
    transport = FaultyTransport(server.transport(), paths=None)
    transport.is_black_hole = True
    with pytest.raises(InitError, match="swallowed"):
        open_run(transport, init_timeout_secs=0.3)
    assert transport.served == 0


@pytest.mark.asyncio
async def test_errors_are_those_of_a_network(server):
    """What faults raise is what `HttpTransport` raises: retryable transport errors."""
    failing = FaultyTransport(server.transport(), fail_every=1, paths=None)
    with pytest.raises(UnavailableError) as caught:
        await failing.post("/health", b"", timeout_s=1)
    assert caught.value.retryable
    refusing = FaultyTransport(server.transport(), refuse=1, paths=None)
    with pytest.raises(ConnectError):
        await refusing.post("/health", b"", timeout_s=1)
    assert failing.served == refusing.served == 0


def test_only_the_paths_asked_for_are_affected(server):
    """By default joining, heartbeats and leaving work while batches fail."""
    transport = FaultyTransport(server.transport(), refuse=1)
    run = open_run(transport)
    run.log("m", 1.0)
    assert dict(run.close(0.3).statistics.lost) != {}


def test_a_manual_clock_stands_and_goes():
    """It goes forward when told, and never back."""
    clock = ManualClock(start_s=100.0)
    assert (clock.time_ms(), clock.monotonic_s()) == (100_000, 0.0)
    clock.advance(1.5)
    assert (clock.time_ms(), clock.monotonic_s()) == (101_500, 1.5)
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance(-1)


def test_a_servers_hours_pass_in_no_time():
    """A writer that is silent for an hour has crashed, and is back with its next point."""
    clock = ManualClock()
    with MemoryServer(clock=clock) as server:
        run = open_run(server.transport())
        run.log("m", 1.0, timestamp=clock.time_ms())
        run.flush(20)
        clock.advance(3600)
        server.upkeep()
        with reader(server) as client:
            assert client.run("r").state == "crashed"
        run.log("m", 2.0, timestamp=clock.time_ms())
        run.flush(20)
        with reader(server) as client:
            assert client.run("r").state == "running"
            assert client.series("r", "m").time_ms.tolist() == [
                1_700_000_000_000,
                1_700_003_600_000,
            ]
        run.close(20)


def test_both_surfaces_and_the_reader_share_a_server(server):
    """One server in memory serves async code, blocking code and queries at once."""

    async def logs() -> None:
        async with metrana_async.init(
            project_name="p", run_name="a", quiet=True, transport=server.transport()
        ) as run:
            await run.log("m", 1.0)

    asyncio.run(logs())
    with open_run(server.transport()) as run:
        run.log("m", 2.0)
    with reader(server) as client:
        assert [client.series(name, "m").value.tolist() for name in ("a", "r")] == [[1.0], [2.0]]
