"""The dashboard's files as they are served: whole, cached by their hash, under a strict policy.

Every address of a page gives the same document, which is told by a relative `base` where the root
is. So the dashboard works under whatever prefix a proxy puts before it, and a page can be reloaded.
The files hold nothing secret and need no login; what they ask the API for does.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

from aiohttp import web

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'self'; form-action 'none'; frame-ancestors 'self'"
)
"""The content security policy: nothing inline, nothing from elsewhere."""

_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Asked again each time, answered by 304: an upgraded server never meets an old script.
    "Cache-Control": "no-cache",
}
_TYPES: Final = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
_FOLDER: Final = Path(__file__).parent / "web"
_DOCUMENT: Final = "index.html"
_BASE: Final = b"{base}"
_GZIP_BYTES_MIN: Final = 1024
_DEPTH_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class Asset:
    """One file: its bytes, also compressed, and the tag that stands for them."""

    content_type: str
    tag: str
    plain: bytes
    packed: bytes | None

    def response(self, request: web.Request) -> web.Response:
        """The file, or 304 where the browser has it."""
        headers = {**_HEADERS, "ETag": f'"{self.tag}"', "Vary": "Accept-Encoding"}
        if f'"{self.tag}"' in request.headers.get("If-None-Match", ""):
            return web.Response(status=304, headers=headers)
        body = self.plain
        if self.packed is not None and "gzip" in request.headers.get("Accept-Encoding", ""):
            body, headers["Content-Encoding"] = self.packed, "gzip"
        return web.Response(
            body=body, headers=headers, content_type=self.content_type, charset="utf-8"
        )


def add_pages(app: web.Application) -> None:
    """Serve the dashboard: its files by name, its document at every address of a page."""

    async def page(request: web.Request) -> web.Response:
        # Its depth below the root is all a server behind a proxy knows of its own address.
        depth = request.rel_url.raw_path.count("/") - 1
        if depth > _DEPTH_MAX:
            raise web.HTTPNotFound(headers=_HEADERS)
        return document(depth).response(request)

    async def file(request: web.Request) -> web.Response:
        found = assets().get(request.match_info["name"])
        if found is None:
            raise web.HTTPNotFound(headers=_HEADERS)
        return found.response(request)

    app.router.add_get("/", page)
    app.router.add_get("/web/{name:.+}", file)
    for path in ("/p/{rest:.*}", "/w/{workspace}/p/{rest:.*}"):
        app.router.add_get(path, page)


def is_page(path: str) -> bool:
    """Whether the path leads to a file of the dashboard, which needs no login."""
    return path.startswith(("/web/", "/p/", "/w/")) or path == "/"


@cache
def assets() -> dict[str, Asset]:
    """Every file by its path below the folder. Read once, so that a page's files are of one age."""
    return {
        path.relative_to(_FOLDER).as_posix(): _asset(path.suffix, path.read_bytes())
        for path in sorted(_FOLDER.rglob("*"))
        if path.suffix in _TYPES and path.name != _DOCUMENT
    }


@lru_cache(_DEPTH_MAX + 1)
def document(depth: int) -> Asset:
    """The document for a page so many folders below the root."""
    content = (_FOLDER / _DOCUMENT).read_bytes()
    base = "../" * depth or "./"
    return _asset(".html", content.replace(_BASE, base.encode()))


def _asset(suffix: str, content: bytes) -> Asset:
    is_packed = len(content) >= _GZIP_BYTES_MIN
    return Asset(
        content_type=_TYPES[suffix],
        tag=hashlib.blake2b(content, digest_size=12).hexdigest(),
        plain=content,
        packed=gzip.compress(content, 9, mtime=0) if is_packed else None,
    )
