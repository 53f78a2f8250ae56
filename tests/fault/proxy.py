"""A TCP proxy between a client and a real server that does wrong whatever a network can.

It runs on a thread of its own, on loopback. A *fault* is a coroutine that is given one exchange
(the client's request, the way to the server) and does with it what it likes; what it did is
counted in `fired`, so that a test can show that its fault happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

_HEAD_END = b"\r\n\r\n"
_BACKLOG = 128
_JOIN_S = 20.0

HTML_PAGE = b"<html><body>Please log in to the Wi-Fi</body></html>"


@dataclass
class Exchange:
    """One request of a client, whose head was read."""

    proxy: ChaosProxy
    head: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    _request: bytes | None = None

    @property
    def path(self) -> str:
        return self.head.split(b" ", 2)[1].decode().removeprefix("/api/v1")

    async def request(self) -> bytes:
        """The whole request, head and body."""
        if self._request is None:
            self._request = self.head + await self.reader.readexactly(_length(self.head))
        return self._request

    async def ask(self) -> bytes:
        """Have the server answer it; returns the whole answer."""
        return await self.proxy.ask(await self.request())

    async def say(self, data: bytes) -> None:
        """Send bytes to the client."""
        self.writer.write(data)
        await self.writer.drain()

    def hang_up(self) -> None:
        """FIN."""
        self.writer.close()

    def reset(self) -> None:
        """RST."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Fault = Callable[[Exchange], Awaitable[None]]


class ChaosProxy:
    """The way to one server. Use as a context manager."""

    def __init__(self, upstream: str, tls: ssl.SSLContext | None = None) -> None:
        """Make a proxy.

        Args:
            upstream: ``http://host:port`` of the server.
            tls: how it proves to clients who it is; None = it speaks in the clear.
        """
        host, _, port = upstream.removeprefix("http://").rpartition(":")
        self._upstream = (host, int(port))
        self.fired: Counter[str] = Counter()
        self.connections = 0
        self._tls = tls
        self.requests: list[bytes] = []
        """Every whole ingest request that reached the server, in order."""
        self.answers: list[bytes] = []
        """What the server answered to them."""
        self._fault: Fault | None = None
        self._faulty_path = ""
        self._left = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._busy: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chaos-proxy")
        self._server: asyncio.Server | None = None
        self._port = 0

    def __enter__(self) -> ChaosProxy:
        self._thread.start()
        self.listen()
        return self

    def __exit__(self, *error: object) -> None:
        self.run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_JOIN_S)
        assert not self._thread.is_alive()
        self._loop.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run something on the proxy's thread and wait for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_JOIN_S)

    # --- what a test orders ------------------------------------------------------------------
    def inject(self, fault: Fault, *, path: str = "/ingest", times: int = 10**9) -> None:
        """From now on `times` requests to `path` ("" = every one) meet `fault`."""
        self._fault, self._faulty_path, self._left = fault, path, times

    def heal(self) -> None:
        """No fault any more; exchanges under one go on as they are."""
        self._left = 0

    def listen(self) -> None:
        """Take connections, at the same port as before."""
        if self._server is None:
            self.run(self._listen())

    def refuse(self) -> None:
        """Refuse new connections and reset what is open."""
        self.run(self._refuse())

    def cut(self) -> int:
        """Reset what is open; returns how many connections that were."""
        return int(self.run(self._cut()))

    def replay(self, request: bytes) -> bytes:
        """Deliver a recorded request once more, past the client; returns the answer."""
        return bytes(self.run(self.ask(request)))

    # --- on the proxy's thread -----------------------------------------------------------------
    async def _listen(self) -> None:
        self._server = await asyncio.start_server(
            self._serve,
            "127.0.0.1",
            self._port,
            backlog=_BACKLOG,
            reuse_address=True,
            ssl=self._tls,
        )
        self._port = self._server.sockets[0].getsockname()[1]

    async def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        self.fired["refuse"] += 1
        await self._cut()

    async def _cut(self) -> int:
        writers = list(self._open)
        for writer in writers:
            sock = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        return len(writers)

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        await self._cut()
        for task in list(self._busy):
            task.cancel()
        await asyncio.gather(*self._busy, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._busy.add(task)
        self._open.add(writer)
        try:
            while not writer.is_closing():
                head = await reader.readuntil(_HEAD_END)
                await self._exchange(Exchange(self, head, reader, writer))
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client, the server or the test went away
        finally:
            self._open.discard(writer)
            self._busy.discard(task)
            writer.close()

    async def _exchange(self, exchange: Exchange) -> None:
        fault = self._fault
        is_hit = exchange.path.startswith(self._faulty_path)
        if fault is not None and self._left > 0 and is_hit:
            self._left -= 1
            self.fired[_name(fault)] += 1
            await fault(exchange)
            return
        await exchange.say(await exchange.ask())

    async def ask(self, request: bytes) -> bytes:
        """Send a request to the server on a connection of its own; returns the whole answer."""
        reader, writer = await asyncio.open_connection(*self._upstream)
        try:
            writer.write(request)
            head = await reader.readuntil(_HEAD_END)
            answer = head + await reader.readexactly(_length(head))
        finally:
            writer.close()
        if b" /api/v1/ingest " in request[:64]:
            self.requests.append(request)
            self.answers.append(answer)
        return answer


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.split(b":")[1])
    assert b"transfer-encoding" not in head.lower(), "the proxy does not read chunks"
    return 0


