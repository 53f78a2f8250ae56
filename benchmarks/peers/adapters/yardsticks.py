"""What no logger can be faster than: a call that does nothing, and one `deque.append`."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np

from benchmarks.peers.adapters.base import Adapter


class Client(Adapter):
    """Keeps nothing: appends to a queue that nobody reads."""

    def open(self) -> None:
        # Bounded, so that its memory does not become the thing that is measured.
        self._queue: collections.deque[Any] = collections.deque(maxlen=1_000)

    def scalar(self, name: str, value: float, step: int) -> None:
        self._queue.append((name, value, step))

    def mapping(self, values: dict[str, float], step: int) -> None:
        self._queue.append((dict(values), step))

    def column(self, name: str, values: np.ndarray, first_step: int) -> None:
        self._queue.append((name, values.copy(), first_step))

    def block(self, values: np.ndarray, episodes: np.ndarray, rl_step: int) -> None:
        self._queue.append((values.copy(), episodes.copy(), rl_step))

    def close(self) -> None:
        self._queue.clear()
