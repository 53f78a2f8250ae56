"""A real server on TCP, a proxy in front of it, and places to log to through it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import metrana_sync_shim as metrana
from metrana_async.spool import layout
from metrana_async.spool.disk import RealDisk
from tests.conformance.runner import ServerProcess
from tests.fault.points import Found, find
from tests.fault.proxy import ChaosProxy
from tests.interop.conftest import JOB_VARIABLES


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server process on SQLite for all tests of this worker."""
    process = ServerProcess(tmp_path_factory.mktemp("store") / "data")
    yield process
    rest = process.stop()
    assert "Traceback" not in rest, rest


@dataclass(frozen=True)
class Site:
    """A project of its own on the server, and a spool directory of its own."""

    server: ServerProcess
    project: str
    spool: Path

    def init(self, url: str | None = None, run_name: str = "run", **arguments) -> metrana.Run:
        """Init a run in this process, through `url`, with this site's spool."""
        return metrana.init(
            project_name=self.project,
            run_name=run_name,
            ingestion_url=url or self.server.address.url,
            api_key=self.server.address.token,
            quiet=True,
            **{"disk": self.spool, **arguments},
        )

    def replay(self, **arguments) -> list[metrana.ReplayReport]:
        """Deliver what lies in the spool."""
        return metrana.replay_spool(
            self.spool,
            ingestion_url=self.server.address.url,
            api_key=self.server.address.token,
            **{"timeout_secs": 20.0, **arguments},
        )

    def find(self, run: str = "run") -> Found:
        """What the server has of a run."""
        with self.reader() as reader:
            return find(reader, run)

    def reader(self) -> metrana.QueryClient:
        """A reader of this project."""
        return metrana.QueryClient(project=self.project, data_dir=str(self.server.data_dir))

    def directories(self) -> list[Path]:
        """The writers' directories in the spool."""
        return [Path(d) for d in layout.writer_directories(RealDisk(), str(self.spool))]

    def directory(self) -> Path:
        """The one writer's directory."""
        (only,) = self.directories()
        return only

    def check_empty(self) -> None:
        """Nothing is left in the spool but directories above the writers'."""
        files = [path for path in self.spool.rglob("*") if not path.is_dir()]
        assert not files, files


@pytest.fixture
def site(
    server: ServerProcess,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Site]:
    """A fresh project; whatever run a test leaves open is closed."""
    for name in JOB_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    Site.counter = getattr(Site, "counter", 0) + 1
    name = f"{request.node.name[:60]}-{os.getpid()}-{Site.counter}"
    yield Site(server, name, tmp_path / "spool")
    if metrana.is_initialized():
        metrana.close(5)


@pytest.fixture
def proxy(server: ServerProcess) -> Iterator[ChaosProxy]:
    """A proxy before the server."""
    with ChaosProxy(server.address.url) as made:
        yield made


CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
/* CLOCK_REALTIME of this process, shifted by what FAKE says: "<seconds>" from the start on,
   "~<seconds>" to and fro each second, "x<rate>" running at another rate. */
static int (*real)(clockid_t, struct timespec *);
static double start = -1;
int clock_gettime(clockid_t id, struct timespec *at) {
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, at);
    const char *fake = getenv("FAKE");
    if (id != CLOCK_REALTIME || result || !fake) return result;
    double now = at->tv_sec + at->tv_nsec / 1e9;
    if (start < 0) start = now;
    double by = atof(fake[0] == '~' || fake[0] == 'x' ? fake + 1 : fake);
    if (fake[0] == '~') now += ((long)(now - start) % 2) ? by : -by;
    else if (fake[0] == 'x') now = start + (now - start) * by;
    else now += by;
    at->tv_sec = (time_t)now;
    at->tv_nsec = (long)((now - (time_t)now) * 1e9);
    return 0;
}
"""


@pytest.fixture(scope="session")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that shifts the wall clock of a process, and nobody else's."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler: the wall clock of a process cannot be shifted")
    folder = tmp_path_factory.mktemp("clock")
    (folder / "clock.c").write_text(CLOCK)
    words = ["cc", "-shared", "-fPIC", "-O1", "-o", str(folder / "clock.so")]
    subprocess.run([*words, str(folder / "clock.c"), "-ldl"], check=True, capture_output=True)
    return folder / "clock.so"
