"""The task between an outbox and its spool: write ahead what waits, and load it back.

A batch that is not acknowledged 100 ms after it was sealed is written to the spool, everything
behind it too, and synced within 500 ms (or 1 MiB). So a healthy run touches no disk, and in an
outage everything is on it. Where the outbox overflows, new batches live on the disk only and are
loaded back, in order, as the queues empty.

A disk that refuses is tried again every few seconds; meanwhile everything stays in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from metrana_async.delivery.lane import SealedBatch
from metrana_async.delivery.outbox import Outbox, Pages
from metrana_async.engine.clock import Clock
from metrana_async.engine.io_thread import Hop
from metrana_async.engine.pulse import Pulse
from metrana_async.spool.disk import Disk
from metrana_async.spool.reader import SpoolReader
from metrana_async.spool.writer import SpoolFrame, SpoolFullError, SpoolWriter
from metrana_async.wire.messages import LeaveRequest

WRITE_AFTER_S: Final = 0.1
SYNC_AFTER_S: Final = 0.5
SYNC_BYTES: Final = 1 << 20
RETRY_AFTER_S: Final = 5.0
CLOSE_TIMEOUT_S: Final = 0.3

OVERFLOW_BYTES: Final = 8 << 20
"""Queued bytes from which an outage's batches go to the disk only."""
OVERFLOW_BYTES_LIVE: Final = 48 << 20
"""The same while the server answers."""
LOAD_BELOW_BYTES: Final = 4 << 20
"""Queued bytes below which more is loaded from the disk."""

_WRITE_BYTES: Final = 4 << 20


