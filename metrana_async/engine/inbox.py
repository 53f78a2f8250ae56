"""The hand-off from callers to the engine thread: one deque, two bounds, one armed wake-up.

Callers append from any thread; the engine thread takes. A scalar is one `deque.append` without a
lock; a block takes the lock, because its points and bytes are counted. Order of hand-off:

- producer: append, THEN test `is_armed`;
- engine going idle, and closing: arm, THEN look once more.

So an item is either seen by the engine's last look or its producer sees the arming: nothing is
left behind without somebody knowing. The inbox never waits and knows no event loop.

A signal handler or a finalizer may interrupt a thread that holds the lock; it may append scalars
then, but blocks only where `is_held_here` is False.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from metrana_async.errors import MetranaError

SCALAR_BYTES: Final = 160
"""Memory of one scalar item, roughly: a tuple of four with its numbers."""

_WAIT_SLICE_S: Final = 0.25
_ALL: Final = 1 << 62


class Inbox:
    """Items between callers and engine, bounded in points and in bytes.

    Attributes:
        is_cut: True when the last `take` left something behind because it had enough.
        items: scalars and blocks in call order. Append only, except for the engine.
        is_armed: True when the next append must call `wake()`.
        scalars_max: `len(items)` from which a scalar takes the slow path.
    """

    __slots__ = (
        "_block_bytes",
        "_block_points",
        "_blocks_count",
        "_bytes_max",
        "_calls",
        "_changed",
        "_failure",
        "_is_hurried",
        "_lock",
        "_points_max",
        "_wake",
        "dropped_points",
        "is_armed",
        "is_cut",
        "items",
        "scalars_max",
        "taken_count",
        "taken_points",
    )

    def __init__(
        self,
        points_max: int,
        bytes_max: int,
        wake: Callable[[], None],
        *,
        discards: bool = False,
    ) -> None:
        """Make an empty inbox.

        Args:
            points_max: bound in points.
            bytes_max: bound in bytes.
            wake: called (from any thread) when the engine should look.
            discards: True keeps nothing: every append is accepted and forgotten.
        """
        self.items: deque[Any] = deque(maxlen=0 if discards else None)
        self.is_armed = not discards
        self.is_cut = False
        self.dropped_points = 0
        self.taken_count = 0
        self.taken_points = 0
        self._points_max = points_max
        self._bytes_max = bytes_max
        self._wake = wake
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._block_points = 0
        self._block_bytes = 0
        self._blocks_count = 0
        # (blocks, points, bytes) of each call with blocks, in the order of its blocks in `items`.
        self._calls: deque[tuple[int, int, int]] = deque()
        self._failure: MetranaError | None = None
        self._is_hurried = False
        self.scalars_max = 0
        self._update_room()

    @property
    def points_count(self) -> int:
        """Points waiting for the engine."""
        return len(self.items) - self._blocks_count + self._block_points

    @property
    def appended_count(self) -> int:
        """Items ever appended; the mark a flush waits for."""
        with self._lock:
            return self.taken_count + len(self.items)

    @property
    def is_held_here(self) -> bool:
        """Whether this very thread was interrupted while it holds the lock."""
        return bool(self._lock._is_owned())  # type: ignore[attr-defined]  # what Condition asks

    @property
    def failure(self) -> MetranaError | None:
        """Why nothing more is taken, or None."""
        return self._failure

    def has_room(self, points: int, nbytes: int, *, times: int = 1) -> bool:
        """Whether a block fits under `times` the bounds; an empty inbox takes any block."""
        scalars = len(self.items) - self._blocks_count
        if scalars == 0 and self._blocks_count == 0:
            return True
        return (
            scalars + self._block_points + points <= self._points_max * times
            and scalars * SCALAR_BYTES + self._block_bytes + nbytes <= self._bytes_max * times
        )

    def is_over(self) -> bool:
        """Whether more is waiting than the bounds allow: callers should pause."""
        return not self.has_room(0, 0) and self._failure is None

    def append_blocks(self, blocks: Sequence[Any], points: int, nbytes: int) -> None:
        """Append the blocks of one call together, whatever the bounds say; policy is the caller's.

        Raises:
            MetranaError: the inbox was closed or its engine died; none was taken.
        """
        # Not by `with`: leaving it makes a tuple, and where there is no memory for that the lock
        # would be held for ever.
        self._lock.acquire()
        try:
            if self._failure is not None:
                raise self._failure
            if self.items.maxlen == 0:
                return
            must_hurry = self._append(blocks, points, nbytes)
        finally:
            self._lock.release()
        if self.is_armed or must_hurry:
            self.wake()

    def _append(self, blocks: Sequence[Any], points: int, nbytes: int) -> bool:
        """Append and count, or neither where memory runs out; whether the engine is to hurry."""
        call = len(blocks), points, nbytes
        blocks_count = self._blocks_count + len(blocks)
        block_points, block_bytes = self._block_points + points, self._block_bytes + nbytes
        self._calls.append(call)
        try:
            self.items.extend(blocks)
        except MemoryError:
            self._calls.pop()
            raise
        self._blocks_count = blocks_count
        self._block_points, self._block_bytes = block_points, block_bytes
        self._update_room()
        is_crowded = block_bytes * 2 >= self._bytes_max or block_points * 2 >= self._points_max
        # A wake-up costs the caller more than its block does: one until the engine took.
        must_hurry = is_crowded and not self._is_hurried
        self._is_hurried = is_crowded
        return must_hurry

    def append_scalars(self, scalars: list[tuple[int, int, int, float]]) -> None:
        """Append the scalars of one call together.

        Raises:
            MetranaError: the inbox was closed or its engine died; none was taken.
        """
        with self._lock:
            if self._failure is not None:
                raise self._failure
            self.items.extend(scalars)
        if self.is_armed or len(self.items) >= self.scalars_max:
            self.wake()

    def count_dropped(self, points: int) -> None:
        """Count points that a policy refused to queue."""
        with self._lock:
            self.dropped_points += points

    def wake(self) -> None:
        """Have the engine look now."""
        self.is_armed = False
        self._wake()

    def wake_for(self, scalar: tuple[int, int, int, float]) -> None:
        """Like `wake`, for a scalar that was appended without the lock.

        Raises:
            MetranaError: the inbox had been closed, or its engine died, and no last look took
                the scalar: it is taken back.
        """
        if self._failure is None:
            self.wake()
            return
        with self._lock:
            try:
                # By value: an equal scalar of another thread is as good as this one.
                self.items.remove(scalar)
            except ValueError:
                return
        raise self._failure

    def take(self, items_max: int = _ALL, bytes_max: int = _ALL) -> list[Any]:
        """Engine: remove and return what is waiting, in call order.

        It has enough at `items_max` items, or when its blocks hold `bytes_max` bytes; the blocks
        of one call are taken together.
        """
        taken: list[Any] = []
        pop = self.items.popleft
        nbytes = points = 0
        with self._lock:
            # A bounded pass: what is appended meanwhile waits for the next one.
            waiting = len(self.items)
            while len(taken) < waiting and len(taken) < items_max and nbytes < bytes_max:
                if type(self.items[0]) is tuple:
                    taken.append(pop())
                    points += 1
                    continue
                blocks, call_points, call_bytes = self._calls.popleft()
                taken += [pop() for _ in range(blocks)]
                self._blocks_count -= blocks
                self._block_points -= call_points
                self._block_bytes -= call_bytes
                points += call_points
                nbytes += call_bytes
            self.is_cut = len(taken) < waiting
            self.taken_points += points
            self.taken_count += len(taken)
            self._is_hurried = False
            self._update_room()
            self._changed.notify_all()
        return taken

    def arm(self) -> bool:
        """Engine: ask for a wake-up. False when something is waiting already: look again."""
        with self._lock:
            # The lock is a fence: without a GIL the look below could else come before the arming.
            self.is_armed = True
        if self.items:
            self.is_armed = False
            return False
        return True

    def stop(self, failure: MetranaError) -> None:
        """Refuse everything from now on, with `failure`; the engine looks once more after it."""
        with self._lock:
            self._failure = self._failure or failure
            self.is_armed = True
            self.scalars_max = 0
            self._changed.notify_all()

    def wait_for_room(self, timeout_s: float) -> bool:
        """Block the calling thread until the inbox is within its bounds; False on time-out."""
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            while self.is_over():
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return False
                # Slices keep Ctrl-C prompt on every platform.
                self._changed.wait(min(left_s, _WAIT_SLICE_S))
        return True

    def _update_room(self) -> None:
        if self._failure is not None or self.items.maxlen == 0:
            self.scalars_max = 1 << 62 if self._failure is None else 0
            return
        points_room = self._points_max - self._block_points
        bytes_room = (self._bytes_max - self._block_bytes) // SCALAR_BYTES
        self.scalars_max = max(0, min(points_room, bytes_room)) + self._blocks_count
