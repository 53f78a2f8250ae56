"""Frames to spool, and a disk that refuses when it is told to."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from metrana_async.orchestration import process_identity
from metrana_async.spool import layout
from metrana_async.spool.disk import RealDisk
from metrana_async.spool.reader import SpoolReader
from metrana_async.spool.writer import SpoolFrame
from metrana_async.wire.batch import encode_batch
from metrana_async.wire.messages import OpenRequest
from metrana_async.wire.model import AttributeOp, AttributeUpdate, Batch

RUN, WRITER = "a" * 32, "b" * 32

META = layout.Meta(
    "http://server",
    "online",
    RUN,
    OpenRequest(
        workspace="ws",
        project="proj",
        run_name="run",
        orchestration_id="job",
        resume_strategy="never",
        writer_id=WRITER,
        logger_id=None,
        started_us=1,
        process=process_identity(),
        attributes=[],
        sdk_version="0",
        run_uid=RUN,
    ),
)


def frame(seq: int, lane: int = 0, *, nbytes: int = 100, writer: str = WRITER) -> SpoolFrame:
    """A batch with a note of so many bytes."""
    note = AttributeUpdate(AttributeOp.SET, "note", f"{seq:>{nbytes}}")
    encoded = encode_batch(Batch(RUN, writer, lane, seq, attributes=(note,)))
    return SpoolFrame(lane, seq, encoded, {})


def frames(start: int, stop: int, **more: Any) -> list[SpoolFrame]:
    return [frame(seq, **more) for seq in range(start, stop)]


def sequences(directory: str) -> list[int]:
    """What a reader finds in a directory, batch after batch."""
    reader = SpoolReader(RealDisk(), directory)
    found: list[int] = []
    while batches := reader.read():
        found += [one.seq for one, _ in batches]
    return found


class FailingDisk:
    """The real disk, but for the calls that `fails` says: those raise, with nothing done.

    `calls` counts all of them; an error in the middle of an append leaves half of it, and what
    is closed is closed, whatever close says.
    """

    def __init__(self, fails: Callable[[int, str], int | None] = lambda nth, name: None) -> None:
        self.calls: list[str] = []
        self.fails = fails
        self._disk = RealDisk()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._disk, name)

        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            code = self.fails(len(self.calls), name)
            if code is not None:
                if name == "append":
                    handle, data = arguments
                    method(handle, data[: len(data) // 2])
                elif name in ("close", "unlock"):
                    method(*arguments)
                raise OSError(code, errno.errorcode[code])
            return method(*arguments)

        return call
