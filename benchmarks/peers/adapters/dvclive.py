"""dvclive: a text file a metric."""

from __future__ import annotations

from dvclive import Live

from benchmarks.peers.adapters.base import Adapter


class Client(Adapter):
    """Durable: handed to the kernel, not synced."""

    def open(self) -> None:
        self._live = Live(
            str(self.directory / self.run), save_dvc_exp=False, dvcyaml=None, report=None
        )

    def scalar(self, name: str, value: float, step: int) -> None:
        self._live.step = step
        self._live.log_metric(name, value)

    def close(self) -> None:
        self._live.end()
