"""The writer: what one process logs to one run through. Wires the rooms behind the inbox.

Callers touch `inbox`, `registry`, `notices` and `statistics()`; everything else belongs to the
engine thread. Three supervised tasks: the *pump* turns what waits in the inbox into sealed
batches, the *sender* has them stored, the *heartbeat* shows life and fetches notices. A task that
dies stops the intake, and the next call raises its cause.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Final, TypeVar

from metrana_async.delivery.batcher import Batcher
from metrana_async.delivery.outbox import Outbox
from metrana_async.delivery.retry import Backoff
from metrana_async.delivery.sender import Sender
from metrana_async.engine.clock import Clock
from metrana_async.engine.inbox import Inbox
from metrana_async.engine.pulse import Pulse
from metrana_async.engine.supervisor import Supervisor
from metrana_async.errors import (
    DataLossError,
    MetranaError,
    MetranaWarning,
    NotFoundError,
    PointsLost,
    RejectedError,
    RunClosedError,
    RunDeletedError,
    SecondWriter,
    WaitTimeoutError,
)
from metrana_async.notices import NoticeBoard
from metrana_async.settings import Settings
from metrana_async.statistics import CloseInfo, Ledger, Statistics, wire_counters
from metrana_async.transport.base import Transport
from metrana_async.wire import limits
from metrana_async.wire.acks import IngestReply, Notice, Outcome
from metrana_async.wire.messages import (
    HeartbeatReply,
    HeartbeatRequest,
    LeaveRequest,
    OpenReply,
    OpenRequest,
    decode_message,
    encode_message,
)
from metrana_async.writers.collect import SeriesWriters
from metrana_async.writers.registry import SeriesRegistry

TICK_S: Final = 0.1
"""The pump's beat while there is something to log: about ten requests a second."""

OUTBOX_BYTES: Final = 64 << 20
"""Sealed and unacknowledged bytes from which the pump leaves the rest in the inbox."""

REPLY_TIMEOUT_S: Final = 10.0
_LEAVE_RESERVE_S: Final = 0.3

_Reply = TypeVar("_Reply")


