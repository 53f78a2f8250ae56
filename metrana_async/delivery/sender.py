"""The task that sends a writer's batches, one request at a time, until they are stored.

It decides nothing about batches: `Outbox` says what to send and what an answer means, `Backoff`
how long to wait. Trouble is reported to `on_trouble` and never ends the task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from metrana_async.delivery.outbox import Outbox, Request
from metrana_async.delivery.retry import Backoff
from metrana_async.engine.clock import Clock
from metrana_async.engine.pulse import Pulse
from metrana_async.errors import (
    AuthError,
    BatchTooLargeError,
    MetranaError,
    NotFoundError,
    ProtocolError,
    RunDeletedError,
    UnavailableError,
)
from metrana_async.statistics import Ledger
from metrana_async.transport.base import Transport
from metrana_async.wire.acks import IngestReply, decode_reply
from metrana_async.wire.messages import FRAMES_TYPE

INGEST_PATH: Final = "/ingest"
REQUEST_TIMEOUT_S: Final = 30.0


class Sender:
    """Drives one writer's outbox over one transport. Lives on the engine loop."""

    def __init__(
        self,
        transport: Transport,
        outbox: Outbox,
        ledger: Ledger,
        *,
        clock: Clock,
        on_reply: Callable[[IngestReply], None],
        on_trouble: Callable[[MetranaError], None],
        reopen: Callable[[], Awaitable[None]],
        renew: Callable[[], Awaitable[None]],
        backoff: Backoff | None = None,
    ) -> None:
        """Make a sender.

        Args:
            transport: carries the requests.
            outbox: what to send.
            ledger: where attempts are counted.
            clock: stamps acknowledgements.
            on_reply: called after every applied answer (notices, generation, progress).
            on_trouble: called with every failure.
            reopen: introduces this writer to the server again; it may have forgotten it.
            renew: takes a new identity; another writer uses ours.
            backoff: the retry schedule.
        """
        self._transport = transport
        self._outbox = outbox
        self._ledger = ledger
        self._clock = clock
        self._on_reply = on_reply
        self._on_trouble = on_trouble
        self._reopen = reopen
        self._renew = renew
        self._backoff = backoff or Backoff()
        self._wanted = asyncio.Event()
        self._hurry = Pulse()
        self._failing_since_s: float | None = None
        self._failed_attempt = 0

    def wake(self) -> None:
        """There is something to send."""
        self._wanted.set()

    def hurry(self) -> None:
        """Cut the current back-off short: somebody waits."""
        self._hurry.beat()
        self._wanted.set()

    @property
    def outage_s(self) -> float:
        """Seconds since requests began to fail; 0 while they are answered."""
        since_s = self._failing_since_s
        return 0.0 if since_s is None else self._clock.monotonic_s() - since_s

    @property
    def attempts_count(self) -> int:
        """Requests begun so far."""
        return self._ledger.requests_sent

    def has_failed_since(self, attempts_count: int) -> bool:
        """Whether a request failed that was begun after so many others."""
        return self._failed_attempt > attempts_count

    async def run(self) -> None:
        """Send for ever. Cancel-safe: a batch without an answer is sent again, the same bytes."""
        while True:
            self._wanted.clear()
            request = self._outbox.next_request()
            if request is None:
                await self._wanted.wait()
                continue
            pause_s = await self._send(request)
            if pause_s > 0:
                await self._pause(pause_s)

    async def _send(self, request: Request) -> float:
        """One attempt; returns the seconds to wait before the next."""
        if self._outbox.must_rename:
            return await self._introduce(self._renew)
        self._outbox.note_sent(request)
        self._ledger.requests_sent += 1
        try:
            answer = await self._transport.post(
                INGEST_PATH,
                request.body,
                timeout_s=REQUEST_TIMEOUT_S,
                content_type=FRAMES_TYPE,
            )
            reply = self._apply(request, answer)
        except MetranaError as error:
            return await self._failed(request, error)
        self._failing_since_s = None
        self._on_reply(reply)
        if self._outbox.is_stuck:
            stuck = UnavailableError("several answers in a row settled nothing")
            return self._backoff.delay_s(stuck)
        self._backoff.succeeded()
        return reply.retry_after_ms / 1000.0

    def _apply(self, request: Request, answer: bytes) -> IngestReply:
        try:
            reply = decode_reply(answer)
            self._outbox.on_reply(request, reply, self._clock.monotonic_s())
        except ProtocolError as error:
            # Nonsense from the server is the server's trouble: the same bytes are sent again.
            raise UnavailableError(f"the server's answer makes no sense: {error}") from error
        return reply

    async def _failed(self, request: Request, error: MetranaError) -> float:
        self._ledger.send_errors += 1
        if isinstance(error, BatchTooLargeError) and self._outbox.shrink(request):
            return 0.0  # An answer, and no outage: smaller requests may pass.
        self._failed_attempt = self._ledger.requests_sent
        if self._failing_since_s is None:
            self._failing_since_s = self._clock.monotonic_s()
        self._on_trouble(error)
        if isinstance(error, RunDeletedError):
            return 0.0  # Whoever was told has emptied the outbox.
        if isinstance(error, NotFoundError):
            return await self._introduce(self._reopen)
        if error.retryable or isinstance(error, AuthError):
            return self._backoff.delay_s(error)
        return self._backoff.delay_s(error) if self._outbox.on_refused(request, error) else 0.0

    async def _introduce(self, introduce: Callable[[], Awaitable[None]]) -> float:
        try:
            await introduce()
        except MetranaError as error:
            self._on_trouble(error)
            return self._backoff.delay_s(error)
        # Not 0: a server that admits us and then knows nothing of it must not be hammered.
        return self._backoff.delay_s(UnavailableError("the server did not know this writer"))

    async def _pause(self, delay_s: float) -> None:
        await self._hurry.wait(delay_s)
