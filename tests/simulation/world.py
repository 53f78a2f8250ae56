"""One simulated world: a server, clients, a network, and somebody who breaks things.

A seed draws everything: how many clients, how they behave, how the parts are tuned, what the
weather is and which faults come when. Then everything heals, everybody finishes, and the checker
looks. The faults of a world are few enough to be read; many worlds together show them all.
"""

from __future__ import annotations

import asyncio
import logging
import random
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest.mock import patch

from metrana_async import pump
from metrana_async.delivery import outbox, spooling
from metrana_async.errors import BatchTooLargeError, ProtocolError
from metrana_async.replay import DELIVERED, ReplayReport
from metrana_async.server.ingest import requests, service
from metrana_async.server.ingest.requests import read_request as requests_read_request
from metrana_async.server.ingest.validation import check_batch
from metrana_async.spool import writer as spool_writer
from metrana_async.wire.limits import WRITER_LIVE_S
from metrana_async.wire.model import Batch
from tests.simulation import host as host_module
from tests.simulation.book import Book
from tests.simulation.checker import Checker, is_twice_unsure, stored_values
from tests.simulation.client import Client, Habits, Lane
from tests.simulation.host import Host
from tests.simulation.machine import ProcessKilled, Scheduler
from tests.simulation.model_disk import Directory, File, Troubles
from tests.simulation.network import FAIR, Network, Weather
from tests.simulation.server import ServerHost
from tests.simulation.surroundings import real_monotonic_s, simulated

HEAL_LIMIT_S: Final = 400.0
"""Virtual seconds in which everybody is through after the last fault has been mended."""

LEFT_OUT: Final[tuple[str, ...]] = ()
"""Faults that worlds are spared by default."""

FAVOURITES: Final = ("", "rollback", "rollback", "kill", "partition", "power", "disk", "pause")

_WORLD_LIMIT_S: Final = 20_000.0


@dataclass(frozen=True)
class Report:
    """What became of one seed."""

    seed: int
    findings: list[str]
    digest: str
    counts: Counter[str]
    virtual_s: float
    real_s: float
    points_count: int
    lines: list[str]

    @property
    def is_sound(self) -> bool:
        return not self.findings


