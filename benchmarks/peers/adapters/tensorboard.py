"""TensorBoard's own event writer, the one that `torch.utils.tensorboard` wraps too."""

from __future__ import annotations

import time
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from benchmarks.peers.adapters.base import Adapter

_EVERYTHING = 0


class Client(Adapter):
    """Durable: handed to the kernel, not synced."""

    def open(self) -> None:
        self._writer = EventFileWriter(str(self.directory / self.run))

    def scalar(self, name: str, value: float, step: int) -> None:
        self._write([Summary.Value(tag=name, simple_value=value)], step)

    def mapping(self, values: dict[str, float], step: int) -> None:
        self._write([Summary.Value(tag=n, simple_value=v) for n, v in values.items()], step)

    def _write(self, values: list[Summary.Value], step: int) -> None:
        self._writer.add_event(
            Event(step=step, wall_time=time.time(), summary=Summary(value=values))
        )

    def close(self) -> None:
        self._writer.close()

    def count(self, name: str) -> int:
        return count_events(self.directory / self.run, name)


def count_events(directory: Path, name: str) -> int:
    """Points of a scalar in event files, read by TensorBoard's reader without its sampling."""
    events = EventAccumulator(str(directory), size_guidance={"scalars": _EVERYTHING})
    events.Reload()
    return len([(event.step, event.value) for event in events.Scalars(name)])
