"""aim with its repository on this machine."""

from __future__ import annotations

import aim

from benchmarks.peers.adapters.base import Adapter


class Client(Adapter):
    """Durable: in its repository, not synced."""

    def open(self) -> None:
        self._run = aim.Run(
            repo=str(self.directory),
            experiment=self.run,
            system_tracking_interval=None,
            capture_terminal_logs=False,
            log_system_params=False,
        )

    def scalar(self, name: str, value: float, step: int) -> None:
        self._run.track(value, name=name, step=step)

    def mapping(self, values: dict[str, float], step: int) -> None:
        self._run.track(values, step=step)

    def close(self) -> None:
        self._run.close()
