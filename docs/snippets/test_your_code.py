"""Tests of a training loop: a server in memory, hours in no time, a network that fails."""

from collections.abc import Iterator

import pytest

import metrana_sync_shim as metrana
from metrana_async.testing import FaultyTransport, ManualClock, MemoryServer


def train(steps: int) -> None:
    """The code under test: it logs through the current run and knows nothing of tests."""
    for step in range(steps):
        metrana.log("loss", 1.0 / (1 + step), step=step)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def server(clock: ManualClock) -> Iterator[MemoryServer]:
    with MemoryServer(clock=clock) as server:
        yield server


@pytest.fixture
def reader(server: MemoryServer) -> Iterator[metrana.QueryClient]:
    with metrana.QueryClient(project="test", transport=server.transport()) as reader:
        yield reader


@pytest.fixture
def run(server: MemoryServer) -> Iterator[metrana.Run]:
    with metrana.init(
        project_name="test", run_name="run", transport=server.transport(), quiet=True
    ) as run:
        yield run


def test_every_step_is_logged(run: metrana.Run, reader: metrana.QueryClient) -> None:
    train(100)
    run.flush()
    assert reader.series("run", "loss").step.tolist() == list(range(100))


def test_a_bad_network_costs_nothing(server: MemoryServer, reader: metrana.QueryClient) -> None:
    network = FaultyTransport(server.transport(), seed=3, refuse=0.3, lose_answer=0.3)
    with metrana.init(project_name="test", run_name="bad", transport=network, quiet=True) as run:
        for _ in range(5):
            train(10)
            run.flush()
    assert len(reader.series("bad", "loss").step) == 10
    assert network.faults


def test_a_silent_run_has_crashed(
    run: metrana.Run, clock: ManualClock, server: MemoryServer, reader: metrana.QueryClient
) -> None:
    clock.advance(3600)
    server.upkeep()
    assert reader.run("run").state == "crashed"
    train(1)
    run.flush()
    assert reader.run("run").state == "running"


def test_code_that_only_has_to_run() -> None:
    with metrana.init(project_name="test", init_mode="disabled", quiet=True):
        train(10)


if __name__ == "__main__":
    raise SystemExit(pytest.main(["-q", "-p", "no:cacheprovider", "-W", "ignore", __file__]))
