"""The hosted service's client, offline: it keeps everything in its spool on the disk."""

from __future__ import annotations

import metrana
import numpy as np

from benchmarks.peers.adapters.base import Adapter


class Client(Adapter):
    """Durable: in the spool, which its documentation says it syncs."""

    def open(self) -> None:
        metrana.init(
            workspace_name="default",
            project_name="peers",
            run_name=self.run,
            init_mode="offline",
            api_key="not used",
            disk=metrana.DiskConfig(str(self.directory / "spool")),
            capture_system_metrics=False,
        )

    def scalar(self, name: str, value: float, step: int) -> None:
        metrana.log(name, value, step=step)

    def mapping(self, values: dict[str, float], step: int) -> None:
        metrana.log(values, step=step)

    def column(self, name: str, values: np.ndarray, first_step: int) -> None:
        metrana.log(name, values, step=first_step)

    def block(self, values: np.ndarray, episodes: np.ndarray, rl_step: int) -> None:
        metrana.log_rl_environment_step(
            "reward",
            values,
            rl_step,
            env_id=self._environment_names(len(values)),
            episode=episodes,
        )

    def close(self) -> None:
        metrana.close(60.0)
