"""Runs worked cases: letters are processes, the server is a process, reading is the public client.

The letters of a case run one after another, call by call, as the case is written.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import metrana_async
from metrana_async import locations
from metrana_async.errors import MetranaError, MetranaWarning
from metrana_async.testing import MemoryServer
from metrana_async.transport.base import ServerAddress, Transport
from metrana_async.transport.http import HttpTransport
from metrana_async.wire.messages import FRAMES_TYPE, LeaveRequest, encode_message
from metrana_sync_shim import QueryClient, replay_spool
from tests.conformance.actor import JOB_VARIABLES, Actor
from tests.conformance.cases import Case, words_to_floats

_ROOT = Path(__file__).parent.parent.parent
_ANSWER_S = 60.0


class CaseFailed(AssertionError):
    """A case did not come out as expected; the text says where."""


class ActorProcess:
    """A letter in a process of its own (reused by later cases unless it was killed)."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.conformance.actor"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=_ROOT,
            text=True,
        )

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send one message and wait for its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise CaseFailed(f"the process died with status {self._process.wait()}")
        return json.loads(line)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.send_signal(signal.SIGKILL)
        self._finish()

    def end(self) -> None:
        """Let it run out."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._finish()

    def _finish(self) -> None:
        self._process.wait(timeout=_ANSWER_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()


class InProcessActor:
    """A letter in this process: an engine writer and an environment of its own."""

    def __init__(self, connect: Callable[[], Transport]) -> None:
        self._actor = Actor(connect)
        self._environment: dict[str, str] = {}

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Do it with this letter's job variables in place of the process's."""
        others = {name: os.environ.pop(name) for name in JOB_VARIABLES if name in os.environ}
        os.environ.update(self._environment)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", MetranaWarning)
                return self._actor.answer(message)
        finally:
            names = [name for name in JOB_VARIABLES if name in os.environ]
            self._environment = {name: os.environ.pop(name) for name in names}
            os.environ.update(others)

    def kill(self) -> None:
        """Not to be had in a process that goes on."""
        raise CaseFailed("a letter in this process cannot be killed")

    def end(self) -> None:
        """Nothing to do."""


class ServerProcess:
    """A real server process on a directory of its own; `more` are further arguments."""

    def __init__(self, data_dir: Path, store: str = "sqlite", *more: str) -> None:
        self.data_dir = data_dir
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "metrana_async.server",
                "--data-dir",
                str(data_dir),
                "--store",
                store,
                *more,
            ],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
        )
        assert self._process.stderr is not None
        line = self._process.stderr.readline()
        if not line.startswith("metrana server"):
            raise CaseFailed(f"the server did not start: {line}{self._process.stderr.read()}")
        card = json.loads(locations.meeting_point(locations.data_dir(data_dir)).card.read_text())
        self.address = ServerAddress(card["url"], card["socket"], card["token"])
        self.pid = self._process.pid

    def stop(self, number: int = signal.SIGTERM) -> str:
        """End it and return what it wrote to stderr after its first line."""
        self._process.send_signal(number)
        assert self._process.stderr is not None
        rest = self._process.stderr.read()
        self._process.stderr.close()
        self._process.wait(timeout=_ANSWER_S)
        return rest


@dataclass
class _Running:
    case: Case
    project: str
    actors: dict[str, ActorProcess | InProcessActor] = field(default_factory=dict)
    notices: dict[str, list[str]] = field(default_factory=dict)
    late: list[dict[str, Any]] = field(default_factory=list)
    run_name: str = "run"


