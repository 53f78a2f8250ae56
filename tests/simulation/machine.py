"""Virtual time, and the processes that live in it: one event loop each, all stepped by one thread.

A `Process` is a loop of asyncio's own making whose clock is the scheduler's and which never
waits: when nothing is ready anywhere, the clock moves to the next timer. Killing a process means
that its loop is never stepped again: no `finally` runs, nothing is flushed, as after SIGKILL.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

_Result = TypeVar("_Result")

EPOCH_S: Final = 1_700_000_000.0
"""Unix time at which every simulation begins."""


_UNWINDING_ROUNDS: Final = 100
_UNWINDING_TURNS: Final = 200


class Trace:
    """Everything that happened, as a running hash and a count of each kind.

    Same seed, same hash: whatever influences the course of a run is noted here, so that two
    courses that differ show it.
    """

    def __init__(self, *, keeps: bool = False) -> None:
        self.counts: Counter[str] = Counter()
        self.lines: list[str] = []
        self._keeps = keeps
        self._hash = hashlib.sha256()
        self._length = 0

    def note(self, now_s: float, kind: str, *details: object) -> None:
        """Take one event in. `kind` is counted; details only tell runs apart."""
        self.counts[kind] += 1
        line = f"{now_s:.9f} {kind} {' '.join(map(str, details))}"
        self._hash.update(line.encode())
        if self._keeps:
            self.lines.append(line)

    @property
    def digest(self) -> str:
        """16 hex digits of everything so far."""
        return self._hash.hexdigest()[:16]


class _Selector:
    """A selector that has nothing to select from: time is the scheduler's business."""

    def select(self, timeout: float | None) -> list[Any]:
        del timeout
        return []


