"""A client's machine: its disk, the way to it, and the spool on it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from metrana_async import leftovers
from metrana_async.engine.clock import SystemClock
from metrana_async.errors import MetranaError
from metrana_async.leftovers import Adoption
from metrana_async.orchestration import process_identity
from metrana_async.replay import SET_ASIDE, Replayer, ReplayReport
from metrana_async.settings import Settings
from metrana_async.spool import layout
from metrana_async.spool.writer import SpoolWriter
from metrana_async.spool_place import SpoolPlace
from metrana_async.transport.base import ServerAddress
from metrana_async.transport.http import HttpTransport
from metrana_async.wire.messages import OpenRequest
from tests.simulation.machine import Process
from tests.simulation.model_disk import Killed, ModelDisk, View
from tests.simulation.network import Network
from tests.simulation.server import ADDRESS

SPOOL_ROOT: Final = "/spool"
QUOTA_BYTES = 1 << 30
"""Of each writer's spool; some worlds have less."""
SERVER_KEY: Final = "simulated"
_SYNC_ROUNDS: Final = 20

_Result = TypeVar("_Result")


class Host:
    """One machine. Its processes share a disk and lose it together.

    Attributes:
        disk_s: longest time a call of the disk takes.
        quota_bytes: of each writer's spool.
        is_prompt: False once the disk has ever refused or been slow: what is on it then may be
            older than promised.
        is_tampered: True once bytes that had been synced were damaged, or could not be read.
    """

    def __init__(self, network: Network, name: str, rng: random.Random) -> None:
        self.name = name
        self.disk = ModelDisk(rng)
        self.disk_s = 0.004
        self.spool_root = SPOOL_ROOT
        self.quota_bytes = QUOTA_BYTES
        self.is_prompt = QUOTA_BYTES >= 1 << 30
        self.is_tampered = False
        self._network = network
        self._rng = rng
        self._syncs_count = 0

    def process(self, name: str) -> tuple[Process, View, Hop]:
        """Start a process, with its view of the disk and its way there."""
        process = self._network.process(name, self.name)
        view = self.disk.view()
        return process, view, Hop(self, process, view)

    def kill(self, process: Process, view: View) -> None:
        """SIGKILL: descriptors close, locks are free."""
        self._network.kill(process)
        view.die()

    def place(self, view: View, hop: Hop, settings: Settings) -> SpoolPlace:
        """What `spool_place.place_for` makes on a real machine."""

        def make(request: OpenRequest, run_uid: str) -> SpoolWriter:
            directory = layout.writer_directory(
                self.spool_root,
                host=process_identity().host,
                server=SERVER_KEY,
                run_uid=run_uid,
                writer_id=request.writer_id,
            )
            meta = layout.Meta(SERVER_KEY, settings.init_mode, run_uid, request)
            return SpoolWriter(view, directory, meta, quota_bytes=self.quota_bytes)

        return SpoolPlace(view, hop, make)

    def adoption(self, view: View, hop: Hop) -> Adoption:
        """What every process that reaches a server does for the dead ones of its host."""
        return Adoption(SPOOL_ROOT, SERVER_KEY, disk=view, hop=hop, clock=SystemClock())

    # --- the end -------------------------------------------------------------------------------
    async def sync(self) -> list[ReplayReport]:
        """What `metrana-async sync` does, until nothing is left that can be delivered."""
        self._syncs_count += 1
        process, view, hop = self.process(f"sync {self.name} {self._syncs_count}")
        transport = HttpTransport(ServerAddress("http://server", socket_path=ADDRESS))
        process.at_burial.append(transport.close)

        async def work() -> list[ReplayReport]:
            replayer = Replayer(view, hop, transport, SystemClock(), 60.0)
            reports = []
            for directory, _ in leftovers._chosen(view, SPOOL_ROOT, (None, None, None)):
                try:
                    reports.append(await replayer.deliver(directory))
                except MetranaError as error:
                    reports.append(ReplayReport(directory, "", "", SET_ASIDE, text=str(error)))
            return reports

        return await process.call(work())

    def leftovers(self) -> list[str]:
        """Every writer's directory that is on the disk."""
        return layout.writer_directories(self.disk.view(), SPOOL_ROOT)


class Hop:
    """Carries blocking calls to the disk as the I/O thread does: one at a time, in order.

    A call that was not begun can be cancelled; one that was begun happens, whoever waits for it.
    """

    def __init__(self, host: Host, process: Process, view: View) -> None:
        self._host = host
        self._process = process
        self._view = view
        self._free_s = 0.0

    def __call__(self, call: Callable[[], _Result]) -> Awaitable[_Result]:
        loop = self._process.loop
        answer: asyncio.Future[_Result] = loop.create_future()
        self._free_s = max(self._free_s, loop.time()) + self._host._rng.uniform(
            1e-6, self._host.disk_s
        )

        def begin() -> None:
            if answer.cancelled():
                return
            try:
                result = call()
            except Killed:
                self._host.disk.seen["client killed in a disk call"] += 1
                self._host.kill(self._process, self._view)
            except Exception as error:
                self._settle(answer, None, error)
            else:
                self._settle(answer, result, None)

        loop.call_at(self._free_s, begin)
        return answer

    def _settle(
        self, answer: asyncio.Future[_Result], result: _Result | None, error: Exception | None
    ) -> None:
        """Back to the event loop, a moment later."""

        def settle() -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)  # type: ignore[arg-type]  # None is one of its values

        self._process.loop.call_later(1e-5, settle)
