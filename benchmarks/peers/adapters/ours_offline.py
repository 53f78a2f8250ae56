"""This client without a server, as the hosted client is measured: what it keeps on the disk."""

from __future__ import annotations

import metrana_sync_shim as metrana
from benchmarks.peers.adapters import ours


class Client(ours.Client):
    """Durable: in the spool, after `fdatasync`."""

    def open(self) -> None:
        self._run = metrana.init(
            project_name=ours.PROJECT,
            run_name=self.run,
            init_mode="offline",
            disk=metrana.DiskConfig(path=str(self.directory / "spool")),
            quiet=True,
        )
