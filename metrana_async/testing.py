"""For tests, ours and yours: a whole server in this process's memory, and a transport to it.

::

    with MemoryServer() as server:
        run = metrana.init(project_name="p", transport=server.transport())

The server is the real one (same endpoints, rules and worker) on the memory store; only the
sockets are missing.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from metrana_async.errors import ConnectError
from metrana_async.server.app import Backend
from metrana_async.server.store.base import PointStore
from metrana_async.server.store.memory import MemoryStore
from metrana_async.wire.messages import JSON_TYPE, decode_error


class MemoryServer:
    """A server without sockets. Use as a context manager, or `start()` and `stop()`."""

    def __init__(self, store: PointStore | None = None) -> None:
        self.store = MemoryStore() if store is None else store
        self.backend = Backend(self.store)
        self.is_reachable = True
        """Set to False and every request fails as if nobody listened."""

    def start(self) -> None:
        """Start answering."""
        self.backend.start()

    def stop(self) -> None:
        """Stop; the store is closed. Idempotent. Not from a running event loop's thread."""
        asyncio.run(self.backend.stop())

    def transport(self) -> MemoryTransport:
        """A new transport to this server."""
        return MemoryTransport(self)

    def __enter__(self) -> MemoryServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class MemoryTransport:
    """A `transport.base.Transport` that calls a MemoryServer's endpoints directly."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server

    async def post(
        self, path: str, body: bytes, *, timeout_s: float, content_type: str = JSON_TYPE
    ) -> bytes:
        """See Transport."""
        del content_type
        if not self._server.is_reachable:
            raise ConnectError("the memory server is switched off")
        try:
            result = await asyncio.wait_for(self._server.backend.call(path, bytes(body)), timeout_s)
        except asyncio.TimeoutError as error:
            raise ConnectError(f"no answer within {timeout_s:g} s") from error
        if result.status >= 400:
            raise decode_error(result.status, result.body)
        return result.body

    async def close(self) -> None:
        """See Transport."""
