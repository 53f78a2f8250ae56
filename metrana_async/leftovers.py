"""Leftovers: find what writers left on this machine's disk, and have it delivered.

`replay_spool` delivers what is there now, `follow_spool` stays with writers that are still at
work, and *adoption* is what every process that reaches a server does in the background for the
dead writers of its user, host and server.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from metrana_async.columns.names import check_name
from metrana_async.destinations import connect, place_of
from metrana_async.engine.clock import Clock, SystemClock
from metrana_async.engine.io_thread import Hop
from metrana_async.engine.loop_thread import engine
from metrana_async.engine.pulse import Pulse
from metrana_async.errors import MetranaError, ValidationError
from metrana_async.orchestration import process_identity
from metrana_async.replay import BUSY, KEPT, Replayer, ReplayReport
from metrana_async.settings import ConnectionDefaults, connection_defaults
from metrana_async.spool import layout
from metrana_async.spool.disk import Disk, RealDisk
from metrana_async.spool_place import spool_root
from metrana_async.transport.base import Transport
from metrana_async.waiting import arrive

ADOPT_EVERY_S: Final = 30.0
ADOPT_TIMEOUT_S: Final = 60.0
NO_LIMIT_S: Final = 30 * 86_400.0
"""A replay ends by its own time-outs."""
_OFFLINE: Final = "offline"


async def replay_spool(
    spool_dir: str | os.PathLike[str] | None = None,
    *,
    workspace_name: str | None = None,
    project_name: str | None = None,
    run_name: str | None = None,
    rename_to: str | None = None,
    ingestion_url: str | None = None,
    api_key: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    timeout_secs: float = 60.0,
    retry_set_aside: bool = False,
    transport: Transport | None = None,
) -> list[ReplayReport]:
    """Deliver what offline runs and dead processes left on disk, then remove it there.

    Everything keeps the identity and the order it was logged with: delivering it again, or from
    a copy, adds nothing. Processes that still write are passed over (``busy``).

    Args:
        spool_dir: a spool directory, or any directory inside one, also a copy of it; None = this
            machine's (METRANA_DISK_SPOOL_DIR, else beside the local server's store).
        workspace_name: deliver this workspace's runs only.
        project_name: deliver this project's runs only.
        run_name: deliver runs of this name only.
        rename_to: the name to deliver one run under, e.g. where another job owns its own.
        ingestion_url: the server; None = the one each run was for, METRANA_INGESTION_URL where
            that was the local server.
        api_key: bearer token; None = METRANA_API_KEY.
        data_dir: the local server's store, where that is the server.
        timeout_secs: how long a delivery may go without progress.
        retry_set_aside: whether what could not be delivered before is tried again.
        transport: carries the requests instead of HTTP.

    Returns:
        One report for each writer, in the order they started.

    Raises:
        ValidationError: `rename_to` for several runs, or `spool_dir` is no directory.
        InitError: the local server does not start.
        OSError: the directory cannot be listed.
    """
    future = begin_replay(
        spool_dir,
        names=(workspace_name, project_name, run_name),
        rename_to=rename_to,
        server=connection_defaults(ingestion_url, api_key, data_dir),
        timeout_s=timeout_secs,
        is_retrying=retry_set_aside,
        transport=transport,
    )
    return await arrive(future, NO_LIMIT_S)


async def follow_spool(
    spool_dir: str | os.PathLike[str] | None = None,
    *,
    workspace_name: str | None = None,
    project_name: str | None = None,
    run_name: str | None = None,
    ingestion_url: str | None = None,
    api_key: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    poll_interval_secs: float = 1.0,
    idle_timeout_secs: float | None = None,
    timeout_secs: float = 60.0,
    transport: Transport | None = None,
) -> list[ReplayReport]:
    """Like `replay_spool`, and stay with writers that are at work until they have ended.

    For offline jobs whose disk is seen from a machine with a network: runs appear while they are
    trained. What a living process has is sent, never removed.

    Args:
        spool_dir: see `replay_spool`, as for the arguments that are not named here.
        workspace_name: deliver this workspace's runs only.
        project_name: deliver this project's runs only.
        run_name: deliver runs of this name only.
        ingestion_url: the server.
        api_key: bearer token.
        data_dir: the local server's store, where that is the server.
        poll_interval_secs: how often a living writer's files are looked at.
        idle_timeout_secs: how long a living writer may write nothing before it is left (``kept``);
            None = for ever.
        timeout_secs: how long a delivery may go without progress.
        transport: carries the requests instead of HTTP.

    Raises:
        InitError: the local server does not start.
        OSError: the directory cannot be listed.
    """
    future = begin_replay(
        spool_dir,
        names=(workspace_name, project_name, run_name),
        server=connection_defaults(ingestion_url, api_key, data_dir),
        timeout_s=timeout_secs,
        poll_s=poll_interval_secs,
        idle_timeout_s=idle_timeout_secs,
        transport=transport,
    )
    return await arrive(future, NO_LIMIT_S)


@dataclass(frozen=True, slots=True)
class Leftover:
    """What lies in one writer's directory.

    Attributes:
        directory: where.
        run: workspace/project/run, "" where nothing says.
        state: ``waiting`` (its process is gone), ``busy`` (it lives), or ``set_aside``.
        nbytes: bytes of frames.
        server: the server it is for.
        text: why it was set aside.
    """

    directory: str
    run: str
    state: str
    nbytes: int
    server: str
    text: str = ""


def list_leftovers(
    spool_dir: str | os.PathLike[str] | None, *, names: Names, server: ConnectionDefaults
) -> list[Leftover]:
    """What is there, in the order the writers started. Reads and changes nothing."""
    disk = RealDisk()
    top = _top(spool_dir, server)
    return [_leftover(disk, directory, meta) for directory, meta in _chosen(disk, top, names)]


def _top(spool_dir: str | os.PathLike[str] | None, server: ConnectionDefaults) -> str:
    """Where to look; the default place may well not be there yet.

    Raises:
        ValidationError: the directory given is none.
    """
    top = spool_root(spool_dir or server.spool_dir, server.data_dir)
    if spool_dir is not None and not top.is_dir():
        raise ValidationError(f"there is no directory {top}")
    return str(top)


def _leftover(disk: Disk, directory: str, meta: layout.Meta | None) -> Leftover:
    entries = disk.entries(directory)
    nbytes = sum(e.size for e in entries if layout.segment_number(e.name) is not None)
    why = layout.read_aside(disk, directory)
    return Leftover(
        directory,
        "" if meta is None else meta.run_place,
        "set_aside" if why is not None else _state(disk, directory),
        nbytes,
        "" if meta is None else meta.server,
        why or "",
    )


def _state(disk: Disk, directory: str) -> str:
    try:
        lock = disk.lock(f"{directory}/{layout.LOCK}")
    except OSError:
        return "waiting"
    if lock is None:
        return BUSY
    disk.unlock(lock)
    return "waiting"


Names = tuple["str | None", "str | None", "str | None"]
"""Workspace, project and run; None = any."""


def begin_replay(
    spool_dir: str | os.PathLike[str] | None,
    *,
    names: Names,
    server: ConnectionDefaults,
    timeout_s: float,
    rename_to: str | None = None,
    poll_s: float | None = None,
    idle_timeout_s: float | None = None,
    is_retrying: bool = False,
    transport: Transport | None = None,
    on_report: Callable[[ReplayReport], None] | None = None,
) -> concurrent.futures.Future[list[ReplayReport]]:
    """Start a replay on the engine; `on_report` is called there after each directory."""
    if rename_to is not None:
        check_name("run name", rename_to)
    top = _top(spool_dir, server)
    thread = engine()

    def replayer(way: Transport) -> Replayer:
        return Replayer(
            RealDisk(),
            thread.io.hop,
            way,
            SystemClock(),
            timeout_s,
            rename_to=rename_to,
            poll_s=poll_s,
            idle_timeout_s=idle_timeout_s,
            is_retrying=is_retrying,
        )

    async def work() -> list[ReplayReport]:
        left = await thread.io.hop(lambda: _chosen(RealDisk(), top, names))
        if rename_to is not None and len({meta.run_place for _, meta in left if meta}) > 1:
            raise ValidationError(
                f"rename_to={rename_to!r} is for one run, and {top} holds several",
                hint="choose one with workspace_name=, project_name= and run_name=, or its own "
                "directory",
            )
        ways = _Ways(server, transport, timeout_s)

        async def deliver(directory: str, meta: layout.Meta | None) -> ReplayReport:
            report = await replayer(await ways.to_server_of(meta)).deliver(directory)
            if on_report is not None:
                on_report(report)
            return report

        try:
            if poll_s is not None:  # writers at work, side by side
                return list(await asyncio.gather(*(deliver(*entry) for entry in left)))
            return [await deliver(*entry) for entry in left]
        finally:
            await ways.close()

    return thread.submit(work)


def destination_of(
    meta: layout.Meta | None, server: ConnectionDefaults
) -> tuple[str | None, str | None]:
    """(URL, data directory) of the server that a writer's leftovers go to.

    What the caller asks for, else the server they were for; where that was the local one, or
    nothing says, the surroundings decide.
    """
    if server.url is not None:
        return server.url, None
    url, meant_dir = (None, None) if meta is None else place_of(meta.server)
    if url is not None:
        return url, None
    if server.data_dir is None and server.default_url is not None:
        return server.default_url, None
    # Another machine's local server is not here; this one's is.
    is_here = meta is not None and meta.request.process.host == process_identity().host
    return None, server.data_dir or (meant_dir if is_here else None)


class _Ways:
    """Transports to the servers that leftovers are for, one each."""

    def __init__(
        self, server: ConnectionDefaults, transport: Transport | None, timeout_s: float
    ) -> None:
        self._server = server
        self._transport = transport
        self._timeout_s = timeout_s
        self._ways: dict[tuple[str | None, str | None], Transport] = {}
        self._connecting = asyncio.Lock()

    async def to_server_of(self, meta: layout.Meta | None) -> Transport:
        """The server asked for, else the one the writer was for."""
        if self._transport is not None:
            return self._transport
        url, data_dir = destination_of(meta, self._server)
        async with self._connecting:
            way = self._ways.get((url, data_dir))
            if way is None:
                way, _ = await connect(
                    url, self._server.api_key, data_dir, timeout_s=self._timeout_s
                )
                self._ways[url, data_dir] = way
            return way

    async def close(self) -> None:
        for way in self._ways.values():
            await way.close()


def _chosen(disk: Disk, top: str, names: Names) -> list[tuple[str, layout.Meta | None]]:
    """Every writer's directory that is meant, in the order the writers started."""
    found = []
    for directory in layout.writer_directories(disk, top):
        meta = layout.read_meta(disk, directory)
        request = None if meta is None else meta.request
        own = (None,) * 3 if request is None else (
            request.workspace, request.project, request.run_name
        )  # fmt: skip
        if all(name is None or name == mine for name, mine in zip(names, own, strict=True)):
            started_us = 0 if request is None else request.started_us
            found.append((started_us, directory, meta))
    found.sort(key=lambda entry: entry[:2])
    return [(directory, meta) for _, directory, meta in found]


