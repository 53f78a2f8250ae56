"""This client: to its own server (SQLite) over loopback."""

from __future__ import annotations

import numpy as np

import metrana_sync_shim as metrana
from benchmarks.peers.adapters.base import Adapter

PROJECT = "peers"


class Client(Adapter):
    """Durable: committed by the server."""

    def open(self) -> None:
        self._run = metrana.init(
            project_name=PROJECT, run_name=self.run, data_dir=self.server, quiet=True
        )

    def scalar(self, name: str, value: float, step: int) -> None:
        self._run.log(name, value, step=step)

    def mapping(self, values: dict[str, float], step: int) -> None:
        self._run.log(values, step=step)

    def column(self, name: str, values: np.ndarray, first_step: int) -> None:
        self._run.log(name, values, step=first_step)

    def block(self, values: np.ndarray, episodes: np.ndarray, rl_step: int) -> None:
        self._run.log_rl_environment_step(
            "reward", values, rl_step, self._environment_names(len(values)), episode=episodes
        )

    def close(self) -> None:
        statistics = self._run.close().statistics
        assert statistics.is_balanced, statistics
        assert not statistics.losses, statistics

    def count(self, name: str) -> int:
        with metrana.QueryClient(project=PROJECT, data_dir=self.server) as reader:
            series = reader.series(self.run, name)
        assert len(series.step) == len(series.value)
        return len(series.value)
