"""The one thread that owns an ingest service, and the asyncio side that talks to it.

Requests queue; whatever ingest requests wait become one commit, in the turns of `fair_queue`.
Idle, a request is committed at once; while more arrive than one commit takes, the worker waits up
to a few milliseconds for company. Everything else has a queue of its own, which takes turns with
the groups; heartbeats share a commit as well. Between them the worker does upkeep in slices.

The queue is bounded in bytes, by client: beyond that a request is refused with `RateLimitedError`,
and replies carry the client's credit, so that it slows down before that. A client is a writer.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from metrana_async.errors import (
    DiskFullError,
    MetranaError,
    RateLimitedError,
    StoreFailedError,
    UnavailableError,
)
from metrana_async.server.ingest.fair_queue import FairQueue, sender_of
from metrana_async.server.ingest.service import IngestService
from metrana_async.wire import limits
from metrana_async.wire.acks import IngestReply
from metrana_async.wire.messages import (
    HeartbeatReply,
    HeartbeatRequest,
    LeaveRequest,
    OpenReply,
    OpenRequest,
    ReserveReply,
    ReserveRequest,
    SeedsReply,
    SeedsRequest,
)
from metrana_async.wire.run_life import RunChange

QUEUE_BYTES: Final = 2 * limits.REQUEST_BYTES
GROUP_BYTES: Final = limits.REQUEST_BYTES
GROUP_REQUESTS: Final = 256
GROUP_WINDOW_S: Final = 0.005
UPKEEP_INTERVAL_S: Final = 0.25
UPKEEP_SLICE_S: Final = 0.05
_CREDIT_BYTES_MIN: Final = 1 << 16

_Result = TypeVar("_Result")


@dataclass(slots=True)
class _Job:
    """Something to do on the owner thread, and where its result goes."""

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    action: Callable[[], Any] | None = None
    beat: HeartbeatRequest | None = None
    body: bytes | None = None

    @property
    def nbytes(self) -> int:
        return len(self.body) if self.body is not None else 0

    def settle(self, result: Any, error: BaseException | None) -> None:
        """Hand the result over to the loop that waits, if it still does."""

        def set_it() -> None:
            if self.future.done():
                return
            if error is None:
                self.future.set_result(result)
            else:
                self.future.set_exception(error)

        # A loop that was closed meanwhile has nobody left who waits.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(set_it)


class IngestWorker:
    """Owns `service`: every call to it is made on this worker's thread.

    `start` before use, `stop` to drain. The methods are coroutines for any event loop; each is
    cancel-safe in that what was queued is still done.
    """

    def __init__(
        self,
        service: IngestService,
        *,
        queue_bytes: int = QUEUE_BYTES,
        window_s: float = GROUP_WINDOW_S,
        upkeep_interval_s: float = UPKEEP_INTERVAL_S,
    ) -> None:
        self._service = service
        self._window_s = window_s
        self._upkeep_interval_s = upkeep_interval_s
        self._requests: FairQueue[_Job] = FairQueue(queue_bytes)
        self._actions: deque[_Job] = deque()
        self._is_turn_of_actions = True
        self._clients_in_commit = 0
        self._is_stopping = False
        self._is_behind = False
        self._next_upkeep_s = 0.0
        self.on_failed: Callable[[StoreFailedError], None] = lambda _: None
        """Called on the owner thread when the store has failed for good."""
        self.upkeep_error: Exception | None = None
        """What the last slice of upkeep failed with, or None."""
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="metrana-ingest", daemon=True)

    # --- asyncio side ------------------------------------------------------------------------
    def start(self) -> None:
        """Start the thread. Once."""
        self._thread.start()

    async def open(self, request: OpenRequest) -> OpenReply:
        """See IngestService.open."""
        return await self._call(lambda: self._service.open(request))

    async def seeds(self, request: SeedsRequest) -> SeedsReply:
        """See IngestService.seeds."""
        return await self._call(lambda: self._service.seeds(request))

    async def heartbeat(self, request: HeartbeatRequest) -> HeartbeatReply:
        """See IngestService.heartbeat."""
        reply: HeartbeatReply = await self._enqueue("", beat=request)
        return reply

    async def leave(self, request: LeaveRequest) -> HeartbeatReply:
        """See IngestService.leave."""
        return await self._call(lambda: self._service.leave(request))

    async def reserve_episodes(self, request: ReserveRequest) -> ReserveReply:
        """See IngestService.reserve_episodes."""
        return await self._call(lambda: self._service.reserve_episodes(request))

    async def change_run(self, run_uid: str, change: RunChange) -> None:
        """See IngestService.change_run."""
        await self._call(lambda: self._service.change_run(run_uid, change))

    async def delete_run(self, run_uid: str) -> None:
        """See IngestService.delete_run."""
        await self._call(lambda: self._service.delete_run(run_uid))

    async def ingest(self, body: bytes) -> IngestReply:
        """Store one request's batches; returns when they are durable.

        Raises:
            RateLimitedError: the queue is full.
            ProtocolError, BatchTooLargeError, NotFoundError: the request is refused.
            UnavailableError: the store cannot commit now.
        """
        client = sender_of(body)
        reply: IngestReply = await self._enqueue(client, body=body)
        return replace(reply, credit_bytes=self.credit_bytes(client))

    async def seal(self, *, everything: bool = False) -> None:
        """Do all upkeep that is due; with `everything`, seal all there is."""

        def upkeep() -> None:
            while self._service.maintain(UPKEEP_SLICE_S, everything=everything):
                pass

        await self._call(upkeep)

    async def stop(self) -> None:
        """Take no more requests, do what is queued, end the thread. Idempotent."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def credit_bytes(self, client: str) -> int:
        """Most bytes the client's next request may have, for there are others who send."""
        with self._changed:
            also_active = max(0, self._clients_in_commit - 1)
            share = self._requests.credit_bytes(client, also_active=also_active)
        return min(limits.REQUEST_BYTES, max(share, _CREDIT_BYTES_MIN))

    async def _call(self, action: Callable[[], _Result]) -> _Result:
        result: _Result = await self._enqueue("", action=action)
        return result

    def _enqueue(
        self,
        client: str,
        *,
        action: Callable[[], Any] | None = None,
        beat: HeartbeatRequest | None = None,
        body: bytes | None = None,
    ) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        job = _Job(loop, loop.create_future(), action, beat, body)
        with self._changed:
            if self._is_stopping:
                raise UnavailableError("the server is shutting down")
            if body is None:
                self._actions.append(job)
            elif self._requests.admits(client, job.nbytes):
                self._requests.push(client, job.nbytes, job)
            else:
                raise RateLimitedError(
                    f"{self._requests.nbytes} bytes wait to be stored", retry_after_s=0.5
                )
            self._changed.notify_all()
        return job.future

    # --- owner thread ------------------------------------------------------------------------
    def _work(self) -> None:
        while True:
            group = self._next_group()
            if group is None:
                return
            if group:
                self._run(group)
            if time.monotonic() >= self._next_upkeep_s:
                self._upkeep()

    def _next_group(self) -> list[_Job] | None:
        """Jobs to do together; [] when it is time for upkeep, None when all is done."""
        with self._changed:
            self._clients_in_commit = 0
            while not self._actions and self._requests.is_empty:
                if self._is_stopping:
                    return None
                wait_s = self._next_upkeep_s - time.monotonic()
                if wait_s <= 0:
                    return []
                self._changed.wait(wait_s)
            if self._actions and (self._is_turn_of_actions or self._requests.is_empty):
                self._is_turn_of_actions = False
                return self._next_actions()
            self._is_turn_of_actions = True
            if self._is_behind and not self._is_stopping:
                self._wait_for_company()
            group = self._requests.take(bytes_max=GROUP_BYTES, count_max=GROUP_REQUESTS)
            self._clients_in_commit = len(group)
            self._is_behind = len(group) > 1
            return group

    def _next_actions(self) -> list[_Job]:
        """One action; heartbeats that wait together share a commit, as requests do."""
        group = [self._actions.popleft()]
        while group[0].beat is not None and self._actions and self._actions[0].beat is not None:
            if len(group) == GROUP_REQUESTS:
                break
            group.append(self._actions.popleft())
        return group

    def _wait_for_company(self) -> None:
        """While behind, let a few more requests join the commit."""
        until = time.monotonic() + self._window_s
        while self._requests.nbytes < GROUP_BYTES and not self._is_stopping:
            wait_s = until - time.monotonic()
            if wait_s <= 0:
                return
            self._changed.wait(wait_s)

    def _run(self, group: Sequence[_Job]) -> None:
        action = group[0].action
        try:
            if action is not None:
                group[0].settle(action(), None)
                return
            answers = self._answers(group)
        except (DiskFullError, StoreFailedError) as error:
            for job in group:
                job.settle(None, error)
            self._note_failure(error)
        except Exception as error:
            # This thread's supervisor. One request that breaks us, or that needs what is damaged,
            # must not take others along.
            if len(group) > 1:
                for job in group:
                    self._run([job])
            else:
                group[0].settle(None, error)
        else:
            for job, answer in zip(group, answers, strict=True):
                if isinstance(answer, MetranaError):
                    job.settle(None, answer)
                else:
                    job.settle(answer, None)

    def _answers(self, group: Sequence[_Job]) -> Sequence[object]:
        beats = [job.beat for job in group if job.beat is not None]
        if beats:
            return self._service.heartbeats(beats)
        return self._service.ingest_many([job.body for job in group if job.body is not None])

    def _note_failure(self, error: Exception) -> None:
        if isinstance(error, StoreFailedError):
            self.on_failed(error)

    def _upkeep(self) -> None:
        """A slice of the store's upkeep. A failure is kept for people to see; points go on.

        A store that refuses now (disk full) is asked again at the next interval.
        """
        has_more = False
        try:
            has_more = self._service.maintain(UPKEEP_SLICE_S)
            self.upkeep_error = None
        except Exception as error:  # this thread's supervisor
            self.upkeep_error = error
            self._note_failure(error)
        self._next_upkeep_s = time.monotonic() + (0 if has_more else self._upkeep_interval_s)
