"""Wiring: a store, the ingest worker, the query service, and the endpoints around them.

The only module that names concrete stores, and the only one that mounts endpoints in aiohttp.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Final

import orjson
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from metrana_async.errors import MetranaError, NotFoundError, StoreFailedError
from metrana_async.orchestration import process_identity
from metrana_async.server.auth import STOP_PATH, token_guard
from metrana_async.server.browser import LINK_PATH, Sessions, add_login, link_endpoint, load_secret
from metrana_async.server.changes import ChangeFeed
from metrana_async.server.http.endpoint import Answer, Endpoint, answer
from metrana_async.server.http.ingest import ingest_endpoints
from metrana_async.server.http.query import query_endpoints
from metrana_async.server.http.runs import run_endpoints
from metrana_async.server.ingest.liveness import ProcessWatch
from metrana_async.server.ingest.service import IngestService
from metrana_async.server.ingest.worker import IngestWorker
from metrana_async.server.live import add_live
from metrana_async.server.log_file import LogFile
from metrana_async.server.pages import add_pages
from metrana_async.server.presence import Presence
from metrana_async.server.query.service import QueryService
from metrana_async.server.settings import ServerSettings
from metrana_async.server.store.base import PointStore, RunRow
from metrana_async.server.store.memory import MemoryStore
from metrana_async.server.store.sqlite.files import is_taken
from metrana_async.server.store.sqlite.store import SqliteStore
from metrana_async.versions import package_version
from metrana_async.wire import limits
from metrana_async.wire.messages import API_PREFIX, JSON_TYPE, PROTOCOL_VERSION

_KEEP_ALIVE_S: Final = 75.0  # longer than the client's, so that the client closes first
_SHUTDOWN_S: Final = 10.0
_SEAL_S: Final = 20.0
_UPKEEP_S: Final = 5.0
_HANDOVER_LOOK_S: Final = 0.05


class Backend:
    """Everything behind the endpoints of one server: in a process, or in a test's memory."""

    def __init__(
        self,
        store: PointStore,
        *,
        clock: Callable[[], float] = time.time,
        writer_live_s: float = limits.WRITER_LIVE_S,
    ) -> None:
        """Make a backend.

        Args:
            store: closed with the backend.
            clock: Unix time in seconds.
            writer_live_s: see ServerSettings.
        """
        self.store = store
        self._clock = clock
        self._is_stopped = False
        watch = ProcessWatch(writer_live_s)
        self.changes = ChangeFeed(_finder(store))
        service = IngestService(store, clock=clock, watch=watch, on_commit=self.changes.note)
        self.worker = IngestWorker(service)
        self.query = QueryService(store)
        self.endpoints: dict[str, Endpoint] = {
            **ingest_endpoints(self.worker),
            **query_endpoints(self.query),
            **run_endpoints(self.worker, self.query),
            "/health": self._health,
        }

    async def _health(self, body: bytes) -> Answer:
        del body
        content = {
            "protocol": PROTOCOL_VERSION,
            "version": package_version(),
            "pid": os.getpid(),
            "process": asdict(process_identity()),
            "generation": self.store.generation,
            "time_ms": int(self._clock() * 1000),
        }
        return Answer(orjson.dumps(content))

    async def call(self, path: str, body: bytes) -> Answer:
        """Answer one request; every error is an error answer."""
        endpoint = self.endpoints.get(path)
        if endpoint is None:
            return await answer(_unknown(path), body)
        return await answer(endpoint, body)

    def start(self) -> None:
        """Start the worker's thread."""
        self.worker.start()

    async def stop(self) -> None:
        """Finish what is queued, seal what is left, release the store. Idempotent."""
        if self._is_stopped:
            return
        self._is_stopped = True
        # A store that refuses to seal now keeps its log; the next start goes on from there.
        with contextlib.suppress(MetranaError, asyncio.TimeoutError):
            await asyncio.wait_for(self.worker.seal(everything=True), _SEAL_S)
        await self.worker.stop()
        self.query.close()
        self.store.close()


def _finder(store: PointStore) -> Callable[[int], RunRow | None]:
    """Looks up the row of a run by its number."""

    def find(run_no: int) -> RunRow | None:
        return next((row for row in store.runs() if row.run_no == run_no), None)

    return find


def _unknown(path: str) -> Endpoint:
    async def endpoint(body: bytes) -> Answer:
        del body
        raise NotFoundError(f"there is no endpoint {API_PREFIX}{path}")

    return endpoint


def open_store(settings: ServerSettings) -> PointStore:
    """Open the store the settings name.

    Raises:
        InitError: another server has it, its directory cannot be used or lies on a network.
    """
    if settings.store == "memory":
        return MemoryStore()
    return SqliteStore(settings.data_dir)


class _Activity:
    """When something last asked this server for anything; while a page is open that is now."""

    def __init__(self) -> None:
        self._last_s = time.monotonic()
        self._open_count = 0

    @property
    def last_s(self) -> float:
        return time.monotonic() if self._open_count else self._last_s

    def middleware(self) -> Middleware:
        @web.middleware
        async def note(request: web.Request, handler: Handler) -> web.StreamResponse:
            self._open_count += 1
            try:
                return await handler(request)
            finally:
                self._open_count -= 1
                self._last_s = time.monotonic()

        return note


