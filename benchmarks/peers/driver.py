"""Runs a peer's children: one for most workloads, four at once, or a writer and then a reader."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.roster import ROOT, Peer, Server, server_of
from benchmarks.peers.workloads import READ, READY, WORKLOADS
from benchmarks.processes import cpu_of, disk_bytes, memory_mb

Answer = dict[str, Any]
READ_POINTS = 1_000_000
_PATIENCE_S = 180.0
_ERROR = re.compile(r"[\w.]*(Error|Exception)\b")


class PeerFailed(Exception):
    """A child of a peer ended without an answer; the text says how."""


@dataclass(frozen=True)
class Effort:
    """How much of each workload."""

    scale: float = 1.0
    """Share of the calls."""
    limit_s: float = 2.0
    """Of one loop, for peers that are slow."""


def measure(peer: Peer, workload: str, effort: Effort, parent: Path | None = None) -> Answer:
    """Every figure of one peer and workload.

    Raises:
        PeerFailed: it could not be done.
    """
    if not peer.python().exists():
        raise PeerFailed("is not installed: `make bench-peers` does that")
    with tempfile.TemporaryDirectory(prefix="peers-", dir=parent) as name:
        directory = Path(name)
        job = {
            "adapter": peer.adapter,
            "workload": workload,
            "directory": name,
            "scale": effort.scale,
            "limit_s": effort.limit_s,
        }
        with server_of(peer, directory) as server:
            if workload == READ:
                return _read(peer, server, job | {"run": "run"}, effort)
            count = WORKLOADS[workload].processes
            jobs = [job | {"task": "log", "run": f"run-{number}"} for number in range(count)]
            answer = _together(_run(peer, server, jobs))
        # Behind the server's end: by then it has put everything where it stays.
        answer["bytes"] = disk_bytes(directory)
    return answer


def _read(peer: Peer, server: Server, job: Answer, effort: Effort) -> Answer:
    points = int(READ_POINTS * effort.scale)
    # Reading is what is measured: slow writers get more time here, and still write fewer points.
    filling = {"task": "fill", "points": points, "limit_s": 5 * effort.limit_s}
    (filled,) = _run(peer, server, [job | filling])
    (answer,) = _run(peer, server, [job | {"task": "read"}])
    if answer["points"] != filled["points"]:
        raise PeerFailed(f"{filled['points']} points written, {answer['points']} read")
    return answer


def _run(peer: Peer, server: Server, jobs: list[Answer]) -> list[Answer]:
    """Start them, let them go at once when all are ready, and collect their answers."""
    directory = Path(jobs[0]["directory"])
    paths = [directory / f"answer-{job['task']}-{number}" for number, job in enumerate(jobs)]
    with ExitStack() as ends:
        children = []
        for job, path in zip(jobs, paths, strict=True):
            child = _start(peer, job | {"answer": str(path), "server": server.store})
            children.append(ends.enter_context(child))
            ends.callback(_kill, child)
        for child in children:
            _await_ready(child)
        cpu_s = sum(map(cpu_of, server.pids))
        for child in children:
            _go(child)
        said = [_end(child) for child in children]
    cpu_s = sum(map(cpu_of, server.pids)) - cpu_s
    answers = []
    for path, text in zip(paths, said, strict=True):
        if not path.exists():
            raise PeerFailed(text)
        answers.append(json.loads(path.read_text()))
        path.unlink()
    answers[0]["cpu_s"] = answers[0].get("cpu_s", 0.0) + cpu_s
    served = sum(memory_mb(pid, "VmHWM") for pid in server.pids)
    answers[0]["memory_mb"] = answers[0].get("memory_mb", 0.0) + served
    return answers


def _start(peer: Peer, job: Answer) -> subprocess.Popen[str]:
    # A home of its own: no credentials or settings of the user, and nothing left behind there.
    directory = job["directory"]
    kept = ("PATH", "LANG", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment |= {"HOME": directory, "DO_NOT_TRACK": "1"}
    environment |= {n: v.format(directory=directory) for n, v in peer.variables.items()}
    return subprocess.Popen(
        [peer.python(), "-W", "ignore", "-m", "benchmarks.peers.child", json.dumps(job)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env=environment,
        start_new_session=True,
    )


def _kill(child: subprocess.Popen[str]) -> None:
    """End it and the helpers that it started, those that outlive it too."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _await_ready(child: subprocess.Popen[str]) -> None:
    """Return when it has opened its run; raise when it ends or hangs before that."""
    assert child.stdout is not None
    hang = threading.Timer(_PATIENCE_S, child.kill)
    hang.start()
    printed = []
    # A peer may print what it likes before it is ready.
    while (line := child.stdout.readline()) and not line.endswith(READY):
        printed.append(line)
    hang.cancel()
    if not line:
        raise PeerFailed(_last(printed))


def _go(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("go\n")
    child.stdin.flush()


def _end(child: subprocess.Popen[str]) -> str:
    """Wait for the end; what it had to say."""
    try:
        text, _ = child.communicate(timeout=_PATIENCE_S)
    except subprocess.TimeoutExpired:
        return f"was not done after {_PATIENCE_S:.0f} s"
    return _last(text.splitlines())


def _last(lines: list[str]) -> str:
    """The error that ended it, without the traceback; else its last words."""
    said = [line.strip() for line in lines if line.strip()]
    errors = [line for line in said if _ERROR.match(line)]
    return (errors or said or ["ended without a word"])[-1]


def _together(answers: list[Answer]) -> Answer:
    """One answer of several processes: sums, means, and of tails the worst."""
    if len(answers) == 1:
        return answers[0]
    merged: Answer = {}
    for name in answers[0]:
        figures = [answer[name] for answer in answers]
        if name in ("calls", "points", "cpu_s", "memory_mb"):
            merged[name] = sum(figures)
        elif name in ("p99_us", "max_us", "durable_s", "close_s"):
            merged[name] = max(figures)
        else:
            merged[name] = sum(figures) / len(figures)
    return merged
