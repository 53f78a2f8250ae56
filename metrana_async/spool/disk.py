"""The only file calls of the spool: a small blocking protocol, and the real disk behind it.

Nothing above this module knows a file descriptor's rules. Every call either did all it says or
raises OSError; a file that was written to in a call that raised ends in an undefined tail and is
not written to again (the caller goes on in a new one). A file whose `sync` raised is never synced
again: after a failed fsync the kernel may call lost pages clean.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import Final, NamedTuple, Protocol

from metrana_async.spool.lock import file_of, release, try_lock

_NEW_FILE: Final = (
    os.O_WRONLY
    | os.O_CREAT
    | os.O_EXCL
    | os.O_APPEND
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)
)
# O_NONBLOCK: a FIFO that somebody left in the spool must not block whoever looks at it.
_READ: Final = (
    os.O_RDONLY
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
)


class Entry(NamedTuple):
    """What a directory holds under one name; neither a regular file nor a directory: kind ""."""

    name: str
    kind: str
    size: int

    @property
    def is_file(self) -> bool:
        """A regular file."""
        return self.kind == "file"

    @property
    def is_directory(self) -> bool:
        """A directory, not a link to one."""
        return self.kind == "directory"


class Disk(Protocol):
    """Blocking file operations. Paths are absolute; handles are small integers.

    Every method raises OSError when it cannot do all of what it says.
    """

    def make_directory(self, path: str) -> None:
        """Make `path` (0700) and its parents, durably: each new name is synced into its parent."""
        ...

    def create(self, path: str) -> int:
        """A handle to a new empty file (0600) to append to; FileExistsError where one is.

        The name is durable only after `sync_directory`.
        """
        ...

    def append(self, handle: int, data: bytes) -> None:
        """Write all of `data` at the end of the file."""
        ...

    def sync(self, handle: int) -> None:
        """Everything appended is on the disk when this returns."""
        ...

    def close(self, handle: int) -> None:
        """Give the handle up. Syncs nothing."""
        ...

    def sync_directory(self, path: str) -> None:
        """Names made and removed in the directory are on the disk when this returns."""
        ...

    def read(self, path: str, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset`; fewer at the end of the file. Follows no link."""
        ...

    def entries(self, path: str) -> list[Entry]:
        """What the directory holds, by name; [] where there is no such directory."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Move a name, replacing a file `target`; durable only after `sync_directory`."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file; nothing where there is none."""
        ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory; nothing where there is none."""
        ...

    def free_bytes(self, path: str) -> tuple[int, int]:
        """(bytes this user may still write, size in bytes) of the file system of `path`."""
        ...

    def lock(self, path: str) -> int | None:
        """Take the lock of a lock file, made where it is missing; None when somebody holds it.

        Held until `unlock`, or until every process that has the handle has ended.
        """
        ...

    def unlock(self, handle: int) -> None:
        """Give a lock up."""
        ...


class RealDisk:
    """The machine's file systems. Safe from every thread; a handle has one owner."""

    def __init__(self) -> None:
        self._files: dict[int, tuple[int, int]] = {}

    def _check_ours(self, handle: int) -> None:
        """Raise EBADF where the program has closed our file, and may have its own there."""
        if file_of(handle) != self._files.get(handle):
            raise OSError(errno.EBADF, "the program has closed this file")

    def make_directory(self, path: str) -> None:
        """See Disk."""
        missing = []
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for new in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(new, 0o700)
            self.sync_directory(os.path.dirname(new))

    def create(self, path: str) -> int:
        """See Disk."""
        handle = os.open(path, _NEW_FILE, 0o600)
        # The umask may only have taken away; what the owner lacks now he will miss at recovery.
        try:
            os.fchmod(handle, 0o600)
        except OSError:
            os.close(handle)
            raise
        self._files[handle] = file_of(handle)
        return handle

    def append(self, handle: int, data: bytes) -> None:
        """See Disk."""
        self._check_ours(handle)
        left = memoryview(data)
        while left:
            written = os.write(handle, left)
            if written == 0:
                raise OSError(errno.EIO, "nothing was written")
            # A short write tells of a disk that fills up: the next one says why.
            left = left[written:]

    def sync(self, handle: int) -> None:
        """See Disk."""
        self._check_ours(handle)
        getattr(os, "fdatasync", os.fsync)(handle)

    def close(self, handle: int) -> None:
        """See Disk."""
        try:
            self._check_ours(handle)
        finally:
            self._files.pop(handle, None)
        os.close(handle)

    def sync_directory(self, path: str) -> None:
        """See Disk."""
        if os.name == "nt":
            return  # there a directory cannot be opened, and its names are journalled
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def read(self, path: str, offset: int, size: int) -> bytes:
        """See Disk."""
        handle = os.open(path, _READ)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", path)
            parts = []
            while size > 0:
                part = os.pread(handle, size, offset)
                if not part:
                    break
                parts.append(part)
                offset += len(part)
                size -= len(part)
            return b"".join(parts)
        finally:
            os.close(handle)

    def entries(self, path: str) -> list[Entry]:
        """See Disk."""
        found = []
        try:
            with os.scandir(path) as listing:
                for entry in listing:
                    with contextlib.suppress(FileNotFoundError):  # it went while we looked
                        found.append(_entry(entry))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(found)

    def rename(self, source: str, target: str) -> None:
        """See Disk."""
        os.replace(source, target)

    def remove(self, path: str) -> None:
        """See Disk."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_directory(self, path: str) -> None:
        """See Disk."""
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(path)

    def free_bytes(self, path: str) -> tuple[int, int]:
        """See Disk."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    def lock(self, path: str) -> int | None:
        """See Disk."""
        return try_lock(path)

    def unlock(self, handle: int) -> None:
        """See Disk."""
        release(handle)


def _entry(entry: os.DirEntry[str]) -> Entry:
    found = entry.stat(follow_symlinks=False)
    kind = ""
    if stat.S_ISREG(found.st_mode):
        kind = "file"
    elif stat.S_ISDIR(found.st_mode):
        kind = "directory"
    return Entry(entry.name, kind, found.st_size)
