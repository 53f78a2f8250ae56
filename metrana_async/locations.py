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
from typing import Final

from metrana_async.errors import InitError

DATA_DIR_VARIABLE = "METRANA_DATA_DIR"
SOCKET_PATH_BYTES: Final = 103
"""Longest path of a Unix socket that every platform takes."""

_NETWORK_TYPES: Final = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre", "beegfs"),
        *("gpfs", "panfs", "orangefs", "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone"),
        *("fuse.gcsfuse", "fuse.juicefs", "fuse.ceph"),
    )
)
_MOUNTS: Path = Path("/proc/self/mountinfo")


def data_dir(explicit: str | os.PathLike[str] | None = None) -> Path:
    """The store's directory: argument, METRANA_DATA_DIR, the user's state directory.

    Without a usable home (containers), and where the state directory is on a network file system,
    it is a directory of this user under the temporary one.

    Raises:
        InitError: the path given means nothing (`~` of nobody, relative to a removed directory).
    """
    return _choose_data_dir(explicit)[0]


def why_elsewhere(explicit: str | os.PathLike[str] | None = None) -> str | None:
    """Why the store does not lie in the user's state directory, where that must be said."""
    return _choose_data_dir(explicit)[1]


def _choose_data_dir(explicit: str | os.PathLike[str] | None) -> tuple[Path, str | None]:
    chosen = explicit or os.environ.get(DATA_DIR_VARIABLE)
    if chosen:
        try:
            return Path(chosen).expanduser().absolute(), None
        except (RuntimeError, OSError) as error:
            raise InitError(f"data directory {os.fspath(chosen)!r} means nothing: {error}") from (
                error
            )
    near = Path(tempfile.gettempdir()) / f"metrana-{_user()}" / "data"
    state = _state_dir()
    if state is None:
        return near, None
    kind = network_file_system(state)
    if kind is None:
        return state, None
    return near, (
        f"{state} is on a network file system ({kind}), where a store would be damaged; runs are "
        f"kept on this machine, in {near}. Choose another local directory with data_dir= "
        f"({DATA_DIR_VARIABLE})"
    )


def _state_dir() -> Path | None:
    state = os.environ.get("XDG_STATE_HOME")
    if state and Path(state).is_absolute() and _can_hold(Path(state)):
        return Path(state) / "metrana"
    home = Path.home() if os.environ.get("HOME") else None
    # "/" as home is how containers say that there is none.
    if home is None or home == Path("/") or not home.is_dir():
        return None
    state_home = home / ".local" / "state"
    return state_home / "metrana" if _can_hold(state_home) else None


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")


def _can_hold(path: Path) -> bool:
    """Whether directories can be made in `path`, or `path` itself where it is not there yet."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return _is_writable(path)


def _is_writable(path: Path) -> bool:
    return path != Path("/") and path.is_dir() and os.access(path, os.W_OK | os.X_OK)


def network_file_system(path: Path) -> str | None:
    """The type of the network file system that holds `path`; None = a local one, or unknown."""
    kind = file_system_type(path)
    return kind if kind in _NETWORK_TYPES else None


def file_system_type(path: Path) -> str | None:
    """The type of the file system that holds `path`, or None where it is not known (not Linux)."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    target = path.resolve()
    best: tuple[int, str] | None = None
    for line in lines:
        before, _, after = line.partition(" - ")
        mount = Path(before.split()[4].replace("\\040", " "))
        # Of two mounts on one folder the later line is the one in force.
        if (mount == target or mount in target.parents) and (
            best is None or len(mount.parts) >= best[0]
        ):
            best = (len(mount.parts), after.split()[0])
    return None if best is None else best[1]


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
        directory: node-local, private to the user; holds the files below but `card_beside`.
        lock: flock held while a server is being started.
        card: JSON the running server writes: pid, url, socket, token, protocol.
        card_beside: the same in the data directory, for processes whose environment leads them to
            another `directory` (a cron job has no XDG_RUNTIME_DIR).
        socket: the Unix socket it listens on; None where every path would be too long for one.
        log: where its output goes.
    """

    directory: Path
    lock: Path
    card: Path
    card_beside: Path
    socket: Path | None
    log: Path


def meeting_point(data: Path) -> MeetingPoint:
    """The meeting point for `data`. Its directory is node-local and short enough for a socket."""
    name = hashlib.blake2b(os.fsencode(data.resolve()), digest_size=8).hexdigest()
    directory = _meeting_directory(f"{name}.sock")
    socket = directory / f"{name}.sock"
    return MeetingPoint(
        directory=directory,
        lock=directory / f"{name}.lock",
        card=directory / f"{name}.json",
        card_beside=data / "server.json",
        socket=socket if _is_short(socket) else None,
        log=directory / f"{name}.log",
    )


def _meeting_directory(socket_name: str) -> Path:
    user = f"metrana-{_user()}"
    places = [Path(tempfile.gettempdir()) / user, Path("/tmp") / user]  # noqa: S108 - made private
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and _is_writable(Path(runtime)):
        places.insert(0, Path(runtime) / "metrana")
    for place in places:
        if _is_short(place / socket_name) and network_file_system(place) is None:
            return place
    return places[0]


def _is_short(path: Path) -> bool:
    return len(os.fsencode(path)) <= SOCKET_PATH_BYTES
