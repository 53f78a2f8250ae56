"""Who may talk to this server: file permissions on the socket, a bearer token on TCP.

The user whose server it is comes over the socket or bears the token on the server's card. Others
bear the shared token, where there is one; they may log and read, not stop the server.
"""

from __future__ import annotations

import hmac
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from metrana_async.errors import AuthError
from metrana_async.wire.messages import API_PREFIX, JSON_TYPE, encode_error

STOP_PATH: Final = "/server/stop"
_BEARER: Final = "Bearer "


def token_guard(token: str | None, shared_token: str | None = None) -> Middleware:
    """A middleware that asks TCP requests for a token; requests over a Unix socket pass.

    Args:
        token: the owner's; None = everybody is the owner.
        shared_token: of those who may do everything but stop the server; None = nobody.
    """

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if token is None or _came_by_socket(request) or _bears(request, token):
            return await handler(request)
        if shared_token is None or not _bears(request, shared_token):
            return _refusal("missing or wrong token")
        if request.path == API_PREFIX + STOP_PATH:
            return _refusal("only the user whose server this is may stop it, on its machine")
        return await handler(request)

    return guard


def _refusal(text: str) -> web.Response:
    status, body = encode_error(AuthError(text))
    return web.Response(body=body, status=status, content_type=JSON_TYPE)


def _came_by_socket(request: web.Request) -> bool:
    # A Unix socket's name is a path (str or bytes); an IP socket's is a tuple.
    transport = request.transport
    return transport is not None and not isinstance(transport.get_extra_info("sockname"), tuple)


def _bears(request: web.Request, token: str) -> bool:
    given = request.headers.get("Authorization", "")
    return given.startswith(_BEARER) and hmac.compare_digest(
        given[len(_BEARER) :].encode(), token.encode()
    )