def web_app(backend: Backend, settings: ServerSettings, activity: _Activity) -> web.Application:
    """The aiohttp application over a backend's endpoints."""
    sessions = Sessions(
        load_secret(settings.data_dir if settings.store == "sqlite" else None),
        settings.shared_token,
    )
    backend.endpoints[LINK_PATH] = link_endpoint(sessions)
    app = web.Application(
        client_max_size=limits.REQUEST_BYTES + 4096,
        middlewares=[
            activity.middleware(),
            token_guard(settings.token, settings.shared_token, sessions),
        ],
    )

    async def handle(request: web.Request) -> web.Response:
        body = await request.read()
        result = await backend.call(request.path[len(API_PREFIX) :], body)
        response = web.Response(
            body=result.body, status=result.status, content_type=result.content_type
        )
        if result.retry_after_s is not None:
            response.headers["Retry-After"] = str(math.ceil(result.retry_after_s))
        return response

    async def missing(request: web.Request) -> web.Response:
        status, text = 404, f"POST to {API_PREFIX}/…; {request.method} {request.path} is nothing"
        content = {"error": {"code": "not_found", "message": text, "hint": None}}
        return web.Response(body=orjson.dumps(content), status=status, content_type=JSON_TYPE)

    add_live(app, backend.changes, backend.query)
    add_login(app, sessions)
    add_pages(app)
    app.router.add_post(API_PREFIX + "/{path:.+}", handle)
    app.router.add_route("*", "/{path:.*}", missing)
    return app


async def _open_store(settings: ServerSettings) -> PointStore:
    """Open the store; where another server is just leaving it, wait for that first."""
    deadline_s = time.monotonic() + settings.handover_s
    card = settings.card_beside
    while settings.store == "sqlite" and is_taken(settings.data_dir):
        # A server that leaves (or only begins) has no card; one with a card is here to stay.
        if (card is not None and card.exists()) or time.monotonic() >= deadline_s:
            break
        await asyncio.sleep(_HANDOVER_LOOK_S)
    return open_store(settings)


async def serve(settings: ServerSettings, *, ready: Callable[[str], None] | None = None) -> None:
    """Serve until asked to stop, SIGTERM, SIGINT or idleness; publishes the card once it answers.

    `ready` is called with the base URL when the server answers.

    Raises:
        InitError: the store or the address cannot be had.
        StoreFailedError: the disk failed; nothing that is not on it was acknowledged. End this
            process without closing what is open: another one has to look at the disk.
    """
    store = await _open_store(settings)
    backend = Backend(store, writer_live_s=settings.writer_live_s)
    activity = _Activity()
    stopping = asyncio.Event()
    backend.endpoints[STOP_PATH] = _stop_endpoint(stopping)
    runner = web.AppRunner(
        web_app(backend, settings, activity),
        keepalive_timeout=_KEEP_ALIVE_S,
        access_log=None,
        logger=_quiet_logger(),
        shutdown_timeout=_SHUTDOWN_S,
    )
    presence = Presence(runner, settings)
    backend.start()
    loop = asyncio.get_running_loop()
    failures: list[StoreFailedError] = []

    def on_failed(error: StoreFailedError) -> None:
        failures.append(error)
        loop.call_soon_threadsafe(stopping.set)

    backend.worker.on_failed = on_failed
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    try:
        await runner.setup()
        await presence.open()
        if ready is not None:
            ready(presence.url)
        await _until_over(stopping, settings, activity, presence)
    finally:
        presence.withdraw()
        await runner.cleanup()
        await backend.stop()
    if failures:
        raise failures[0]


class _NoStrangers(logging.Filter):
    """Passes over what is no HTTP: its sender was told, and must not fill our log."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


def _quiet_logger() -> logging.Logger:
    logger = logging.getLogger("aiohttp.server")
    logger.addFilter(_NoStrangers())
    return logger


def _stop_endpoint(stopping: asyncio.Event) -> Endpoint:
    async def endpoint(body: bytes) -> Answer:
        del body
        stopping.set()
        return Answer(orjson.dumps({"pid": os.getpid()}))

    return endpoint


async def _until_over(
    stopping: asyncio.Event, settings: ServerSettings, activity: _Activity, presence: Presence
) -> None:
    """Wait for a request to stop or for idleness; a live writer is never idle: it heartbeats."""
    log = None if settings.log_path is None else LogFile(settings.log_path)
    while not stopping.is_set():
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(stopping.wait(), _UPKEEP_S)
        idle_s = time.monotonic() - activity.last_s
        if settings.idle_exit_s is not None and idle_s >= settings.idle_exit_s:
            return
        if not presence.has_store:
            _say(f"the store in {settings.data_dir} was removed; this server ends")
            return
        try:
            await presence.keep()
        except (OSError, MetranaError) as error:
            _say(f"cannot be found any more: {error}; tried again")
        if log is not None:
            log.keep_bounded()


def _say(text: str) -> None:
    sys.stderr.write(f"metrana server: {text}\n")
    sys.stderr.flush()
