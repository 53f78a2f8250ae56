"""The network: in-memory connections with seeded delay, cuts, partitions, ghosts and liars.

Bytes within one connection keep their order, as TCP's do; everything else may happen. What is held
back by a partition arrives when it heals, unless an end gave up before: so the server may well get
a request long after its sender has sent it again elsewhere.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from tests.simulation.machine import Process, Scheduler

PROXY_HOST: Final = "network"
_REPLAYS_KEPT: Final = 40
_GAP_S: Final = 1e-6


@dataclass
class Weather:
    """What the network does on its own, drawn for every piece of data it carries.

    Attributes:
        delay_s: longest usual one-way delay.
        stall: share of pieces that take up to `stall_s` instead.
        cut_request, cut_answer: share of pieces after some bytes of which the connection is reset.
        refuse: share of connections that find nobody listening.
        lie: share of connections that a proxy answers itself, with nonsense.
        misroute: share of answers that go to another connection that waits for one.
        duplicate: share of requests of which a copy is delivered within seconds.
        replay: share of requests of which a copy is delivered within minutes.
    """

    delay_s: float = 0.02
    stall: float = 0.0
    stall_s: float = 5.0
    cut_request: float = 0.0
    cut_answer: float = 0.0
    refuse: float = 0.0
    lie: float = 0.0
    misroute: float = 0.0
    duplicate: float = 0.0
    replay: float = 0.0


FAIR: Final = Weather()

_LIES: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 19\r\n\r\n<html>Log in</html>",
    b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\nContent-Length: 5\r\n\r\nsorry",
    b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
    b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"acked":',
    b"HTTP/1.1 302 Found\r\nLocation: http://portal/\r\nContent-Length: 0\r\n\r\n",
    b"\x16\x03\x01\x02\x00nonsense",
)


class Network:
    """Who listens where, who can reach whom, and everything that is under way."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.rng = random.Random(f"network {scheduler.seed}")
        self.weather = FAIR
        self.proxy = scheduler.process("proxy", PROXY_HOST)
        self.proxy.connect = self._connector(self.proxy)
        self._listeners: dict[str, tuple[Process, Callable[[], asyncio.Protocol]]] = {}
        self._blocked: set[tuple[str, str]] = set()
        self._links: list[Link] = []
        self._held: list[Callable[[], None]] = []
        self.haunted_until_s = scheduler.now_s
        """When the last copy of a request that is kept somewhere arrives."""
        self._replayable: deque[bytes] = deque(maxlen=_REPLAYS_KEPT)

    def note(self, kind: str, *details: object) -> None:
        self.scheduler.note(kind, *details)

    # --- who is there --------------------------------------------------------------------------
    def process(self, name: str, host: str) -> Process:
        """Start a process that can reach the network."""
        made = self.scheduler.process(name, host)
        made.connect = self._connector(made)
        return made

    def listen(self, address: str, process: Process, factory: Callable[[], Any]) -> None:
        self._listeners[address] = (process, factory)

    def kill(self, process: Process) -> None:
        """Kill a process; its kernel resets what it had open."""
        for address in [a for a, (owner, _) in self._listeners.items() if owner is process]:
            del self._listeners[address]
        self.scheduler.kill(process)
        for link in list(self._links):
            for end in link.ends:
                if end.process is process:
                    link.drop(end)

    # --- partitions ----------------------------------------------------------------------------
    def block(self, source: str, target: str) -> None:
        """Nothing from host `source` reaches host `target` any more."""
        self._blocked.add((source, target))

    def unblock_all(self) -> None:
        """Everybody reaches everybody; what was held back arrives."""
        self._blocked.clear()
        held, self._held = self._held, []
        for arrive in held:
            arrive()

    def is_blocked(self, source: Process, target: Process) -> bool:
        return (source.host, target.host) in self._blocked

    def hold(self, arrive: Callable[[], None]) -> None:
        self._held.append(arrive)

    def delay_s(self) -> float:
        weather = self.weather
        if self.rng.random() < weather.stall:
            self.note("network stall")
            return self.rng.uniform(0.0, weather.stall_s)
        return self.rng.uniform(0.0002, weather.delay_s)

    # --- connecting ----------------------------------------------------------------------------
    def _connector(self, process: Process) -> Callable[..., Any]:
        async def connect(factory: Callable[[], Any], address: str) -> tuple[Any, Any]:
            return await self._connect(process, factory, address)

        return connect

    async def _connect(
        self, process: Process, factory: Callable[[], Any], address: str
    ) -> tuple[Any, Any]:
        await asyncio.sleep(self.delay_s())
        found = self._listeners.get(address)
        is_client = process is not self.proxy
        if is_client and self.rng.random() < self.weather.refuse:
            self.note("connection refused on purpose", process.name)
            raise ConnectionRefusedError(111, "Connection refused")
        if is_client and self.rng.random() < self.weather.lie:
            self.note("proxy lied", process.name)
            return self._join(process, factory(), self.proxy, _Liar(self.rng.choice(_LIES)))
        if found is None:
            self.note("connection refused", process.name)
            raise ConnectionRefusedError(111, "Connection refused")
        server, accept = found
        if self.is_blocked(process, server) or self.is_blocked(server, process):
            self.note("connection swallowed", process.name)
            await asyncio.get_running_loop().create_future()  # the caller's time-out ends it
        return self._join(process, factory(), server, accept())

    def _join(
        self, client: Process, protocol: Any, server: Process, accepted: Any
    ) -> tuple[Any, Any]:
        link = Link(self, client, server)
        self._links.append(link)
        near, far = link.ends
        far.set_protocol(accepted)
        server.loop.call_soon(accepted.connection_made, far)
        near.set_protocol(protocol)
        protocol.connection_made(near)
        return near, protocol

    def forget(self, link: Link) -> None:
        if link in self._links:
            self._links.remove(link)

    # --- ghosts --------------------------------------------------------------------------------
    def requested(self, request: bytes, target: Process) -> None:
        """A whole request was carried: perhaps somebody kept a copy of it."""
        self._replayable.append(request)
        for share, within_s in ((self.weather.duplicate, 2.0), (self.weather.replay, 90.0)):
            if self.rng.random() < share:
                self._haunt(request, self.rng.uniform(0.0, within_s))

    def replay_something(self) -> None:
        """Deliver a copy of some request of the past, now."""
        if self._replayable:
            self._haunt(self.rng.choice(list(self._replayable)), 0.0)

    def _haunt(self, request: bytes, delay_s: float) -> None:
        at_s = self.scheduler.now_s + delay_s
        self.haunted_until_s = max(self.haunted_until_s, at_s)
        self.proxy.loop.call_at(at_s, self._deliver_copy, request)

    def _deliver_copy(self, request: bytes) -> None:
        if not self._listeners:
            return
        server, accept = next(iter(self._listeners.values()))
        self.note("request replayed", len(request))
        self._join(self.proxy, _Ghost(request), server, accept())

    def misrouted(self, receiver: End) -> End:
        """Where an answer goes: to `receiver`, or to another client that waits for one."""
        if self.rng.random() >= self.weather.misroute:
            return receiver
        others = [
            link.ends[0]
            for link in self._links
            if link.ends[0] is not receiver and link.awaits_answer and link.ends[0].is_open
        ]
        if not others:
            return receiver
        self.note("answer misrouted")
        return self.rng.choice(others)


