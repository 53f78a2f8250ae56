"""For tests, ours and yours: a server in memory, a clock you set, a transport that misbehaves.

::

    with MemoryServer() as server:
        run = metrana.init(project_name="p", transport=server.transport())

The server is the real one (same endpoints, rules and worker) on the memory store; only the
sockets are missing. `FaultyTransport` wraps its transport, or any other, and fails on purpose.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Collection
from types import TracebackType
from typing import Final

from metrana_async.engine.clock import Clock, SystemClock
from metrana_async.errors import ConnectError, TransportError, UnavailableError
from metrana_async.server.app import Backend
from metrana_async.server.store.base import PointStore
from metrana_async.server.store.memory import MemoryStore
from metrana_async.transport.base import Transport
from metrana_async.wire.messages import JSON_TYPE, decode_error

__all__ = ["FaultyTransport", "ManualClock", "MemoryServer", "MemoryTransport"]

_INGEST_PATH: Final = "/ingest"


class ManualClock:
    """A clock that stands still until it is told to go on. Thread-safe.

    Give it to a `MemoryServer` to see what hours do to a run, and use `time_ms()` as `timestamp=`
    to get the same columns in every test.
    """

    def __init__(self, start_s: float = 1_700_000_000.0) -> None:
        """Make a clock.

        Args:
            start_s: Unix time in seconds at which it stands.
        """
        self._lock = threading.Lock()
        self._start_s = start_s
        self._passed_s = 0.0

    def advance(self, seconds: float) -> None:
        """Let time pass.

        Raises:
            ValueError: `seconds` is negative; clocks of this kind do not go back.
        """
        if seconds < 0:
            raise ValueError(f"a clock cannot go back by {-seconds:g} s")
        with self._lock:
            self._passed_s += seconds

    def time_ms(self) -> int:
        """Unix time in milliseconds."""
        return round((self._start_s + self._passed_s) * 1000)

    def monotonic_s(self) -> float:
        """Seconds since the clock was made."""
        return self._passed_s


class MemoryServer:
    """A server without sockets. Use as a context manager, or `start()` and `stop()`."""

    def __init__(self, store: PointStore | None = None, *, clock: Clock | None = None) -> None:
        """Make a server.

        Args:
            store: where it keeps everything; None = a new store in memory.
            clock: what it takes for the time; None = the machine's.
        """
        self.store = MemoryStore() if store is None else store
        chosen = SystemClock() if clock is None else clock
        self.backend = Backend(self.store, clock=lambda: chosen.time_ms() / 1000)
        self.is_reachable = True
        """Set to False and every request fails as if nobody listened."""

    def start(self) -> None:
        """Start answering."""
        self.backend.start()

    def stop(self) -> None:
        """Stop; the store is closed. Idempotent. Not from a running event loop's thread."""
        asyncio.run(self.backend.stop())

    def upkeep(self) -> None:
        """Do now what a server does every now and then: mark crashed runs, seal what is due.

        Not from a running event loop's thread.
        """
        asyncio.run(self.backend.worker.seal())

    def transport(self) -> MemoryTransport:
        """A new transport to this server."""
        return MemoryTransport(self)

    def __enter__(self) -> MemoryServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class MemoryTransport:
    """A `transport.base.Transport` that calls a MemoryServer's endpoints directly."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server

    async def post(
        self, path: str, body: bytes, *, timeout_s: float, content_type: str = JSON_TYPE
    ) -> bytes:
        """See Transport."""
        del content_type
        if not self._server.is_reachable:
            raise ConnectError("the memory server is switched off")
        try:
            result = await asyncio.wait_for(self._server.backend.call(path, bytes(body)), timeout_s)
        except asyncio.TimeoutError as error:
            raise ConnectError(f"no answer within {timeout_s:g} s") from error
        if result.status >= 400:
            raise decode_error(result.status, result.body)
        return result.body

    async def close(self) -> None:
        """See Transport."""


class FaultyTransport:
    """A transport that fails on purpose, over one that works.

    The same seed gives the same faults for the same sequence of requests. The SDK retries every
    one of these faults: a test with them shows that nothing is lost and nothing is stored twice.

    Attributes:
        is_refusing: while True every request fails at once, as if nobody listened.
        is_black_hole: while True no request is sent, and each runs into its time-out.
        served: requests that reached the server.
        faults: how many faults of each kind have been made: ``refused``, ``failed``,
            ``answer_lost``, ``swallowed``.
    """

    def __init__(
        self,
        inner: Transport,
        *,
        seed: int = 0,
        refuse: float = 0.0,
        fail_every: int | None = None,
        lose_answer: float = 0.0,
        delay_s: float = 0.0,
        paths: Collection[str] | None = (_INGEST_PATH,),
    ) -> None:
        """Wrap a transport.

        Args:
            inner: what carries the requests that get through; closed with this one.
            seed: of the draws.
            refuse: share of requests (0..1) that find nobody listening.
            fail_every: each request of this number is answered with "unavailable", unserved.
            lose_answer: share of requests that are served and whose answer is lost.
            delay_s: longest time a request is held back; each draws its own.
            paths: endpoints that are affected; None = all, also joining a run.
        """
        self._inner = inner
        self._random = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self._refuse, self._lose_answer, self._delay_s = refuse, lose_answer, delay_s
        self._fail_every = fail_every
        self._paths = None if paths is None else frozenset(paths)
        self._requests_count = 0
        self.is_refusing = False
        self.is_black_hole = False
        self.served = 0
        self.faults: Counter[str] = Counter()

    async def post(
        self, path: str, body: bytes, *, timeout_s: float, content_type: str = JSON_TYPE
    ) -> bytes:
        """See Transport."""
        deadline_s = time.monotonic() + timeout_s
        is_affected = self._paths is None or path in self._paths
        if is_affected:
            await self._before(path, timeout_s)
        left_s = deadline_s - time.monotonic()
        answer = await self._inner.post(path, body, timeout_s=left_s, content_type=content_type)
        if is_affected:
            self.served += 1
            if self._random.random() < self._lose_answer:
                self.faults["answer_lost"] += 1
                raise TransportError(f"the answer to {path} was lost on purpose")
        return answer

    async def _before(self, path: str, timeout_s: float) -> None:
        """Hold the request back, or fail it before it is sent."""
        self._requests_count += 1
        if self.is_black_hole:
            self.faults["swallowed"] += 1
            await asyncio.sleep(timeout_s)
            raise UnavailableError(f"{path} was swallowed on purpose: no answer")
        # Drawn for every request, so that switching one fault does not move the others.
        is_refused = self._random.random() < self._refuse
        delay_s = self._random.random() * self._delay_s
        if self.is_refusing or is_refused:
            self.faults["refused"] += 1
            raise ConnectError(f"{path} was refused on purpose")
        if self._fail_every is not None and self._requests_count % self._fail_every == 0:
            self.faults["failed"] += 1
            raise UnavailableError(f"{path} was failed on purpose")
        if delay_s:
            await asyncio.sleep(min(delay_s, timeout_s))

    async def close(self) -> None:
        """See Transport."""
        await self._inner.close()
