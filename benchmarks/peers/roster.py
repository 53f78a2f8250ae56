"""Who takes part: the peers, their environments, and what keeps them on this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.conformance.runner import ServerProcess

ROOT = Path(__file__).parent.parent.parent
ENVIRONMENTS = ROOT / ".venv-peers"


@dataclass(frozen=True)
class Peer:
    """One column of the tables."""

    name: str
    adapter: str
    environment: str = ""
    """Folder of its environment and name of its requirements; "" = the one of this process."""
    has_server: bool = False
    variables: dict[str, str] = field(default_factory=dict)
    """Of its processes; `{directory}` is the run's own."""
    can_read: bool = False
    """Whether it has a public call that reads a run on this machine."""
    keeps: str = ""
    """What the caller may rely on when `close` has returned."""

    def python(self) -> Path:
        """Its interpreter."""
        if not self.environment:
            return Path(sys.executable)
        return ENVIRONMENTS / self.environment / "bin/python"


PEERS = (
    Peer("yardstick", "yardsticks", keeps="nothing: one `deque.append`"),
    Peer("ours", "ours", has_server=True, can_read=True, keeps="committed by its server"),
    Peer("ours, offline", "ours_offline", keeps="in the spool, synced"),
    Peer("hosted, offline", "hosted", "hosted", keeps="in the spool, synced"),
    Peer(
        "trackio",
        "trackio",
        "trackio",
        variables={"TRACKIO_DIR": "{directory}", "HF_HUB_OFFLINE": "1"},
        can_read=True,
        keeps="committed to SQLite",
    ),
    Peer("tensorboard", "tensorboard", "tensorboard", can_read=True, keeps="handed to the kernel"),
    Peer(
        "tensorboardX", "tensorboardx", "tensorboard", can_read=True, keeps="handed to the kernel"
    ),
    Peer("wandb, offline", "wandb", "wandb", keeps="with its service process"),
    Peer("swanlab, offline", "swanlab", "swanlab", keeps="handed to the kernel"),
    Peer("neptune, offline", "neptune", "neptune", keeps="committed to SQLite in the call"),
    Peer(
        "mlflow",
        "mlflow",
        "mlflow",
        variables={"MLFLOW_DISABLE_TELEMETRY": "true"},
        can_read=True,
        keeps="committed to SQLite in the call",
    ),
    Peer("aim", "aim", "aim", keeps="in RocksDB"),
    Peer(
        "dvclive",
        "dvclive",
        "dvclive",
        variables={"DVC_NO_ANALYTICS": "1"},
        keeps="handed to the kernel",
    ),
)


@dataclass(frozen=True)
class Server:
    """Where the store of a child's server is, and its process."""

    store: str = ""
    pids: tuple[int, ...] = ()


@contextmanager
def server_of(peer: Peer, directory: Path) -> Iterator[Server]:
    """Its server while the block runs; for a peer without one, nothing."""
    if not peer.has_server:
        yield Server()
        return
    process = ServerProcess(directory / "data")
    try:
        yield Server(str(process.data_dir), (process.pid,))
    finally:
        process.stop()
