"""neptune-scale, offline: every call commits to a SQLite file."""

from __future__ import annotations

from neptune_scale import Run

from benchmarks.peers.adapters.base import Adapter


class Client(Adapter):
    """Durable: committed to its SQLite file within the call."""

    def open(self) -> None:
        self._run = Run(
            run_id=self.run,
            project="bench/peers",
            mode="offline",
            log_directory=str(self.directory),
            enable_console_log_capture=False,
            source_tracking_config=None,
        )

    def scalar(self, name: str, value: float, step: int) -> None:
        self._run.log_metrics({name: value}, step)

    def mapping(self, values: dict[str, float], step: int) -> None:
        self._run.log_metrics(values, step)

    def close(self) -> None:
        self._run.close()