def _name(fault: Fault) -> str:
    return getattr(fault, "__name__", type(fault).__name__)


# --- the faults -----------------------------------------------------------------------------------
async def black_hole(exchange: Exchange) -> None:
    """The request is swallowed and nothing comes back, ever."""
    await exchange.request()
    await asyncio.Event().wait()


async def deaf(exchange: Exchange) -> None:
    """The server has the request; its answer never arrives."""
    await exchange.ask()
    await asyncio.Event().wait()


async def cut_before_answer(exchange: Exchange) -> None:
    """The server has the request; the connection is reset before the answer."""
    await exchange.ask()
    exchange.reset()


async def keep_alive_race(exchange: Exchange) -> None:
    """The connection was closed as the request came; the server never saw it."""
    exchange.hang_up()


async def reset_mid_request(exchange: Exchange) -> None:
    """RST after the first bytes of the body."""
    await exchange.reader.read(16)
    exchange.reset()


async def reset_mid_answer(exchange: Exchange) -> None:
    """The server has the request; RST in the middle of its answer."""
    answer = await exchange.ask()
    await exchange.say(answer[: len(answer) - 7])
    exchange.reset()


async def html(exchange: Exchange) -> None:
    """A captive portal answers 200 with a page; the server never saw the request."""
    await exchange.request()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n"
    await exchange.say(head % len(HTML_PAGE) + HTML_PAGE)


async def garbage(exchange: Exchange) -> None:
    """200 in the right type, with bytes that mean nothing; the server has the request."""
    await exchange.ask()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 8\r\n\r\n"
    await exchange.say(head + b"\x00\xff{}[]\x17\n")


