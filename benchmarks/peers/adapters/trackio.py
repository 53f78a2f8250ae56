"""trackio: a SQLite file on this machine, written by a thread."""

from __future__ import annotations

import trackio

from benchmarks.peers.adapters.base import Adapter

_PROJECT = "peers"


class Client(Adapter):
    """Durable: committed to its SQLite file (the driver sets TRACKIO_DIR)."""

    def open(self) -> None:
        # The handle, not `trackio.log`: that one works in the thread of `init` only.
        self._run = trackio.init(
            project=_PROJECT, name=self.run, embed=False, auto_log_gpu=False, auto_log_cpu=False
        )

    def scalar(self, name: str, value: float, step: int) -> None:
        self._run.log({name: value}, step=step)

    def mapping(self, values: dict[str, float], step: int) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()

    def count(self, name: str) -> int:
        logs = trackio.SQLiteStorage.get_logs(_PROJECT, self.run)
        return len([(log["step"], log[name]) for log in logs if name in log])