class World:
    """Everything of one seed."""

    def __init__(
        self, seed: int, *, keeps_trace: bool = False, left_out: Collection[str] = LEFT_OUT
    ) -> None:
        self._seed = seed
        self._left_out = left_out
        self.scheduler = Scheduler(seed, keeps_trace=keeps_trace)
        self.rng = random.Random(f"world {seed}")
        self.network = Network(self.scheduler)
        self.main = self.network.process("world", "world")
        self.book = Book()
        self.lanes: list[Lane] = []
        self.hosts: dict[str, Host] = {}
        self.clients: list[Client] = []
        self.rolled_back: set[str] = set()
        """The server's generations before its last rollback."""
        self.rolled_back_s = float("-inf")
        self.delivered: dict[str, str] = {}
        """For each writer whose leftovers were delivered: the server's generation then."""
        self.has_clones = self.has_poison = False
        self.findings: list[str] = []
        self.server = ServerHost(self.network, random.Random(f"server {seed}"))
        self._favourite = self.rng.choice(FAVOURITES)
        """The fault that comes again and again in this world."""
        self._backups: list[dict[str, Any]] = []
        self._tasks: list[asyncio.Future[Any]] = []

    def note(self, kind: str, *details: object) -> None:
        self.scheduler.note(kind, *details)

    async def live(self) -> None:
        """Faults, healing, the end."""
        self._draw_server()
        if self.rng.random() < 0.8:
            await self.server.start()
        for _ in range(self.rng.choice((1, 1, 2, 3))):
            self._start_client(self._new_lane())
        self.network.weather = self._draw_weather()
        ends_s = self.scheduler.now_s + self.rng.uniform(5.0, 40.0)
        while self.scheduler.now_s < ends_s:
            await asyncio.sleep(self.rng.expovariate(0.5))
            self._sweep()
            await self._break_something()
        await self._heal()
        await self._until_all_are_through()
        await self._sync()

    def check(self) -> None:
        """Compare what is stored with what was logged."""
        checker = Checker(self.server.store, self.book, self.clients, self.rolled_back)
        checker.has_clones, checker.has_poison = self.has_clones, self.has_poison
        checker.rolled_back_s, checker.delivered = self.rolled_back_s, self.delivered
        self.findings += checker.check()
        self.findings += self.scheduler.problems

    # --- draws ---------------------------------------------------------------------------------
    def _draw_server(self) -> None:
        rng = self.rng
        self.server.keep_alive_s = rng.choice((0.3, 2.0, 75.0))
        self.server.commit_s = rng.choice((0.001, 0.02, 0.5))

    def _draw_weather(self) -> Weather:
        rng = self.rng

        def some(share: float) -> float:
            return rng.choice((0.0, 0.0, share / 3, share))

        return Weather(
            delay_s=rng.choice((0.002, 0.05, 0.5)),
            stall=some(0.05),
            stall_s=rng.choice((2.0, 45.0)),
            cut_request=some(0.1),
            cut_answer=some(0.1),
            refuse=some(0.2),
            lie=some(0.1),
            # A refusal says to nobody what it refuses: it must not reach whoever asked else.
            misroute=0.0 if self.has_poison else some(0.1),
            duplicate=some(0.2),
            replay=some(0.2),
        )

    def _draw_habits(self) -> Habits:
        rng = self.rng
        strategy = rng.choice(("block", "block", "block", "drop_new", "raise"))
        mode = rng.choice(("online", "online", "online", "auto", "offline"))
        return Habits(
            pause_s=rng.choice((0.05, 0.5, 2.0)),
            calls=rng.randint(5, 40),
            block=rng.choice((3, 40, 400)),
            flush=rng.choice((0.0, 0.1)),
            strategy=strategy,
            capacity=rng.choice((50, 1 << 20)) if strategy != "block" else 1 << 20,
            compression=rng.choice(("none", "zstd")),
            mode=mode,
            spools=mode != "online" or rng.random() < 0.85,
            adopts=rng.random() < 0.8,
            close_s=rng.choice((2.0, 120.0)),
        )

    # --- clients -------------------------------------------------------------------------------
    def _new_lane(self) -> Lane:
        name = f"lane{len(self.lanes)}"
        lane = Lane(name)
        self.lanes.append(lane)
        host = Host(self.network, f"host {name}", random.Random(f"{self._seed} {name}"))
        host.disk_s = self.rng.choice((0.002, 0.02, 0.1))
        self.hosts[name] = host
        return lane

    def _start_client(self, lane: Lane, *, twin: Client | None = None) -> Client:
        habits = self._draw_habits()
        if twin is not None:
            habits = replace(habits, mode=twin.habits.mode, spools=twin.habits.spools)
        client = Client(
            self.network,
            self.hosts[lane.name],
            lane,
            self.book,
            habits=habits,
            twin=twin,
        )
        if self.rng.random() < 0.1:
            client.view.kill_in = self.rng.randrange(1, 60)
        client.on_flushed = lambda covered: self._check_flush(client, covered)
        client.on_delivered = self._note_delivered
        self.clients.append(client)
        self._tasks.append(client.process.call(client.live()))
        return client

    def _note_delivered(self, report: ReplayReport) -> None:
        if report.state == DELIVERED:
            self.delivered[report.writer_id] = self.server.generations[-1]

    def _check_flush(self, client: Client, covered: int) -> None:
        """A flush that returned never lies: at this very moment everything before is kept."""
        if client.generation in self.rolled_back:
            return  # what was acknowledged before may be gone, and it has not heard of that yet
        if is_twice_unsure(client, self.rolled_back):
            return
        there = stored_values(self.server.store)
        missing = [
            value
            for value, point in self.book.points.items()
            if point.client == client.name and value < covered and value not in there
        ]
        statistics = client.statistics
        declared = Counter(statistics.losses)
        del declared["drop_new"]  # those were never entered
        # Which points the disk has is seen at the end, when it has been delivered.
        if len(missing) > declared.total() + statistics.spooled:
            text = f"{len(missing)} are not stored; {statistics}"
            self.findings.append(f"flush of {client.name} lied: {text}")

    # --- faults --------------------------------------------------------------------------------
    async def _break_something(self) -> None:
        faults: dict[str, Callable[[], Awaitable[None]]] = {
            "crash": self._crash_server,
            "crash again": self._crash_server,
            "partition": self._partition,
            "partition again": self._partition,
            "kill": self._kill_client,
            "pause": self._pause,
            "store": self._trouble_the_store,
            "weather": self._change_weather,
            "clock": self._shift_clock,
            "backup": self._back_up,
            "rollback": self._roll_back,
            "clone": self._clone_client,
            "power": self._cut_power,
            "disk": self._trouble_a_disk,
            "disk again": self._trouble_a_disk,
            "full": self._fill_a_disk,
            "tamper": self._tamper,
        }
        for name in self._left_out:
            del faults[name]
        if self._favourite in faults and self.rng.random() < 0.4:
            await faults[self._favourite]()
        else:
            await self.rng.choice(list(faults.values()))()

    async def _crash_server(self) -> None:
        self.server.kill()
        await self._restart_server()

    async def _restart_server(self) -> None:
        await asyncio.sleep(self.rng.choice((0.05, 1.0, 10.0, 70.0)) * self.rng.random())
        await self.server.start()

    async def _partition(self) -> None:
        lane = self.rng.choice(self.lanes)
        here, there = f"host {lane.name}", "server"
        kind = self.rng.choice(("both", "requests", "answers"))
        if kind != "answers":
            self.network.block(here, there)
        if kind != "requests":
            self.network.block(there, here)
        self.note("partition", kind, lane.name)
        await asyncio.sleep(self.rng.choice((1.0, 12.0, 90.0)) * self.rng.random())
        self.network.unblock_all()

    async def _kill_client(self) -> None:
        alive = [c for c in self.clients if c.fate == "alive"]
        if not alive:
            return
        client = self.rng.choice(alive)
        client.kill()
        if self.rng.random() < 0.7:
            await asyncio.sleep(self.rng.uniform(0.0, 5.0))
            self._start_client(client.lane)

    async def _clone_client(self) -> None:
        """A machine's snapshot resumed twice: two processes write under one identity."""
        joined = [c for c in self.clients if c.fate == "alive" and c.writer is not None]
        if joined and len(self.lanes) < 5:
            twin = self.rng.choice(joined)
            self._start_client(self._new_lane(), twin=twin)
            self.has_clones = twin.is_cloned = True
            self.note("cloned", twin.name)

    async def _pause(self) -> None:
        """SIGSTOP: the process does nothing for a while and does not know it."""
        processes = [c.process for c in self.clients if c.fate == "alive"]
        if self.server.process is not None:
            processes.append(self.server.process)
        if processes:
            process = self.rng.choice(processes)
            for client in self.clients:
                client.was_paused |= client.process is process
            process.paused_until_s = self.scheduler.now_s + self.rng.choice((1.0, 30.0, 130.0))
            self.note("paused", process.name)

    async def _trouble_the_store(self) -> None:
        store = self.server.store
        store.refuse, store.ambiguous = self.rng.choice(((1.0, 0.0), (0.3, 0.3), (0.0, 0.5)))
        self.note("store in trouble")
        await asyncio.sleep(self.rng.uniform(0.0, 10.0))
        store.refuse = store.ambiguous = 0.0

    async def _change_weather(self) -> None:
        self.network.weather = self._draw_weather()
        if self.rng.random() < 0.5:
            self.network.replay_something()

    # --- faults of a client's disk -------------------------------------------------------------
    def _some_host(self) -> Host:
        return self.rng.choice(list(self.hosts.values()))

    async def _cut_power(self) -> None:
        """A client's machine goes off; everybody on it is gone, and half-written things remain."""
        host = self._some_host()
        self._sweep()
        self.note("power cut", host.name)
        here = [c for c in self.clients if c.host is host and c.fate == "alive"]
        for client in here:
            client.kill()
        for client in self.clients:
            # What a process that was killed before had not synced is gone with the power, too.
            is_left = client.fate == "killed" and not client.all_writer_ids & {*self.delivered}
            client.lost_power |= client.host is host and is_left
        host.disk.lose_power()
        if here and self.rng.random() < 0.7:
            await asyncio.sleep(self.rng.uniform(0.0, 5.0))
            self._start_client(here[0].lane)

    async def _trouble_a_disk(self) -> None:
        """Writes, syncs and names fail now and then for a while, or everything is slow."""
        host, rng = self._some_host(), self.rng
        host.is_prompt = False
        self._perhaps_cut_off(host)
        share = rng.choice((0.3, 0.6, 1.0))
        kind = rng.choice(("write", "sync", "sync", "names", "slow"))
        self.note(f"disk trouble {kind}", host.name)
        usual_s, usual = host.disk_s, host.disk.troubles
        if kind == "slow":
            host.disk_s = rng.choice((2.0, 40.0))
        else:
            host.disk.troubles = Troubles(
                write_eio=share * (kind == "write"),
                sync_eio=share * (kind == "sync"),
                names_eio=share * (kind == "names"),
            )
        await asyncio.sleep(rng.uniform(0.0, 15.0))
        host.disk_s, host.disk.troubles = usual_s, usual
        self.network.unblock_all()

    def _perhaps_cut_off(self, host: Host) -> None:
        """A disk matters only while the server does not answer."""
        if self.rng.random() < 0.7:
            self.network.block(host.name, "server")

    async def _fill_a_disk(self) -> None:
        host = self._some_host()
        host.is_prompt = False
        self.note("disk full", host.name)
        self._perhaps_cut_off(host)
        host.disk.capacity_bytes = host.disk.used_bytes + self.rng.choice((0, 100, 3000))
        await asyncio.sleep(self.rng.uniform(0.0, 15.0))
        host.disk.capacity_bytes = 1 << 40
        self.network.unblock_all()

    async def _tamper(self) -> None:
        """Bits flip in what was synced, or somebody clears up the spool."""
        host, rng = self._some_host(), self.rng
        directories = host.leftovers()
        if not directories:
            return
        host.is_tampered, host.is_prompt = True, False
        directory = rng.choice(directories)
        if rng.random() < 0.2:
            self.note("spool removed", host.name)
            host.disk.remove_tree(directory)
            return
        node = host.disk.find(directory)
        assert isinstance(node, Directory)
        files = [f for f in node.names.values() if isinstance(f, File) and f.data]
        if files:
            self.note("bits flipped", host.name)
            file = rng.choice(files)
            file.data[rng.randrange(len(file.data))] ^= 1 << rng.randrange(8)

    async def _shift_clock(self) -> None:
        client = self.rng.choice(self.clients)
        client.process.wall_offset_s += self.rng.choice((-1e6, -60.0, 3600.0, 1e6))
        self.note("clock shifted", client.name)

    async def _back_up(self) -> None:
        self._backups.append(self.server.store.copy())
        self.note("backed up" if self.server.store.runs() else "backed up without a run")

    async def _roll_back(self) -> None:
        if not self._backups:
            await self._back_up()
            return
        self.server.kill()
        self.server.restore(self.rng.choice(self._backups))
        self.rolled_back.update(self.server.generations)
        self.rolled_back_s = self.scheduler.now_s
        await self._restart_server()

    # --- the end -------------------------------------------------------------------------------
    async def _heal(self) -> None:
        self.note("healed")
        self.network.weather = replace(FAIR, delay_s=0.01)
        self.network.unblock_all()
        for client in self.clients:
            client.process.paused_until_s = 0.0
        if self.server.process is None:
            await self.server.start()
        assert self.server.process is not None
        self.server.process.paused_until_s = 0.0
        for client in self.clients:
            client.view.kill_in = None

    def _sweep(self) -> None:
        """Notice who was killed in a call of the disk, and let those go who are through."""
        for client in self.clients:
            if client.fate == "closed" and client.process.is_alive:
                client.host.kill(client.process, client.view)
            if not client.process.is_alive:
                client.has_been_killed()

    async def _until_all_are_through(self) -> None:
        ends_s = self.scheduler.now_s + HEAL_LIMIT_S
        while any(c.fate == "alive" for c in self.clients) and self.scheduler.now_s < ends_s:
            await asyncio.sleep(0.5)
            self._sweep()
        for task in self._tasks:
            if not task.done():
                continue
            error = task.exception()
            if error is not None and not isinstance(error, ProcessKilled):
                self.findings.append(f"a program died: {error!r}")
        # Until nobody who died counts as live any more; a copy of what it sent is a sign of life.
        haunted_s = max(0.0, self.network.haunted_until_s - self.scheduler.now_s)
        await asyncio.sleep(haunted_s + WRITER_LIVE_S + 10.0)

    async def _sync(self) -> None:
        """Everybody's leftovers are delivered, wherever they are."""
        self._sweep()
        for host in self.hosts.values():
            if not host.leftovers():
                continue
            for report in await host.sync():
                self.note(f"sync {report.state}")
                # What a clone left that another wrote differently is kept for people to see.
                is_excused = host.is_tampered or host.disk.seen["power cut"] or self.has_clones
                # Of what a restored server has lost, a dead writer's disk may have no copy.
                is_excused = is_excused or self.rolled_back
                if report.state != DELIVERED and not is_excused:
                    text = f"{report.state}: {report.text} {report.statistics}"
                    self.findings.append(f"leftovers on {host.name}: {text}")
        # Copies that are still under way change nothing.
        await asyncio.sleep(100.0)


