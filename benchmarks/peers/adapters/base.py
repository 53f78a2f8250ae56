"""What an adapter is, with what users write by hand where a peer has no call of its own."""

from __future__ import annotations

import abc
from pathlib import Path

import numpy as np


class Adapter(abc.ABC):
    """One run of one peer, in this process.

    The defaults at the end are what a user does whose logger lacks the call: a dict is a loop over
    scalars, a rollout block is a dict a time step. Subclasses replace what their peer does better.
    """

    def __init__(self, directory: Path, run: str, server: str) -> None:
        """Name the run and where it is kept; `server` is the store of a server that runs for it."""
        self.directory = directory
        self.run = run
        self.server = server
        self._names: dict[int, list[str]] = {}

    @abc.abstractmethod
    def open(self) -> None:
        """Begin the run; nothing is sent to anywhere but this machine."""

    @abc.abstractmethod
    def scalar(self, name: str, value: float, step: int) -> None:
        """Log one value."""

    @abc.abstractmethod
    def close(self) -> None:
        """End the run: return when everything logged is as safe as this peer makes it."""

    def count(self, name: str) -> int:
        """Read every point of a metric back, steps and values; how many there are."""
        raise LookupError(f"{type(self).__module__} has no public call that reads a run here")

    def mapping(self, values: dict[str, float], step: int) -> None:
        """Log several values of one step."""
        for name, value in values.items():
            self.scalar(name, value, step)

    def column(self, name: str, values: np.ndarray, first_step: int) -> None:
        """Log an array of values at the steps from `first_step` on."""
        for offset, value in enumerate(values.tolist()):
            self.scalar(name, value, first_step + offset)

    def block(self, values: np.ndarray, episodes: np.ndarray, rl_step: int) -> None:
        """Log float32 [M environments, T steps] with int64 episodes of the same shape.

        The default leaves the episodes out: loggers without blocks have no place for them.
        """
        names = self._environment_names(len(values))
        steps_count = values.shape[1]
        for t, row in enumerate(values.T.tolist()):
            self.mapping(dict(zip(names, row, strict=True)), rl_step * steps_count + t)

    def _environment_names(self, count: int) -> list[str]:
        if count not in self._names:
            self._names[count] = [f"env{n}" for n in range(count)]
        return self._names[count]
