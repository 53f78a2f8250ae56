"""Who owns a spool directory: a flock, which the kernel frees when its process ends however.

A forked child shares the lock's open file description, so it would keep a directory "busy" after
its parent was killed: `abandon` lets the child close its copies. POSIX record locks are not used;
they vanish when any descriptor of the file is closed.
"""

from __future__ import annotations

import errno
import os
from typing import Final

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

_BUSY: Final = (errno.EWOULDBLOCK, errno.EACCES)
_LOCK_FILE: Final = (
    os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
)

_held: dict[int, tuple[int, int]] = {}
"""Descriptors of held locks, and which file each is of (see `file_of`)."""


def try_lock(path: str) -> int | None:
    """Take the lock of `path` (made 0600 where missing); None when somebody holds it.

    Returns:
        A descriptor; closing it with `release` gives the lock up.

    Raises:
        OSError: the file cannot be opened or locked at all.
    """
    handle = os.open(path, _LOCK_FILE, 0o600)
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever had it before may have removed the file meanwhile: then this locks nothing.
        if not _is_still(path, handle):
            os.close(handle)
            return None
    except OSError as error:
        os.close(handle)
        if error.errno in _BUSY:
            return None
        raise
    _held[handle] = file_of(handle)
    return handle


def release(handle: int) -> None:
    """Give a lock up."""
    if handle in _held and _is_ours(handle, _held.pop(handle)):
        os.close(handle)


def abandon() -> None:
    """In a forked child: close the copies of the parent's locks, and nothing else."""
    for handle, file in _held.items():
        if _is_ours(handle, file):
            os.close(handle)
    _held.clear()


def file_of(handle: int) -> tuple[int, int]:
    """Which file a descriptor is of, as (device, inode).

    A program may close every descriptor, ours among them, and then have files of its own under
    our numbers: whoever writes to one, or closes it, asks first whether it is still the same.

    Raises:
        OSError: nothing is open under the number.
    """
    found = os.fstat(handle)
    return found.st_dev, found.st_ino


def _is_ours(handle: int, file: tuple[int, int]) -> bool:
    try:
        return file_of(handle) == file
    except OSError:
        return False


def _is_still(path: str, handle: int) -> bool:
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return file_of(handle) == (there.st_dev, there.st_ino)
