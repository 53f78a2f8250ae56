"""Browsers log in with a key that works once, and go on with a cookie no script can read.

The key comes from whoever may use the server already (``metrana-async ui`` over the socket), and
travels in the fragment of a link: no server, proxy or log sees it there. The cookie is signed with
a secret that lies beside the store, so it outlives a restart of the server; removing that file, or
changing the shared token, ends every session it made.

A cookie is sent by the browser whoever asked it to. So a request that has nothing else to show
must come from our own page: it bears a header that another origin cannot set, and no other origin's
name.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import orjson
from aiohttp import web

from metrana_async.errors import AuthError, InvalidQueryError
from metrana_async.server.http.endpoint import Answer, Endpoint, answer
from metrana_async.wire.messages import JSON_TYPE

OWNER: Final = "owner"
SHARED: Final = "shared"
LINK_PATH: Final = "/browser/link"
LOGIN_PATH: Final = "/login"
LOGOUT_PATH: Final = "/logout"
PAGE_HEADER: Final = "X-Metrana-Page"

KEY_VALID_S: Final = 600.0
SESSION_S: Final = 30 * 24 * 3600
_KEYS_COUNT: Final = 64
_SECRET_BYTES: Final = 32
_SECRET_FILE: Final = "browser.secret"  # noqa: S105 - a name


class Sessions:
    """Login keys and cookies of one server. Lives on the server's loop.

    Args:
        secret: 32 bytes that sign cookies.
        shared_token: sessions of those who log in with it end when it changes; None = nobody does.
        clock: Unix time in seconds.
    """

    def __init__(
        self, secret: bytes, shared_token: str | None, clock: Callable[[], float] = time.time
    ) -> None:
        self._secret = secret
        self._shared_token = shared_token
        self._clock = clock
        self._keys: dict[bytes, float] = {}
        # Cookies know no ports: two servers of one host must not overwrite each other's.
        self.cookie_name = "metrana-" + hashlib.blake2b(secret, digest_size=6).hexdigest()

    def new_key(self) -> str:
        """A key for one login as owner within `KEY_VALID_S`."""
        now = self._clock()
        self._keys = {k: until for k, until in self._keys.items() if until > now}
        while len(self._keys) >= _KEYS_COUNT:
            del self._keys[next(iter(self._keys))]
        key = secrets.token_urlsafe(_SECRET_BYTES)
        self._keys[_digest(key)] = now + KEY_VALID_S
        return key

    def log_in(self, key: str) -> str:
        """The cookie for a key, which is used up, or for the shared token.

        Raises:
            AuthError: it is neither, or the key was used or is too old.
        """
        until = self._keys.pop(_digest(key), None)
        if until is not None and until > self._clock():
            return self._cookie(OWNER)
        shared = self._shared_token
        if shared is not None and hmac.compare_digest(key.encode(), shared.encode()):
            return self._cookie(SHARED)
        raise AuthError(
            "this link was used already or is too old",
            hint="run `metrana-async ui` on the server's machine for a new one",
        )

    def role_of(self, request: web.Request) -> str | None:
        """Whose session the request is of: OWNER, SHARED, or None without a valid cookie."""
        cookie = request.cookies.get(self.cookie_name)
        if cookie is None:
            return None
        content, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(self._sign(content).encode(), signature.encode()):
            return None
        role, until, _ = content.split(".")  # it is ours: it has three parts
        return role if int(until) > self._clock() else None

    def _cookie(self, role: str) -> str:
        content = f"{role}.{int(self._clock()) + SESSION_S}.{secrets.token_hex(8)}"
        return f"{content}.{self._sign(content)}"

    def _sign(self, content: str) -> str:
        bound = self._shared_token or "" if content.startswith(SHARED) else ""
        return hmac.new(self._secret, f"{content}\0{bound}".encode(), "sha256").hexdigest()


def load_secret(data_dir: Path | None) -> bytes:
    """The store's secret, made (0600) where it is not there; without a store, one of its own."""
    drawn = secrets.token_bytes(_SECRET_BYTES)
    if data_dir is None:
        return drawn
    path = data_dir / _SECRET_FILE
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "wb") as made:
            made.write(drawn)
    except FileExistsError:
        found = path.read_bytes()
        if len(found) == _SECRET_BYTES:
            return found
        # Cut short by a full disk; a short secret would be a weak one.
        path.write_bytes(drawn)
    except OSError:
        return drawn  # a disk that takes nothing: sessions end with this server
    return drawn


def link_endpoint(sessions: Sessions) -> Endpoint:
    """Gives a key for one login; the guard lets only the owner ask."""

    async def endpoint(body: bytes) -> Answer:
        del body
        return Answer(orjson.dumps({"key": sessions.new_key(), "valid_s": KEY_VALID_S}))

    return endpoint


def add_login(app: web.Application, sessions: Sessions) -> None:
    """Mount what browsers call to begin and to end a session."""

    async def log_in(request: web.Request) -> web.Response:
        body = await request.read()
        made: list[str] = []

        async def endpoint(body: bytes) -> Answer:
            made.append(sessions.log_in(_key_in(body)))
            return Answer(orjson.dumps({"valid_s": SESSION_S}))

        response = _response(await answer(endpoint, body))
        if made:
            # Without a path the browser takes the folder that it called: the proxy's prefix.
            response.set_cookie(
                sessions.cookie_name,
                made[0],
                max_age=SESSION_S,
                httponly=True,
                samesite="Strict",
                secure=request.headers.get("X-Forwarded-Proto") == "https",
                path="",
            )
        return response

    async def log_out(request: web.Request) -> web.Response:
        del request
        response = _response(Answer(b"{}"))
        response.set_cookie(
            sessions.cookie_name, "", max_age=0, httponly=True, samesite="Strict", path=""
        )
        return response

    app.router.add_post(LOGIN_PATH, log_in)
    app.router.add_post(LOGOUT_PATH, log_out)


def is_from_our_page(request: web.Request) -> bool:
    """Whether a request can only have been made by a page of this very origin."""
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2] not in _own_names(request):
        return False
    return request.method in ("GET", "HEAD") or PAGE_HEADER in request.headers


def _own_names(request: web.Request) -> tuple[str, ...]:
    # A proxy that changes Host says what the browser asked for beside it.
    return request.host, request.headers.get("X-Forwarded-Host", request.host)


def _key_in(body: bytes) -> str:
    try:
        key = orjson.loads(body)["key"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise InvalidQueryError("the login is not a JSON object with a key") from error
    if not isinstance(key, str):
        raise InvalidQueryError(f"the key of the login is {key!r:.80}; it is a str")
    return key


def _response(made: Answer) -> web.Response:
    return web.Response(body=made.body, status=made.status, content_type=JSON_TYPE)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
