"""tensorboardX: event files of TensorBoard, without TensorFlow or torch."""

from __future__ import annotations

from tensorboardX import SummaryWriter

from benchmarks.peers.adapters.base import Adapter
from benchmarks.peers.adapters.tensorboard import count_events


class Client(Adapter):
    """Durable: handed to the kernel, not synced."""

    def open(self) -> None:
        self._writer = SummaryWriter(str(self.directory / self.run))

    def scalar(self, name: str, value: float, step: int) -> None:
        self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()

    def count(self, name: str) -> int:
        return count_events(self.directory / self.run, name)
