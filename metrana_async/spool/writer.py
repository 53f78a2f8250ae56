"""Append a writer's frames to segments, durably and within a quota. Blocking, one owner.

The caller keeps every frame until `sync` has returned: after any OSError what was not synced must
be appended again and goes to a new segment, for the old one ends in who knows what. So a frame
may stand on the disk twice; readers know by its sequence.

Nothing is made on the disk before the first append, which a healthy run never needs.
"""

from __future__ import annotations

import contextlib
import errno
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from metrana_async.spool import layout
from metrana_async.spool.disk import Disk
from metrana_async.wire.messages import LeaveRequest

SEGMENT_BYTES: Final = 8 << 20
QUOTA_BYTES: Final = 2 << 30
_FREE_SHARE: Final = 20
_FREE_BYTES_MAX: Final = 1 << 30


class SpoolFullError(OSError):
    """The quota is used up, or the file system has to keep its last bytes for others."""


class SpoolFrame(NamedTuple):
    """A batch to be kept: its frame, and the pages that it lists by digest."""

    lane: int
    seq: int
    frame: bytes
    pages: Mapping[str, bytes]


class _Room(NamedTuple):
    """Bytes that may still be written, and what to say of their end."""

    nbytes: int
    errno: int
    text: str


@dataclass(slots=True)
class _Segment:
    number: int
    nbytes: int = 0
    synced_bytes: int = 0
    readable_bytes: int = 0
    last_seq: dict[int, int] = field(default_factory=dict)
    pages: set[str] = field(default_factory=set)