class Adoption:
    """Delivers the leftovers of this host's dead writers to one server, now and then.

    Offline runs are left alone: their users send them when they say so.
    """

    def __init__(self, root: str, server: str, *, disk: Disk, hop: Hop, clock: Clock) -> None:
        """Make an adoption.

        Args:
            root: the spool directory.
            server: the `destinations.server_key` of the server.
            disk: where the spool is.
            hop: runs the blocking calls.
            clock: for deadlines.
        """
        host = process_identity().host
        self._top = layout.server_directory(root, host=host, server=server)
        self._disk = disk
        self._hop = hop
        self._clock = clock
        self._refused: set[str] = set()
        self._hurry = Pulse()
        self._is_hurried = False

    def hurry(self) -> None:
        """Look again at once, or right behind the look that is under way."""
        self._is_hurried = True
        self._hurry.beat()

    async def run(self, transport: Transport) -> None:
        """Look every half minute and whenever hurried, for ever."""
        while True:
            self._is_hurried = False
            await self.look(transport)
            if not self._is_hurried:
                await self._hurry.wait(ADOPT_EVERY_S)

    async def look(self, transport: Transport) -> list[ReplayReport]:
        """Deliver what is there now."""
        replayer = Replayer(self._disk, self._hop, transport, self._clock, ADOPT_TIMEOUT_S)
        reports = []
        try:
            orphans = await self._hop(self._orphans)
        except OSError:  # no descriptor, say: what cannot be listed now may be in half a minute
            orphans = []
        for directory in orphans:
            if directory in self._refused:
                continue
            try:
                report = await replayer.deliver(directory)
            except MetranaError:
                continue
            reports.append(report)
            if report.state not in (BUSY, KEPT):
                self._refused.add(directory)
        return reports

    def _orphans(self) -> list[str]:
        found = []
        for directory in layout.writer_directories(self._disk, self._top):
            meta = layout.read_meta(self._disk, directory)
            if meta is not None and meta.mode != _OFFLINE:
                found.append((meta.request.started_us, directory))
        return [directory for _, directory in sorted(found)]
