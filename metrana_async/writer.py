"""The writer: what one process logs to one run through. Wires the rooms behind the inbox.

Callers touch `inbox`, `registry`, `notices` and `statistics()`; everything else belongs to the
engine thread. Supervised tasks: the *pump* turns what waits in the inbox into sealed batches, the
*spooler* keeps on disk what waits too long, the *sender* has them stored, the *heartbeat* shows
life and fetches notices. A task that dies stops the intake, and the next call raises its cause.

A writer without a server (offline, or not answered yet) has no sender and no heartbeat: all it
seals goes to the spool, and from there once a server has admitted it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from metrana_async.delivery.batcher import Batcher
from metrana_async.delivery.outbox import Outbox
from metrana_async.delivery.sender import Sender
from metrana_async.delivery.spooling import Spooler
from metrana_async.engine.clock import Clock
from metrana_async.engine.inbox import Inbox
from metrana_async.engine.pulse import Pulse
from metrana_async.engine.supervisor import Supervisor
from metrana_async.errors import (
    InitError,
    MetranaError,
    RunClosedError,
    RunDeletedError,
    WaitTimeoutError,
)
from metrana_async.intake import Intake
from metrana_async.leaving import depart
from metrana_async.membership import Membership
from metrana_async.notices import NoticeBoard
from metrana_async.pump import Pump
from metrana_async.questions import Questions
from metrana_async.seeding import Seeding
from metrana_async.settings import Settings
from metrana_async.settling import Settling
from metrana_async.spool_place import SpoolPlace
from metrana_async.statistics import CloseInfo, Ledger, Statistics, raise_losses, wire_counters
from metrana_async.telling import SPOOL_FULL, Telling
from metrana_async.transport.base import Transport
from metrana_async.wire import limits
from metrana_async.wire.acks import IngestReply, Notice
from metrana_async.wire.messages import LeaveRequest, OpenReply, OpenRequest
from metrana_async.writers.collect import SeriesWriters
from metrana_async.writers.registry import SeriesRegistry

_RUN_DELETED: Final = "run_deleted"


class Writer:
    """One writer incarnation of one run. Made by `opening`, on the engine loop."""

    def __init__(
        self,
        settings: Settings,
        *,
        request: OpenRequest,
        reply: OpenReply | None,
        transport: Transport,
        call_soon: Callable[[Callable[[], object]], None],
        clock: Clock,
        spool_place: SpoolPlace | None = None,
    ) -> None:
        """Make a writer; `start` starts it.

        Args:
            settings: what `init` decided.
            request: how the writer introduces itself.
            reply: its admission; None = it starts without a server, on the spool.
            transport: carries the requests.
            call_soon: has the engine loop call something, from any thread.
            clock: stamps and deadlines.
            spool_place: where it may spool; None = memory only.
        """
        self.settings = settings
        self.notices = NoticeBoard()
        self.telling = Telling(self.notices, lambda: self.run_name, is_offline=settings.is_offline)
        self.registry = SeriesRegistry()
        self.inbox = Inbox(
            settings.queue_capacity,
            settings.queue_bytes,
            lambda: call_soon(self._pump.wake),
            discards=settings.is_disabled,
        )
        self.plain: dict[str, int] = {}
        """Series numbers of ordered ML_STEP metrics without labels, for the shortest way in."""
        self.must_look = False
        """True once every call has to go the long way: something was lost, or is over."""
        self.where = ""
        self.handles_count = 0
        self._closing: asyncio.Task[CloseInfo] | None = None
        self._is_released = False
        self._is_run_deleted = False
        self.clock = clock
        self._spool_place = spool_place
        self.progress = Pulse()
        self._ledger = Ledger()
        self._series = SeriesWriters(self.registry)
        self.membership = Membership(
            transport,
            request,
            reply,
            clock=clock,
            on_notices=self._on_notices,
            on_trouble=self.on_trouble,
            on_marks=self._on_marks,
            acked=self._acked,
        )
        self._sealed_uid = request.run_uid or self.membership.run_uid
        self._batcher = Batcher(
            self._sealed_uid,
            request.writer_id,
            series_of=self.registry.definition,
            env_of=self.registry.env_name,
        )
        self._outbox = self._new_outbox()
        self._intake = Intake(self.inbox, self._series, self._outbox, self._ledger, clock)
        self._pump = Pump(self, self._intake, self._outbox)
        self.spooler = self._new_spooler()
        self._sender = Sender(
            transport,
            self._outbox,
            self._ledger,
            clock=clock,
            on_reply=self._on_ingest_reply,
            on_trouble=self.on_trouble,
            reopen=self.membership.reopen,
            renew=self._renew,
        )
        self.supervisor = Supervisor(self._on_death)
        self.settling = Settling(self, self._outbox, self._sender, self._pump)
        self.questions = Questions(self, self._series, self._ledger, self.settling)
        self.seeding = Seeding(self.registry, self.membership, self.plain.clear, self.on_trouble)
        if reply is not None:
            self.seeding.admit(reply)
            self._on_notices(reply.notices)

    def _new_outbox(self) -> Outbox:
        return Outbox(
            self._batcher,
            self._batcher,
            self._ledger,
            run_uid=self._sealed_uid,
            writer_id=self.writer_id,
            compress=self.settings.compression == "zstd",
        )

    def _new_spooler(self) -> Spooler | None:
        if self._spool_place is None:
            return None
        return self._spool_place.spooler(
            self._outbox,
            self._batcher,
            self.membership.request,
            self._sealed_uid,
            clock=self.clock,
            on_change=self._on_spooled,
            on_failure=self._on_spool_failure,
        )

    @property
    def run_name(self) -> str:
        """The run's name."""
        return self.membership.run_name

    @property
    def writer_id(self) -> str:
        """32 hex digits, fresh for this incarnation."""
        return self.membership.request.writer_id

    @property
    def spool_directory(self) -> str | None:
        """Where this writer keeps what it cannot deliver; None = memory only."""
        return None if self.spooler is None else self.spooler.spool.directory

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
        if self.settings.is_disabled:
            return
        self.seeding.start(self.supervisor)
        self.supervisor.spawn("pump", self._pump.run(self.seeding.wait))
        if self.spooler is not None:
            if not self.membership.is_admitted:
                self.spooler.is_prompt = True
                self.spooler.overflow()
            self.supervisor.spawn("spooler", self.spooler.run())
        if self.membership.is_admitted:
            self._start_delivery()
        elif not self.settings.is_offline:
            self.supervisor.spawn("join", self._join())

    def _start_delivery(self) -> None:
        if self.spooler is not None:
            self.spooler.is_prompt = False
            self.spooler.wake()
        self.supervisor.spawn("sender", self._sender.run())
        self.supervisor.spawn("heartbeat", self._beat())

    async def _join(self) -> None:
        """Attach to the server as soon as it answers; what was spooled goes first."""
        try:
            await self.membership.join(self._on_admitted)
        except InitError as error:
            self.telling.refused_run(error, self.spool_directory)

    def _on_admitted(self, reply: OpenReply) -> None:
        self.seeding.admit(reply)
        self.seeding.start(self.supervisor, is_late=True)
        self._start_delivery()

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
        if self.settings.delivery_policy == "all_or_crash":
            raise_losses(self._intake.published, self.run_name)

    def statistics(self) -> Statistics:
        """The ledger now, including what waits in the inbox. Any thread."""
        published, waiting = self._intake.published, self.inbox.points_count
        return replace(
            published,
            accepted=published.accepted + waiting,
            in_flight=published.in_flight + waiting,
            notices_count=sum(self.notices.counts.values()),
        )

    def can_spool(self) -> bool:
        """Whether the disk takes what the server does not. Any thread."""
        return self.spooler is not None and self.spooler.failure is None

    # --- between inbox and outbox ----------------------------------------------------------------
    def is_out(self) -> bool:
        """True while nobody takes the batches."""
        return not self.membership.is_admitted or self._sender.outage_s > 0

    def before_sealing(self) -> None:
        """See Pump."""
        if self.spooler is not None:
            self.spooler.consider_overflow(is_out=self.is_out())

    def on_sealed(self) -> None:
        """See Pump."""
        if self._is_run_deleted:
            self._lose_deleted()
        self._sender.wake()
        if self.spooler is not None:
            self.spooler.wake()
        self._publish()

    def shed(self) -> None:
        """Memory is full. Where the disk is full too and nobody answers, new points are lost.

        Counted, told, and only under "block": a training that hangs for the length of an outage
        loses more.
        """
        is_hopeless = self.spooler is not None and not self.can_spool() and self.is_out()
        if not is_hopeless or self.settings.backpressure_strategy != "block":
            return
        if self._intake.shed(SPOOL_FULL):
            self.telling.shedding()
            self._publish()

    def _publish(self) -> None:
        published = self._intake.publish()
        if self.settings.delivery_policy == "all_or_crash" and published.losses:
            self._stop_shortcuts()
        self.progress.beat()

    # --- answers -------------------------------------------------------------------------------
    def _on_ingest_reply(self, reply: IngestReply) -> None:
        self._on_notices(reply.notices)
        if reply.generation != self.membership.generation:
            self.supervisor.spawn("reopen", self.membership.reopen_quietly())
        if self._ledger.refused_points:
            self.telling.refused_points(self._ledger.refused_points)
        if self.spooler is not None:
            self.spooler.wake()
        self._publish()

    def _on_notices(self, notices: Iterable[Notice]) -> None:
        for notice in notices:
            self.notices.add(notice)
            if notice.kind == "PinConflict" and notice.metric is not None:
                self.registry.mark_conflict(notice.metric, env_id=notice.env_id)
                # Callers that go by a remembered number must look again.
                self.plain.clear()

    def _on_marks(self, acked: dict[int, int], when_asked: dict[int, int]) -> None:
        """Queue again what the server does not have any more."""
        self._outbox.on_marks(acked, when_asked)
        self._sender.wake()
        self._publish()

    def _acked(self) -> dict[int, int]:
        return self._outbox.acked()

    def on_trouble(self, error: MetranaError) -> None:
        """Tell; of a run that was deleted training goes on, and all it logs is counted lost."""
        if self._is_released:
            return  # An abandoned flush still asked for notices, and our own close cut it off.
        if isinstance(error, RunDeletedError):
            self._is_run_deleted = True
            self._lose_deleted()
            return
        self.telling.trouble(error)
        self._publish()

    def _on_spooled(self) -> None:
        """Something became durable or was loaded back."""
        self._sender.wake()
        self._publish()

    def _on_spool_failure(self, error: OSError) -> None:
        self.telling.spool_failed(error, self.spool_directory)
        self._publish()

    def refuse(self, failure: MetranaError) -> None:
        """Take no call any more. Any thread."""
        self._stop_shortcuts()
        self.inbox.stop(failure)

    def _on_death(self, failure: MetranaError) -> None:
        self.refuse(failure)
        self._publish()

    def fail(self, failure: MetranaError) -> None:
        """End here and now: the engine is gone. On its thread."""
        self._on_death(failure)
        self.lose_unspooled("closed")

    def _stop_shortcuts(self) -> None:
        self.must_look = True
        self.plain.clear()

    async def _renew(self) -> None:
        """Go on as a new incarnation: another process writes under this writer's identity."""
        writer_id = secrets.token_hex(16)
        await self.membership.renew(writer_id)
        if self.spooler is not None:
            # What is on the disk only carries the old identity; it is sealed anew with the rest.
            # The last wait before that, or more could be sealed to the disk only meanwhile.
            await self.spooler.load_all()
        self.telling.renewed()
        self._outbox.rename(writer_id, self.clock.monotonic_s())
        if self.spooler is not None and self._spool_place is not None:
            spool = self._spool_place.make(self.membership.request, self._sealed_uid)
            await self.spooler.move_to(spool)
        self._sender.wake()
        self._publish()

    # --- heartbeat -----------------------------------------------------------------------------
    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(limits.HEARTBEAT_INTERVAL_S)
            self._outbox.forget(self.clock.monotonic_s())
            await self.membership.beat(self.counters())

    def counters(self) -> dict[str, int]:
        """The ledger and the notices, as heartbeats carry them."""
        return wire_counters(self.statistics(), self.notices.counts)

    # --- waiting for the engine ----------------------------------------------------------------
    async def flush(self, mark: int, timeout_s: float) -> Statistics:
        """Wait until every item up to `mark` (`inbox.appended_count`) is stored.

        Offline, and in an outage, until it is on the disk for good; the statistics' `spooled`
        says so.

        Raises:
            WaitTimeoutError: it is neither after `timeout_s`; nothing is lost by that.
            MetranaError: the cause, when a task has died.
        """
        if not self.settings.is_disabled:
            await self.settling.flush(mark, timeout_s)
        return self.statistics()

    async def failover_to_spool(self, mark: int, timeout_s: float) -> Statistics:
        """Have everything up to `mark` on the disk now, whatever the server does.

        Raises:
            WaitTimeoutError: the disk did not take it within `timeout_s`.
        """
        await self.settling.failover(mark, timeout_s)
        return self.statistics()

    # --- leaving -------------------------------------------------------------------------------
    async def close(
        self, timeout_s: float, *, is_run_over: bool, status: str, exception_type: str | None
    ) -> CloseInfo:
        """Refuse new calls, flush, leave the run, release everything. Idempotent.

        Takes at most `timeout_s` and a little. What is not stored by then is kept on the disk for
        whoever delivers it; without a spool, or where the disk refuses, it is counted lost.
        A call that finds another at it waits for that one's result.

        Raises:
            WaitTimeoutError: that other call has more time and has not ended after `timeout_s`.
        """
        leave = LeaveRequest(
            self._sealed_uid,
            self.writer_id,
            is_run_over=is_run_over,
            status=status,
            exception_type=exception_type,
        )
        if self.settings.is_disabled:
            # Nothing was kept and nobody is to be told; there may be no loop to do it on, either.
            self._refuse_calls()
            return self._close_info(status)
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close(timeout_s, leave))
            return await asyncio.shield(self._closing)
        await asyncio.wait({self._closing}, timeout=timeout_s)
        if not self._closing.done():
            raise WaitTimeoutError(
                f"run {self.run_name!r} is still being closed by an earlier call"
            )
        return self._closing.result()

    async def _close(self, timeout_s: float, leave: LeaveRequest) -> CloseInfo:
        deadline_s = self.clock.monotonic_s() + timeout_s
        self._refuse_calls()
        if not self.settings.is_offline:
            await self.settling.last_chance(timeout_s / 2)
        leave, has_left = await depart(self, self._outbox, self._ledger, leave, deadline_s)
        await self.supervisor.stop()
        if not self._outbox.is_empty():
            # A last answer told that the server went back in time.
            await self.settling.keep_late()
            self.lose_unspooled("closed")
        if self.spooler is not None:
            is_delivered = (has_left and not self._ledger.spooled) or self._is_run_deleted
            refusal = await self.spooler.close(leave, is_delivered=is_delivered)
            if refusal is not None:
                self._on_spool_failure(refusal)
            elif self._ledger.spooled:
                self.telling.kept(self._ledger.spooled, self.spool_directory)
        self._is_released = True
        await self.membership.close()
        return self._close_info(leave.status)

    def _refuse_calls(self) -> None:
        self._stop_shortcuts()
        self.inbox.stop(RunClosedError(f"run {self.run_name!r} was closed in this process"))

    def _close_info(self, status: str) -> CloseInfo:
        return CloseInfo(self.run_name, status, self.statistics(), dict(self.notices.counts))

    def lose_unspooled(self, reason: str) -> None:
        """Count what is in memory only as lost: nobody will try any more."""
        points = self._intake.give_up(reason)
        if points:
            self.telling.not_stored(points, reason)
        self._publish()

    def _lose_deleted(self) -> None:
        """Count everything that is here or on the disk as lost: the run was deleted."""
        self._intake.give_up_spooled()
        self.telling.not_stored(self._intake.give_up(_RUN_DELETED), "deleted")
        self._publish()
