"""The server of each client, in a process of its own: where it is, and what it has stored."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np

import metrana_sync_shim as metrana
from benchmarks.hosted.ours import PROJECT
from benchmarks.hosted.points import METRIC, RECORD
from tests.conformance.runner import ServerProcess

_READ_TIMEOUT_S = 120.0
ROOT = Path(__file__).parent.parent.parent


class OurServer:
    """This project's server, asked through its query client."""

    admits_when_mute = False
    """Whether a mute server still admits writers."""

    def __init__(self, directory: Path) -> None:
        """Start it on a store in `directory`."""
        self._process = ServerProcess(directory / "data")
        self.url = self._process.address.url
        self.key = self._process.address.token or ""

    def _reader(self) -> metrana.QueryClient:
        return metrana.QueryClient(
            project=PROJECT, url=self.url, token=self.key, timeout_secs=_READ_TIMEOUT_S
        )

    def state(self, run: str) -> str:
        """How a reader is told that the run ended; "unknown" when there is no such run."""
        with self._reader() as reader:
            try:
                return reader.run(run).state
            except metrana.NotFoundError:
                return "unknown"

    def stored(self, run: str) -> np.ndarray:
        """Every point of the run's metric, as `RECORD`s."""
        with self._reader() as reader:
            try:
                series = reader.series(run, METRIC)
            except metrana.NotFoundError:
                return np.empty(0, RECORD)
        points = np.empty(len(series.step), RECORD)
        points["step"], points["value"] = series.step, series.value
        return points

    def mute(self) -> None:
        """Halt it: the kernel goes on accepting for it, and nothing is answered."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def speak(self) -> None:
        """Let it go on."""
        os.kill(self._process.pid, signal.SIGCONT)

    def stop(self) -> None:
        """End it."""
        self._process.stop()


class TheirServer:
    """The stand-in for the hosted service."""

    admits_when_mute = True

    def __init__(self, directory: Path, python: Path) -> None:
        """Start it with the hosted client's interpreter."""
        self._directory = directory / "stub"
        self._directory.mkdir()
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.hosted.stub", self._directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        self.key = "stand-in"

    def state(self, run: str) -> str:
        """Whether a writer has closed the run; "unknown" when nothing of it ever came."""
        if (self._directory / f"{run}.closed").exists():
            return "closed"
        return "open" if (self._directory / f"{run}.points").exists() else "unknown"

    def stored(self, run: str) -> np.ndarray:
        """Every point of the run's metric, as `RECORD`s, in the order of arrival."""
        path = self._directory / f"{run}.points"
        return np.fromfile(path, RECORD) if path.exists() else np.empty(0, RECORD)

    def mute(self) -> None:
        """Have it accept everything, answer pings and handshakes, and nothing on streams."""
        self._tell("mute")

    def speak(self) -> None:
        """Have it answer again."""
        self._tell("speak")

    def _tell(self, word: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        self._process.stdout.readline()

    def stop(self) -> None:
        """End it and remove what it kept."""
        self._process.communicate()
        shutil.rmtree(self._directory)


Server = OurServer | TheirServer
