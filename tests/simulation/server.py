"""The server's process: the real application, service, rules and memory store.

Two things are not the real ones: the worker's thread (its passes run on the server's loop, one
after a moment of virtual time each) and the sockets. What has been committed survives a crash,
and nothing else does.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from metrana_async.errors import UnavailableError
from metrana_async.server.app import Backend, _Activity, web_app
from metrana_async.server.http.ingest import ingest_endpoints
from metrana_async.server.http.runs import run_endpoints
from metrana_async.server.ingest.worker import IngestWorker
from metrana_async.server.settings import ServerSettings
from metrana_async.server.store.base import Commit
from metrana_async.server.store.memory import MemoryStore
from metrana_async.wire.acks import IngestReply
from tests.simulation.machine import Process
from tests.simulation.network import Network

ADDRESS: Final = "/server.sock"


class SimStore(MemoryStore):
    """The memory store as a medium: it is opened again after a crash, copied, and put back.

    `refuse` is the share of commits that fail, `ambiguous` of those that fail though all is done.
    """

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng
        self.refuse = 0.0
        self.ambiguous = 0.0
        self.commits_count = 0
        self.failures: dict[str, int] = {"refused": 0, "ambiguous": 0}

    def commit(self, changes: Commit) -> None:
        chance = self._rng.random()
        if chance < self.refuse:
            self.failures["refused"] += 1
            raise UnavailableError("the disk is full on purpose")
        super().commit(changes)
        self.commits_count += 1
        if chance < self.refuse + self.ambiguous:
            self.failures["ambiguous"] += 1
            raise UnavailableError("the disk failed after it had written everything, on purpose")

    def opened(self, generation: str) -> SimStore:
        """As a new server finds it."""
        self._generation = generation
        return self

    def copy(self) -> dict[str, Any]:
        """A backup. Rows are never changed in place, so the containers are enough."""
        return {name: _copied(value) for name, value in vars(self).items() if _is_kept(name)}

    def restore(self, backup: dict[str, Any]) -> None:
        """Put a backup in the place of everything."""
        for name, value in backup.items():
            setattr(self, name, _copied(value))


def _is_kept(name: str) -> bool:
    return name in {
        *("_runs", "_writers", "_series", "_envs", "_lanes", "_pages", "_attributes", "_cuts"),
        *("_points", "_segments", "_sealed", "_journal", "_journal_marks", "_deleted", "_used"),
        "_gone_series",
    }


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: (type(v)(v) if isinstance(v, (list, dict)) else v) for k, v in value.items()}
    return value if isinstance(value, tuple) else type(value)(value)


class InlineWorker(IngestWorker):
    """The real worker without its thread: each pass is an event of the server's loop."""

    def attach(self, process: Process, rng: random.Random, *, commit_s: float) -> None:
        """Make passes on the loop of `process`; a pass begins up to `commit_s` after its cause."""
        self._process = process
        self._rng = rng
        self._commit_s = commit_s
        self._is_due = False

    def start(self) -> None:
        self._process.loop.call_later(self._upkeep_interval_s, self._keep_up)

    async def ingest(self, body: bytes) -> IngestReply:
        reply = await super().ingest(body)
        for answered in reply.replies:
            self._process.scheduler.note(f"batch {answered.status.value}", answered.seq)
        return reply

    def _enqueue(self, *args: Any, **kwargs: Any) -> Any:
        future = super()._enqueue(*args, **kwargs)
        self._plan()
        return future

    def _plan(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._process.loop.call_later(self._rng.uniform(0.0, self._commit_s), self._pass)

    def _pass(self) -> None:
        self._is_due = False
        # As if upkeep were due: then the queue is never waited for.
        self._next_upkeep_s = 0.0
        group = self._next_group()
        if group:
            self._run(group)
            self._plan()

    def _keep_up(self) -> None:
        self._upkeep()
        self._process.loop.call_later(self._upkeep_interval_s, self._keep_up)

    def _wait_for_company(self) -> None:
        """Company comes while the pass is being planned."""


class SimBackend(Backend):
    """The real backend around an `InlineWorker`."""

    def __init__(self, store: SimStore, process: Process, rng: random.Random, commit_s: float):
        super().__init__(store, clock=process.scheduler.wall_s)
        # Five seconds of upkeep are enough here: nothing in memory needs sealing.
        worker = InlineWorker(self.worker._service, upkeep_interval_s=5.0)
        worker.attach(process, rng, commit_s=commit_s)
        self.worker = worker
        self.endpoints |= ingest_endpoints(worker) | run_endpoints(worker, self.query)


class ServerHost:
    """The machine the server runs on: starts it, kills it, restores its store."""

    def __init__(self, network: Network, rng: random.Random) -> None:
        self.network = network
        self.rng = rng
        self.store = SimStore(rng)
        self.process: Process | None = None
        self.starts_count = 0
        self.generations: list[str] = []
        self.keep_alive_s = 75.0
        self.commit_s = 0.004
        self._runner: web.AppRunner | None = None

    @property
    def is_up(self) -> bool:
        return self.process is not None

    async def start(self) -> None:
        """Start a server on the store as it is. Call from another process."""
        self.starts_count += 1
        process = self.process = self.network.process(f"server {self.starts_count}", "server")
        self.generations.append(f"{self.rng.getrandbits(128):032x}")
        store = self.store.opened(self.generations[-1])
        await process.call(self._serve(process, store))

    async def _serve(self, process: Process, store: SimStore) -> None:
        self.backend = backend = SimBackend(store, process, self.rng, self.commit_s)
        settings = ServerSettings(data_dir=Path("/nowhere"), store="memory")
        app = web_app(backend, settings, _Activity())
        self._runner = web.AppRunner(app, keepalive_timeout=self.keep_alive_s, access_log=None)
        await self._runner.setup()
        backend.start()
        self.network.listen(ADDRESS, process, self._runner.server)
        self.network.note("server up", self.starts_count)

    def kill(self) -> None:
        """SIGKILL. What was committed is there; nothing else is."""
        if self.process is not None:
            self.network.note("server killed", self.store.commits_count)
            self.network.kill(self.process)
            self.process = None

    def restore(self, backup: dict[str, Any]) -> None:
        """Put an older copy of the store in place. The server must be down."""
        assert self.process is None
        self.network.note("server rolled back", self.store.commits_count)
        self.store.restore(backup)