class _Liar(asyncio.Protocol):
    """Answers whatever comes with the same bytes, and hangs up."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(self._answer)
        self._transport.close()


class _Ghost(asyncio.Protocol):
    """Sends one request and does not care for the answer."""

    def __init__(self, request: bytes) -> None:
        self._request = request

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._transport.close()


@dataclass(eq=False)
class Link:
    """One connection: two ends, and what of a request has been carried."""

    network: Network
    client: Process
    server: Process
    ends: tuple[End, End] = field(init=False)
    request: bytearray = field(default_factory=bytearray)
    awaits_answer: bool = False

    def __post_init__(self) -> None:
        self.ends = (End(self, self.client), End(self, self.server))
        self.ends[0].peer, self.ends[1].peer = self.ends[1], self.ends[0]

    @property
    def is_ghost(self) -> bool:
        return self.client is self.network.proxy

    def carry(self, sender: End, data: bytes) -> None:
        """Take data of one end to the other, or part of it and a reset."""
        network, rng = self.network, self.network.rng
        is_request = sender is self.ends[0]
        if is_request:
            self._note_request(data)
        elif self.awaits_answer:
            self.awaits_answer = False
            if not self.is_ghost and self.request:
                network.requested(bytes(self.request), self.server)
        receiver = sender.peer if is_request else network.misrouted(sender.peer)
        weather = network.weather
        share = weather.cut_request if is_request else weather.cut_answer
        if not self.is_ghost and rng.random() < share:
            network.note("cut in request" if is_request else "cut in answer", len(data))
            sender.pass_on(receiver, data[: rng.randrange(len(data) + 1)])
            self.reset(sender)
            return
        while data and rng.random() < 0.1:
            size = rng.randrange(1, len(data) + 1)
            sender.pass_on(receiver, data[:size])
            data = data[size:]
        if data:
            sender.pass_on(receiver, data)

    def _note_request(self, data: bytes) -> None:
        if not self.awaits_answer:
            self.awaits_answer = True
            self.request.clear()
        self.request += data

    def reset(self, sender: End) -> None:
        """Both ends find the connection reset, the far one after what was passed on to it."""
        error = ConnectionResetError(104, "Connection reset by peer")
        sender.pass_end(sender.peer, error)
        sender.loop.call_soon(sender.lose, error)

    def drop(self, dead: End) -> None:
        """One end's process is gone: the other finds out."""
        dead.is_open = False
        error = ConnectionResetError(104, "Connection reset by peer")
        dead.pass_end(dead.peer, error)
        self.network.forget(self)


