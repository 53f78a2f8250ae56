"""Read a writer's frames back, segment after segment, past whatever is damaged. Blocking.

Reading changes nothing on the disk and can be repeated. Memory is bounded by a piece of a segment,
and 24 bytes a batch where `plan` was asked for.

The order on the disk is a lane's order, but for what had to be written again later: batches that a
restored server had lost, segments whose names were swapped. `plan` finds that out beforehand.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from metrana_async.errors import MetranaError
from metrana_async.spool import layout
from metrana_async.spool.disk import Disk
from metrana_async.spool.segment import Scan, scan
from metrana_async.wire import limits
from metrana_async.wire.batch import BatchHead, read_head
from metrana_async.wire.frames import FRAME_PAGE, HEADER_BYTES, Frame
from metrana_async.wire.pages import Page, decode_page

PIECE_BYTES: Final = 2 << 20
_FRAME_BYTES_MAX: Final = HEADER_BYTES + limits.FRAME_BODY_BYTES
# No segment is ever written beyond its size and one frame. What claims more is not ours.
SEGMENT_BYTES_MAX: Final = 64 << 20

_PASSING: Final = (
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EACCES,
    errno.EPERM,
    errno.ENODEV,
)
"""Refusals that say nothing about the bytes: what cannot be read now can be read later."""

_READ_TRIES: Final = 3
"""How often bytes are read that cannot be before they count as damaged."""

Extents = Callable[[], list[tuple[int, int]]]
"""Segments to read and how many bytes of each, oldest first."""


@dataclass(slots=True)
class Damage:
    """What could not be read: bytes that belong to no good frame, and reads that failed.

    `torn_bytes`, at the ends of segments, are what a crash leaves of a write; nothing that was
    promised is among them.
    """

    damaged_bytes: int = 0
    torn_bytes: int = 0
    errors: list[str] = field(default_factory=list)


class _Place(NamedTuple):
    """Where a batch lies; sorts by lane and sequence, the oldest copy first."""

    lane: int
    seq: int
    segment: int
    offset: int
    nbytes: int


class SpoolReader:
    """Walks once through the segments of one writer's directory.

    `pages` holds every page that was met, by digest.
    """

    def __init__(self, disk: Disk, directory: str, extents: Extents | None = None) -> None:
        """Make a reader at the beginning.

        Args:
            disk: where the files are.
            directory: the writer's.
            extents: what may be read; None = all that is there.
        """
        self.pages: dict[str, Page] = {}
        self.damage = Damage()
        self._disk = disk
        self._directory = directory
        self._extents: Extents = extents or self._all
        self._number = 0
        self._offset = 0
        self._found_at = 0
        self._plan: Iterator[_Place] | None = None

    def page(self, digest: str) -> Page | None:
        """See delivery.outbox.Pages."""
        return self.pages.get(digest)

    def read_names(self) -> None:
        """Take in the second copies of the pages."""
        for entry in self._disk.entries(self._directory):
            if entry.is_file and layout.is_names(entry.name):
                data = self._read(f"{self._directory}/{entry.name}", 0, SEGMENT_BYTES_MAX)
                for frame in scan(data, is_end=True).frames:
                    self._keep_page(frame)

    def read(self, *, is_growing: bool = False) -> list[tuple[Frame, BatchHead]]:
        """The next batches; [] when there are no more for now.

        Args:
            is_growing: whether the last segment is being written to: what is cut at its end is
                left for later instead of being damage.

        Raises:
            OSError: nothing can be read at the moment (no descriptor, no permission); try again.
        """
        if self._plan is not None:
            return self._planned()
        while True:
            step = self._step(is_growing=is_growing)
            if step is None:
                return []
            batches = self._batches(step)
            if batches:
                return batches

    def plan(self) -> None:
        """Look through everything once, so that `read` gives every lane in order from the start.

        Raises:
            OSError: see `read`.
        """
        # Nobody writes any more, and there may be very many files: they are listed once.
        listed = self._extents()
        self._extents = lambda: listed
        places: list[_Place] = []
        furthest: dict[int, int] = {}
        is_ordered = True
        while (step := self._step(is_growing=False)) is not None:
            for frame, start in zip(step.frames, step.starts, strict=True):
                if frame.type == FRAME_PAGE:
                    self._keep_page(frame)
                    continue
                is_ordered &= frame.seq > furthest.get(frame.lane, 0)
                furthest[frame.lane] = max(frame.seq, furthest.get(frame.lane, 0))
                at, size = self._found_at + start, len(frame.encoded)
                places.append(_Place(frame.lane, frame.seq, self._number, at, size))
        self._number = self._offset = 0
        self.damage = Damage()
        if not is_ordered:
            self._plan = iter(sorted(places))

    def _planned(self) -> list[tuple[Frame, BatchHead]]:
        assert self._plan is not None
        batches: list[tuple[Frame, BatchHead]] = []
        nbytes = 0
        for place in self._plan:
            path = f"{self._directory}/{layout.segment_name(place.segment)}"
            found = scan(self._read(path, place.offset, place.nbytes), is_end=True)
            self.damage.damaged_bytes += found.damaged_bytes
            batches += self._batches(found)
            nbytes += place.nbytes
            if nbytes >= PIECE_BYTES:
                break
        return batches

    def _step(self, *, is_growing: bool) -> Scan | None:
        """Scan the next piece; None at the end of everything."""
        extents = [extent for extent in self._extents() if extent[0] >= self._number]
        for position, (number, size) in enumerate(extents):
            if number > self._number:
                self._number, self._offset = number, 0
            nbytes = min(size, SEGMENT_BYTES_MAX)
            if self._offset >= nbytes:
                continue
            is_last = position == len(extents) - 1
            found = self._scan(number, nbytes, is_growing=is_growing and is_last)
            if found.used_bytes:
                return found
        return None

    def _scan(self, number: int, nbytes: int, *, is_growing: bool) -> Scan:
        path = f"{self._directory}/{layout.segment_name(number)}"
        size = PIECE_BYTES
        while True:
            stop = min(self._offset + size, nbytes)
            data = self._read(path, self._offset, stop - self._offset)
            # Cut short by the disk: what is behind cannot be had, so this is the end.
            is_end = stop >= nbytes or len(data) < stop - self._offset
            found = scan(data, is_end=is_end and not is_growing)
            if found.used_bytes or is_end:
                break
            size = _FRAME_BYTES_MAX if size < _FRAME_BYTES_MAX else 2 * size
        self._found_at = self._offset
        if is_end and not is_growing:
            self.damage.damaged_bytes += nbytes - self._offset - len(data)
            self._offset = nbytes
            found.used_bytes = max(found.used_bytes, 1)
        else:
            self._offset += found.used_bytes
        self.damage.damaged_bytes += found.damaged_bytes
        self.damage.torn_bytes += found.torn_bytes
        return found

    def _batches(self, found: Scan) -> list[tuple[Frame, BatchHead]]:
        batches = []
        for frame in found.frames:
            if frame.type == FRAME_PAGE:
                self._keep_page(frame)
                continue
            try:
                batches.append((frame, read_head(frame)))
            except MetranaError:
                self.damage.damaged_bytes += len(frame.encoded)
        return batches

    def _keep_page(self, frame: Frame) -> None:
        if frame.type != FRAME_PAGE:
            return
        try:
            page = decode_page(frame.body, frame.encoded)
        except MetranaError:
            self.damage.damaged_bytes += len(frame.encoded)
        else:
            self.pages.setdefault(page.digest, page)

    def _all(self) -> list[tuple[int, int]]:
        numbers = []
        for entry in self._disk.entries(self._directory):
            number = layout.segment_number(entry.name)
            if number is not None and entry.is_file:
                numbers.append((number, entry.size))
        return sorted(numbers)

    def _read(self, path: str, offset: int, size: int) -> bytes:
        for tries_left in reversed(range(_READ_TRIES)):
            try:
                return self._disk.read(path, offset, size)
            except FileNotFoundError:
                return b""  # delivered and removed by its owner meanwhile
            except OSError as error:
                if error.errno in _PASSING:
                    raise
                if error.errno == errno.EIO and tries_left:
                    continue
                self.damage.errors.append(f"{path}: {error.strerror or error}")
                break
        return b""
