"""What a server is started with: command line > environment > default, resolved once."""

from __future__ import annotations

import argparse
import ipaddress
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from metrana_async import locations
from metrana_async.errors import InitError
from metrana_async.wire import limits

DEFAULT_IDLE_EXIT_S = 600.0
TOKEN_CHARACTERS_MIN = 16
HANDOVER_S = 30.0
"""How long a server started in the background waits for its predecessor to leave the store."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Frozen settings of one server process.

    Attributes:
        data_dir: the store's directory.
        store: "sqlite" or "memory".
        host, port: where TCP listens; port 0 takes a free one.
        socket_path: a Unix socket for requests of this machine, or None.
        card_path: where the address is published for this user's processes, or None.
        card_beside: where it is published a second time, or None.
        token: what TCP requests of this user's own processes bear, or None. Requests over the
            socket need none: reaching it takes this user's file permissions.
        shared_token: what TCP requests of others may bear instead, or None. It does not stop the
            server.
        idle_exit_s: exit after so long without live writers or requests; None = never.
        writer_live_s: a writer that was silent for longer is not live any more, and a run without
            live writers that nobody closed has crashed. Writers are heard every
            `limits.HEARTBEAT_INTERVAL_S`.
        log_path: the file that takes the output, or None = as inherited.
        handover_s: how long to wait for a store that another server is leaving.
    """

    data_dir: Path
    store: str = "sqlite"
    host: str = "127.0.0.1"
    port: int = 0
    socket_path: Path | None = None
    card_path: Path | None = None
    card_beside: Path | None = None
    token: str | None = None
    shared_token: str | None = None
    idle_exit_s: float | None = None
    writer_live_s: float = limits.WRITER_LIVE_S
    log_path: Path | None = None
    handover_s: float = 0.0


def parser() -> argparse.ArgumentParser:
    """The command line of `python -m metrana_async.server`."""
    result = argparse.ArgumentParser(
        prog="python -m metrana_async.server",
        description="Ingestion and query server on this machine's store. "
        "`python -m metrana_async.server stop` ends the one that runs; `backup` and `restore` "
        "copy its store and put a copy back, `verify` checks it.",
    )
    _add_data_dir(result)
    result.add_argument("--store", choices=("sqlite", "memory"), default="sqlite")
    result.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)"
    )
    result.add_argument("--port", type=int, default=0, help="TCP port (default 0: a free one)")
    result.add_argument(
        "--allow-remote",
        action="store_true",
        help="let --host be an address that other machines reach; needs --token-file",
    )
    result.add_argument(
        "--token-file",
        metavar="FILE",
        help="file with the token that clients give as api_key=; made (0600) if it is not there",
    )
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
        help="a writer that is silent so long is taken for dead (default %(default)g)",
    )
    result.add_argument(
        "--detach", action="store_true", help="run in the background, output in the log file"
    )
    return result


def stop_parser() -> argparse.ArgumentParser:
    """The command line of `python -m metrana_async.server stop`."""
    result = argparse.ArgumentParser(
        prog="python -m metrana_async.server stop",
        description="Let this machine's server finish what it has begun, and end.",
    )
    _add_data_dir(result)
    result.add_argument(
        "--timeout", type=float, default=60.0, metavar="SECONDS", help="wait so long (default 60)"
    )
    return result


def backup_parser() -> argparse.ArgumentParser:
    """The command line of `python -m metrana_async.server backup`."""
    result = argparse.ArgumentParser(
        prog="python -m metrana_async.server backup",
        description="Copy this machine's store as it is now; its server may go on.",
    )
    result.add_argument("folder", type=Path, help="an empty or new folder for the backup")
    _add_data_dir(result)
    return result


def restore_parser() -> argparse.ArgumentParser:
    """The command line of `python -m metrana_async.server restore`."""
    result = argparse.ArgumentParser(
        prog="python -m metrana_async.server restore",
        description="Put a backup in the place of this machine's store; its server must be down. "
        "What was there is kept beside it.",
    )
    result.add_argument("folder", type=Path, help="the folder of the backup")
    _add_data_dir(result)
    return result


def verify_parser() -> argparse.ArgumentParser:
    """The command line of `python -m metrana_async.server verify`."""
    result = argparse.ArgumentParser(
        prog="python -m metrana_async.server verify",
        description="Read this machine's whole store and say what in it is damaged; its server "
        "may go on.",
    )
    _add_data_dir(result)
    return result


def _add_data_dir(result: argparse.ArgumentParser) -> None:
    result.add_argument("--data-dir", help="store directory (METRANA_DATA_DIR, else user state)")


def from_arguments(arguments: Sequence[str]) -> tuple[ServerSettings, bool]:
    """Settings of a command line, and whether to detach.

    Raises:
        InitError: an address for other machines without leave or token; a token that cannot be
            read or is too short.
    """
    parsed = parser().parse_args(arguments)
    data = locations.data_dir(parsed.data_dir)
    point = locations.meeting_point(data)
    if not _is_loopback(parsed.host):
        if not parsed.allow_remote:
            raise InitError(
                f"--host {parsed.host} lets other machines reach this server",
                hint="say so with --allow-remote, and give --token-file",
            )
        if parsed.token_file is None:
            raise InitError(f"--host {parsed.host} needs --token-file: others reach this server")
    idle = parsed.idle_exit
    if idle is None and parsed.detach:
        idle = DEFAULT_IDLE_EXIT_S
    settings = ServerSettings(
        data_dir=data,
        store=parsed.store,
        host=parsed.host,
        port=parsed.port,
        socket_path=point.socket,
        card_path=point.card,
        card_beside=point.card_beside,
        token=secrets.token_hex(32),
        shared_token=None if parsed.token_file is None else _shared_token(parsed.token_file),
        idle_exit_s=idle,
        writer_live_s=parsed.writer_live,
        log_path=point.log if parsed.detach else None,
        handover_s=HANDOVER_S if parsed.detach else 0.0,
    )
    return settings, parsed.detach


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _shared_token(name: str) -> str:
    path = Path(name)
    try:
        # Exclusive: of two servers that start on one file, one makes the token.
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        pass
    except OSError as error:
        raise InitError(f"--token-file {name} cannot be made: {error.strerror}") from error
    else:
        with os.fdopen(file, "w") as made:
            made.write(secrets.token_hex(32) + "\n")
    try:
        token = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InitError(f"--token-file {name} cannot be read: {error}") from error
    if len(token) < TOKEN_CHARACTERS_MIN or not token.isprintable():
        raise InitError(
            f"--token-file {name} holds {len(token)} characters, {TOKEN_CHARACTERS_MIN} are needed"
        )
    return token