class End(asyncio.Transport):
    """One end of a connection, as its process sees it."""

    def __init__(self, link: Link, process: Process) -> None:
        super().__init__({"peername": "", "sockname": ""})
        self.link = link
        self.process = process
        self.loop = process.loop
        self.peer: End
        self.is_open = True
        self._protocol: Any = None
        self._arrives_s = 0.0
        self._is_reading = True
        self._waiting: deque[Callable[[], None]] = deque()

    # --- towards the other end -----------------------------------------------------------------
    def write(self, data: Any) -> None:
        if self.is_open and data:
            self.link.carry(self, bytes(data))

    def close(self) -> None:
        if self.is_open:
            if self is self.link.ends[1] and self.link.awaits_answer:
                # A kept connection is closed as idle while the next request is under way.
                self.link.network.note("keep-alive race")
            self.pass_end(self.peer, None)
            self.loop.call_soon(self.lose, None)
        self.is_open = False

    def abort(self) -> None:
        if self.is_open:
            self.pass_end(self.peer, ConnectionResetError(104, "Connection reset by peer"))
            self.loop.call_soon(self.lose, None)
        self.is_open = False

    def pass_on(self, receiver: End, data: bytes) -> None:
        self._send(receiver, lambda: receiver.take(data))

    def pass_end(self, receiver: End, error: Exception | None) -> None:
        self._send(receiver, lambda: receiver.end(error))

    def _send(self, receiver: End, arrive: Callable[[], None]) -> None:
        network = self.link.network
        if network.scheduler.is_over:
            return  # what is being torn down says goodbye to nobody
        # Within a connection nothing overtakes; loops do not keep the order of equal times.
        arrives_s = network.scheduler.now_s + network.delay_s()
        self._arrives_s = max(self._arrives_s + _GAP_S, arrives_s)

        def arrived() -> None:
            if network.is_blocked(self.process, receiver.process):
                network.note("segment held")
                network.hold(lambda: receiver.loop.call_soon(arrive))
            else:
                arrive()

        receiver.loop.call_at(self._arrives_s, arrived)

    # --- from the other end --------------------------------------------------------------------
    def take(self, data: bytes) -> None:
        if not data:
            return
        self._when_reading(lambda: self._protocol.data_received(data))

    def end(self, error: Exception | None) -> None:
        def ended() -> None:
            if error is None and not self._protocol.eof_received():
                self.close()
            elif error is not None:
                self.lose(error)

        self._when_reading(ended)

    def lose(self, error: Exception | None) -> None:
        """The connection is over at this end. Told once."""
        protocol, self._protocol = self._protocol, None
        self.is_open = False
        self._waiting.clear()
        self.link.network.forget(self.link)
        if protocol is not None:
            protocol.connection_lost(error)

    def _when_reading(self, happen: Callable[[], None]) -> None:
        self._waiting.append(happen)
        self._read()

    def _read(self) -> None:
        while self._waiting and self._is_reading and self._protocol is not None:
            self._waiting.popleft()()

    # --- asyncio.Transport ---------------------------------------------------------------------
    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def is_closing(self) -> bool:
        return not self.is_open

    def is_reading(self) -> bool:
        return self._is_reading

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self.loop.call_soon(self._read)

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is buffered here: the network takes everything at once."""