class Runner:
    """Runs cases against one server; use as a context manager.

    `store` "sqlite" and "memory" are server processes and letters are processes; "in-process" is
    the memory store with letters in this process, for cases in which nobody is killed.
    `offline` has every letter log without a server, and delivers it all at the end.
    """

    def __init__(self, *, store: str = "sqlite", late: bool = False, offline: bool = False) -> None:
        self.store = store
        self.late = late
        self.offline = offline
        self._directory = tempfile.TemporaryDirectory(prefix="metrana-conformance-")
        self.data_dir = Path(self._directory.name) / "data"
        self._idle: list[ActorProcess | InProcessActor] = []
        self._number = 0
        self.late_requests = 0
        """Requests of killed processes that were delivered after their successors'."""
        if store == "in-process":
            self.server: ServerProcess | MemoryServer = MemoryServer()
            self.server.start()
            self._connect: Callable[[], Transport] = self.server.transport
            self.reader = QueryClient(workspace="conformance", transport=self._connect())
        else:
            self.server = ServerProcess(self.data_dir, store)
            address = self.server.address
            self._connect = lambda: HttpTransport(address)
            self.reader = QueryClient(workspace="conformance", address=address)

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        for actor in self._idle:
            actor.end()
        self.reader.close()
        self.server.stop()
        self._directory.cleanup()

    def run(self, case: Case, *, arrays: bool = False) -> None:
        """Run one case; CaseFailed says what came out otherwise."""
        self._number += 1
        running = _Running(case, project=f"{case.id}-{self._number}")
        try:
            for call in case.calls:
                self._call(running, call, arrays=arrays)
            for letter, actor in running.actors.items():
                running.notices[letter] = actor.ask({"do": "notices"})["returned"]
            self._deliver_late(running)
            if self.offline:
                self._sync(running)
            is_late = bool(running.late) or (self.offline and len(case.processes()) > 1)
            reading = Reading(self.reader, running.project, is_late=is_late, case=case)
            for expectation in case.expect:
                if expectation["read"] == "warnings":
                    if self.offline:
                        continue  # what the server has to say about it, it says to nobody
                    kinds = running.notices.get(expectation["process"], [])
                    is_given = expectation["kind"] in kinds
                    _check(
                        is_given == expectation.get("given", True), f"{expectation}: got {kinds}"
                    )
                else:
                    reading.check(expectation)
            reading.check_balance()
        finally:
            self._idle.extend(running.actors.values())

    def _actor(
        self, running: _Running, letter: str, *, arrays: bool
    ) -> ActorProcess | InProcessActor:
        if letter not in running.actors:
            actor = self._idle.pop() if self._idle else self._new_actor()
            running.actors[letter] = actor
            actor.ask(
                {
                    "do": "start",
                    "project": running.project,
                    "data_dir": str(self.data_dir),
                    "arrays": arrays,
                    "hold": self.late and letter in running.case.killed(),
                    **({"spool": self._spool(running)} if self.offline else {}),
                }
            )
        return running.actors[letter]

    def _new_actor(self) -> ActorProcess | InProcessActor:
        return InProcessActor(self._connect) if self.store == "in-process" else ActorProcess()

    def _call(self, running: _Running, call: dict[str, Any], *, arrays: bool) -> None:
        letter = call["process"]
        actor = self._actor(running, letter, arrays=arrays)
        answer = actor.ask({"do": "call", "call": call})
        where = f"{letter}.{call['fn']}({call['args']})"
        if "raises" in call:
            raised = answer.get("raised")
            _check(raised is not None, f"{where} raised nothing")
            _check(
                bool({*call["raises"]} & {*raised}), f"{where} raised {raised[0]}: {answer['text']}"
            )
            return
        _check(
            "raised" not in answer,
            f"{where} raised {answer.get('raised', [''])[0]}: {answer.get('text')}",
        )
        if "returns" in call:
            _check(answer["returned"] == call["returns"], f"{where} returned {answer['returned']}")
        if call["fn"] == "kill":
            running.actors.pop(letter).kill()
            if answer["returned"]["held"]:
                running.late.append(answer["returned"])

    def _spool(self, running: _Running) -> str:
        return str(self.data_dir.parent / "spools" / running.project)

    def _sync(self, running: _Running) -> None:
        """Deliver what every letter left; delivering it again finds nothing."""
        for letter, actor in running.actors.items():
            answer = actor.ask({"do": "leave"})
            _check("raised" not in answer, f"{letter} cannot leave: {answer}")
        spool, data_dir = self._spool(running), self.data_dir
        if not Path(spool).exists():
            _check(not _has_logged(running.case), "nothing was on the disk")
            return
        reports = replay_spool(spool, data_dir=data_dir, timeout_secs=_ANSWER_S)
        left = [report for report in reports if report.state != "delivered"]
        _check(not left, f"was not delivered: {left}")
        _check(bool(reports), "nothing was on the disk")
        _check(not replay_spool(spool, data_dir=data_dir), "something was left")

    def _deliver_late(self, running: _Running) -> None:
        """What a killed process left is delivered under its own identity, as an adopter does."""

        async def deliver() -> None:
            transport = self._connect()
            for left in running.late:
                leave = LeaveRequest(left["run_uid"], left["writer_id"], is_dead=True)
                await transport.post("/writers/leave", encode_message(leave), timeout_s=30)
                for held in left["held"]:
                    self.late_requests += 1
                    body = base64.b64decode(held)
                    await transport.post("/ingest", body, timeout_s=30, content_type=FRAMES_TYPE)
            await transport.close()

        asyncio.run(deliver())


