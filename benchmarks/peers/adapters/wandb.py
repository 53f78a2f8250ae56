"""wandb, offline: a transaction log on the disk, written by its service process."""

from __future__ import annotations

import wandb

from benchmarks.peers.adapters.base import Adapter


class Client(Adapter):
    """Durable: in the transaction log of its service, not synced."""

    def open(self) -> None:
        settings = wandb.Settings(
            silent=True, console="off", x_disable_stats=True, x_disable_meta=True
        )
        self._run = wandb.init(
            project="peers",
            name=self.run,
            mode="offline",
            dir=str(self.directory),
            settings=settings,
        )

    def scalar(self, name: str, value: float, step: int) -> None:
        # Without `step=`: its steps must rise over all metrics of a run.
        self._run.log({name: value})

    def mapping(self, values: dict[str, float], step: int) -> None:
        self._run.log(values)

    def close(self) -> None:
        self._run.finish()