class SpoolWriter:
    """The spool directory of one writer incarnation."""

    def __init__(
        self, disk: Disk, directory: str, meta: layout.Meta, *, quota_bytes: int = QUOTA_BYTES
    ) -> None:
        """Make a writer; nothing is touched yet.

        Args:
            disk: where the files are.
            directory: this incarnation's own (`layout.writer_directory`).
            meta: whose frames these are.
            quota_bytes: most bytes of segments at a time.
        """
        self.directory = directory
        self._disk = disk
        self._meta = meta
        self._quota_bytes = quota_bytes
        self._lock: int | None = None
        self._segments: deque[_Segment] = deque()
        self._next_number = 1
        self._handle: int | None = None
        self._names: int | None = None
        self._names_number = 0
        self._named: set[str] = set()
        self._is_names_synced = True

    @property
    def nbytes(self) -> int:
        """Bytes of segments on the disk. Any thread."""
        # A copy, made in one piece: the disk's thread opens and removes segments meanwhile.
        return sum(segment.nbytes for segment in list(self._segments))

    @property
    def is_made(self) -> bool:
        """Whether the directory is there."""
        return self._lock is not None

    @property
    def has_unsynced(self) -> bool:
        """Whether anything was appended since the last `sync`."""
        return bool(self._segments) and (
            self._segments[-1].synced_bytes < self._segments[-1].nbytes
        )

    @property
    def unsynced_bytes(self) -> int:
        """Bytes appended since the last `sync`."""
        return self._segments[-1].nbytes - self._segments[-1].synced_bytes if self._segments else 0

    def readable(self) -> list[tuple[int, int]]:
        """(segment number, bytes that the last `sync` vouched for) of each segment, oldest first.

        What a full segment's own sync made durable waits for that, too: the caller does not know
        of it yet, and would pass it over.
        """
        return [(segment.number, segment.readable_bytes) for segment in self._segments]

    def make(self) -> None:
        """Make the directory, its lock and META. Idempotent.

        Raises:
            OSError: it cannot be made, or somebody else has it.
        """
        if self._lock is not None:
            return
        self._disk.make_directory(self.directory)
        lock = self._disk.lock(f"{self.directory}/{layout.LOCK}")
        if lock is None:
            raise OSError(errno.EBUSY, "another process has this spool directory", self.directory)
        try:
            meta = layout.encode_meta(self._meta)
            layout.put_file(self._disk, self.directory, layout.META, meta)
        except OSError:
            self._disk.unlock(lock)
            raise
        self._lock = lock

    # --- frames --------------------------------------------------------------------------------
    def append(self, frames: Sequence[SpoolFrame]) -> int:
        """Write frames, and the pages they need, behind what is there. Not yet durable.

        Returns how many there was room for: the first ones, at least one.

        Raises:
            SpoolFullError: no room for the first; nothing was written, and what was, stands.
            FileNotFoundError: the directory was removed, and everything in it; append everything
                there is again.
            OSError: the disk refuses; append everything since the last `sync` again.
        """
        self.make()
        try:
            return self._append(frames)
        except FileNotFoundError:
            self._start_over()
            raise

    def _append(self, frames: Sequence[SpoolFrame]) -> int:
        at = 0
        while at < len(frames):
            segment = self._open_segment()
            room = self._room()
            parts: list[bytes] = []
            nbytes = 0
            last_seq = dict(segment.last_seq)
            pages: dict[str, bytes] = {}
            while at < len(frames) and segment.nbytes + nbytes < SEGMENT_BYTES:
                frame = frames[at]
                new = [d for d in frame.pages if d not in segment.pages and d not in pages]
                needed = [*(frame.pages[digest] for digest in new), frame.frame]
                cost = sum(map(len, needed))
                if nbytes + cost > room.nbytes:
                    break
                pages |= {digest: frame.pages[digest] for digest in new}
                parts += needed
                nbytes += cost
                last_seq[frame.lane] = max(frame.seq, last_seq.get(frame.lane, 0))
                at += 1
            if parts:
                self._write(segment, b"".join(parts), pages)
                segment.last_seq = last_seq
            elif at:
                break
            else:
                raise SpoolFullError(room.errno, room.text, self.directory)
        return at

    def _write(self, segment: _Segment, data: bytes, pages: Mapping[str, bytes]) -> None:
        assert self._handle is not None
        try:
            self._write_names(pages)
            self._disk.append(self._handle, data)
        except OSError:
            self._break_off()
            raise
        segment.nbytes += len(data)
        segment.pages.update(pages)

    def _write_names(self, pages: Mapping[str, bytes]) -> None:
        """The second copy of the pages: names outlive a damaged segment."""
        new = [digest for digest in pages if digest not in self._named]
        if not new:
            return
        if self._names is None:
            self._names_number += 1
            name = layout.names_name(self._names_number)
            self._names = self._disk.create(f"{self.directory}/{name}")
            self._disk.sync_directory(self.directory)
        self._is_names_synced = False
        self._disk.append(self._names, b"".join(pages[digest] for digest in new))
        self._named.update(new)

    def sync(self) -> None:
        """Everything appended is durable when this returns, and `readable`.

        Raises:
            OSError: it is not; append everything since the last `sync` again.
        """
        self._sync()
        for segment in self._segments:
            segment.readable_bytes = segment.synced_bytes

    def _sync(self) -> None:
        if not self.has_unsynced:
            return
        assert self._handle is not None
        try:
            if not self._is_names_synced and self._names is not None:
                self._disk.sync(self._names)
                self._is_names_synced = True
            self._disk.sync(self._handle)
        except OSError:
            self._break_off()
            raise
        segment = self._segments[-1]
        segment.synced_bytes = segment.nbytes

    def _open_segment(self) -> _Segment:
        if self._handle is not None and self._segments[-1].nbytes < SEGMENT_BYTES:
            return self._segments[-1]
        self._sync()
        self._close_segment()
        # A create that fails may leave the name behind: it is never tried again.
        number, self._next_number = self._next_number, self._next_number + 1
        handle = self._disk.create(f"{self.directory}/{layout.segment_name(number)}")
        try:
            self._disk.sync_directory(self.directory)
        except OSError:
            self._close(handle)
            raise
        self._handle = handle
        self._segments.append(_Segment(number))
        return self._segments[-1]

    def _room(self) -> _Room:
        left = self._quota_bytes - self.nbytes
        free, size = self._disk.free_bytes(self.directory)
        others = free - min(_FREE_BYTES_MAX, size // _FREE_SHARE)
        if others < left:
            return _Room(others, errno.ENOSPC, f"only {free} bytes are free on its file system")
        text = f"the spool's quota of {self._quota_bytes} bytes is used up"
        return _Room(left, errno.EDQUOT, text)

    def _break_off(self) -> None:
        """Never write to, nor sync, these files again."""
        self._close_segment()
        if self._segments:
            # What follows is torn, or may be lost for all that fsync will ever say.
            self._segments[-1].nbytes = self._segments[-1].synced_bytes
        names, self._names = self._names, None
        if names is not None:
            self._close(names)
        self._named.clear()
        self._is_names_synced = True

    def _start_over(self) -> None:
        """The directory is gone: the next `make` makes another, under another lock."""
        self._break_off()
        self._segments.clear()
        lock, self._lock = self._lock, None
        if lock is not None:
            self._disk.unlock(lock)

    def _close_segment(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            self._close(handle)

    def _close(self, handle: int) -> None:
        with contextlib.suppress(OSError):  # the program may have closed every descriptor
            self._disk.close(handle)

    # --- what was delivered -----------------------------------------------------------------------
    def forget(self, acked: Mapping[int, int]) -> None:
        """Remove segments of which everything is acknowledged. Their names may come back: no harm.

        Raises:
            OSError: a file cannot be removed.
        """
        while self._segments and _is_acked(self._segments[0], acked):
            segment = self._segments[0]
            if len(self._segments) == 1:
                self._close_segment()
                # Where it cannot be removed, nothing in it waits for a sync any more.
                segment.nbytes = segment.synced_bytes
            self._disk.remove(f"{self.directory}/{layout.segment_name(segment.number)}")
            self._segments.popleft()

    def put_end(self, leave: LeaveRequest) -> None:
        """Keep how the writer left, durably, for whoever delivers the rest.

        Raises:
            OSError: it cannot be written.
        """
        self.make()
        layout.put_file(self._disk, self.directory, layout.END, layout.encode_end(leave))

    def close(self, *, is_delivered: bool) -> None:
        """Give the lock up; with `is_delivered` nothing is needed any more and all is removed."""
        lock, self._lock = self._lock, None
        self._close_segment()
        if self._names is not None:
            self._close(self._names)
            self._names = None
        if lock is None:
            return
        try:
            if is_delivered:
                remove_directory(self._disk, self.directory)
        finally:
            self._disk.unlock(lock)


def _is_acked(segment: _Segment, acked: Mapping[int, int]) -> bool:
    return all(seq <= acked.get(lane, 0) for lane, seq in segment.last_seq.items())


def remove_directory(disk: Disk, directory: str) -> None:
    """Remove a writer's directory of which everything was delivered; the caller has its lock.

    META goes last but one: an interrupted removal leaves something that is delivered again, or
    nothing of worth. What is not ours stays, and the directory with it.
    """
    names = [entry.name for entry in disk.entries(directory) if entry.is_file]
    frames = [n for n in names if layout.segment_number(n) is not None or layout.is_names(n)]
    small = (f"{layout.META}.new", f"{layout.END}.new", layout.END, layout.META, layout.LOCK)
    for name in (*frames, *small):
        disk.remove(f"{directory}/{name}")
    for level in (directory, directory.rpartition("/")[0]):
        with contextlib.suppress(OSError):  # something else lies there, or another writer's
            disk.remove_directory(level)
