"""The simulation's own parts: time, death, connections."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.simulation.machine import ProcessKilled, Scheduler
from tests.simulation.network import Network, Weather
from tests.simulation.surroundings import simulated


def run(work, *, seed: int = 0, weather: Weather | None = None):
    """Drive `work(scheduler, network)` as the main process of a world."""
    scheduler = Scheduler(seed)
    network = Network(scheduler)
    network.weather = weather or Weather()
    main = network.process("main", "here")
    with simulated(scheduler):
        try:
            return scheduler.run(main, work(scheduler, network), limit_s=10_000.0)
        finally:
            scheduler.bury()


class Echo(asyncio.Protocol):
    """Keeps what it hears, and says it back."""

    heard: list[bytes]

    def __init__(self, heard: list[bytes], *, answers: bool = True) -> None:
        self.heard = heard
        self.lost: BaseException | bool | None = False
        self._answers = answers

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.heard.append(data)
        if self._answers:
            self.transport.write(data)

    def connection_lost(self, error):
        self.lost = error


def test_time_passes_by_timers_only():
    """An hour of sleep takes an hour on every clock of this Python, and no real time."""

    async def work(scheduler, network):
        before = (time.monotonic(), time.time(), time.time_ns())
        await asyncio.sleep(3600.0)
        after = (time.monotonic(), time.time(), time.time_ns())
        return [b - a for a, b in zip(before, after, strict=True)]

    monotonic_s, wall_s, wall_ns = run(work)
    assert monotonic_s == pytest.approx(3600.0)
    assert wall_s == pytest.approx(3600.0)
    assert wall_ns == pytest.approx(3600e9)


def test_a_killed_process_does_nothing_more():
    """No `finally` runs and no task goes on; who waits for it is told."""
    done = []

    async def victim():
        try:
            await asyncio.sleep(1.0)
            done.append("woke up")
        finally:
            done.append("cleaned up")

    async def work(scheduler, network):
        process = network.process("victim", "there")
        answer = process.call(victim())
        await asyncio.sleep(0.5)
        network.kill(process)
        await asyncio.sleep(5.0)
        with pytest.raises(ProcessKilled):
            await answer
        return list(done)

    assert run(work) == []


def test_a_paused_process_is_late():
    """SIGSTOP: its timers fire when it goes on."""

    async def sleeper():
        await asyncio.sleep(1.0)
        return time.monotonic()

    async def work(scheduler, network):
        process = network.process("sleeper", "there")
        began_s = time.monotonic()
        answer = process.call(sleeper())
        await asyncio.sleep(0.5)
        process.paused_until_s = began_s + 60.0
        return await answer - began_s

    assert run(work) == pytest.approx(60.0)


async def connected(network, heard, *, answers=True):
    """A client's end, its protocol, and what the server hears."""
    server = network.process("server", "there")
    network.listen("address", server, lambda: Echo(heard, answers=answers))
    client = network.process("client", "here too")

    async def connect():
        echoes: list[bytes] = []
        return (*await client.connect(lambda: Echo(echoes, answers=False), "address"), echoes)

    end, protocol, echoes = await client.call(connect())
    return server, end, protocol, echoes


def test_bytes_keep_their_order():
    """Whatever the delays, a connection delivers what was written, as it was written."""

    async def work(scheduler, network):
        heard: list[bytes] = []
        _, end, _, echoes = await connected(network, heard)
        for n in range(200):
            end.write(bytes([n]))
        await asyncio.sleep(100.0)
        return b"".join(heard), b"".join(echoes)

    weather = Weather(delay_s=0.5, stall=0.3)
    assert run(work, weather=weather) == (bytes(range(200)),) * 2


def test_a_partition_holds_what_is_sent_and_delivers_it_late():
    """Requests arrive, answers do not; after healing they do."""

    async def work(scheduler, network):
        heard: list[bytes] = []
        _, end, _, echoes = await connected(network, heard)
        network.block("there", "here too")
        end.write(b"question")
        await asyncio.sleep(60.0)
        held = (list(heard), list(echoes))
        network.unblock_all()
        await asyncio.sleep(1.0)
        return held, echoes

    held, echoes = run(work)
    assert held == ([b"question"], [])
    assert b"".join(echoes) == b"question"


def test_a_killed_servers_connections_are_reset():
    """The kernel of a dead process says so."""

    async def work(scheduler, network):
        server, _, protocol, _ = await connected(network, [])
        network.kill(server)
        await asyncio.sleep(1.0)
        return protocol.lost

    assert isinstance(run(work), ConnectionResetError)


def test_a_cut_delivers_a_beginning_at_most():
    """Over the seeds every prefix of a request arrives, and then the reset."""
    lengths = set()

    async def work(scheduler, network):
        heard: list[bytes] = []
        _, end, protocol, _ = await connected(network, heard, answers=False)
        end.write(b"0123456789")
        await asyncio.sleep(10.0)
        assert isinstance(protocol.lost, ConnectionResetError)
        return b"".join(heard)

    for seed in range(200):
        arrived = run(work, seed=seed, weather=Weather(cut_request=1.0))
        assert b"0123456789".startswith(arrived)
        lengths.add(len(arrived))
    assert lengths == set(range(11))


def test_a_request_is_replayed_whole():
    """A copy of what was asked comes again on a connection of its own."""

    async def work(scheduler, network):
        heard: list[bytes] = []
        _, end, _, _ = await connected(network, heard)
        end.write(b"request")
        await asyncio.sleep(1.0)
        network.replay_something()
        await asyncio.sleep(10.0)
        return b"".join(heard)

    assert run(work) == b"requestrequest"