class Spooler:
    """Moves one writer's batches to its spool and back. Lives on the engine loop."""

    def __init__(
        self,
        outbox: Outbox,
        spool: SpoolWriter,
        disk: Disk,
        pages: Pages,
        *,
        hop: Hop,
        clock: Clock,
        on_change: Callable[[], None],
        on_failure: Callable[[OSError], None],
        write_after_s: float = WRITE_AFTER_S,
    ) -> None:
        """Make a spooler.

        Args:
            outbox: whose batches are kept; it spools from now on.
            spool: where they are kept.
            disk: what `spool` is on, for reading.
            pages: finds the pages that batches list.
            hop: runs blocking calls.
            clock: for the ages of batches.
            on_change: called when something became durable or was loaded.
            on_failure: called with every refusal of the disk.
            write_after_s: age from which an unacknowledged batch is written.
        """
        outbox.is_spooling, outbox.on_queued_again = True, self.wake
        self.spool = spool
        self.failure: OSError | None = None
        self.is_prompt = False
        """Whether batches are written as soon as they are sealed: nobody else takes them now."""
        self._outbox = outbox
        self._pages = pages
        self._disk = disk
        self._hop = hop
        self._clock = clock
        self._on_change = on_change
        self._on_failure = on_failure
        self._write_after_s = write_after_s
        self._reader = SpoolReader(disk, spool.directory, spool.readable)
        self._turn = asyncio.Lock()
        self._wanted = Pulse()
        self._written: list[SealedBatch] = []
        self._unsynced_since_s = 0.0
        self._retry_s = 0.0
        self._load_retry_s = 0.0
        self._has_more = False
        self._forgotten: dict[int, int] = {}

    def wake(self) -> None:
        """Something was sealed or acknowledged."""
        self._wanted.beat()

    def consider_overflow(self, *, is_out: bool) -> None:
        """Before sealing: from here on to the disk only, if memory holds enough."""
        outbox = self._outbox
        bound = OVERFLOW_BYTES if is_out else OVERFLOW_BYTES_LIVE
        if self.failure is None and not outbox.is_overflowing and outbox.queued_bytes >= bound:
            self.overflow()

    def overflow(self) -> None:
        """What is sealed from now on goes to the disk only."""
        self._outbox.is_overflowing = True
        self._has_more = True

    async def run(self) -> None:
        """Keep for ever. Cancel-safe between calls of the disk."""
        while True:
            delay_s = self._delay_s()
            if delay_s > 0:
                await self._wanted.wait(delay_s)
            else:
                async with self._turn:
                    await self._step()

    async def keep(self) -> bool:
        """Write and sync everything that waits; False when the disk refuses."""
        async with self._turn:
            await self._write(self._unwritten())
            await self._sync()
            return not self._unwritten() and not self._written

    async def load_all(self) -> None:
        """Have everything in memory, whatever its size, until nothing is on the disk only."""
        while self._outbox.is_overflowing:
            async with self._turn:
                await self._write(self._unwritten())
                await self._sync()
                await self._load()
            if not self._has_more:
                await asyncio.sleep(WRITE_AFTER_S)

    async def move_to(self, spool: SpoolWriter) -> None:
        """Keep what waits in another directory, under its new identity, and give this one up.

        The caller has sealed everything anew; nothing is on the disk only.
        """
        async with self._turn:
            before, self.spool = self.spool, spool
            self._reader = SpoolReader(self._disk, spool.directory, spool.readable)
            self._written, self._forgotten = [], {}
            if before.is_made:
                await self._write(self._unwritten())
                await self._sync()
                await self._hop(lambda: before.close(is_delivered=True))

    async def close(self, leave: LeaveRequest, *, is_delivered: bool) -> OSError | None:
        """Leave the directory as whoever delivers the rest needs it, or remove it; once.

        Returns what the disk refused, also when it did not answer in time.
        """

        def close() -> None:
            try:
                # A writer that never spooled leaves nothing but the word that it left.
                if not is_delivered:
                    self.spool.put_end(leave)
            finally:
                self.spool.close(is_delivered=is_delivered)

        closing = asyncio.ensure_future(self._hop(close))
        done, _ = await asyncio.wait({closing}, timeout=CLOSE_TIMEOUT_S)
        if not done:
            return OSError("the disk does not answer")
        error = closing.exception()
        if error is not None and not isinstance(error, OSError):
            raise error
        return error

    # --- when ----------------------------------------------------------------------------------
    def _delay_s(self) -> float:
        """Seconds until there is something to do."""
        now_s = self._clock.monotonic_s()
        due_s = [now_s + 3600.0]
        unwritten = self._unwritten()
        if unwritten:
            due_s.append(max(self._write_due_s(unwritten[0]), self._retry_s))
        if self._written:
            due_s.append(self._unsynced_since_s + SYNC_AFTER_S)
        if self._is_to_load:
            due_s.append(max(now_s, self._load_retry_s))
        if self._is_to_forget:
            due_s.append(now_s)
        return min(due_s) - now_s

    def _write_due_s(self, oldest: SealedBatch) -> float:
        is_prompt = self.is_prompt or self._outbox.is_overflowing
        return oldest.sealed_s + (0.0 if is_prompt else self._write_after_s)

    def _unwritten(self) -> list[SealedBatch]:
        return [sealed for sealed in self._outbox.unspooled() if not sealed.is_written]

    @property
    def _is_to_load(self) -> bool:
        outbox = self._outbox
        is_low = outbox.loaded_bytes < LOAD_BELOW_BYTES
        return outbox.is_overflowing and self._has_more and is_low and not self.is_prompt

    @property
    def _is_to_forget(self) -> bool:
        return self.spool.nbytes > 0 and self._outbox.acked() != self._forgotten

    # --- what ----------------------------------------------------------------------------------
    async def _step(self) -> None:
        now_s = self._clock.monotonic_s()
        unwritten = self._unwritten()
        if unwritten and now_s >= max(self._write_due_s(unwritten[0]), self._retry_s):
            await self._write(unwritten)
        is_due = now_s >= self._unsynced_since_s + SYNC_AFTER_S
        if self._written and (is_due or self.spool.unsynced_bytes >= SYNC_BYTES):
            await self._sync()
        if self._is_to_load and now_s >= self._load_retry_s:
            await self._load()
        if self._is_to_forget:
            await self._forget()

    async def _write(self, batches: list[SealedBatch]) -> None:
        if batches and not self._written:
            self._unsynced_since_s = self._clock.monotonic_s()
        at = 0
        while at < len(batches):
            stop, nbytes = at, 0
            while stop < len(batches) and nbytes < _WRITE_BYTES:
                nbytes += len(batches[stop].frame)
                stop += 1
            frames = [self._frame(sealed) for sealed in batches[at:stop]]
            try:
                count = await self._hop(partial(self.spool.append, frames))
            except SpoolFullError as error:
                # What was written before stands: the disk is not broken, only full.
                self._refuse(error)
                return
            except OSError as error:
                self._fail(error)
                return
            part = batches[at : at + count]
            for sealed in part:
                sealed.is_written = True
            self._written += part
            at += count
        if batches:
            self.failure = None

    def _frame(self, sealed: SealedBatch) -> SpoolFrame:
        found = {digest: self._pages.page(digest) for digest in sealed.pages}
        pages = {digest: page.frame for digest, page in found.items() if page is not None}
        return SpoolFrame(sealed.lane, sealed.seq, sealed.frame, pages)

    async def _sync(self) -> None:
        if not self._written:
            return
        try:
            await self._hop(self.spool.sync)
        except OSError as error:
            self._fail(error)
            return
        durable, self._written = self._written, []
        self._outbox.note_durable(durable)
        self._has_more = True
        self._on_change()

    def _fail(self, error: OSError) -> None:
        # Only what was synced counts: the rest is written again, to a new segment.
        for sealed in self._written:
            sealed.is_written = False
        self._written = []
        if isinstance(error, FileNotFoundError):
            # Somebody removed the directory. It is made anew at the next try.
            self._outbox.forget_spool()
        self._refuse(error)

    def _refuse(self, error: OSError) -> None:
        self.failure = error
        self._retry_s = self._clock.monotonic_s() + RETRY_AFTER_S
        self._on_failure(error)

    async def _load(self) -> None:
        try:
            batches = await self._hop(self._reader.read)
        except OSError as error:
            self._load_retry_s = self._clock.monotonic_s() + RETRY_AFTER_S
            self._on_failure(error)
            return
        for frame, head in batches:
            self._outbox.load(frame, head)
        if not batches:
            self._has_more = False
            if not self._outbox.finish_loading() and self._is_unreadable:
                self._outbox.give_up_unloaded()
        self._on_change()

    @property
    def _is_unreadable(self) -> bool:
        """True when all that is sealed should have been read back by now."""
        return not self._outbox.fresh and not self._written

    async def _forget(self) -> None:
        acked = self._outbox.acked()
        try:
            await self._hop(lambda: self.spool.forget(acked))
        except OSError as error:
            self._on_failure(error)
        self._forgotten = acked
