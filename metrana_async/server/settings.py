"""What a server is started with: command line > environment > default, resolved once."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from metrana_async import locations
from metrana_async.wire import limits

DEFAULT_IDLE_EXIT_S = 600.0


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Frozen settings of one server process.

    Attributes:
        data_dir: the store's directory.
        store: "sqlite" or "memory".
        host, port: where TCP listens; port 0 takes a free one.
        socket_path: a Unix socket for requests of this machine, or None.
        card_path: where the address is published for this user's processes, or None.
        token: what TCP requests must bear, or None. Requests over the socket need none: reaching
            it takes this user's file permissions.
        idle_exit_s: exit after so long without live writers or requests; None = never.
        writer_live_s: a writer that was silent for longer is not live any more, and a run without
            live writers that nobody closed has crashed. Writers are heard every
            `limits.HEARTBEAT_INTERVAL_S`.
    """

    data_dir: Path
    store: str = "sqlite"
    host: str = "127.0.0.1"
    port: int = 0
    socket_path: Path | None = None
    card_path: Path | None = None
    token: str | None = None
    idle_exit_s: float | None = None
    writer_live_s: float = limits.WRITER_LIVE_S


def parser() -> argparse.ArgumentParser:
    """The command line of `python -m metrana_async.server`."""
    result = argparse.ArgumentParser(
        prog="python -m metrana_async.server",
        description="Ingestion and query server on this machine's store.",
    )
    result.add_argument("--data-dir", help="store directory (METRANA_DATA_DIR, else user state)")
    result.add_argument("--store", choices=("sqlite", "memory"), default="sqlite")
    result.add_argument("--port", type=int, default=0, help="TCP port on 127.0.0.1 (0: a free one)")
    result.add_argument(
        "--idle-exit",
        type=float,
        default=None,
        metavar="SECONDS",
        help=f"exit when idle so long (default {DEFAULT_IDLE_EXIT_S:g} with --detach, else never)",
    )
    result.add_argument(
        "--writer-live",
        type=float,
        default=limits.WRITER_LIVE_S,
        metavar="SECONDS",
        help="a writer silent for longer is not live any more (default %(default)g)",
    )
    result.add_argument("--detach", action="store_true", help="run in the background")
    return result


def from_arguments(arguments: Sequence[str]) -> tuple[ServerSettings, bool]:
    """Settings of a command line, and whether to detach."""
    parsed = parser().parse_args(arguments)
    data = locations.data_dir(parsed.data_dir)
    point = locations.meeting_point(data)
    idle = parsed.idle_exit
    if idle is None and parsed.detach:
        idle = DEFAULT_IDLE_EXIT_S
    settings = ServerSettings(
        data_dir=data,
        store=parsed.store,
        port=parsed.port,
        socket_path=point.socket,
        card_path=point.card,
        token=secrets.token_hex(32),
        idle_exit_s=idle,
        writer_live_s=parsed.writer_live,
    )
    return settings, parsed.detach
