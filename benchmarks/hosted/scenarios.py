"""The misfortunes: each is told once, and happens to either client in the same way.

A scenario runs a client in a process of its own, does something to it or to its disk, has what is
left delivered by a fresh process, and counts.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.hosted.gate import Gate
from benchmarks.hosted.points import Diary, good_steps
from benchmarks.hosted.servers import ROOT, Server

PATIENCE_S = 240.0
CLOSE_TIMEOUT_S = 10.0
_LIMIT_S = 60.0
_LOOK_S = 0.005
_TAIL_CHARS = 600


@dataclass(slots=True)
class Outcome:
    """What became of one run's points.

    Attributes:
        logged: points of calls that returned; one call may have been under way beyond.
        promised: points logged before a flush that returned without an error.
        stored: distinct points that can be read back with their own values.
        missing_promised: promised points that cannot.
        is_prefix: whether those stored are the first ones, without a hole.
        wrong: points stored with a value that was not logged.
        reported: points that the client said are lost, while writing or while delivering.
        said: everything it said, errors included.
        state: how the run ended, as its server has it.
        figures: seconds and rates, by name.
    """

    logged: int
    promised: int
    stored: int
    missing_promised: int
    is_prefix: bool
    wrong: int
    reported: int
    said: list[str]
    state: str
    figures: dict[str, list[float]] = field(default_factory=dict)

    @property
    def uncounted(self) -> int:
        """Points gone that nobody counted; negative = said lost, and there all the same."""
        return self.logged - self.stored - self.reported


@dataclass(slots=True)
class Bench:
    """One client with its server, and a run in a directory of its own.

    Attributes:
        client: the adapter's module.
        python: the interpreter of its environment.
        server: where it delivers to.
        directory: of this run.
        run: the run's name.
        chance: decides the moments and places of misfortunes.
        answers: what the client's processes answered, in order.
    """

    client: str
    python: Path
    server: Server
    directory: Path
    run: str
    chance: random.Random
    answers: list[dict[str, Any]] = field(default_factory=list)

    @property
    def diary(self) -> Diary:
        """How far the writer came."""
        return Diary(self.directory / "diary")

    @contextlib.contextmanager
    def process(self, task: str, **job: Any) -> Iterator[subprocess.Popen[str]]:
        """A process of the client's at a task; ended by its own end, or by whoever asks for it."""
        answer = f"answer-{len(self.answers)}"
        job |= {
            "client": self.client,
            "task": task,
            "run": self.run,
            "directory": str(self.directory),
            "answer": answer,
            "key": self.server.key,
            "close_timeout_s": CLOSE_TIMEOUT_S,
        }
        self.diary  # noqa: B018 - the file is made before anybody looks at it
        with (self.directory / f"{answer}.log").open("w") as log:
            child = subprocess.Popen(
                [self.python, "-m", "benchmarks.hosted.child", json.dumps(job)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env=self._environment(),
            )
            try:
                yield child
            finally:
                self._end(child)
        path = self.directory / answer
        said = json.loads(path.read_text()) if path.exists() else {"lost": 0, "said": ""}
        said["status"] = child.returncode
        said["log"] = (self.directory / f"{answer}.log").read_text()[-_TAIL_CHARS:]
        self.answers.append(said)

    def do(self, task: str, **job: Any) -> dict[str, Any]:
        """Have a task done to its end."""
        with self.process(task, **job) as child:
            child.communicate(timeout=PATIENCE_S)
        return self.answers[-1]

    def outcome(self, **figures: list[float]) -> Outcome:
        """Deliver what is left, and count."""
        self.do("deliver", url=self.server.url)
        diary = self.diary
        steps, wrong = good_steps(self.server.stored(self.run))
        there = int(np.count_nonzero(steps < diary.promised))
        return Outcome(
            logged=diary.logged,
            promised=diary.promised,
            stored=len(steps),
            missing_promised=diary.promised - there,
            is_prefix=len(steps) == 0 or int(steps[-1]) == len(steps) - 1,
            wrong=wrong,
            reported=sum(answer["lost"] for answer in self.answers),
            said=[text for answer in self.answers for text in _texts(answer)],
            state=self.server.state(self.run),
            figures=figures,
        )

    def _environment(self) -> dict[str, str]:
        """Nothing of the caller's but what finds programs; a home of the run's own."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TZ") if name in os.environ}
        return kept | {
            "HOME": str(self.directory),
            "METRANA_DATA_DIR": str(self.directory / "data"),
            "TMPDIR": str(self.directory),
        }

    @staticmethod
    def _end(child: subprocess.Popen[str]) -> None:
        if child.poll() is None:
            child.kill()
        child.wait(timeout=PATIENCE_S)
        for pipe in (child.stdin, child.stdout):
            if pipe is not None and not pipe.closed:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def _texts(answer: dict[str, Any]) -> list[str]:
    ended = f"exit status {answer['status']}" if answer["status"] else ""
    warned = [line.strip() for line in answer["log"].splitlines() if "lost" in line]
    return [text for text in (answer["said"], answer.get("error", ""), *warned, ended) if text]


# --- kill -9 --------------------------------------------------------------------------------------


def _killed(bench: Bench, *, pause_s: float, flush_at: int, after_s: float) -> Outcome:
    with bench.process("forever", pause_s=pause_s, flush_at=flush_at) as child:
        diary = bench.diary
        _wait(lambda: diary.promised > 0, child)
        begun_s, before = time.monotonic(), diary.logged
        # At any phase of what a client does once a second.
        time.sleep(after_s + bench.chance.random())
        child.send_signal(signal.SIGKILL)
        child.wait(timeout=PATIENCE_S)
        rate = (diary.logged - before) / (time.monotonic() - begun_s)
    return bench.outcome(rate=[rate])


def kill_paced(bench: Bench) -> Outcome:
    """Killed at 100 points a second."""
    return _killed(bench, pause_s=0.01, flush_at=100, after_s=2.0)


def kill_full_speed(bench: Bench) -> Outcome:
    """Killed while logging as fast as it can."""
    return _killed(bench, pause_s=0.0, flush_at=5_000, after_s=2.0)


# --- the disk -------------------------------------------------------------------------------------


def flip_byte(bench: Bench) -> Outcome:
    """One byte of the largest file of the spool is flipped, somewhere in its middle half."""
    bench.do("some", points=300, flush_every=50)
    files = [path for path in (bench.directory / "spool").rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[bench.chance.randrange(len(data) // 4, len(data) * 3 // 4)] ^= 1 << bench.chance.randrange(
        8
    )
    largest.write_bytes(data)
    return bench.outcome()


def cap_reached(bench: Bench) -> Outcome:
    """The spool may hold 1 MB; 4 MB of values that hardly compress are logged, then flush(5)."""
    answer = bench.do("arrays", points=1_000_000, array=1_000, max_bytes=1_000_000)
    return bench.outcome(close=[answer.get("close_s", float("nan"))])


def flush_latency(bench: Bench) -> Outcome:
    """A flush after every point, offline."""
    answer = bench.do("flushes", points=12)
    return bench.outcome(flush=answer["flush_s"], bare=answer["bare_s"])


# --- the end --------------------------------------------------------------------------------------


def exit_without_close(bench: Bench) -> Outcome:
    """200 points, then sys.exit."""
    bench.do("leave", points=200)
    return bench.outcome()


def _silenced(
    bench: Bench,
    url: str,
    *,
    silence: Callable[[], None],
    end: Callable[[], None],
    before: int = 0,
    after: int = 200,
    limit_s: float = PATIENCE_S,
) -> Outcome:
    try:
        with bench.process("silenced", url=url, points=before, points_more=after) as child:
            assert child.stdout is not None
            assert child.stdin is not None
            child.stdout.readline()
            silence()
            child.stdin.write("\n")
            child.stdin.flush()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.communicate(timeout=limit_s)
    finally:
        end()
    answer = bench.answers[-1]
    return bench.outcome(
        **{key: [answer[f"{key}_s"]] for key in ("log", "close") if f"{key}_s" in answer}
    )


def _muted(bench: Bench, *, after: int, limit_s: float = PATIENCE_S) -> Outcome:
    server = bench.server
    silence: Callable[[], None] = server.mute
    if server.admits_when_mute:
        # Muted before init: the first answer of the stream is not to come either.
        server.mute()
        silence = _nothing
    return _silenced(
        bench, server.url, after=after, silence=silence, end=server.speak, limit_s=limit_s
    )


def _nothing() -> None:
    """It happened before."""


def close_network_silent(bench: Bench) -> Outcome:
    """200 points are stored; then connections stay open and carry nothing; 200 more; close(10)."""
    gate = Gate(bench.server.url)
    return _silenced(bench, gate.url, before=200, silence=gate.deafen, end=gate.close)


def close_server_mute(bench: Bench) -> Outcome:
    """The server admits the writer and then answers nothing; 200 points; close(10)."""
    return _muted(bench, after=200)


def log_server_mute(bench: Bench) -> Outcome:
    """The same with 50,000 points as fast as they go; killed if not through after a minute."""
    return _muted(bench, after=50_000, limit_s=_LIMIT_S)


def _wait(fact: Callable[[], bool], child: subprocess.Popen[str]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not fact():
        if child.poll() is not None or time.monotonic() > deadline_s:
            raise RuntimeError(f"the writer did not get there (status {child.poll()})")
        time.sleep(_LOOK_S)


def happen(scenario: Callable[[Bench], Outcome], bench: Bench) -> Outcome:
    """Run a scenario in the bench's directory, made before and removed afterwards."""
    bench.directory.mkdir()
    try:
        return scenario(bench)
    finally:
        shutil.rmtree(bench.directory, ignore_errors=True)
