"""A client's process: the real writer over the real transport, and a program that logs.

The program's calls are drawn from the seed: every way to log, alone and in bursts, with and
without steps, flushes in between. What each call carried is entered in the book once it was taken.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from metrana_async import opening
from metrana_async.delivery.outbox import Outbox
from metrana_async.engine.clock import SystemClock
from metrana_async.errors import MetranaError, QueueFullError, WaitTimeoutError
from metrana_async.front import Front
from metrana_async.leftovers import ADOPT_EVERY_S, Adoption
from metrana_async.replay import ReplayReport
from metrana_async.run import Run
from metrana_async.settings import Settings
from metrana_async.statistics import CloseInfo, Statistics
from metrana_async.transport.base import ServerAddress
from metrana_async.transport.http import HttpTransport
from metrana_async.wire.messages import OpenRequest, ProcessIdentity
from metrana_async.writer import Writer
from tests.simulation.book import Book, Point
from tests.simulation.host import Host
from tests.simulation.network import Network
from tests.simulation.server import ADDRESS

PROJECT: Final = "simulation"
_JOIN_TIMEOUT_S: Final = 3600.0


@dataclass
class Habits:
    """How a client behaves, drawn once for each.

    Attributes:
        pause_s: longest usual time between two calls.
        calls: how many calls it makes before it closes.
        block: most points of one call.
        flush: share of calls after which it flushes.
        strategy: what it does when the inbox is full.
        capacity: points that the inbox holds.
        compression: "none" or "zstd".
        mode: its `init_mode`.
        spools: whether it has a disk spool.
        adopts: whether it delivers what dead processes of its host left.
        close_s: how long closing may take.
    """

    pause_s: float = 0.5
    calls: int = 30
    block: int = 40
    flush: float = 0.05
    strategy: str = "block"
    capacity: int = 1 << 20
    compression: str = "none"
    mode: str = "online"
    spools: bool = True
    adopts: bool = True
    close_s: float = 3600.0


class Lane:
    """A logical writer: successive clients go on where the one before them was."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.step = 0
        self.episode = 0
        self.rl_step = 0
        self.last_setting = 0
        self.clients: list[Client] = []


