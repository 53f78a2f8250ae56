"""Who may talk to this server: file permissions on the socket, a bearer token on TCP."""

from __future__ import annotations

import hmac
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from metrana_async.errors import AuthError
from metrana_async.wire.messages import JSON_TYPE, encode_error

_BEARER: Final = "Bearer "


def token_guard(token: str | None) -> Middleware:
    """A middleware that asks TCP requests for `token`; requests over a Unix socket pass."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if token is None or _came_by_socket(request) or _bears(request, token):
            return await handler(request)
        status, body = encode_error(AuthError("missing or wrong token"))
        return web.Response(body=body, status=status, content_type=JSON_TYPE)

    return guard


def _came_by_socket(request: web.Request) -> bool:
    # A Unix socket's name is a path (str or bytes); an IP socket's is a tuple.
    transport = request.transport
    return transport is not None and not isinstance(transport.get_extra_info("sockname"), tuple)


def _bears(request: web.Request, token: str) -> bool:
    given = request.headers.get("Authorization", "")
    return given.startswith(_BEARER) and hmac.compare_digest(
        given[len(_BEARER) :].encode(), token.encode()
    )
