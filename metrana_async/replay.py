"""Deliver what writers left on disk: of processes that died, of offline runs, of one at work.

Everything goes out under the identity it was sealed with, as the same bytes, so whatever the
server has already it answers ``duplicate``: delivering twice, or half, or two deliverers at once
do no harm. A directory is removed only when the server has all of it and knows how its writer
ended; what can never be delivered is set aside with the reason, not deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from metrana_async.delivery.outbox import Outbox
from metrana_async.delivery.sender import Sender
from metrana_async.engine.clock import Clock
from metrana_async.engine.io_thread import Hop
from metrana_async.engine.pulse import Pulse
from metrana_async.errors import (
    InitError,
    MetranaError,
    RejectedError,
    RunAlreadyExistsError,
    RunDeletedError,
    UnavailableError,
    WaitTimeoutError,
)
from metrana_async.membership import Membership
from metrana_async.spool import layout
from metrana_async.spool.disk import Disk
from metrana_async.spool.reader import SpoolReader
from metrana_async.spool.writer import remove_directory
from metrana_async.statistics import Ledger, Statistics
from metrana_async.transport.base import Transport
from metrana_async.wire.acks import IngestReply, Notice
from metrana_async.wire.messages import LeaveRequest

LOAD_BELOW_BYTES: Final = 8 << 20
"""Loaded and unacknowledged bytes below which more is read."""

DELIVERED: Final = "delivered"
BUSY: Final = "busy"
KEPT: Final = "kept"
SET_ASIDE: Final = "set_aside"


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What became of one writer's leftovers.

    Attributes:
        directory: where they are, or were.
        run: workspace/project/run, "" where nothing says.
        writer_id: 32 hex digits, "" where nothing says.
        state: ``delivered`` (all of it stored, the directory is gone), ``busy`` (its process
            lives), ``kept`` (the server did not take all of it; try again), or ``set_aside``
            (it can never be delivered as it is).
        statistics: of the points read now; what the server had before counts as committed where
            it was sent once more, and not at all where it was not.
        text: why, for people.
    """

    directory: str
    run: str
    writer_id: str
    state: str
    statistics: Statistics = field(default_factory=Statistics)
    text: str = ""


@dataclass(frozen=True, slots=True)
class Replayer:
    """Delivers writers' directories to one server. Lives on an event loop.

    Attributes:
        disk: where the directories are.
        hop: runs the blocking calls.
        transport: to the server; the caller closes it.
        clock: for deadlines.
        timeout_s: how long a delivery may go without progress.
        rename_to: the run name to deliver under instead of the writer's own.
        poll_s: how often a directory that is still written to is looked at; None = not at all.
        idle_timeout_s: how long such a directory may bring nothing new; None = for ever.
        is_retrying: whether what was set aside is tried again.
    """

    disk: Disk
    hop: Hop
    transport: Transport
    clock: Clock
    timeout_s: float
    rename_to: str | None = None
    poll_s: float | None = None
    idle_timeout_s: float | None = None
    is_retrying: bool = False

    async def deliver(self, directory: str) -> ReplayReport:
        """Deliver one writer's directory. Never raises for what server or disk do."""
        try:
            lock = await self.hop(lambda: self.disk.lock(f"{directory}/{layout.LOCK}"))
        except FileNotFoundError:
            return ReplayReport(directory, "", "", DELIVERED, text="it is gone")
        except OSError as error:
            return ReplayReport(directory, "", "", KEPT, text=f"it cannot be locked: {error}")
        if lock is None and self.poll_s is None:
            return ReplayReport(directory, "", "", BUSY, text="its process is still alive")
        delivery = _Delivery(self, directory, lock)
        try:
            return await delivery.run()
        except OSError as error:
            return delivery.report(KEPT, f"the disk refuses: {error}")
        finally:
            if delivery.lock is not None:
                held = delivery.lock
                await self.hop(lambda: self.disk.unlock(held))


