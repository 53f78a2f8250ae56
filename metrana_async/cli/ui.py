"""``metrana-async ui``: find or start this machine's server, and open its dashboard."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import sys
import webbrowser
from typing import Any, Final

import orjson

from metrana_async import local, locations
from metrana_async.settings import has_display, ssh_host
from metrana_async.transport.base import ServerAddress
from metrana_async.transport.http import HttpTransport

PORT_DEFAULT: Final = 7007
_ASK_TIMEOUT_S: Final = 10.0
_PORTS_COUNT: Final = 20


def add_to(commands: Any) -> None:
    """Add the command's parser."""
    command = commands.add_parser(
        "ui",
        help="open the dashboard of this machine's store",
        description="Find this machine's server, or start it, and open its dashboard. The link "
        "goes to stdout; it logs one browser in, once, within ten minutes.",
    )
    command.add_argument(
        "directory",
        nargs="?",
        metavar="DIR",
        help="the store (default: METRANA_DATA_DIR, else this user's)",
    )
    command.add_argument(
        "--port",
        type=int,
        default=PORT_DEFAULT,
        help="TCP port of a server that has to be started; the next free one where that is taken "
        "(default: %(default)s)",
    )
    command.add_argument("--no-open", action="store_true", help="open no browser, print the link")
    command.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Run the command."""
    url, link = asyncio.run(_link(given.directory, given.port))
    print(f"dashboard of {locations.data_dir(given.directory)}", file=sys.stderr)
    print(link, flush=True)
    host = ssh_host()
    if host is not None:
        port = url.rpartition(":")[2]
        print(
            f"from another machine: ssh -L {port}:127.0.0.1:{port} {host}, then open the link",
            file=sys.stderr,
        )
    elif not given.no_open and has_display():
        webbrowser.open(link)
    return 0


async def _link(directory: str | None, port: int) -> tuple[str, str]:
    """The server's URL, and a link that logs one browser in."""
    address = await local.find(directory) or await local.find_or_start(
        directory, port=_free_port(port)
    )
    key = await _ask(address, "/browser/link")
    return address.url, f"{address.url}/#login={key['key']}"


def _free_port(first: int) -> int:
    """The first port from `first` that nobody listens on; 0 = any, after a few tries."""
    for port in range(first, min(first + _PORTS_COUNT, 1 << 16)) if first else ():
        with socket.socket() as probe:
            # As the server does: a port that was only just closed is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    return 0


async def _ask(address: ServerAddress, path: str) -> dict[str, Any]:
    transport = HttpTransport(address)
    try:
        answer: dict[str, Any] = orjson.loads(
            await transport.post(path, b"", timeout_s=_ASK_TIMEOUT_S)
        )
    finally:
        await transport.close()
    return answer
