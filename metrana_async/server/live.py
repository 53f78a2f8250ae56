"""News for open pages: a WebSocket that tells what changed, and the same by asking now and then.

Notices say which runs changed, never what their points are: a page reads those it shows. They are
coalesced, so that a run that logs a thousand times a second costs a page two small messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from typing import Any, Final

import orjson
from aiohttp import WSCloseCode, WSMsgType, web

from metrana_async.server.browser import is_from_our_page
from metrana_async.server.changes import ChangeFeed
from metrana_async.server.query.service import QueryService
from metrana_async.wire.messages import API_PREFIX, JSON_TYPE
from metrana_async.wire.queries import DEFAULT_WORKSPACE

_NOTICE_S: Final = 0.5
_HIDDEN_S: Final = 30.0
_HEARTBEAT_S: Final = 20.0
_SUBSCRIBE_S: Final = 10.0
_MESSAGE_BYTES: Final = 4096
_SOCKETS_COUNT: Final = 256


def add_live(app: web.Application, feed: ChangeFeed, service: QueryService) -> None:
    """Mount ``/changes`` and ``/live``; sockets are closed when the application shuts down."""
    sockets: weakref.WeakSet[web.WebSocketResponse] = weakref.WeakSet()

    async def changes(request: web.Request) -> web.Response:
        query = request.query
        workspace = query.get("workspace", DEFAULT_WORKSPACE)
        cursor, project = query.get("cursor"), query.get("project")
        if cursor == feed.place:
            return web.Response(status=304)
        news = await service.in_thread(lambda: feed.since(cursor, workspace, project))
        return web.Response(body=orjson.dumps(news), content_type=JSON_TYPE)

    async def live(request: web.Request) -> web.StreamResponse:
        # Browsers let any page open a socket to anywhere, with our cookie.
        if not is_from_our_page(request) or len(sockets) >= _SOCKETS_COUNT:
            raise web.HTTPForbidden
        socket = web.WebSocketResponse(
            heartbeat=_HEARTBEAT_S, max_msg_size=_MESSAGE_BYTES, compress=False
        )
        await socket.prepare(request)
        sockets.add(socket)
        await _Subscription(socket, feed, service).serve()
        return socket

    async def close_all(app: web.Application) -> None:
        del app
        for socket in list(sockets):
            with contextlib.suppress(Exception):
                await socket.close(code=WSCloseCode.GOING_AWAY)

    app.router.add_get(API_PREFIX + "/changes", changes)
    app.router.add_get(API_PREFIX + "/live", live)
    app.on_shutdown.append(close_all)


class _Subscription:
    """One page's socket: what it wants to know of, and how far it has been told."""

    def __init__(
        self, socket: web.WebSocketResponse, feed: ChangeFeed, service: QueryService
    ) -> None:
        self._socket = socket
        self._feed = feed
        self._service = service
        self._workspace = DEFAULT_WORKSPACE
        self._project: str | None = None
        self._cursor: str | None = None
        self._is_hidden = False

    async def serve(self) -> None:
        """Tell until the page goes. One task: listening has the pauses between notices."""
        loop = asyncio.get_running_loop()
        if not await self._listen(_SUBSCRIBE_S):
            await self._socket.close(code=WSCloseCode.POLICY_VIOLATION)
            return
        told_s = -_HIDDEN_S
        while not self._socket.closed:
            pause_s = _HIDDEN_S if self._is_hidden else _NOTICE_S
            if loop.time() - told_s >= pause_s and self._cursor != self._feed.place:
                await self._tell()
                told_s = loop.time()
            if not await self._listen(_NOTICE_S, is_patient=True):
                return

    async def _listen(self, timeout_s: float, *, is_patient: bool = False) -> bool:
        """Take one message, if one comes in time; False when the page is gone or talks nonsense."""
        try:
            message = await self._socket.receive(timeout_s)
        except asyncio.TimeoutError:
            return is_patient
        if message.type is not WSMsgType.TEXT:
            return False
        try:
            wanted: dict[str, Any] = orjson.loads(message.data)["sub"]
            self._workspace = str(wanted.get("workspace") or DEFAULT_WORKSPACE)
            self._project = None if wanted.get("project") is None else str(wanted["project"])
            self._cursor = None if wanted.get("cursor") is None else str(wanted["cursor"])
            self._is_hidden = wanted.get("hidden") is True
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            return False
        return True

    async def _tell(self) -> None:
        news = await self._service.in_thread(
            lambda: self._feed.since(self._cursor, self._workspace, self._project)
        )
        self._cursor = news["cursor"]
        if news["runs"] or news["reset"]:
            await self._socket.send_str(orjson.dumps(news).decode())
