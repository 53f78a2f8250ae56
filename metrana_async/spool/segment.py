"""Frames out of the bytes of a segment, and past damage to the next good one. Pure.

A segment is frames, one behind the other, and nothing else: what is on the disk is what travels.
Each frame carries its own checksum, so one flipped bit costs the frames it touches: the scan goes
on at the next place where a whole frame begins.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from metrana_async.errors import MetranaError
from metrana_async.wire.frames import HEADER_BYTES, MAGIC, Frame, claimed_bytes, decode_frame


@dataclass(slots=True)
class Scan:
    """What a piece of a segment holds.

    Attributes:
        frames: the good ones, in order.
        starts: where each of them begins in the bytes.
        used_bytes: how far the scan came; it goes on there with more bytes.
        damaged_bytes: how many of those belong to no good frame.
        torn_bytes: how many, at the very end, are the beginning of a frame that was never
            finished, or were given to the file and never written: what a crash leaves.
    """

    frames: list[Frame] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    used_bytes: int = 0
    damaged_bytes: int = 0
    torn_bytes: int = 0


def scan(data: bytes, *, is_end: bool) -> Scan:
    """Read frame after frame.

    Args:
        data: bytes of a segment from where the last scan ended.
        is_end: whether nothing comes behind them; if not, a frame that is cut at the end is left
            for the next scan.
    """
    found = Scan()
    view = memoryview(data)
    at = 0
    while at < len(data):
        claimed = claimed_bytes(view, at)
        is_cut = claimed is None or at + claimed > len(data)
        if is_cut and not is_end and data.startswith(MAGIC[: len(data) - at], at):
            break
        frame = None if is_cut else _frame(view, at)
        if frame is not None:
            found.frames.append(frame)
            found.starts.append(at)
            at += len(frame.encoded)
            continue
        resumed = _next_start(data, at + 1, is_end=is_end)
        if resumed == len(data) and is_end and _is_torn(data, at):
            found.torn_bytes += resumed - at
        else:
            found.damaged_bytes += resumed - at
        at = resumed
    found.used_bytes = at
    return found


def _frame(view: memoryview, at: int) -> Frame | None:
    try:
        return decode_frame(view, at)
    except MetranaError:
        return None


def _is_torn(data: bytes, at: int) -> bool:
    """Whether what is left is the beginning of a frame, or nothing but zeros.

    A whole header of a version that we do not know is no such thing: a newer release wrote it.
    """
    written = data[at:].rstrip(b"\0")
    if len(written) < HEADER_BYTES:
        return written.startswith(MAGIC[: len(written)])
    claimed = claimed_bytes(data, at)
    return claimed is not None and at + claimed > len(data)


def _next_start(data: bytes, at: int, *, is_end: bool) -> int:
    """Where the next frame may begin; the end of `data` where none does."""
    found = data.find(MAGIC, at)
    if found >= 0:
        return found
    if is_end:
        return len(data)
    # The first bytes of a magic number may stand at the very end.
    for length in range(min(len(MAGIC) - 1, len(data) - at), 0, -1):
        if data.endswith(MAGIC[:length]):
            return len(data) - length
    return len(data)


__all__ = ["HEADER_BYTES", "Scan", "scan"]