class Writer:
    """One writer incarnation of one run. Made by `opening`, on the engine loop."""

    def __init__(
        self,
        settings: Settings,
        *,
        request: OpenRequest,
        reply: OpenReply,
        transport: Transport,
        call_soon: Callable[[Callable[[], object]], None],
        clock: Clock,
    ) -> None:
        self.settings = settings
        self.run_uid = reply.run_uid
        self.run_name = reply.run_name
        self.is_creator = reply.created
        self.notices = NoticeBoard()
        self.registry = SeriesRegistry()
        self.registry.seed(reply.seeds)
        self.inbox = Inbox(
            settings.queue_capacity,
            settings.queue_bytes,
            lambda: call_soon(self._wanted.set),
            discards=settings.is_disabled,
        )
        self.plain: dict[str, int] = {}
        """Series numbers of ordered ML_STEP metrics without labels, for the shortest way in."""
        self.must_look = False
        """True once every call has to go the long way: something was lost, or is over."""
        self.where = ""
        self._closing: asyncio.Task[CloseInfo] | None = None
        self._is_released = False
        self._is_run_deleted = False
        self.handles_count = 0
        self._request = request
        self._generation = reply.generation
        self._transport = transport
        self._clock = clock
        self._wanted = asyncio.Event()
        self._progress = Pulse()
        self._ledger = Ledger()
        self._dropped_seen = 0
        self._published = Statistics()
        self._declared_dropped = 0
        # Points between inbox and lanes: not 0 only when the pump dies on them.
        self._unsealed_points = 0
        self._series = SeriesWriters(self.registry)
        batcher = Batcher(
            self.run_uid,
            request.writer_id,
            series_of=self.registry.definition,
            env_of=self.registry.env_name,
        )
        self._outbox = Outbox(batcher, self._ledger, compress=settings.compression == "zstd")
        self._sender = Sender(
            transport,
            self._outbox,
            self._ledger,
            clock=clock,
            on_reply=self._on_ingest_reply,
            on_trouble=self._on_trouble,
            reopen=self._reopen,
            renew=self._renew,
        )
        self._supervisor = Supervisor(self._on_death)
        self._on_notices(reply.notices)

    @property
    def writer_id(self) -> str:
        """32 hex digits, fresh for this incarnation."""
        return self._request.writer_id

    @property
    def is_open(self) -> bool:
        """False once nothing more is taken."""
        return self.inbox.failure is None

    @property
    def is_held_here(self) -> bool:
        """Whether this very thread was interrupted while it holds a lock of this writer."""
        return self.inbox.is_held_here or self.registry.is_held_here

    @property
    def has_left(self) -> bool:
        """True once it was closed: nothing is left to do."""
        return self._closing is not None and self._closing.done()

    def give_back(self) -> None:
        """One handle fewer that has to close. Engine loop."""
        self.handles_count -= 1

    def start(self) -> None:
        """Start the tasks. Engine loop."""
        if not self.settings.is_disabled:
            self._supervisor.spawn("pump", self._pump())
            self._supervisor.spawn("sender", self._sender.run())
            self._supervisor.spawn("heartbeat", self._beat())

    def check(self) -> None:
        """Raise why a call cannot be taken. Any thread.

        Raises:
            MetranaError: the run was closed, or the cause of a task's death.
            DataLossError: under ``all_or_crash``, something was lost or rejected.
        """
        failure = self.inbox.failure
        if failure is not None:
            raise failure
        if self.must_look:
            self.check_losses()

    def check_losses(self) -> None:
        """Raise DataLossError under ``all_or_crash`` when something was lost or rejected."""
        losses = self._published.losses
        if self.settings.delivery_policy == "all_or_crash" and losses:
            points = sum(losses.values())
            raise DataLossError(
                f"run {self.run_name!r} lost {points} points: {losses}", lost_points=losses
            )

    def statistics(self) -> Statistics:
        """The ledger now, including what waits in the inbox. Any thread."""
        published, waiting = self._published, self.inbox.points_count
        return replace(
            published,
            accepted=published.accepted + waiting,
            in_flight=published.in_flight + waiting,
            notices_count=sum(self.notices.counts.values()),
        )

    # --- the pump ------------------------------------------------------------------------------
    async def _pump(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wanted.clear()
            if self._drain():
                # While points keep coming nobody has to wake us: look again after a beat.
                timer = loop.call_later(TICK_S, self._wanted.set)
                await self._wanted.wait()
                timer.cancel()
            elif self._outbox.queued_bytes >= OUTBOX_BYTES:
                await self._progress.wait(TICK_S)
            elif self.inbox.arm():
                await self._wanted.wait()

    def _drain(self) -> bool:
        """Seal what waits in the inbox; False when nothing waited or the outbox is full."""
        if self._outbox.queued_bytes >= OUTBOX_BYTES:
            return False
        before = self.inbox.taken_points
        items = self.inbox.take()
        self._unsealed_points = self.inbox.taken_points - before
        dropped = self.inbox.dropped_points - self._declared_dropped
        if not items and not dropped:
            return False
        lost = {"drop_new": dropped} if dropped else {}
        self._declared_dropped += dropped
        self._ledger.lost.update(lost)
        self._ledger.accepted = self.inbox.taken_points + self._declared_dropped
        self._outbox.seal(self._series.collect(items), lost)
        self._unsealed_points = 0
        if self._is_run_deleted:
            self._lose_rest("run_deleted")
        self._sender.wake()
        self._publish()
        return True

    def _publish(self) -> None:
        in_flight = self._outbox.queued_points + self._unsealed_points
        self._published = self._ledger.snapshot(in_flight=in_flight)
        if self.settings.delivery_policy == "all_or_crash" and self._published.losses:
            self._stop_shortcuts()
        self._progress.beat()

    # --- answers -------------------------------------------------------------------------------
    def _on_ingest_reply(self, reply: IngestReply) -> None:
        self._on_notices(reply.notices)
        if reply.generation != self._generation:
            self._supervisor.spawn("reopen", self._reopen_quietly())
        lost = self._ledger.lost[Outcome.PIN_CONFLICT.value] + self._ledger.rejected.total()
        if lost:
            text = f"{lost} points of run {self.run_name!r} were refused by the server"
            self.notices.tell(PointsLost, text, key=("refused",))
        self._publish()

    def _on_notices(self, notices: Iterable[Notice]) -> None:
        for notice in notices:
            self.notices.add(notice)
            if notice.kind == "PinConflict" and notice.metric is not None:
                self.registry.mark_conflict(notice.metric, env_id=notice.env_id)
                # Callers that go by a remembered number must look again.
                self.plain.clear()

    def _on_trouble(self, error: MetranaError) -> None:
        """Tell; of a run that was deleted training goes on, and all it logs is counted lost."""
        if self._is_released:
            return  # An abandoned flush still asked for notices, and our own close cut it off.
        if isinstance(error, RunDeletedError):
            self._is_run_deleted = True
            self._lose_rest("run_deleted")
            return
        text = f"run {self.run_name!r}: {error}; it is tried again, logging goes on"
        self.notices.tell(MetranaWarning, text, key=("trouble", error.code))
        self._publish()

    def _on_death(self, failure: MetranaError) -> None:
        self._stop_shortcuts()
        self.inbox.stop(failure)
        self._publish()

    def _stop_shortcuts(self) -> None:
        self.must_look = True
        self.plain.clear()

    async def _reopen(self) -> None:
        """Introduce this writer again; queue again what the server does not have any more."""
        reply = await self._call("/writers/open", self._request, OpenReply, REPLY_TIMEOUT_S)
        if reply.run_uid != self.run_uid:
            text = f"the server has lost run {self.run_name!r} and made another under its name"
            raise RejectedError(text)
        self._generation = reply.generation
        self._outbox.on_marks(reply.acked)
        self._on_notices(reply.notices)
        self._sender.wake()
        self._publish()

    async def _renew(self) -> None:
        """Go on as a new incarnation: another process writes under this writer's identity."""
        request = replace(self._request, writer_id=secrets.token_hex(16))
        reply = await self._call("/writers/open", request, OpenReply, REPLY_TIMEOUT_S)
        text = f"run {self.run_name!r}: another process wrote as this writer; it takes a new name"
        self.notices.tell(SecondWriter, text, key=("renewed",))
        self._request = request
        self._generation = reply.generation
        self._outbox.rename(request.writer_id)
        self._sender.wake()
        self._publish()

    async def _reopen_quietly(self) -> None:
        try:
            await self._reopen()
        except MetranaError as error:
            self._on_trouble(error)

    # --- heartbeat -----------------------------------------------------------------------------
    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(limits.HEARTBEAT_INTERVAL_S)
            self._outbox.forget(self._clock.monotonic_s())
            await self._fetch_notices(REPLY_TIMEOUT_S)

    async def _fetch_notices(self, timeout_s: float) -> None:
        counters = wire_counters(self.statistics(), self.notices.counts)
        request = HeartbeatRequest(self.run_uid, self.writer_id, counters)
        try:
            reply = await self._call("/writers/heartbeat", request, HeartbeatReply, timeout_s)
        except NotFoundError:
            await self._reopen_quietly()
            return
        except MetranaError as error:
            self._on_trouble(error)
            return
        self._on_notices(reply.notices)
        if reply.generation != self._generation:
            await self._reopen_quietly()

    async def _call(
        self, path: str, request: object, reply: type[_Reply], timeout_s: float
    ) -> _Reply:
        answer = await self._transport.post(path, encode_message(request), timeout_s=timeout_s)
        return decode_message(reply, answer)

    # --- waiting for the engine ----------------------------------------------------------------
    async def flush(self, mark: int, timeout_s: float) -> Statistics:
        """Wait until every item up to `mark` (`inbox.appended_count`) is stored.

        Raises:
            WaitTimeoutError: it is not, after `timeout_s`; nothing is lost by that.
            MetranaError: the cause, when a task has died.
        """
        if self.settings.is_disabled:
            return self.statistics()
        deadline_s = self._clock.monotonic_s() + timeout_s
        await self._until(lambda: self.inbox.taken_count >= mark, deadline_s, timeout_s)
        marks = self._outbox.marks()
        self._sender.hurry()
        await self._until(lambda: self._outbox.has_reached(marks), deadline_s, timeout_s)
        left_s = max(_LEAVE_RESERVE_S, deadline_s - self._clock.monotonic_s())
        await self._fetch_notices(min(REPLY_TIMEOUT_S, left_s))
        return self.statistics()

    async def _until(
        self, is_reached: Callable[[], bool], deadline_s: float, timeout_s: float
    ) -> None:
        self._wanted.set()
        while True:
            if self._supervisor.failure is not None:
                raise self._supervisor.failure
            if is_reached():
                return
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0:
                in_flight = self.statistics().in_flight
                raise WaitTimeoutError(
                    f"run {self.run_name!r}: {in_flight} points are not stored after "
                    f"{timeout_s:g} s; they stay in flight"
                )
            await self._progress.wait(left_s)

    async def ask(self, question: Callable[[SeriesWriters], _Reply], mark: int) -> _Reply:
        """Answer from the engine's state, once everything up to `mark` is in it."""
        deadline_s = self._clock.monotonic_s() + REPLY_TIMEOUT_S
        if not self.settings.is_disabled:
            await self._until(lambda: self.inbox.taken_count >= mark, deadline_s, REPLY_TIMEOUT_S)
        return question(self._series)

    async def last_of_environment(self, env_no: int, mark: int) -> tuple[int | None, int | None]:
        """Highest rl_step and episode of an environment; points known to be dropped do not count.

        Which points of a batch were dropped is known to the server only, so it is asked again
        once some were. Without an answer the dropped ones are still counted in.
        """
        dropped = self._dropped_points()
        if dropped != self._dropped_seen:
            aside = self._series.set_environments_aside()
            try:
                await self.flush(mark, REPLY_TIMEOUT_S)
                reply = await self._call("/writers/open", self._request, OpenReply, REPLY_TIMEOUT_S)
            except MetranaError as error:
                self._series.add_environments(*aside)
                self._on_trouble(error)
            else:
                self.registry.reseed_environments(reply.seeds)
                self._dropped_seen = dropped
        return await self.ask(lambda series: series.last_rl_step_and_episode(env_no), mark)

    def _dropped_points(self) -> int:
        kinds = (Outcome.DUPLICATE, Outcome.SUPERSEDED)
        answered = sum(self._ledger.outcomes[kind.value] for kind in kinds)
        return answered + self._ledger.lost[Outcome.PIN_CONFLICT.value]

    # --- leaving -------------------------------------------------------------------------------
    async def close(
        self, timeout_s: float, *, is_run_over: bool, status: str, exception_type: str | None
    ) -> CloseInfo:
        """Refuse new calls, flush, leave the run, release everything. Idempotent.

        Takes at most `timeout_s` and a little; what is not stored by then is counted lost.
        A call that finds another at it waits for that one's result.

        Raises:
            WaitTimeoutError: that other call has more time and has not ended after `timeout_s`.
        """
        if self.settings.is_disabled:
            # Nothing was kept and nobody is to be told; there may be no loop to do it on, either.
            self._stop_shortcuts()
            self.inbox.stop(RunClosedError(f"run {self.run_name!r} was closed in this process"))
            return CloseInfo(self.run_name, status, self.statistics(), dict(self.notices.counts))
        if self._closing is None:
            leaving = self._close(
                timeout_s, is_run_over=is_run_over, status=status, exception_type=exception_type
            )
            self._closing = asyncio.get_running_loop().create_task(leaving)
            return await asyncio.shield(self._closing)
        await asyncio.wait({self._closing}, timeout=timeout_s)
        if not self._closing.done():
            raise WaitTimeoutError(
                f"run {self.run_name!r} is still being closed by an earlier call"
            )
        return self._closing.result()

    async def _close(
        self, timeout_s: float, *, is_run_over: bool, status: str, exception_type: str | None
    ) -> CloseInfo:
        deadline_s = self._clock.monotonic_s() + timeout_s
        self._stop_shortcuts()
        self.inbox.stop(RunClosedError(f"run {self.run_name!r} was closed in this process"))
        try:
            await self.flush(self.inbox.appended_count, max(0.0, timeout_s - _LEAVE_RESERVE_S))
        except MetranaError as error:
            self._on_trouble(error)
        self._lose_rest("closed")
        left_s = min(REPLY_TIMEOUT_S, max(_LEAVE_RESERVE_S, deadline_s - self._clock.monotonic_s()))
        leave = LeaveRequest(
            self.run_uid,
            self.writer_id,
            is_run_over=is_run_over,
            status=status,
            exception_type=exception_type,
            counters=wire_counters(self.statistics(), self.notices.counts),
        )
        await self._leave(leave, left_s)
        await self._supervisor.stop()
        self._is_released = True
        await self._transport.close()
        return CloseInfo(self.run_name, status, self.statistics(), dict(self.notices.counts))

    def _lose_rest(self, reason: str) -> None:
        """Count what is still here as lost: nobody will try any more."""
        waiting = self.inbox.points_count
        self.inbox.take()
        self._ledger.accepted = self.inbox.taken_points + self._declared_dropped
        points = waiting + self._unsealed_points + self._outbox.abandon()
        self._unsealed_points = 0
        self._ledger.lost.update({reason: points} if points else {})
        if points or self._is_run_deleted:
            how = f"{'deleted' if self._is_run_deleted else 'closed'} with {points} points"
            text = f"run {self.run_name!r} was {how} not stored"
            self.notices.tell(PointsLost, text, key=(reason,))
        self._publish()

    async def _leave(self, leave: LeaveRequest, timeout_s: float) -> None:
        def attempt(left_s: float) -> Awaitable[HeartbeatReply]:
            return self._call("/writers/leave", leave, HeartbeatReply, left_s)

        try:
            self._on_notices((await retried(attempt, timeout_s, self._clock)).notices)
        except MetranaError as error:
            self._on_trouble(error)


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
            return await attempt(max(0.05, deadline_s - clock.monotonic_s()))
        except MetranaError as error:
            delay_s = backoff.delay_s(error)
            if not error.retryable or clock.monotonic_s() + delay_s >= deadline_s:
                raise
        await asyncio.sleep(delay_s)