async def no_http(exchange: Exchange) -> None:
    """Something answers that does not speak HTTP."""
    await exchange.request()
    await exchange.say(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
    exchange.hang_up()


async def wrong_length(exchange: Exchange) -> None:
    """The answer is whole and claims to be longer; then the connection ends."""
    answer = await exchange.ask()
    head, _, body = answer.partition(_HEAD_END)
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
    lines.append(b"Content-Length: %d" % (len(body) + 100))
    await exchange.say(b"\r\n".join(lines) + _HEAD_END + body)
    exchange.hang_up()


async def proxy_refuses(exchange: Exchange) -> None:
    """A forward proxy wants to be paid first (407), with a page."""
    await exchange.request()
    head = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Type: text/html\r\n"
    await exchange.say(head + b"Content-Length: %d\r\n\r\n" % len(HTML_PAGE) + HTML_PAGE)


async def bad_gateway(exchange: Exchange) -> None:
    """A reverse proxy cannot reach the server (502), with a page."""
    await exchange.request()
    head = b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\n"
    await exchange.say(head + b"Content-Length: %d\r\n\r\n" % len(HTML_PAGE) + HTML_PAGE)


async def rewriting(exchange: Exchange) -> None:
    """One bit of the body changes on the way to the server."""
    request = bytearray(await exchange.request())
    request[-1] ^= 1
    await exchange.say(await exchange.proxy.ask(bytes(request)))


async def twice(exchange: Exchange) -> None:
    """The request is delivered twice, one behind the other; the second answer goes back."""
    await exchange.ask()
    await exchange.say(await exchange.ask())


async def raced(exchange: Exchange) -> None:
    """Two copies race on two connections; either answer goes back."""
    await exchange.request()
    answers = await asyncio.gather(exchange.ask(), exchange.ask())
    await exchange.say(answers[-1])


async def answered_twice(exchange: Exchange) -> None:
    """The answer arrives twice: the second copy waits for the next request."""
    answer = await exchange.ask()
    await exchange.say(answer + answer)


async def of_the_one_before(exchange: Exchange) -> None:
    """The request is lost, and the answer of the one before arrives instead of its own."""
    await exchange.request()
    await exchange.say(exchange.proxy.answers[-1])


@dataclass
class Refused:
    """The server says no, with one of its own errors, or a bare page."""

    status: int
    code: str = ""
    retry_after: str = ""

    async def __call__(self, exchange: Exchange) -> None:
        await exchange.request()
        error = {"error": {"code": self.code, "message": "as the test wants it", "hint": None}}
        body = json.dumps(error).encode() if self.code else HTML_PAGE
        head = f"HTTP/1.1 {self.status} No\r\nContent-Length: {len(body)}\r\n"
        head += "Content-Type: application/json\r\n" if self.code else "Content-Type: text/html\r\n"
        head += f"Retry-After: {self.retry_after}\r\n" if self.retry_after else ""
        await exchange.say(head.encode() + b"\r\n" + body)


@dataclass
class Late:
    """Everything arrives, after a while."""

    seconds: float

    async def __call__(self, exchange: Exchange) -> None:
        await exchange.request()
        await asyncio.sleep(self.seconds)
        await exchange.say(await exchange.ask())


@dataclass
class Trickle:
    """The answer comes one byte at a time."""

    seconds_a_byte: float

    async def __call__(self, exchange: Exchange) -> None:
        for byte in await exchange.ask():
            await exchange.say(bytes([byte]))
            await asyncio.sleep(self.seconds_a_byte)


@dataclass
class Truncated:
    """The answer ends after `nbytes`, with FIN."""

    nbytes: int

    async def __call__(self, exchange: Exchange) -> None:
        answer = await exchange.ask()
        await exchange.say(answer[: self.nbytes])
        exchange.hang_up()


@dataclass
class Narrow:
    """The request crawls to the server at so many bytes a second."""

    bytes_a_second: float
    nbytes: int = 0

    async def __call__(self, exchange: Exchange) -> None:
        request = await exchange.request()
        self.nbytes += len(request)
        await asyncio.sleep(len(request) / self.bytes_a_second)
        await exchange.say(await exchange.ask())


@dataclass
class Clogged:
    """Exchanges stand still, each until it is let go."""

    waiting: list[asyncio.Event] = field(default_factory=list)

    async def __call__(self, exchange: Exchange) -> None:
        await exchange.request()
        event = asyncio.Event()
        self.waiting.append(event)
        await event.wait()
        await exchange.say(await exchange.ask())


class SynHole:
    """A port where connecting never comes to an end: its queue of new connections is full."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=0)
        self.port = self._listener.getsockname()[1]
        self._fillers: list[socket.socket] = []

    def __enter__(self) -> SynHole:
        for _ in range(8):
            filler = socket.socket()
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect(("127.0.0.1", self.port))
            self._fillers.append(filler)
        return self

    def __exit__(self, *error: object) -> None:
        for filler in self._fillers:
            filler.close()
        self._listener.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def is_full(self) -> bool:
        """Whether a new connection hangs."""
        with socket.socket() as probe:
            probe.settimeout(0.3)
            try:
                probe.connect(("127.0.0.1", self.port))
            except TimeoutError:
                return True
            return False
