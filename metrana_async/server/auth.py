"""Who may talk to this server: file permissions on the socket, a bearer token or a cookie on TCP.

The user whose server it is comes over the socket or bears the token on the server's card. Others
bear the shared token, where there is one; they may log and read, not stop the server. A browser
that logged in (see `browser`) is as good as whoever gave it the link or the token. The files of the
dashboard are for everybody.
"""

from __future__ import annotations

import hmac
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from metrana_async.errors import AuthError
from metrana_async.server.browser import (
    LINK_PATH,
    LOGIN_PATH,
    OWNER,
    SHARED,
    Sessions,
    is_from_our_page,
)
from metrana_async.server.pages import is_page
from metrana_async.wire.messages import API_PREFIX, JSON_TYPE, encode_error

STOP_PATH: Final = "/server/stop"
_OWNERS_PATHS: Final = (API_PREFIX + STOP_PATH, API_PREFIX + LINK_PATH)
_BEARER: Final = "Bearer "


def token_guard(
    token: str | None, shared_token: str | None = None, sessions: Sessions | None = None
) -> Middleware:
    """A middleware that asks TCP requests for a token; requests over a Unix socket pass.

    Args:
        token: the owner's; None = everybody is the owner.
        shared_token: of those who may do everything but stop the server; None = nobody.
        sessions: of browsers; None = there are none.
    """

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        is_owner = token is None or _came_by_socket(request) or _bears(request, token)
        if is_owner or is_open_to_all(request):
            return await handler(request)
        role = SHARED if shared_token is not None and _bears(request, shared_token) else None
        if role is None and sessions is not None:
            role = sessions.role_of(request)
            if role is not None and not is_from_our_page(request):
                return _refusal("this browser is logged in, but the request is not of our page")
        if role is None:
            return _refusal("missing or wrong token")
        if role != OWNER and request.path in _OWNERS_PATHS:
            what = "stop it" if request.path.endswith(STOP_PATH) else "make links to it"
            return _refusal(f"only the user whose server this is may {what}, on its machine")
        return await handler(request)

    return guard


def is_open_to_all(request: web.Request) -> bool:
    """Whether a request needs no login: for a file of the dashboard, or to log in."""
    if request.method == "POST":
        return request.path == LOGIN_PATH and is_from_our_page(request)
    return request.method in ("GET", "HEAD") and is_page(request.path)


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
