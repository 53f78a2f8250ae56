"""A real server process on a real disk, a reader, and scripts in processes of their own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import metrana_sync_shim as metrana
from metrana_async.local import find
from metrana_async.transport.http import HttpTransport
from tests.conformance.runner import ServerProcess

ROOT = Path(__file__).parent.parent.parent
JOB_VARIABLES = ("METRANA_ORCHESTRATION_ID", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "RAY_JOB_ID")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server process on SQLite for all tests of this worker."""
    process = ServerProcess(tmp_path_factory.mktemp("store") / "data")
    yield process
    rest = process.stop()
    assert "Traceback" not in rest, rest


@dataclass(frozen=True)
class Place:
    """A project of its own on the server, and how to log and read there."""

    project: str
    data_dir: str

    def init(self, run_name: str | None = "run", **arguments) -> metrana.Run:
        """Init a run of this project in this process."""
        return metrana.init(
            project_name=self.project,
            run_name=run_name,
            data_dir=self.data_dir,
            quiet=True,
            **arguments,
        )

    def reader(self) -> metrana.QueryClient:
        """A reader of this project."""
        return metrana.QueryClient(project=self.project, data_dir=self.data_dir)

    def post(self, path: str, body: bytes) -> bytes:
        """Ask an endpoint as it is."""

        async def ask() -> bytes:
            address = await find(self.data_dir)
            assert address is not None
            transport = HttpTransport(address)
            try:
                return await transport.post(path, body, timeout_s=30)
            finally:
                await transport.close()

        return asyncio.run(ask())

    def points(self, metric: str, run: str = "run", **more) -> list[tuple[int, float]]:
        """Full-resolution read-back of a standard series as (step, value)."""
        with self.reader() as reader:
            series = reader.series(run, metric, **more)
        return list(zip(series.step.tolist(), series.value.tolist(), strict=True))

    def script(
        self, code: str, *, timeout_s: float = 60, **environment: str
    ) -> subprocess.CompletedProcess:
        """Run code in a fresh interpreter; PROJECT and `metrana` (the shim) are at hand."""
        head = f"import os, sys\nimport metrana_sync_shim as metrana\nPROJECT = {self.project!r}\n"
        variables = {k: v for k, v in os.environ.items() if k not in JOB_VARIABLES}
        variables |= {
            "METRANA_DATA_DIR": self.data_dir,
            "METRANA_PROJECT": self.project,
            "METRANA_QUIET": "1",
            "PYTHONPATH": str(ROOT),
            **environment,
        }
        return subprocess.run(
            [sys.executable, "-W", "error::ResourceWarning", "-c", head + textwrap.dedent(code)],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=variables,
            check=False,
        )


@pytest.fixture
def place(
    server: ServerProcess, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    """A fresh project; whatever run a test leaves open is closed."""
    for name in JOB_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    Place.counter = getattr(Place, "counter", 0) + 1
    yield Place(f"{request.node.name[:60]}-{os.getpid()}-{Place.counter}", str(server.data_dir))
    if metrana.is_initialized():
        metrana.close()


@pytest.fixture
def many_places(place: Place) -> Callable[[str], Place]:
    """Further projects beside `place`."""
    return lambda suffix: Place(f"{place.project}-{suffix}", place.data_dir)
