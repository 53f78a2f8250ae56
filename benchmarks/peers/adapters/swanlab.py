"""swanlab, offline: a log on the disk, written by a thread."""

from __future__ import annotations

import swanlab

from benchmarks.peers.adapters.base import Adapter


class Client(Adapter):
    """Durable: in its log on the disk."""

    def open(self) -> None:
        settings = swanlab.Settings(
            interactive=False,
            probe={
                "hardware": False,
                "runtime": False,
                "requirements": False,
                "conda": False,
                "git": False,
                "monitor": False,
            },
        )
        self._run = swanlab.init(
            project="peers",
            name=self.run,
            mode="offline",
            log_dir=str(self.directory),
            settings=settings,
        )

    def scalar(self, name: str, value: float, step: int) -> None:
        self._run.log({name: value}, step=step)

    def mapping(self, values: dict[str, float], step: int) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()
