"""How requests reach a server, whatever carries them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from metrana_async.transport.addresses import without_user
from metrana_async.wire.messages import JSON_TYPE


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server listens.

    Attributes:
        url: base URL for TCP, e.g. ``http://127.0.0.1:7007``.
        socket_path: a Unix socket that is preferred for requests, or None.
        token: bearer token, or None. Never logged, never pickled.
    """

    url: str
    socket_path: str | None = None
    token: str | None = None

    def __repr__(self) -> str:
        return f"ServerAddress({without_user(self.url)!r}, socket_path={self.socket_path!r})"


class Transport(Protocol):
    """One connection pool to one server. Lives on one event loop."""

    async def post(
        self, path: str, body: bytes, *, timeout_s: float, content_type: str = JSON_TYPE
    ) -> bytes:
        """Send `body` to ``API_PREFIX + path`` and return the answer's body.

        One attempt: no retry here. Cancel-safe.

        Raises:
            TransportError: no usable answer (connect, time-out, cut, 5xx, 429); retryable.
            MetranaError: the error the server answered with (wire.messages.decode_error).
        """
        ...

    async def close(self) -> None:
        """Close every connection. Idempotent."""
        ...
