"""A writer's standing with its server: admitted, alive, gone. Everything but the batches.

Lives on the engine loop. A writer may start without having been admitted (offline, or nobody
answered yet); its batches then carry the run uid of its own request until it is.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Final, TypeVar

from metrana_async.delivery.retry import Backoff
from metrana_async.engine.clock import Clock
from metrana_async.engine.pulse import Pulse
from metrana_async.errors import (
    InitError,
    MetranaError,
    NotFoundError,
    RejectedError,
    UnavailableError,
)
from metrana_async.transport.base import Transport
from metrana_async.wire.acks import Notice
from metrana_async.wire.messages import (
    HeartbeatReply,
    HeartbeatRequest,
    LeaveRequest,
    OpenReply,
    OpenRequest,
    ReserveReply,
    ReserveRequest,
    Seeds,
    SeedsReply,
    SeedsRequest,
    decode_answer,
    encode_message,
)

REPLY_TIMEOUT_S: Final = 10.0
_LEAST_S: Final = 0.05
"""What a request gets whose time is up."""

SEEDS_WITH_ADMISSION: Final = 5_000
"""Series of the largest run whose seeds `init` waits for; those of a larger one follow."""
SEEDS_PATIENCE_S: Final = 3.0
"""How long a part of the seeds may take; until then nothing is sealed, so nothing is spooled."""

_Reply = TypeVar("_Reply")


class Membership:
    """One writer incarnation in one run of one server."""

    def __init__(
        self,
        transport: Transport,
        request: OpenRequest,
        reply: OpenReply | None,
        *,
        clock: Clock,
        on_notices: Callable[[Iterable[Notice]], None],
        on_trouble: Callable[[MetranaError], None],
        on_marks: Callable[[dict[int, int], dict[int, int]], None],
        acked: Callable[[], dict[int, int]],
    ) -> None:
        """Make a membership.

        Args:
            transport: carries the requests.
            request: how the writer introduces itself, each time.
            reply: its admission, or None where it was not admitted yet.
            clock: for deadlines.
            on_notices: called with what the server has to say.
            on_trouble: called with failures that nobody waits for.
            on_marks: called with the server's marks per lane, and ours when it was asked.
            acked: our marks per lane now.
        """
        self.request = request
        self.run_uid = request.run_uid
        self.run_name = request.run_name or ""
        self.generation = ""
        self.is_admitted = False
        self.is_creator = False
        self.is_unsettled = False
        """Whether an answer came from a server that may have lost something, and nothing has said
        yet what: until then nobody knows what is stored."""
        self.failures_count = 0
        """Attempts to join that failed."""
        self._hurry = Pulse()
        self._transport = transport
        self._clock = clock
        self._on_notices = on_notices
        self._on_trouble = on_trouble
        self._on_marks = on_marks
        self._acked = acked
        if reply is not None:
            self._admit(reply)

    def _admit(self, reply: OpenReply) -> None:
        self.is_admitted = True
        self.is_creator = reply.created
        self.generation = reply.generation
        self.run_uid, self.run_name = reply.run_uid, reply.run_name
        # Introduced again, it must not ask for a generated name again.
        # And a server that was put back to before the run has to make it under the uid that the
        # batches carry.
        run_uid = self.request.run_uid or reply.run_uid
        self.request = replace(self.request, run_name=reply.run_name, run_uid=run_uid)

    async def join(self, on_admitted: Callable[[OpenReply], None]) -> None:
        """Ask until the server admits this writer.

        Raises:
            InitError: it refuses for good; nothing was sent.
        """
        backoff = Backoff()
        while True:
            try:
                reply = await self._call("/writers/open", self.request, OpenReply, REPLY_TIMEOUT_S)
            except MetranaError as error:
                if not error.retryable and error.code != "auth":
                    raise InitError(f"the server refuses the run: {error}") from error
                self.failures_count += 1
                self._on_trouble(error)
                await self._hurry.wait(backoff.delay_s(error))
                continue
            self._admit(reply)
            on_admitted(reply)
            self._on_notices(reply.notices)
            return

    def hurry(self) -> None:
        """Cut the pause of a `join` short: somebody waits."""
        self._hurry.beat()

    async def reopen(self, timeout_s: float = REPLY_TIMEOUT_S) -> None:
        """Introduce this writer again; the server may have gone back in time.

        Raises:
            MetranaError: it did not work.
        """
        when_asked = self._acked()
        request = replace(self.request, seeds_max=0)
        reply = await self._call("/writers/open", request, OpenReply, timeout_s)
        if reply.run_uid != self.run_uid:
            text = f"the server has lost run {self.run_name!r} and made another under its name"
            raise RejectedError(text)
        self._on_marks(reply.acked, when_asked)
        self.generation, self.is_unsettled = reply.generation, False
        self._on_notices(reply.notices)

    async def reopen_quietly(self, timeout_s: float = REPLY_TIMEOUT_S) -> None:
        """Like `reopen`; a failure is told and tried again when the next answer shows the need."""
        self.is_unsettled = True
        try:
            await self.reopen(timeout_s)
        except MetranaError as error:
            # Whoever is refused for good has been told, and need not wait for another answer.
            self.is_unsettled = error.retryable
            self._on_trouble(error)

    async def renew(self, writer_id: str) -> None:
        """Join anew as another incarnation.

        Raises:
            MetranaError: it did not work; the membership is as before.
        """
        request = replace(self.request, writer_id=writer_id)
        reply = await self._call(
            "/writers/open", replace(request, seeds_max=0), OpenReply, REPLY_TIMEOUT_S
        )
        self.request = request
        self.generation = reply.generation

    async def seeds(self) -> Seeds:
        """What the server knows of the run now.

        Raises:
            MetranaError: it does not answer.
        """
        request = replace(self.request, seeds_max=-1)
        return (await self._call("/writers/open", request, OpenReply, REPLY_TIMEOUT_S)).seeds

    async def seeds_that_follow(self) -> AsyncIterator[Seeds]:
        """The seeds that did not come with the admission, part after part.

        Raises:
            MetranaError: the server does not answer for SEEDS_PATIENCE_S.
        """
        first: int | None = 0
        while first is not None:
            request = SeedsRequest(self.run_uid, self.request.writer_id, first)
            reply = await retried(
                lambda left_s, request=request: self._call(  # type: ignore[misc]
                    "/writers/seeds", request, SeedsReply, left_s
                ),
                SEEDS_PATIENCE_S,
                self._clock,
            )
            yield reply.seeds
            first = reply.next

    async def beat(self, counters: dict[str, int], timeout_s: float = REPLY_TIMEOUT_S) -> None:
        """Show life and fetch notices. A failure is told, not raised."""
        if not self.is_admitted:
            return
        deadline_s = self._clock.monotonic_s() + timeout_s
        request = HeartbeatRequest(self.run_uid, self.request.writer_id, counters)
        try:
            reply = await self._call("/writers/heartbeat", request, HeartbeatReply, timeout_s)
        except NotFoundError:
            await self.reopen_quietly(self._left_s(deadline_s))
            return
        except MetranaError as error:
            self._on_trouble(error)
            return
        self._on_notices(reply.notices)
        if reply.generation != self.generation or self.is_unsettled:
            await self.reopen_quietly(self._left_s(deadline_s))

    def _left_s(self, deadline_s: float) -> float:
        return max(_LEAST_S, deadline_s - self._clock.monotonic_s())

    async def reserve_episodes(self, env_id: str, count: int, timeout_s: float) -> int:
        """Lease the next `count` episodes of an environment; returns the first.

        Raises:
            UnavailableError: this writer has not been admitted yet; nobody can be asked.
            MetranaError: the server does not answer in time, or refuses.
        """
        if not self.is_admitted:
            raise UnavailableError(
                f"run {self.run_name!r} has not reached its server, which alone can lease episodes",
                hint="EpisodeAllocator(index, count) numbers episodes without a server",
            )
        nonce = secrets.token_hex(16)  # the same in every attempt: one lease at the most

        async def attempt(left_s: float) -> ReserveReply:
            request = ReserveRequest(self.run_uid, self.request.writer_id, env_id, count, nonce)
            try:
                return await self._call("/episodes/reserve", request, ReserveReply, left_s)
            except NotFoundError:
                # The server went back to before this writer.
                await self.reopen(left_s)
                return await self._call("/episodes/reserve", request, ReserveReply, left_s)

        return (await retried(attempt, timeout_s, self._clock)).first

    async def leave(self, leave: LeaveRequest, timeout_s: float) -> bool:
        """Say goodbye; whether the server heard it. A failure is told, not raised.

        The answer may tell of a server that went back in time: what it has lost is queued again
        when this returns, and goodbye has to be said once more.
        """
        if not self.is_admitted:
            return False
        deadline_s = self._clock.monotonic_s() + timeout_s

        def attempt(left_s: float) -> Awaitable[HeartbeatReply]:
            return self._call("/writers/leave", leave, HeartbeatReply, left_s)

        try:
            reply = await retried(attempt, timeout_s, self._clock)
        except NotFoundError:
            await self.reopen_quietly(self._left_s(deadline_s))
            return False
        except MetranaError as error:
            self._on_trouble(error)
            return False
        self._on_notices(reply.notices)
        if reply.generation != self.generation or self.is_unsettled:
            await self.reopen_quietly(self._left_s(deadline_s))
        return reply.generation == self.generation

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def _call(
        self, path: str, request: object, reply: type[_Reply], timeout_s: float
    ) -> _Reply:
        answer = await self._transport.post(path, encode_message(request), timeout_s=timeout_s)
        return decode_answer(reply, answer)


async def retried(
    attempt: Callable[[float], Awaitable[_Reply]], timeout_s: float, clock: Clock
) -> _Reply:
    """Repeat `attempt(seconds left)` while its error is retryable and time is left.

    Raises:
        MetranaError: the last attempt's error.
    """
    deadline_s = clock.monotonic_s() + timeout_s
    backoff = Backoff()
    while True:
        try:
            return await attempt(max(_LEAST_S, deadline_s - clock.monotonic_s()))
        except MetranaError as error:
            delay_s = backoff.delay_s(error)
            if not error.retryable or clock.monotonic_s() + delay_s >= deadline_s:
                raise
        await asyncio.sleep(delay_s)
