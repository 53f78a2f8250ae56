"""mlflow with its SQLite store on this machine."""

from __future__ import annotations

import time

from mlflow import MlflowClient
from mlflow.entities import Metric

from benchmarks.peers.adapters.base import Adapter


class Client(Adapter):
    """Durable: committed to SQLite within the call."""

    def open(self) -> None:
        self._client = self._connect()
        self._run = self._client.create_run("0", run_name=self.run).info.run_id
        (self.directory / f"{self.run}.id").write_text(self._run)

    def _connect(self) -> MlflowClient:
        return MlflowClient(f"sqlite:///{self.directory}/mlflow.db")

    def scalar(self, name: str, value: float, step: int) -> None:
        self._client.log_metric(self._run, name, value, step=step)

    def mapping(self, values: dict[str, float], step: int) -> None:
        now_ms = int(time.time() * 1000)
        # It takes at most 1,000 metrics a call.
        metrics = [Metric(name, value, now_ms, step) for name, value in values.items()]
        for low in range(0, len(metrics), 1_000):
            self._client.log_batch(self._run, metrics[low : low + 1_000])

    def close(self) -> None:
        self._client.set_terminated(self._run)

    def count(self, name: str) -> int:
        run = (self.directory / f"{self.run}.id").read_text()
        history = self._connect().get_metric_history(run, name)
        return len([(metric.step, metric.value) for metric in history])