class SimLoop(asyncio.BaseEventLoop):
    """An event loop whose clock is virtual; `connect` replaces its sockets."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._selector = _Selector()
        self._process = process

    def time(self) -> float:
        return self._process.scheduler.now_s

    def _process_events(self, event_list: list[Any]) -> None:
        del event_list

    def _write_to_self(self) -> None:
        """Nobody sleeps in a selector: nothing to wake."""

    def run_in_executor(
        self, executor: Any, func: Callable[..., _Result], *args: Any
    ) -> asyncio.Future[_Result]:
        """Call `func` on this loop after a moment of its own, as a thread would."""
        del executor
        done: asyncio.Future[_Result] = self.create_future()

        def work() -> None:
            if done.cancelled():
                return
            try:
                result = func(*args)
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(result)

        self.call_later(self._process.scheduler.rng.uniform(0.0, 0.002), work)
        return done

    async def create_unix_connection(self, protocol_factory: Any, path: Any = None, **_: Any):
        """Join an in-memory connection to whoever listens at `path`."""
        return await self._process.connect(protocol_factory, str(path))

    def has_work(self) -> bool:
        return bool(self._ready)

    def next_timer_s(self) -> float | None:
        """When the next timer is due; None without one."""
        while self._scheduled and self._scheduled[0]._cancelled:
            # What BaseEventLoop does at the head of the heap.
            self._timer_cancelled_count -= 1
            handle = asyncio.base_events.heapq.heappop(self._scheduled)
            handle._scheduled = False
        return self._scheduled[0]._when if self._scheduled else None

    def step(self) -> None:
        """One turn of the loop: due timers, then everything that was ready before."""
        self._thread_id = threading.get_ident()
        asyncio._set_running_loop(self)
        try:
            self._run_once()
        finally:
            asyncio._set_running_loop(None)
            self._thread_id = None

    def step_all(self) -> None:
        """Turn until nothing is ready."""
        for _ in range(_UNWINDING_TURNS):
            if not self.has_work():
                return
            self.step()


class ProcessKilled(Exception):
    """What was waited for will not come: its process was killed."""


def _is_of_a_lost_connection(error: BaseException | None) -> bool:
    """Whether aiohttp's server stumbled over its own connection that had just been reset.

    It forgets its factory and parser in `connection_lost` and may look for them once more; nobody
    waits for that task's answer any more.
    """
    trace = None if error is None else error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    file = "" if trace is None else trace.tb_frame.f_code.co_filename
    return file.endswith(("aiohttp/web_protocol.py", "aiohttp/base_protocol.py"))


class Process:
    """A process on some host: alive until it ends or is killed.

    `connect` is set by the network. `wall_offset_s` is how wrong its wall clock is.
    """

    def __init__(self, scheduler: Scheduler, name: str, host: str) -> None:
        self.scheduler = scheduler
        self.name = name
        self.host = host
        self.is_alive = True
        self.died_s = float("inf")
        self.paused_until_s = 0.0
        self.wall_offset_s = 0.0
        self.connect: Callable[..., Coroutine[Any, Any, Any]]
        self.loop = SimLoop(self)
        self.loop.set_exception_handler(self._on_problem)
        self.at_burial: list[Callable[[], Coroutine[Any, Any, None]]] = []
        """What would warn when it is collected, and how to let go of it."""
        self._waiting: list[asyncio.Future[Any]] = []

    def _on_problem(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        del loop
        error = context.get("exception")
        if not self.is_alive:
            return
        if _is_of_a_lost_connection(error):
            self.scheduler.note("aiohttp task died of a reset")
            return
        self.scheduler.problems.append(f"{self.name}: {context['message']}: {error!r}")

    def spawn(self, work: Coroutine[Any, Any, _Result]) -> asyncio.Task[_Result]:
        """Run a coroutine in this process."""
        return self.loop.create_task(work)

    def call(self, work: Coroutine[Any, Any, _Result]) -> asyncio.Future[_Result]:
        """Run a coroutine in this process and wait for it from another one.

        The future fails with ProcessKilled when this process is killed first.
        """
        caller = asyncio.get_running_loop()
        answer: asyncio.Future[_Result] = caller.create_future()
        self._waiting.append(answer)
        task = self.spawn(work)

        def hand_over(done: asyncio.Task[_Result]) -> None:
            if answer.done():
                return
            error = done.exception()
            if error is None:
                answer.set_result(done.result())
            else:
                answer.set_exception(error)

        task.add_done_callback(hand_over)
        return answer

    def unwind(self) -> None:
        """Cancel every task, let go of what `at_burial` names, close the loop."""
        loop = self.loop
        for _ in range(_UNWINDING_ROUNDS):
            tasks = asyncio.all_tasks(loop)
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            loop.step_all()
        goodbyes = [loop.create_task(work()) for work in self.at_burial]
        loop.step_all()
        assert all(goodbye.done() for goodbye in goodbyes)
        loop._ready.clear()
        loop._scheduled.clear()
        loop.close()

    def fail_waiting(self) -> None:
        """Tell everyone who waits for this process that it is gone."""
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(ProcessKilled(self.name))
                answer.exception()  # who was killed along will never look
        self._waiting.clear()


class Scheduler:
    """The virtual clock and every process; `run` drives them until the first one's work ends."""

    def __init__(self, seed: int, *, keeps_trace: bool = False) -> None:
        self.seed = seed
        self.rng = random.Random(f"schedule {seed}")
        self.now_s = 1000.0
        self.trace = Trace(keeps=keeps_trace)
        self.problems: list[str] = []
        self.current: Process | None = None
        self.steps_count = 0
        self.is_over = False
        self._alive: list[Process] = []
        self._dead: list[Process] = []

    def note(self, kind: str, *details: object) -> None:
        self.trace.note(self.now_s, kind, *details)

    def process(self, name: str, host: str) -> Process:
        """Start a process."""
        made = Process(self, name, host)
        self._alive.append(made)
        return made

    def wall_s(self) -> float:
        """Unix time as the running process sees it."""
        offset_s = self.current.wall_offset_s if self.current is not None else 0.0
        return EPOCH_S + self.now_s + offset_s

    def kill(self, process: Process) -> None:
        """SIGKILL: its loop is never stepped again."""
        if process.is_alive:
            process.is_alive = False
            process.died_s = self.now_s
            self._alive.remove(process)
            self._dead.append(process)
            process.fail_waiting()

    def run(self, main: Process, work: Coroutine[Any, Any, _Result], *, limit_s: float) -> _Result:
        """Drive everything until `work`, a coroutine of `main`, is done.

        Raises:
            AssertionError: it is not after `limit_s` of virtual time, or nothing will ever happen.
        """
        task = main.spawn(work)
        ends_s = self.now_s + limit_s
        while not task.done():
            self._advance(ends_s)
        return task.result()

    def _advance(self, ends_s: float) -> None:
        ready = [p for p in self._alive if p.loop.has_work() and p.paused_until_s <= self.now_s]
        if not ready:
            at_s, ready = self._next()
            assert at_s < ends_s, f"virtual time is over: {self.now_s:.3f} s, next {at_s:.3f} s"
            self.now_s = max(self.now_s, at_s)
        # Which of several processes comes first is chance, too.
        process = ready[0] if len(ready) == 1 else self.rng.choice(ready)
        self.current = process
        self.steps_count += 1
        try:
            process.loop.step()
        finally:
            self.current = None

    def _next(self) -> tuple[float, list[Process]]:
        """The next moment at which something happens, and whom it happens to."""
        found: tuple[float, list[Process]] = (float("inf"), [])
        for process in self._alive:
            at_s = self.now_s if process.loop.has_work() else process.loop.next_timer_s()
            if at_s is None:
                continue
            at_s = max(at_s, process.paused_until_s, self.now_s)
            if at_s < found[0]:
                found = (at_s, [process])
            elif at_s == found[0]:
                found[1].append(process)
        return found

    def bury(self) -> None:
        """After the end: unwind every task that is left, so that nothing warns of it later."""
        self.is_over = True
        for process in (*self._alive, *self._dead):
            process.is_alive = False
            process.unwind()
