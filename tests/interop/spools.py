"""Programs whose server is behind a network that can be cut, with a disk spool of their own."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from metrana_async.query.results import RunInfo
from metrana_async.spool import layout
from metrana_async.spool.disk import RealDisk
from metrana_async.spool.reader import SpoolReader
from tests.conformance.runner import ServerProcess
from tests.fault import proxy as faults
from tests.fault.proxy import ChaosProxy
from tests.interop.conftest import JOB_VARIABLES, ROOT, Place

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
_OWN = f"{sys.version_info[0]}.{sys.version_info[1]}"
_HEAD = """
import os, signal, sys, threading, time
import metrana_sync_shim as metrana
def wait(): sys.stdin.readline()
def say(*words): print(*words, flush=True)
"""


def interpreter(version: str) -> str:
    """The path of a CPython that has the package; skips the test where it is absent."""
    if version == _OWN:
        return sys.executable
    path = ROOT / ".venv-pythons" / version / "bin" / "python"
    if not path.exists():
        pytest.skip(f"CPython {version} with this package is absent here (see `make pythons`)")
    return str(path)


class Site:
    """A project on the server, reached through `proxy`, and the spool of its programs."""

    def __init__(self, place: Place, server: ServerProcess, proxy: ChaosProxy, spool: Path) -> None:
        self.server, self.proxy, self.spool = server, proxy, spool
        self.python = sys.executable
        self.project, self.reader, self.points = place.project, place.reader, place.points
        self.begun: list[subprocess.Popen] = []

    def variables(self, **more: str) -> dict[str, str]:
        """The environment of a program here."""
        clean = {k: v for k, v in os.environ.items() if k not in JOB_VARIABLES}
        return clean | {
            "METRANA_INGESTION_URL": self.proxy.url,
            "METRANA_API_KEY": self.server.address.token,
            "METRANA_DISK_SPOOL_DIR": str(self.spool),
            "METRANA_PROJECT": self.project,
            "METRANA_QUIET": "1",
            "PYTHONPATH": str(ROOT),
            **more,
        }

    def begin(self, code: str, *, head: str = "", **more) -> subprocess.Popen:
        """Start a program; `wait()` there returns with the next line that it is sent."""
        program = subprocess.Popen(
            [
                self.python,
                "-W",
                "error::ResourceWarning",
                "-c",
                _HEAD + head + textwrap.dedent(code),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.variables(**more.pop("environment", {})),
            **more,
        )
        self.begun.append(program)
        return program

    def end(self, program: subprocess.Popen, timeout_s: float = 60) -> tuple[int, str]:
        """Let it go and wait for its end; exit status and stderr."""
        _, errors = program.communicate("\n" * 9, timeout=timeout_s)
        return program.returncode, errors

    def run(self, code: str, **more) -> tuple[int, str]:
        """Run a program to its end; exit status and stderr."""
        return self.end(self.begin(code, **more))

    def sync(self, *arguments: str, spool: Path | None = None) -> tuple[int, list[dict]]:
        """``metrana-async sync`` straight to the server; exit status and reports."""
        done = subprocess.run(
            [sys.executable, "-m", "metrana_async.cli", "sync", str(spool or self.spool),
             "--url", self.server.address.url, "--json", *arguments],
            capture_output=True, text=True, timeout=90, check=False,
            env=self.variables(), cwd=self.spool.parent,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]

    def deliver(self) -> int:
        """Sync everything; the points that were sent. Nothing may be left."""
        if not self.spool.exists():
            return 0  # never needed: the command would say that there is no such directory
        status, reports = self.sync()
        assert status == 0, reports
        assert {report["state"] for report in reports} <= {"delivered"}, reports
        assert not self.directories()
        return sum(report["statistics"]["committed"] for report in reports)

    def directories(self) -> list[str]:
        """The writers' directories in the spool."""
        return list(layout.writer_directories(RealDisk(), str(self.spool)))

    def points_on_disk(self) -> int:
        """Points of every readable frame in the spool, once each."""
        frames = {}
        for directory in self.directories():
            for frame, head in SpoolReader(RealDisk(), directory).read():
                frames[head.writer_id, frame.lane, frame.seq] = frame.points_count
        return sum(frames.values())

    def values(self, metric: str = "m", run: str = "run") -> list[float]:
        """What is stored of a metric, in the order of its steps; they have no holes."""
        found = self.points(metric, run=run)
        assert [step for step, _ in found] == list(range(len(found)))
        return [value for _, value in found]

    def info(self, run: str = "run") -> RunInfo:
        """The run as the server has it; its ledger balances."""
        with self.reader() as reader:
            assert reader.ledger(run).difference == 0
            return reader.run(run)


def site_of(place: Place, server: ServerProcess, folder: Path) -> Iterator[Site]:
    """A site for one test; its programs are gone afterwards."""
    with ChaosProxy(server.address.url) as proxy:
        site = Site(place, server, proxy, folder / "spool")
        yield site
        for program in site.begun:
            if program.poll() is None:
                program.kill()
            program.wait()
            for stream in (program.stdin, program.stdout, program.stderr):
                stream.close()


class Refusing:
    """Answers requests with what a tired server says, at random."""

    def __init__(self, seed, share=1.0, kinds=("429", "500", "cut", "hang up")):
        self.rng, self.share, self.kinds = random.Random(seed), share, kinds
        self.count = 0

    async def __call__(self, exchange):
        if self.rng.random() >= self.share:
            await exchange.say(await exchange.ask())
            return
        self.count += 1
        kind = self.rng.choice(self.kinds)
        if kind == "cut":  # the server has it, its answer is lost
            await faults.cut_before_answer(exchange)
        elif kind == "hang up":
            await faults.keep_alive_race(exchange)
        else:
            await exchange.request()
            words = {"429": b"429 Too Many Requests\r\nRetry-After: 0", "500": b"500 Oh\r\n"}[kind]
            await exchange.say(b"HTTP/1.1 " + words.strip() + b"\r\nContent-Length: 0\r\n\r\n")


WAYS = ("online", "retry", "offline")
"""With the server there; its first answers fail; without it, and a sync at the end."""


def set_out(site: Site, way: str) -> None:
    """Let a site's points travel one of `WAYS`; `arrive` ends the journey."""
    site.mode = "offline" if way == "offline" else "online"
    if way == "retry":
        site.proxy.inject(Refusing(7), times=3)
    if way == "offline":
        site.proxy.refuse()


def arrive(site):
    """Whatever is still on the disk goes to the server now, twice: the second adds nothing."""
    site.deliver()
    assert site.deliver() == 0