def _is_poison(batch: Batch) -> bool:
    """Whether the server of a poisoned world will never take this batch, however often it comes."""
    name = f"{batch.writer_id} {batch.lane} {batch.seq}"
    return not batch.stands_for and zlib.crc32(name.encode()) % 12 == 0


def _refuse_poison(batch: Batch, *rest: Any) -> None:
    if _is_poison(batch):
        raise ProtocolError("this batch is refused on purpose")
    check_batch(batch, *rest)


def _refuse_requests_with_poison(body: bytes) -> requests.Request:
    request = requests_read_request(body)
    if any(sent.batch is not None and _is_poison(sent.batch) for sent in request.sent):
        raise BatchTooLargeError("this request is refused on purpose")
    return request


@contextmanager
def _poisoned(rng: random.Random) -> Iterator[bool]:
    """In some worlds there are batches that can never be stored; True in those."""
    draw = rng.random()
    if draw < 0.05:
        with patch.object(requests, "check_batch", _refuse_poison):
            yield True
    elif draw < 0.1:
        with patch.object(service, "read_request", _refuse_requests_with_poison):
            yield True
    else:
        yield False


@contextmanager
def _tuned(rng: random.Random) -> Iterator[None]:
    """Bounds that a world draws, so that what happens beyond them happens here, too."""
    with ExitStack() as stack:
        if rng.random() < 0.3:
            stack.enter_context(patch.object(outbox, "RETENTION_S", 3.0))
        if rng.random() < 0.2:
            stack.enter_context(patch.object(outbox, "RETENTION_BYTES", 4000))
        if rng.random() < 0.3:
            stack.enter_context(patch.object(spooling, "OVERFLOW_BYTES", 3000))
            stack.enter_context(patch.object(spooling, "OVERFLOW_BYTES_LIVE", 6000))
            stack.enter_context(patch.object(spooling, "LOAD_BELOW_BYTES", 2000))
        if rng.random() < 0.3:
            stack.enter_context(patch.object(spool_writer, "SEGMENT_BYTES", 4000))
        if rng.random() < 0.15:
            # A spool that soon is full, and little room in memory behind it.
            stack.enter_context(patch.object(host_module, "QUOTA_BYTES", 3000))
            stack.enter_context(patch.object(pump, "OUTBOX_BYTES", 6000))
        yield


