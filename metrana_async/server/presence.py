"""How others find a server: its TCP port, its Unix socket and its card; kept there while it serves.

Files in temporary directories are tidied away, and a socket's name can be taken by somebody else.
A server that lives and cannot be found would keep everybody else from starting one (the store is
locked), so what is missing is put back.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
from pathlib import Path

import orjson
from aiohttp import web

from metrana_async import locations
from metrana_async.errors import InitError
from metrana_async.server.settings import ServerSettings
from metrana_async.wire.messages import PROTOCOL_VERSION

_FileId = tuple[int, int]


class Presence:
    """The places where one server can be met. Lives on the server's loop."""

    def __init__(self, runner: web.AppRunner, settings: ServerSettings) -> None:
        self._runner = runner
        self._settings = settings
        self._socket_site: web.UnixSite | None = None
        self._socket_id: _FileId | None = None
        self._store_id = _file_id(self._store_file)
        self.url = ""

    async def open(self) -> None:
        """Listen, then publish the card.

        Raises:
            InitError: the address or the socket cannot be had.
        """
        settings = self._settings
        try:
            await self._listen_on_socket()
            await self._listen_on_port()
        except OSError as error:
            raise InitError(
                f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}"
            ) from error
        port = next(a[1] for a in self._runner.addresses if isinstance(a, tuple))
        self.url = f"http://{_reachable(settings.host)}:{port}"
        self._publish()

    async def keep(self) -> None:
        """Put back the socket and the cards where they were removed or replaced."""
        path = self._settings.socket_path
        if path is not None and _file_id(path) != self._socket_id:
            assert self._socket_site is not None
            await self._socket_site.stop()  # no new connections; those there are go on
            await self._listen_on_socket()
        if any(_holder(path) != os.getpid() for path in self._cards):
            self._publish()

    async def _listen_on_port(self) -> None:
        settings = self._settings
        last = (
            None if settings.port or settings.card_beside is None else _read_port(self._port_file)
        )
        if last is not None:
            # Where its predecessor was: open pages and bookmarks find this server.
            with contextlib.suppress(OSError):
                await web.TCPSite(self._runner, settings.host, last).start()
                return
        await web.TCPSite(self._runner, settings.host, settings.port).start()

    @property
    def _port_file(self) -> Path:
        return self._settings.data_dir / "port"

    @property
    def has_store(self) -> bool:
        """Whether the store is still where it was; False once somebody removed it."""
        return _file_id(self._store_file) == self._store_id

    def withdraw(self) -> None:
        """Take the cards away, unless a successor has put down its own."""
        for path in self._cards:
            if _holder(path) == os.getpid():
                with contextlib.suppress(OSError):
                    path.unlink()

    @property
    def _store_file(self) -> Path:
        data = self._settings.data_dir
        return data / "metrana.db" if self._settings.store == "sqlite" else data

    @property
    def _cards(self) -> list[Path]:
        return [p for p in (self._settings.card_path, self._settings.card_beside) if p is not None]

    async def _listen_on_socket(self) -> None:
        path = self._settings.socket_path
        if path is None:
            return
        locations.make_private(path.parent)
        # The store's lock is ours by now: a socket file left here belongs to nobody.
        path.unlink(missing_ok=True)
        self._socket_site = web.UnixSite(self._runner, str(path))
        await self._socket_site.start()
        path.chmod(0o600)
        self._socket_id = _file_id(path)

    def _publish(self) -> None:
        settings = self._settings
        card = orjson.dumps(
            {
                "url": self.url,
                "socket": None if settings.socket_path is None else str(settings.socket_path),
                "token": settings.token,
                "pid": os.getpid(),
                "protocol": PROTOCOL_VERSION,
                "data_dir": str(settings.data_dir),
            }
        )
        if settings.card_path is not None:
            locations.make_private(settings.card_path.parent)
            _write(settings.card_path, card)
        if settings.card_beside is not None:
            with contextlib.suppress(OSError):  # a full disk, a memory store without a directory
                _write(settings.card_beside, card)
                _write(self._port_file, self.url.rpartition(":")[2].encode())


def _write(path: Path, content: bytes) -> None:
    # Written aside and renamed: a reader sees the whole card or none.
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        draft.touch(mode=0o600)
        draft.write_bytes(content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _read_port(path: Path) -> int | None:
    try:
        port = int(path.read_bytes()[:8])
    except (OSError, ValueError):
        return None
    return port if 0 < port < 1 << 16 else None


def _holder(card: Path) -> int | None:
    """The pid on a card; None where there is no card that says one."""
    try:
        content = orjson.loads(card.read_bytes())
        return int(content["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _file_id(path: Path) -> _FileId | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _reachable(host: str) -> str:
    """A host as it stands in a URL; for "every address" the one of this machine."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "[::1]"
    return host if address.version == 4 else f"[{host}]"
