"""A long outage: a day of training without a server, on the virtual clock.

``python -m tests.simulation.outage [--hours 24]``: a real client logs 1,000 points a second, ten
scalars every second and a block of rollouts every ten, while nobody answers; then the server
comes and everything is delivered. Memory is this process's own (the server keeps nothing here, it
checks every point and forgets it); the spool is in real files, whose syncs are left out.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from metrana_async.errors import MetranaWarning
from metrana_async.server.store.base import AcceptedPoints, AcceptedSegments, Commit
from metrana_async.spool.disk import RealDisk
from tests.simulation.book import Book
from tests.simulation.client import Client, Habits, Lane
from tests.simulation.host import Host
from tests.simulation.machine import Scheduler
from tests.simulation.network import Network
from tests.simulation.server import ServerHost, SimStore
from tests.simulation.surroundings import real_monotonic_s, simulated

MEMORY_MIB: Final = 64
DRAIN_TIMES: Final = 20

_SCALARS: Final = 10
_ENVS: Final = 33
_BLOCK_EVERY_S: Final = 10
_BLOCK_STEPS: Final = 300
_CYCLE: Final = 1 << 23
_MIB: Final = 1 << 20


class QuickDisk(RealDisk):
    """Real files without the waiting for a real disk: time is virtual here."""

    def sync(self, handle: int) -> None:
        del handle

    def sync_directory(self, path: str) -> None:
        del path

    def die(self) -> None:
        """See model_disk.View; this process does not die."""


class CheckingStore(SimStore):
    """Checks that each axis counts on without a gap, and keeps no point.

    Every series (and environment) carries the numbers 0, 1, 2, … modulo a power of two that
    float32 holds.
    """

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.points_count = 0
        self.faults: list[str] = []
        self._next: dict[tuple[int, int], int] = {}

    def commit(self, changes: Commit) -> None:
        for table in changes.points:
            self._check_points(table)
        for segments in changes.segments:
            self._check_segments(segments)
        changes.points, changes.segments = [], []
        super().commit(changes)

    def _check_points(self, table: AcceptedPoints) -> None:
        for series_no in np.unique(table.series_no).tolist():
            self._follow((series_no, -1), table.value[table.series_no == series_no])

    def _check_segments(self, table: AcceptedSegments) -> None:
        ends = np.cumsum(table.count)
        for env_no, end, count in zip(table.env_no.tolist(), ends, table.count, strict=True):
            self._follow((table.series_no, env_no), table.value[end - count : end])

    def _follow(self, axis: tuple[int, int], values: Any) -> None:
        first = self._next.get(axis, 0)
        expected = (first + np.arange(len(values))) % _CYCLE
        if not np.array_equal(values.astype(np.int64), expected) and len(self.faults) < 10:
            self.faults.append(f"axis {axis}: {values[:3]} where {expected[:3]} comes")
        self._next[axis] = (first + len(values)) % _CYCLE
        self.points_count += len(values)


@dataclass(frozen=True)
class Outcome:
    """What a day without a server came to."""

    hours: float
    points_count: int
    stored_count: int
    faults: list[str]
    idle_mib: float
    highest_mib: float
    drain_mib: float
    spool_mib: float
    drain_virtual_s: float
    drain_real_s: float
    outage_real_s: float

    @property
    def memory_mib(self) -> float:
        """Memory above idle, at its highest while nobody answered."""
        return self.highest_mib - self.idle_mib

    @property
    def drain_times(self) -> float:
        """How much faster than it was logged it was delivered, in real time."""
        return self.hours * 3600 / self.drain_real_s

    @property
    def findings(self) -> list[str]:
        """What is not as it is promised, except for speed: machines differ."""
        found = list(self.faults)
        if self.stored_count != self.points_count:
            found.append(f"{self.points_count} points logged, {self.stored_count} stored")
        if self.memory_mib > MEMORY_MIB:
            found.append(f"{self.memory_mib:.1f} MiB above idle")
        if self.hours * 3600 / self.drain_virtual_s < DRAIN_TIMES:
            found.append(f"{self.drain_virtual_s:.0f} s to deliver {self.hours} h")
        return found


class Outage:
    """The world of one outage."""

    def __init__(self, hours: float, directory: str, seed: int = 0) -> None:
        self.scheduler = Scheduler(seed)
        self._hours = hours
        self._network = Network(self.scheduler)
        self._main = self._network.process("world", "world")
        self._server = ServerHost(self._network, random.Random(seed))
        self._store = self._server.store = CheckingStore(random.Random(seed))
        self._host = Host(self._network, "host", random.Random(seed))
        self._host.spool_root = directory
        habits = Habits(adopts=False)
        self._client = Client(self._network, self._host, Lane("lane"), Book(), habits=habits)
        self._client.view = QuickDisk()  # type: ignore[assignment]
        self._directory = directory
        self._logged = 0
        self._scalars = 0
        self._steps = 0
        self._highest = self._highest_draining = 0

    def run(self) -> Outcome:
        with simulated(self.scheduler):
            try:
                limit_s = self._hours * 3600 * 3 + 3600
                return self.scheduler.run(self._main, self._live(), limit_s=limit_s)
            finally:
                self.scheduler.bury()

    async def _live(self) -> Outcome:
        await self._server.start()
        await self._client.process.call(self._begin())
        idle = _memory_bytes()
        self._server.kill()
        began_s = real_monotonic_s()
        await self._client.process.call(self._train())
        outage_real_s = real_monotonic_s() - began_s
        spool_bytes = _size(self._directory)
        began_s, began_virtual_s = real_monotonic_s(), self.scheduler.now_s
        await self._server.start()
        await self._client.process.call(self._drain())
        drain_virtual_s = self.scheduler.now_s - began_virtual_s
        drain_real_s = real_monotonic_s() - began_s
        await self._client.process.call(self._client.close(60.0))
        assert self._client.info is not None
        faults = [*self._store.faults, *self.scheduler.problems]
        statistics = self._client.info.statistics
        if not self._client.info.is_complete or statistics.accepted != self._logged:
            faults.append(f"not complete: {statistics}")
        if left := os.listdir(self._directory) and _size(self._directory):
            faults.append(f"{left} bytes are left in the spool")
        return Outcome(
            self._hours,
            self._logged,
            self._store.points_count,
            faults,
            idle / _MIB,
            self._highest / _MIB,
            self._highest_draining / _MIB,
            spool_bytes / _MIB,
            drain_virtual_s,
            drain_real_s,
            outage_real_s,
        )

    async def _begin(self) -> None:
        """Join and log a little, so that everything that is made once is made."""
        await self._client.join()
        for _ in range(30):
            await self._second()

    async def _train(self) -> None:
        for second in range(int(self._hours * 3600)):
            await self._second()
            if second % 60 == 0:
                self._highest = max(self._highest, _memory_bytes())

    async def _drain(self) -> None:
        """Until everything is stored."""
        while self._client.statistics.committed < self._logged:
            await asyncio.sleep(1.0)
            self._highest_draining = max(self._highest_draining, _memory_bytes())

    async def _second(self) -> None:
        run = self._client.run
        value = float(self._scalars % _CYCLE)
        await run.log({f"scalar{n}": value for n in range(_SCALARS)})
        self._logged += _SCALARS
        self._scalars += 1
        if self._scalars % _BLOCK_EVERY_S == 0:
            row = (self._steps + np.arange(_BLOCK_STEPS)) % _CYCLE
            block = np.broadcast_to(row.astype(np.float32), (_ENVS, _BLOCK_STEPS))
            envs = [f"env{n}" for n in range(_ENVS)]
            await run.log_rl_environment_step("reward", block, self._scalars, env_id=envs)
            self._logged += block.size
            self._steps += _BLOCK_STEPS
        await asyncio.sleep(1.0)


def _memory_bytes() -> int:
    """Resident memory of this process."""
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _size(directory: str) -> int:
    return sum(
        os.path.getsize(os.path.join(path, name))
        for path, _, names in os.walk(directory)
        for name in names
        if name.endswith(".seg")
    )


def run_outage(hours: float) -> Outcome:
    """Live through an outage. Blocks for minutes where `hours` are many."""
    with tempfile.TemporaryDirectory(prefix="metrana-outage-") as directory:
        return Outage(hours, directory).run()


def main(arguments: Sequence[str]) -> int:
    """Run and tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.outage", description=__doc__)
    parser.add_argument("--hours", type=float, default=24.0, help="length (default 24)")
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore", MetranaWarning)
    outcome = run_outage(given.hours)
    print(
        f"{outcome.hours:g} h without a server: {outcome.points_count} points, "
        f"{outcome.spool_mib:.0f} MiB spooled, {outcome.memory_mib:.1f} MiB of memory above idle "
        f"({outcome.idle_mib:.0f}), in {outcome.outage_real_s:.0f} s of real time"
    )
    print(
        f"delivered in {outcome.drain_real_s:.1f} s of real time, {outcome.drain_times:.0f} times "
        f"as fast as it was logged ({outcome.drain_virtual_s:.1f} s of virtual time), with "
        f"{outcome.drain_mib - outcome.idle_mib:.1f} MiB above idle, the server's included"
    )
    for finding in outcome.findings:
        print(f"FAILED: {finding}")
    return 1 if outcome.findings or outcome.drain_times < DRAIN_TIMES else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
