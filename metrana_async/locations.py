"""Where things lie on this machine: the store, and the meeting point of this user's server.

Shared by client and server so that both look in the same place. Nothing here creates a server or
opens a store; directories are made 0700 and only when asked for. Names never reach a path: what
tells two data directories apart is a digest.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from metrana_async.errors import InitError

DATA_DIR_VARIABLE = "METRANA_DATA_DIR"


def data_dir(explicit: str | os.PathLike[str] | None = None) -> Path:
    """The store's directory: argument, METRANA_DATA_DIR, the user's state directory.

    Without a usable home (containers) it is a directory of this user under the temporary one.
    """
    chosen = explicit or os.environ.get(DATA_DIR_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    state = os.environ.get("XDG_STATE_HOME")
    if state and Path(state).is_absolute():
        return Path(state) / "metrana"
    home = Path.home() if os.environ.get("HOME") else None
    if home is not None and _is_writable(home):
        return home / ".local" / "state" / "metrana"
    return Path(tempfile.gettempdir()) / f"metrana-{_user()}" / "data"


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")


def _is_writable(path: Path) -> bool:
    # A home that does not exist yet but could be made counts; "/" as home (containers) does not.
    return path != Path("/") and path.is_dir() and os.access(path, os.W_OK | os.X_OK)


def make_private(path: Path) -> Path:
    """Create `path` as 0700, or check that it is this user's and nobody else's.

    Raises:
        InitError: it is not a directory, belongs to another user, or others may write to it.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.stat()
    except OSError as error:
        raise InitError(f"cannot use directory {path}: {error.strerror or error}") from error
    if hasattr(os, "getuid"):
        if found.st_uid != os.getuid():
            raise InitError(f"directory {path} belongs to user {found.st_uid}, not to you")
        if stat.S_IMODE(found.st_mode) & 0o022:
            raise InitError(f"directory {path} can be written by others; make it private (0700)")
    return path


@dataclass(frozen=True, slots=True)
class MeetingPoint:
    """The files through which processes of one user find the server of one data directory.

    Attributes:
        lock: flock held while a server is being started.
        card: JSON the running server writes: pid, url, socket, token, protocol.
        socket: the Unix socket it listens on.
        log: where its output goes.
    """

    directory: Path
    lock: Path
    card: Path
    socket: Path
    log: Path


def meeting_point(data: Path) -> MeetingPoint:
    """The meeting point for `data`. Its directory is node-local and short enough for a socket."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and _is_writable(Path(runtime)):
        directory = Path(runtime) / "metrana"
    else:
        directory = Path(tempfile.gettempdir()) / f"metrana-{_user()}"
    name = hashlib.blake2b(os.fsencode(data.resolve()), digest_size=8).hexdigest()
    return MeetingPoint(
        directory=directory,
        lock=directory / f"{name}.lock",
        card=directory / f"{name}.json",
        socket=directory / f"{name}.sock",
        log=directory / f"{name}.log",
    )