class Client:
    """One writer incarnation in a process of its own."""

    def __init__(
        self,
        network: Network,
        host: Host,
        lane: Lane,
        book: Book,
        *,
        habits: Habits,
        twin: Client | None = None,
    ) -> None:
        self.lane = lane
        self.host = host
        self.name = f"{lane.name}.{len(lane.clients) + 1}"
        self.rng = random.Random(f"client {network.scheduler.seed} {self.name}")
        self.process, self.view, self._hop = host.process(self.name)
        self.habits = habits
        self.book = book
        self.writer_ids: list[str] = []
        self.writer: Writer | None = None
        self.info: CloseInfo | None = None
        self.fate = "alive"
        """"alive", "closed", "killed" or "failed"."""
        self.was_paused = False
        self.lost_power = False
        self.flushed: list[tuple[int, float]] = []
        """After each flush that returned: the first value not covered by it, and when."""
        self.is_cloned = twin is not None
        """Whether another process came with its identity, or it with another's."""
        self.queued_again_s = float("-inf")
        """When it last queued again what a restored server had lost."""
        self.problems: list[str] = []
        self._network = network
        self._twin = twin
        self.request: OpenRequest | None = None
        """How it introduced itself."""
        lane.clients.append(self)

    def note(self, kind: str, *details: object) -> None:
        self._network.note(kind, self.name, *details)

    @property
    def statistics(self) -> Statistics:
        """Its own ledger as it is, or was when it died."""
        return Statistics() if self.writer is None else self.writer.statistics()

    @property
    def generation(self) -> str:
        """The server's life that it last heard of."""
        return "" if self.writer is None else self.writer.membership.generation

    @property
    def all_writer_ids(self) -> set[str]:
        """Every identity it wrote under."""
        renamed = set() if self.writer is None else {self.writer.writer_id}
        return {*self.writer_ids, *renamed}

    # --- a life --------------------------------------------------------------------------------
    async def live(self) -> None:
        """Join, log, close. What goes wrong ends up in `problems`."""
        try:
            await self.join()
            for _ in range(self.habits.calls):
                await self._one_call()
            await self.close(self.habits.close_s)
        except MetranaError as error:
            self.problems.append(f"{self.name}: {type(error).__name__}: {error}")
            self.fate = "failed"

    async def join(self) -> None:
        """What `opening` does, on this process's own loop and disk."""
        settings = self._settings()
        request = self.request = replace(
            opening._request(settings),
            process=ProcessIdentity(host=self.host.name, pid=len(self.lane.clients)),
            sdk_version="simulated",
        )
        if self._twin is not None and self._twin.request is not None:
            # A machine's snapshot that was taken after it had joined, and resumed twice.
            request = self.request = self._twin.request
        self.writer_ids.append(request.writer_id)
        transport = self._transport()
        reply = None
        if not settings.is_offline:
            _, _, reply = await opening._shake_hands(settings, transport, request)
        place = self.host.place(self.view, self._hop, settings) if self.habits.spools else None
        self.writer = Writer(
            settings,
            request=request,
            reply=reply,
            transport=transport,
            call_soon=self.process.loop.call_soon_threadsafe,
            clock=SystemClock(),
            spool_place=place,
        )
        self._watch_rollbacks(self.writer._outbox)
        self.writer.start()
        self.run = Run(Front(self.writer))
        self.note("joined" if reply is not None else "started without a server")
        if self.habits.adopts:
            self.process.spawn(self._adopt(self.host.adoption(self.view, self._hop)))

    def _watch_rollbacks(self, outbox: Outbox) -> None:
        queued_again = outbox.on_queued_again

        def watched() -> None:
            self.queued_again_s = self.process.loop.time()
            queued_again()

        outbox.on_queued_again = watched

    async def _adopt(self, adoption: Adoption) -> None:
        transport = self._transport()
        while True:
            for report in await adoption.look(transport):
                self.note(f"adoption {report.state}")
                self.on_delivered(report)
            await self._sleep(ADOPT_EVERY_S)

    def _transport(self) -> HttpTransport:
        transport = HttpTransport(ServerAddress("http://server", socket_path=ADDRESS))
        self.process.at_burial.append(transport.close)
        return transport

    def _settings(self) -> Settings:
        habits = self.habits
        return Settings(
            project_name=PROJECT,
            run_name="run",
            orchestration_id="job",
            resume_strategy="allow",
            logger_id=self.lane.name,
            init_mode=habits.mode,
            backpressure_strategy=habits.strategy,
            queue_capacity=habits.capacity,
            compression=habits.compression,
            init_timeout_secs=_JOIN_TIMEOUT_S,
            quiet=True,
        )

    def kill(self) -> None:
        """SIGKILL this client's process."""
        self.host.kill(self.process, self.view)
        self.has_been_killed()

    def has_been_killed(self) -> None:
        """Its process is gone, whoever it was."""
        if self.fate == "alive":
            self.note("client killed", self.statistics.committed, self.statistics.spooled)
            self.fate = "killed"

    async def close(self, timeout_s: float) -> None:
        assert self.writer is not None
        self.info = await self.writer.close(
            timeout_s, is_run_over=True, status="finished", exception_type=None
        )
        self.fate = "closed"
        statistics = self.info.statistics
        self.note("closed", statistics.committed, statistics.spooled)
        if statistics.spooled:
            self.note("closed with leftovers")
        for reason in statistics.losses:
            self.note(f"lost {reason}")

    # --- the program ---------------------------------------------------------------------------
    async def _one_call(self) -> None:
        rng, habits = self.rng, self.habits
        assert self.writer is not None
        if self.writer.writer_id != self.writer_ids[-1]:
            self.writer_ids.append(self.writer.writer_id)
        kinds = [
            *(self._automatic, self._automatic, self._explicit, self._merge, self._mapping),
            *(self._episodes, self._numbered_episodes, self._rollout, self._episodic_rollout),
            self._setting,
        ]
        if self.writer.spooler is not None and self.writer.spooler.failure is not None:
            self.note("spool refused")
        if self.writer._outbox.is_overflowing:
            self.note("overflowed to the disk only")
        for _ in range(rng.choice((1, 1, 1, 3, 10))):
            try:
                pending = rng.choice(kinds)()
            except QueueFullError:
                self.note("queue full")
            else:
                await pending
        if rng.random() < habits.flush:
            await self.flush(rng.choice((0.5, 5.0, 60.0)))
        if rng.random() < 0.8:
            await self._sleep(rng.uniform(0.0, habits.pause_s))

    async def _sleep(self, seconds: float) -> None:
        loop = self.process.loop
        done = loop.create_future()
        loop.call_later(seconds, lambda: done.done() or done.set_result(None))
        await done

    async def flush(self, timeout_s: float) -> None:
        """Flush; what a success covered is kept for the checker."""
        assert self.writer is not None
        mark, covered = self.writer.inbox.appended_count, self.book.next_value
        try:
            await self.writer.flush(mark, timeout_s)
        except WaitTimeoutError:
            self.note("flush timed out")
        else:
            self.flushed.append((covered, self.process.loop.time()))
            self.note("flushed", covered)
            self.on_flushed(covered)

    on_flushed: Callable[[int], None] = staticmethod(lambda covered: None)
    """Called at the very moment at which a flush returned."""
    on_delivered: Callable[[ReplayReport], None] = staticmethod(lambda report: None)
    """Called when it has delivered what a dead process left, or could not."""

    def _call(self, metric: str, values: list[int], log: Callable[[], Any]) -> Any:
        """Log, and enter the values unless the policy dropped them."""
        return self._call_rows([(metric, None, values)], log)

    def _call_rows(
        self, rows: list[tuple[str, str | None, list[int]]], log: Callable[[], Any]
    ) -> Any:
        assert self.writer is not None
        dropped = self.writer.inbox.dropped_points
        pending = log()
        if self.writer.inbox.dropped_points == dropped:
            for metric, env_id, values in rows:
                point = Point(self.name, metric, env_id)
                self.book.enter(values, point, self.process.loop.time())
        else:
            self.note("dropped", self.writer.inbox.dropped_points - dropped)
        return pending

    def _count(self) -> int:
        return self.rng.choice((1, 1, 2, 5, self.rng.randint(1, self.habits.block)))

    def _automatic(self) -> Any:
        metric = self.rng.choice(("shared/automatic", f"{self.lane.name}/automatic"))
        values = self.book.take(self._count())
        given = float(values[0]) if len(values) == 1 else [float(v) for v in values]
        return self._call(metric, values, lambda: self.run.log(metric, given))

    def _explicit(self) -> Any:
        metric = f"{self.lane.name}/explicit"
        values = self.book.take(self._count())
        step = self.lane.step
        self.lane.step += len(values)
        given = [float(v) for v in values]
        return self._call(metric, values, lambda: self.run.log(metric, given, step=step))

    def _mapping(self) -> Any:
        first, second = self.book.take(2)
        names = (f"{self.lane.name}/one", "shared/two")
        pair = {names[0]: float(first), names[1]: float(second)}
        rows = [(names[0], None, [first]), (names[1], None, [second])]
        return self._call_rows(rows, lambda: self.run.log(pair))

    def _merge(self) -> Any:
        metric = self.rng.choice(("shared/merged", "shared/merged-too"))
        values = self.book.take(self._count())
        given = [float(v) for v in values]
        step = self.rng.randrange(50)
        return self._call(
            metric, values, lambda: self.run.log_distributed(metric, given, step=step)
        )

    def _envs(self) -> list[str]:
        count = self.rng.choice((1, 2, 4))
        return [f"{self.lane.name}-env{n}" for n in range(count)]

    def _next_rl_step(self) -> int:
        self.lane.rl_step += 1
        return self.lane.rl_step

    def _episodes(self) -> Any:
        envs = self._envs()
        values = self.book.take(len(envs))
        given, rl_step = [float(v) for v in values], self._next_rl_step()
        rows = [("return", env, [v]) for env, v in zip(envs, values, strict=True)]
        return self._call_rows(
            rows, lambda: self.run.log_rl_episode("return", given, rl_step, env_id=envs)
        )

    def _numbered_episodes(self) -> Any:
        env = self._envs()[0]
        values = self.book.take(self._count())
        given, rl_step = [float(v) for v in values], self._next_rl_step()
        first = self.lane.episode
        self.lane.episode += len(values)
        episodes = np.arange(first, self.lane.episode)
        return self._call_rows(
            [("length", env, values)],
            lambda: self.run.log_rl_episode(
                "length", given, rl_step, episode=episodes, env_id=[env] * len(values)
            ),
        )

    def _grid(self, metric: str, episode: int | None) -> Any:
        envs = self._envs()
        length = self.rng.randint(1, max(1, self.habits.block // len(envs)))
        values = np.array(self.book.take(len(envs) * length)).reshape(len(envs), length)
        rl_step = self._next_rl_step()
        rows = [(metric, env, values[m].tolist()) for m, env in enumerate(envs)]
        return self._call_rows(
            rows,
            lambda: self.run.log_rl_environment_step(
                metric, values.astype(np.float32), rl_step, env_id=envs, episode=episode
            ),
        )

    def _rollout(self) -> Any:
        return self._grid("reward", None)

    def _episodic_rollout(self) -> Any:
        self.lane.episode += self.rng.choice((0, 1))
        return self._grid("episodic reward", self.lane.episode)

    def _setting(self) -> Any:
        self.lane.last_setting = self.book.take(1)[0]
        return self.run.log_attributes(self.lane.name, {"last": self.lane.last_setting})
