"""A data directory of its own, the server processes on it, and waiting for facts about them."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from metrana_async import locations
from tests.interop.conftest import Place

_PATIENCE_S = 20.0
_LOOK_S = 0.02


class Home(Place):
    """A place without a server: whoever calls `init` there starts one."""

    @property
    def meeting(self) -> locations.MeetingPoint:
        """The files through which the processes find the server."""
        return locations.meeting_point(Path(self.data_dir))

    @property
    def card(self) -> dict:
        """What the running server published."""
        return json.loads(self.meeting.card.read_text())

    def servers(self) -> list[int]:
        """Pids of every live server process on this directory."""
        wanted = os.fsencode(self.data_dir)
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"metrana_async.server" in words and wanted in words:
                found.append(int(entry.name))
        return found

    @contextmanager
    def held_down(self) -> Iterator[None]:
        """Nobody starts a server here meanwhile but by hand: the right to start one is taken."""
        self.meeting.directory.mkdir(mode=0o700, exist_ok=True)
        with self.meeting.lock.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def end_server(self, number: int = signal.SIGKILL) -> None:
        """Signal every server process and wait until there is none."""
        for pid in self.servers():
            os.kill(pid, number)
        eventually(lambda: not self.servers(), "the server ended")


def eventually(fact: Callable[[], bool], what: str, patience_s: float = _PATIENCE_S) -> None:
    """Look again and again until `fact` holds."""
    deadline_s = time.monotonic() + patience_s
    while not fact():
        assert time.monotonic() < deadline_s, f"not within {patience_s:g} s: {what}"
        time.sleep(_LOOK_S)  # between looks at another process, which can tell us nothing


@contextmanager
def home_in(folder: Path, project: str = "life") -> Iterator[Home]:
    """A home in `folder`; its servers and files are gone afterwards."""
    home = Home(project, str(folder / "data"))
    try:
        yield home
    finally:
        home.end_server()
        meeting = home.meeting
        for path in (meeting.card, meeting.socket, meeting.lock, meeting.log):
            if path is not None:
                path.unlink(missing_ok=True)
