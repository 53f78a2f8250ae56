"""The store's folder: private, on a local disk, and of one server at a time.

SQLite's WAL needs shared memory between its users, which network file systems do not give; two
servers on one store would give the same numbers twice.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from metrana_async.errors import InitError
from metrana_async.locations import network_file_system

DATABASE_NAME: Final = "metrana.db"
LOCK_NAME: Final = "metrana.lock"


def prepare_folder(folder: Path, *, is_to_serve: bool = True) -> None:
    """Make the folder (mode 0700) and, where it is to be served, its database file (0600).

    Raises:
        InitError: it cannot be made or written, or is to be served from a network file system.
    """
    try:
        is_new = not folder.exists()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if is_new:
            sync_folder(folder.parent)
        if not is_to_serve:
            return
        kind = network_file_system(folder)
        if kind is not None:
            raise InitError(
                f"{folder} is on a network file system ({kind}), where a store would be damaged",
                hint="choose a data folder on a local disk",
            )
        # SQLite gives its -wal and -shm files the mode of the database.
        os.close(os.open(folder / DATABASE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise InitError(f"the data folder {folder} cannot be used: {error}") from error


def sync_folder(folder: Path) -> None:
    """Make the folder's entries survive a power loss; SQLite does this for its own files."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock_folder(folder: Path) -> int:
    """Take the folder for this process; returns the descriptor that holds it until closed.

    Raises:
        InitError: another server has it; the message says which.
    """
    lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(lock, 64, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(lock)
        raise InitError(
            f"the store in {folder} is in use by another server (process {holder})",
            hint="use that server, or another data folder",
        ) from error
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def is_taken(folder: Path) -> bool:
    """Whether a server has the folder now."""
    try:
        lock = os.open(folder / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False
