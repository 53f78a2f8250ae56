"""Skipped where torch, ray and the MPI launchers are not; `make test-launchers` installs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import metrana_sync_shim as metrana
from tests.interop.conftest import ROOT
from tests.interop.life import Home, home_in

BIN = Path(sys.prefix) / "bin"
EXAMPLES = ROOT / "docs" / "examples"
JOB_PREFIXES = ("METRANA_", "TORCHELASTIC_", "SLURM_", "RAY_", "OMPI_", "PMI", "MPI_")
JOB_NAMES = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")

if os.environ.get("METRANA_TEST_LAUNCHERS") != "1":
    collect_ignore_glob = ["test_*.py"]


@dataclass
class Launch:
    """Runs command lines against one store and reads back what they logged."""

    home: Home

    def environment(self, **more: str) -> dict[str, str]:
        """Where examples find package and store, without any other job's variables."""
        inherited = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(JOB_PREFIXES) and k not in JOB_NAMES
        }
        return {
            **inherited,
            "METRANA_DATA_DIR": self.home.data_dir,
            "METRANA_QUIET": "1",
            "PYTHONPATH": str(ROOT),
            **more,
        }

    def __call__(self, *words: object, timeout_s: float = 150, **more: str) -> str:
        """Run a command to its end; what it printed."""
        done = subprocess.run(
            list(map(str, words)),
            capture_output=True, text=True, timeout=timeout_s, check=False,
            env=self.environment(**more), cwd=Path(self.home.data_dir).parent,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
        return done.stdout + done.stderr

    def start(self, *words: object, **more: str) -> subprocess.Popen[str]:
        """Start a command; its output is one pipe."""
        return subprocess.Popen(
            list(map(str, words)),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=self.environment(**more), cwd=Path(self.home.data_dir).parent,
        )  # fmt: skip

    def reader(self, project: str) -> metrana.QueryClient:
        """A reader of a project."""
        return metrana.QueryClient(project=project, data_dir=self.home.data_dir)

    def only_run(self, project: str) -> metrana.RunInfo:
        """The one run of a project: finished, complete, its configuration its creator's."""
        with self.reader(project) as reader:
            (run,) = reader.runs()
            run = reader.run(run.name)
            ledger = reader.ledger(run.name)
        assert run.state == "finished"
        assert ledger.difference == 0
        processes = [json.loads(json.dumps(dict(w["process"]))) for w in run.writers]
        assert processes[0]["pid"] == run.config["created_by_pid"]
        return run


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """A store of its own for a job."""
    with home_in(tmp_path) as home:
        yield Launch(home)