class _Delivery:
    """One writer's directory on its way out."""

    def __init__(self, replayer: Replayer, directory: str, lock: int | None) -> None:
        self.lock = lock
        self._replayer = replayer
        self._directory = directory
        self._meta: layout.Meta | None = None
        self._ledger = Ledger()
        self._outbox: Outbox | None = None
        self._progress = Pulse()
        self._refusal: MetranaError | None = None
        self._trouble: MetranaError | None = None
        self._progress_s = self._news_s = replayer.clock.monotonic_s()
        self._acked: dict[int, int] = {}

    def report(self, state: str, text: str = "") -> ReplayReport:
        """What became of it."""
        place = "" if self._meta is None else self._meta.run_place
        writer_id = "" if self._meta is None else self._meta.request.writer_id
        return ReplayReport(
            self._directory, place, writer_id, state, self._ledger.snapshot(in_flight=0), text
        )

    async def run(self) -> ReplayReport:
        """Deliver it.

        Raises:
            OSError: the disk refuses.
        """
        hop, disk, directory = self._replayer.hop, self._replayer.disk, self._directory
        self._meta = await hop(lambda: layout.read_meta(disk, directory))
        reason = await hop(lambda: layout.read_aside(disk, directory))
        if reason is not None and not self._replayer.is_retrying:
            return self.report(SET_ASIDE, reason)
        if self._meta is None:
            return await self._without_meta()
        meta = self._meta
        reader = SpoolReader(disk, directory)
        await hop(reader.read_names)
        if self.lock is not None:
            await hop(reader.plan)
        request = replace(
            meta.request,
            is_online=False,
            run_uid=meta.run_uid,
            run_name=self._replayer.rename_to or meta.request.run_name,
        )
        outbox = self._outbox = Outbox(
            None, reader, self._ledger, run_uid=meta.run_uid, writer_id=request.writer_id
        )
        membership = Membership(
            self._replayer.transport,
            request,
            None,
            clock=self._replayer.clock,
            on_notices=_ignore,
            on_trouble=self._on_trouble,
            on_marks=outbox.on_marks,
            acked=outbox.acked,
        )
        try:
            await self._join(membership, outbox)
            await self._send_all(outbox, reader, membership)
            await self._leave(membership)
            if not outbox.is_empty():
                raise UnavailableError("the server went back in time meanwhile")
        except MetranaError as error:
            return await self._not_delivered(error)
        damage = reader.damage
        if self._ledger.lost.total() or damage.damaged_bytes or damage.errors:
            text = (
                f"delivered as far as it can be read; {damage.damaged_bytes} bytes are damaged "
                f"{'; '.join(damage.errors)}"
            )
            return await self._set_aside(text.strip())
        await hop(lambda: remove_directory(disk, directory))
        return self.report(DELIVERED)

    async def _without_meta(self) -> ReplayReport:
        disk, directory = self._replayer.disk, self._directory
        entries = await self._replayer.hop(lambda: disk.entries(directory))
        if self.lock is None:
            return self.report(BUSY, "it is being made")
        if any(layout.segment_number(entry.name) and entry.size for entry in entries):
            return self.report(KEPT, "META is missing or damaged: nothing says whose this is")
        await self._replayer.hop(lambda: remove_directory(disk, directory))
        return self.report(DELIVERED, "nothing was in it")

    # --- steps -----------------------------------------------------------------------------------
    async def _join(self, membership: Membership, outbox: Outbox) -> None:
        joining = asyncio.ensure_future(membership.join(lambda reply: outbox.start_at(reply.acked)))
        done, _ = await asyncio.wait({joining}, timeout=self._replayer.timeout_s)
        if not done:
            joining.cancel()
            raise self._timed_out()
        joining.result()

    async def _send_all(self, outbox: Outbox, reader: SpoolReader, membership: Membership) -> None:
        sender = Sender(
            self._replayer.transport,
            outbox,
            self._ledger,
            clock=self._replayer.clock,
            on_reply=self._on_reply,
            on_trouble=self._on_trouble,
            reopen=membership.reopen,
            renew=self._refuse_renewal,
        )
        self._progress_s = self._replayer.clock.monotonic_s()
        sending = asyncio.ensure_future(sender.run())
        try:
            while await self._read_more(outbox, reader, sender):
                while outbox.loaded_bytes >= LOAD_BELOW_BYTES:
                    await self._wait()
            while not outbox.is_empty():
                await self._wait()
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _read_more(self, outbox: Outbox, reader: SpoolReader, sender: Sender) -> bool:
        """Load the next batches; False when there are none any more."""
        is_growing = self.lock is None
        batches = await self._replayer.hop(lambda: reader.read(is_growing=is_growing))
        for frame, head in batches:
            outbox.load(frame, head)
        if batches:
            self._news_s = self._replayer.clock.monotonic_s()
            sender.wake()
        elif is_growing:
            # Its process may have ended since: then what is there now is all there will be.
            lock_path = f"{self._directory}/{layout.LOCK}"
            self.lock = await self._replayer.hop(lambda: self._replayer.disk.lock(lock_path))
            if self.lock is None:
                await self._idle()
        return bool(batches) or is_growing

    async def _idle(self) -> None:
        """Wait for its process to write more.

        Raises:
            WaitTimeoutError: it has not for too long.
        """
        now_s = self._replayer.clock.monotonic_s()
        idle_s, limit_s = now_s - self._news_s, self._replayer.idle_timeout_s
        if limit_s is not None and idle_s > limit_s:
            raise WaitTimeoutError(f"its process lives and has written nothing for {limit_s:g} s")
        await asyncio.sleep(self._replayer.poll_s or 0.0)
        self._progress_s = self._replayer.clock.monotonic_s()

    async def _wait(self) -> None:
        """Wait for an answer.

        Raises:
            MetranaError: there is none in time, or the server refuses for good.
        """
        if self._refusal is not None:
            raise self._refusal
        deadline_s = self._progress_s + self._replayer.timeout_s
        left_s = deadline_s - self._replayer.clock.monotonic_s()
        if left_s <= 0:
            raise self._timed_out()
        await self._progress.wait(left_s)

    async def _leave(self, membership: Membership) -> None:
        """Say how the writer ended; it crashed where it left no word."""
        assert self._meta is not None
        disk, directory = self._replayer.disk, self._directory
        end = await self._replayer.hop(lambda: layout.read_end(disk, directory))
        writer_id = self._meta.request.writer_id
        leave = (
            LeaveRequest(self._meta.run_uid, writer_id, is_dead=True)
            if end is None
            else replace(
                end,
                run_uid=self._meta.run_uid,
                writer_id=writer_id,
                counters=self._settled(end.counters),
            )
        )
        if not await membership.leave(leave, self._replayer.timeout_s):
            raise self._refusal or self._timed_out()

    def _settled(self, counters: dict[str, int]) -> dict[str, int]:
        """The writer's own last ledger, with what was spooled then where it is now."""
        lost = dict(self._ledger.lost)
        settled = dict(counters)
        spooled = settled.get("spooled", 0)
        settled["spooled"] = 0
        settled["committed"] = settled.get("committed", 0) + spooled - sum(lost.values())
        for reason, points in lost.items():
            settled[f"lost/{reason}"] = settled.get(f"lost/{reason}", 0) + points
        return settled

    # --- what comes of it ------------------------------------------------------------------------
    async def _not_delivered(self, error: MetranaError) -> ReplayReport:
        cause = error.__cause__ if isinstance(error, InitError) else error
        if isinstance(cause, RunAlreadyExistsError):
            text = f"{cause.message}; deliver it under another name (rename_to, --rename-to)"
            return self.report(KEPT, text)
        if isinstance(cause, (RunDeletedError, RejectedError)):
            return await self._set_aside(str(cause))
        return self.report(KEPT, str(error))

    async def _set_aside(self, text: str) -> ReplayReport:
        disk, directory = self._replayer.disk, self._directory
        data = text.encode("utf-8", "replace")
        await self._replayer.hop(lambda: layout.put_file(disk, directory, layout.ASIDE, data))
        return self.report(SET_ASIDE, text)

    def _timed_out(self) -> WaitTimeoutError:
        why = "" if self._trouble is None else f": {self._trouble}"
        return WaitTimeoutError(f"no progress within {self._replayer.timeout_s:g} s{why}")

    def _on_reply(self, reply: IngestReply) -> None:
        # An answer that settles nothing is no progress, however often it comes.
        if reply.acked != self._acked:
            self._acked = dict(reply.acked)
            self._progress_s = self._replayer.clock.monotonic_s()
        self._progress.beat()

    def _on_trouble(self, error: MetranaError) -> None:
        self._trouble = error
        is_to_be_read_again = self._outbox is not None and self._outbox.has_forgotten_too_much
        if isinstance(error, RunDeletedError) or is_to_be_read_again:
            self._refusal = error
        self._progress.beat()

    async def _refuse_renewal(self) -> None:
        self._refusal = RejectedError(
            "another process has written as this writer (a cloned machine), and other points"
        )
        self._progress.beat()
        raise self._refusal


def _ignore(what: Iterable[Notice] | object) -> None:
    """Notices of a dead writer are for nobody."""
    del what