def run_seed(
    seed: int, *, keeps_trace: bool = False, left_out: Collection[str] = LEFT_OUT
) -> Report:
    """Live through one world and check it. Blocks; a fraction of a second."""
    began_s = real_monotonic_s()
    world = World(seed, keeps_trace=keeps_trace, left_out=left_out)
    scheduler = world.scheduler
    aiohttp_log = logging.getLogger("aiohttp.server")
    level, aiohttp_log.level = aiohttp_log.level, logging.CRITICAL
    try:
        with (
            simulated(scheduler),
            _tuned(random.Random(f"tuning {seed}")),
            _poisoned(random.Random(f"poison {seed}")) as world.has_poison,
        ):
            try:
                scheduler.run(world.main, world.live(), limit_s=_WORLD_LIMIT_S)
                world.check()
            except AssertionError as error:
                world.findings.append(f"the world broke: {error}")
            finally:
                scheduler.bury()
    finally:
        aiohttp_log.level = level
    counts = scheduler.trace.counts
    counts["commit refused"] = world.server.store.failures["refused"]
    counts["commit ambiguous"] = world.server.store.failures["ambiguous"]
    for host in world.hosts.values():
        counts.update({f"disk: {kind}": count for kind, count in host.disk.seen.items()})
    return Report(
        seed,
        world.findings,
        scheduler.trace.digest,
        counts,
        scheduler.now_s - 1000.0,
        real_monotonic_s() - began_s,
        len(world.book.points),
        scheduler.trace.lines,
    )
