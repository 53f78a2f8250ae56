"""A disk that may lose power: a file system as its promises allow it to be, and no better.

What was not synced may be lost, or kept in part: any subset of the sectors written since, the new
size without the data, or data without its neighbours. A name may be lost though the file was
synced, and kept though it was removed, each on its own; only a synced directory keeps its names.
A sync that failed leaves the pages clean and unwritten: the next one says that all is well.

A killed process loses nothing of what it wrote (the page cache is the kernel's), except that the
write it was in may be cut short. `ModelDisk` is the medium of one host; each process has a `View`
of it, which is the `Disk` that the product is given.
"""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from metrana_async.spool.disk import Entry

SECTOR_BYTES: Final = 512


class Killed(BaseException):
    """The process was killed in the middle of a disk call. Not an Exception: nobody handles it."""


@dataclass(eq=False)
class File:
    """A file's content as the kernel shows it, and how much of it the medium has.

    Attributes:
        data: what a reader sees.
        durable: length of the beginning that survives anything.
        phantom: byte ranges that a failed sync has given up: they are read, and never written.
    """

    data: bytearray = field(default_factory=bytearray)
    durable: int = 0
    phantom: list[tuple[int, int]] = field(default_factory=list)
    kind: str = "file"

    def sync(self) -> None:
        self.durable = len(self.data)

    def fail_sync(self) -> None:
        """The pages count as clean from now on, but were not written."""
        if self.durable < len(self.data):
            self.phantom.append((self.durable, len(self.data)))

    def lose_power(self, rng: random.Random) -> None:
        """Become what a crash leaves of it."""
        kept = bytearray(self.data)
        fate = rng.choice(("nothing", "everything", "prefix", "sectors", "sectors", "size"))
        end = len(self.data)
        if fate == "nothing":
            end = self.durable
        elif fate == "prefix":
            end = rng.randint(self.durable, len(self.data))
        elif fate in ("sectors", "size"):
            end = rng.randint(self.durable, len(self.data))
            self._blank(
                kept, range(self.durable, end, SECTOR_BYTES), rng, everything=fate == "size"
            )
        for start, stop in self.phantom:
            kept[start:stop] = bytes(stop - start)
        # What was synced behind a phantom keeps its place; the size came with it.
        self.data = kept[: max(end, self.durable)]
        self.durable = len(self.data)
        self.phantom = []

    @staticmethod
    def _blank(kept: bytearray, starts: range, rng: random.Random, *, everything: bool) -> None:
        for start in starts:
            # A sector ends at a multiple of its size, wherever the write began.
            stop = min((start // SECTOR_BYTES + 1) * SECTOR_BYTES, len(kept))
            if everything or rng.random() < 0.5:
                kept[start:stop] = bytes(stop - start)


@dataclass(eq=False)
class Directory:
    """Names as the kernel shows them, and as the medium has them."""

    names: dict[str, File | Directory] = field(default_factory=dict)
    durable: dict[str, File | Directory] = field(default_factory=dict)
    pending: list[Change] = field(default_factory=list)
    kind: str = "directory"


@dataclass(eq=False)
class Change:
    """A change of names that the medium does not have yet: set where a node is given, else gone."""

    parts: list[tuple[Directory, str, File | Directory | None]]
    is_done: bool = False

    def make_durable(self) -> None:
        if not self.is_done:
            self.is_done = True
            for directory, name, node in self.parts:
                _put(directory.durable, name, node)


def _put(names: dict[str, File | Directory], name: str, node: File | Directory | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


@dataclass
class Troubles:
    """Shares of calls that fail, and what they fail with."""

    write_eio: float = 0.0
    sync_eio: float = 0.0
    read_eio: float = 0.0
    names_eio: float = 0.0


class ModelDisk:
    """The medium of one host. `seen` counts what happened to it, by kind."""

    def __init__(self, rng: random.Random, *, capacity_bytes: int = 1 << 40) -> None:
        self.rng = rng
        self.capacity_bytes = capacity_bytes
        self.troubles = Troubles()
        self.seen: Counter[str] = Counter()
        self.root = Directory()
        self._views: list[View] = []
        self._handles = 2
        self.locked: dict[int, View] = {}
        """Which view holds the lock of which file, by identity of the file."""

    def view(self) -> View:
        """The disk as a new process sees it."""
        made = View(self)
        self._views.append(made)
        return made

    def next_handle(self) -> int:
        self._handles += 1
        return self._handles

    # --- what may happen to it -----------------------------------------------------------------
    def lose_power(self) -> None:
        """Every process is gone, and what is left is what the medium happens to have."""
        self.seen["power cut"] += 1
        for view in self._views:
            view.die()
        self._views.clear()
        self._lose_names(self.root)
        self._lose_data(self.root)

    def _lose_names(self, directory: Directory) -> None:
        for change in directory.pending:
            if not change.is_done and self.rng.random() < 0.5:
                change.make_durable()
            elif not change.is_done:
                # Once for all directories it concerns: a rename happened or it did not.
                change.is_done = True
                self.seen["name lost"] += 1
        directory.pending.clear()
        directory.names = dict(directory.durable)
        for node in directory.names.values():
            if isinstance(node, Directory):
                self._lose_names(node)

    def _lose_data(self, directory: Directory) -> None:
        for node in directory.names.values():
            if isinstance(node, Directory):
                self._lose_data(node)
                continue
            before = bytes(node.data)
            node.lose_power(self.rng)
            if bytes(node.data) != before:
                self.seen["data lost"] += 1
                self.seen["torn"] += len(node.data) > 0 and not before.startswith(bytes(node.data))

    @property
    def used_bytes(self) -> int:
        return _size(self.root)

    # --- a hand in it, for tests ---------------------------------------------------------------
    def find(self, path: str) -> File | Directory | None:
        node: File | Directory | None = self.root
        for part in _parts(path):
            node = node.names.get(part) if isinstance(node, Directory) else None
        return node

    def plant(self, path: str, node: File | Directory) -> None:
        """Put something there, durably, as a stranger would."""
        parent, name = self.parent(path)
        parent.names[name] = parent.durable[name] = node

    def remove_tree(self, path: str) -> None:
        """``rm -rf``: open handles go on, names are gone."""
        parent, name = self.parent(path)
        parent.names.pop(name, None)
        parent.durable.pop(name, None)

    def parent(self, path: str) -> tuple[Directory, str]:
        directory = self.find(os.path.dirname(path))
        if directory is None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        if not isinstance(directory, Directory):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
        return directory, os.path.basename(path)

    def change(self, *parts: tuple[Directory, str, File | Directory | None]) -> None:
        """Change names, for everybody to see and for nobody to rely on."""
        made = Change(list(parts))
        for directory, name, node in parts:
            _put(directory.names, name, node)
            directory.pending.append(made)

    def stumble(self, share: float, what: str, path: str = "") -> None:
        """Fail with EIO in `share` of the cases."""
        if self.rng.random() < share:
            self.seen[f"{what} EIO"] += 1
            raise OSError(errno.EIO, "input/output error on purpose", path)


def _parts(path: str) -> list[str]:
    assert path.startswith("/"), path
    return [part for part in path.split("/") if part]


def _size(directory: Directory) -> int:
    return sum(
        _size(node) if isinstance(node, Directory) else len(node.data)
        for node in directory.names.values()
    )


class View:
    """A `Disk`: the medium as one process sees it. `die` closes all it has open."""

    def __init__(self, medium: ModelDisk) -> None:
        self._medium = medium
        self._files: dict[int, File] = {}
        self._locks: dict[int, File] = {}
        self.kill_in: int | None = None
        """Calls until the process is killed in the middle of one; None = never."""
        self.is_dead = False

    def die(self) -> None:
        """The process has ended, however: the kernel closes what it had open."""
        self.is_dead = True
        self._files.clear()
        for file in self._locks.values():
            self._medium.locked.pop(id(file), None)
        self._locks.clear()

    def _enter(self) -> bool:
        """Begin a call; True when the process is to be killed in the middle of it."""
        if self.is_dead:
            raise OSError(errno.EBADF, "this process has ended")
        if self.kill_in is not None:
            self.kill_in -= 1
            return self.kill_in <= 0
        return False

    def _leave(self, is_killed: bool) -> None:  # noqa: FBT001
        if is_killed:
            self._medium.seen["killed in a disk call"] += 1
            raise Killed

    # --- directories ---------------------------------------------------------------------------
    def make_directory(self, path: str) -> None:
        is_killed = self._enter()
        medium = self._medium
        directory = medium.root
        for part in _parts(path):
            node = directory.names.get(part)
            if node is None:
                medium.stumble(medium.troubles.names_eio, "mkdir", path)
                self._need_room(path)
                node = Directory()
                medium.change((directory, part, node))
                self._leave(is_killed)
                for change in directory.pending:
                    change.make_durable()
            if not isinstance(node, Directory):
                raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
            directory = node
        self._leave(is_killed)

    def _need_room(self, path: str) -> None:
        medium = self._medium
        if medium.used_bytes >= medium.capacity_bytes:
            medium.seen["ENOSPC"] += 1
            raise OSError(errno.ENOSPC, "no space left on device", path)

    def sync_directory(self, path: str) -> None:
        is_killed = self._enter()
        directory = self._medium.find(path)
        if directory is None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        if not isinstance(directory, Directory):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
        self._leave(is_killed)
        self._medium.stumble(self._medium.troubles.names_eio, "sync of a directory", path)
        for change in directory.pending:
            change.make_durable()
        directory.pending.clear()

    def entries(self, path: str) -> list[Entry]:
        self._enter()
        directory = self._medium.find(path)
        if not isinstance(directory, Directory):
            return []
        return sorted(
            Entry(name, node.kind, len(node.data) if isinstance(node, File) else 0)
            for name, node in directory.names.items()
        )

    def remove_directory(self, path: str) -> None:
        is_killed = self._enter()
        node = self._medium.find(path)
        if node is None:
            return
        if not isinstance(node, Directory):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
        if node.names:
            raise OSError(errno.ENOTEMPTY, "directory not empty", path)
        parent, name = self._medium.parent(path)
        self._medium.change((parent, name, None))
        self._leave(is_killed)

    # --- files ---------------------------------------------------------------------------------
    def create(self, path: str) -> int:
        is_killed = self._enter()
        medium = self._medium
        parent, name = medium.parent(path)
        if name in parent.names:
            raise FileExistsError(errno.EEXIST, "file exists", path)
        medium.stumble(medium.troubles.names_eio, "create", path)
        self._need_room(path)
        file = File()
        medium.change((parent, name, file))
        handle = medium.next_handle()
        self._files[handle] = file
        self._leave(is_killed)
        return handle

    def append(self, handle: int, data: bytes) -> None:
        is_killed = self._enter()
        medium, file = self._medium, self._file(handle)
        if is_killed:
            file.data += data[: medium.rng.randrange(len(data) + 1)]
            self._leave(is_killed)
        if medium.rng.random() < medium.troubles.write_eio:
            # A short write first, as a rule; the error comes with the next piece.
            file.data += data[: medium.rng.randrange(len(data) + 1)]
            medium.seen["write EIO"] += 1
            raise OSError(errno.EIO, "input/output error on purpose")
        room = max(0, medium.capacity_bytes - medium.used_bytes)
        file.data += data[:room]
        if room < len(data):
            medium.seen["ENOSPC"] += 1
            raise OSError(errno.ENOSPC, "no space left on device")

    def sync(self, handle: int) -> None:
        is_killed = self._enter()
        medium, file = self._medium, self._file(handle)
        self._leave(is_killed)
        if medium.rng.random() < medium.troubles.sync_eio:
            file.fail_sync()
            medium.seen["sync EIO"] += 1
            raise OSError(errno.EIO, "input/output error on purpose")
        file.sync()

    def close(self, handle: int) -> None:
        self._enter()
        self._file(handle)
        del self._files[handle]

    def read(self, path: str, offset: int, size: int) -> bytes:
        self._enter()
        node = self._medium.find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        if not isinstance(node, File) or node.kind != "file":
            raise OSError(errno.EINVAL, "not a regular file", path)
        self._medium.stumble(self._medium.troubles.read_eio, "read", path)
        return bytes(node.data[offset : offset + size])

    def rename(self, source: str, target: str) -> None:
        is_killed = self._enter()
        medium = self._medium
        medium.stumble(medium.troubles.names_eio, "rename", source)
        old, old_name = medium.parent(source)
        new, new_name = medium.parent(target)
        node = old.names.get(old_name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        medium.change((old, old_name, None), (new, new_name, node))
        self._leave(is_killed)

    def remove(self, path: str) -> None:
        is_killed = self._enter()
        medium = self._medium
        node = medium.find(path)
        if node is None:
            return
        if isinstance(node, Directory):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        medium.stumble(medium.troubles.names_eio, "remove", path)
        parent, name = medium.parent(path)
        medium.change((parent, name, None))
        self._leave(is_killed)

    def _file(self, handle: int) -> File:
        file = self._files.get(handle)
        if file is None:
            raise OSError(errno.EBADF, "bad file descriptor")
        return file

    # --- the rest ------------------------------------------------------------------------------
    def free_bytes(self, path: str) -> tuple[int, int]:
        self._enter()
        medium = self._medium
        if medium.find(path) is None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return max(0, medium.capacity_bytes - medium.used_bytes), medium.capacity_bytes

    def lock(self, path: str) -> int | None:
        is_killed = self._enter()
        medium = self._medium
        parent, name = medium.parent(path)
        node = parent.names.get(name)
        if node is None:
            self._need_room(path)
            node = File()
            medium.change((parent, name, node))
        if not isinstance(node, File):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        self._leave(is_killed)
        if id(node) in medium.locked:
            return None
        medium.locked[id(node)] = self
        handle = medium.next_handle()
        self._locks[handle] = node
        return handle

    def unlock(self, handle: int) -> None:
        self._enter()
        file = self._locks.pop(handle, None)
        if file is not None:
            self._medium.locked.pop(id(file), None)