class Reading:
    """Checks expectations through the public reader."""

    def __init__(self, reader: QueryClient, project: str, *, is_late: bool, case: Case) -> None:
        self._reader = reader
        self._project = project
        self._is_late = is_late
        self._case = case

    def check(self, expectation: dict[str, Any]) -> None:
        """Check one expectation other than `warnings`."""
        try:
            getattr(self, f"_{expectation['read']}")(expectation)
        except MetranaError as error:
            raise CaseFailed(f"{expectation}: {type(error).__name__}: {error}") from error

    def _columns(
        self, expectation: dict[str, Any], method: str, names: tuple[str, ...], **more: Any
    ) -> list[list[Any]]:
        read = getattr(self._reader, method)
        labels = expectation.get("labels")
        try:
            table = read("run", expectation["metric"], labels=labels, project=self._project, **more)
        except metrana_async.NotFoundError:
            return []
        return [list(row) for row in zip(*(getattr(table, n).tolist() for n in names), strict=True)]

    def _compare(self, expectation: dict[str, Any], found: list[list[Any]]) -> None:
        wanted = [words_to_floats(point) for point in expectation["points"]]
        if self._is_late and self._numbers_settled_at_arrival(expectation):
            if self._is_explicit(expectation):
                found, wanted = [p[:1] for p in found], [p[:1] for p in wanted]
            else:
                found, wanted = sorted(p[-1:] for p in found), sorted(p[-1:] for p in wanted)
        same = len(found) == len(wanted) and all(
            len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
            for a, b in zip(found, wanted, strict=True)
        )
        _check(same, f"{expectation} came out as {found}")

    def check_balance(self) -> None:
        """Nothing is on its way: the server's ledger of the run must balance."""
        try:
            ledger = self._reader.ledger("run", project=self._project)
        except metrana_async.NotFoundError:
            return
        _check(ledger.difference == 0, f"the server's ledger does not balance: {ledger}")

    def _ledger(self, expectation: dict[str, Any]) -> None:
        """Counts by name; which of them a point ends in is another matter when it comes late."""
        if self._is_late:
            return
        ledger = self._reader.ledger("run", project=self._project)
        for name, wanted in expectation.items():
            if name != "read":
                found = getattr(ledger, name)
                _check(found == wanted, f"ledger.{name} is {found}, not {wanted}: {ledger}")

    def _calls_on(self, expectation: dict[str, Any]) -> list[dict[str, Any]]:
        names = ("log", "log_rl_episode", "log_rl_environment_step")
        calls = [c for c in self._case.calls if c["fn"] in names]
        return [c for c in calls if c["args"].get("metric_name") == expectation["metric"]]

    def _numbers_settled_at_arrival(self, expectation: dict[str, Any]) -> bool:
        """Automatic numbers, and explicit env steps already taken, go by first arrival."""
        return self._is_explicit(expectation) or any(
            all(c["args"].get(name) is None for name in _numbers_of(c["fn"]))
            for c in self._calls_on(expectation)
        )

    def _is_explicit(self, expectation: dict[str, Any]) -> bool:
        return any("env_step" in c["args"] for c in self._calls_on(expectation))

    def _series(self, expectation: dict[str, Any]) -> None:
        scale = expectation.get("scale", "ML_STEP")
        names = tuple(expectation.get("columns", ("step", "value")))
        self._compare(expectation, self._columns(expectation, "series", names, scale=scale))

    def _env_series(self, expectation: dict[str, Any]) -> None:
        more = {"env_id": expectation["env_id"], "episode": expectation.get("episode")}
        names = tuple(expectation.get("columns", ("env_step", "value")))
        self._compare(expectation, self._columns(expectation, "env_series", names, **more))

    def _episode_series(self, expectation: dict[str, Any]) -> None:
        names = ("episode", "rl_step", "value")
        more = {"env_id": expectation["env_id"]}
        self._compare(expectation, self._columns(expectation, "episode_series", names, **more))

    def _merged(self, expectation: dict[str, Any]) -> None:
        points = expectation["points"]
        names = ("step", "min", "max", "first", "last", "count")
        names = tuple(name for name in names if not points or name in points[0])
        scale = expectation.get("scale", "ML_STEP")
        found = self._columns(expectation, "merged", names, scale=scale)
        wanted = [[point[name] for name in names] for point in points]
        _check(found == wanted, f"{expectation} came out as {found}")

    def _aggregate(self, expectation: dict[str, Any]) -> None:
        names = ("scale", "labels", "env_id", "episode")
        more = {name: expectation[name] for name in names if name in expectation}
        if more.get("env_id") is not None:
            more.pop("scale", None)
        try:
            value = self._reader.aggregate(
                "run", expectation["metric"], expectation["function"], project=self._project, **more
            )
        except MetranaError as error:
            words = expectation.get("raises_mentioning")
            _check(words is not None, f"{expectation} raised {error}")
            _check(all(word in str(error) for word in words), f"{expectation}: {error}")
            return
        _check("raises_mentioning" not in expectation, f"{expectation} gave {value}")
        _check(_equal(value, words_to_floats(expectation["value"])), f"{expectation} gave {value}")

    def _run(self, expectation: dict[str, Any]) -> None:
        run = self._reader.run("run", project=self._project)
        for name, wanted in expectation.items():
            if name != "read":
                found = getattr(run, name)
                found = list(found) if isinstance(found, tuple) else found
                _check(found == wanted, f"run.{name} is {found!r}, not {wanted!r}")


def _has_logged(case: Case) -> bool:
    return any(call["fn"].startswith("log") and "raises" not in call for call in case.calls)


def _numbers_of(function: str) -> tuple[str, ...]:
    """Arguments that number a point of this function; without them the server does."""
    return ("episode",) if function == "log_rl_episode" else ("step", "env_step")


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    return bool(a == b)


def _check(condition: bool, text: str) -> None:
    if not condition:
        raise CaseFailed(text)


def summary(outcomes: dict[str, str]) -> str:
    """One closing line: how many passed and failed."""
    counts = Counter("failed" if text else "passed" for text in outcomes.values())
    return f"{counts['passed']} passed, {counts['failed']} failed"
