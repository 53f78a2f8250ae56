"""Find this user's server on this machine, start it, or stop it. Eight ranks at once start one.

The running server leaves a *card* (locations.MeetingPoint) in a private directory. A card is
believed only when it is this user's and the server behind it answers. Starting happens under a
file lock; whoever gets the lock second finds the card of the first. The server is its own session
with its streams in a log file, so it survives the program that started it and is not reached by
its Ctrl-C.

Releases meet here, too: a server of an older release is asked to finish and is replaced, one that
speaks a newer protocol is left alone and the caller is told.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from metrana_async import locations
from metrana_async.errors import InitError, MetranaError, NotFoundError, WaitTimeoutError
from metrana_async.orchestration import is_process_alive
from metrana_async.transport.base import ServerAddress
from metrana_async.versions import is_older, package_version
from metrana_async.wire.messages import PROTOCOL_VERSION

_HEALTH_TIMEOUT_S: Final = 2.0
_POLL_S: Final = 0.02
_LOCK_POLL_S: Final = 0.05
_STOP_TIMEOUT_S: Final = 30.0
_START_EVERY_S: Final = 3.0
_BESIDE_S: Final = 3.0
_PACKAGE_ROOT: Final = str(Path(__file__).absolute().parent.parent)

_logger = logging.getLogger("metrana_async")
_said: set[str] = set()
_started_s: dict[Path, float] = {}


@dataclass(frozen=True, slots=True)
class _Running:
    """A server that answered."""

    address: ServerAddress
    health: dict[str, Any]

    @property
    def protocol(self) -> int:
        found = self.health.get("protocol")
        return found if isinstance(found, int) else 0

    @property
    def is_of_older_release(self) -> bool:
        return self.protocol < PROTOCOL_VERSION or (
            self.protocol == PROTOCOL_VERSION
            and is_older(self.health.get("version"), package_version())
        )

    def check_not_newer(self) -> None:
        if self.protocol > PROTOCOL_VERSION:
            raise InitError(
                f"the local server (pid {self.health.get('pid')}) is of a newer release "
                f"({self.health.get('version') or 'unknown'}): it speaks protocol "
                f"{self.protocol}, this package {PROTOCOL_VERSION}",
                hint="upgrade metrana-async here, or use another store (data_dir=), or stop that "
                "server with `python -m metrana_async.server stop`",
            )


async def find(
    data_dir: str | None = None, *, timeout_s: float = _HEALTH_TIMEOUT_S
) -> ServerAddress | None:
    """The address of this user's running server for this store; None = none answers in time.

    Raises:
        InitError: the one that runs speaks another protocol.
    """
    running = await _look(locations.data_dir(data_dir), timeout_s)
    if running is None:
        return None
    running.check_not_newer()
    if running.protocol < PROTOCOL_VERSION:
        raise InitError(
            f"the local server (pid {running.health.get('pid')}) speaks protocol "
            f"{running.protocol}, this package {PROTOCOL_VERSION}",
            hint="the next init() replaces it",
        )
    return running.address


async def find_or_start(
    data_dir: str | None = None, *, timeout_s: float = 30.0, port: int = 0
) -> ServerAddress:
    """The address of this user's server for this store; starts it when there is none.

    One that has to be started listens on `port`; with 0, where the last one of this store did, or
    on any that is free.

    A server of an older release is asked to finish what it has begun, and is followed by one of
    this release. Of the servers this process starts for one store, two are at least
    `_START_EVERY_S` apart. Cancel-safe.

    Raises:
        InitError: it cannot be started, does not answer in time, or is of a newer release; the
            message ends with the last lines of its log.
    """
    deadline_s = time.monotonic() + timeout_s
    data = locations.data_dir(data_dir)
    _say_once(locations.why_elsewhere(data_dir))
    running = await _fit(data, deadline_s)
    if running is not None:
        return running
    locations.make_private(data)
    point = locations.meeting_point(data)
    locations.make_private(point.directory)
    with _StartLock(point.lock) as lock:
        while True:
            found = await _fit(data, deadline_s)
            if found is not None:
                return found
            if lock.is_taken():
                break
            if time.monotonic() > deadline_s:
                raise InitError(f"another process holds {point.lock} and starts no server")
            # Polled rather than waited for: the loop thread must not block in flock().
            await asyncio.sleep(_LOCK_POLL_S)
        await _start(data, point, deadline_s, port)
        while time.monotonic() < deadline_s:
            found = await _fit(data, deadline_s)
            if found is not None:
                return found
            await asyncio.sleep(_POLL_S)
    raise InitError(
        f"the local server did not answer within {timeout_s:g} s", hint=_log_tail(point.log)
    )


async def stop(data_dir: str | None = None, *, timeout_s: float = _STOP_TIMEOUT_S) -> bool:
    """Let this user's server for this store finish what it has begun, and wait until it is gone.

    Also one of another release. Nothing is lost: writers keep what is not acknowledged, and bring
    the server back when they have something to send. Cancel-safe.

    Returns:
        Whether there was one.

    Raises:
        InitError: it is too old to be asked.
        WaitTimeoutError: it has not ended after `timeout_s`.
    """
    deadline_s = time.monotonic() + timeout_s
    data = locations.data_dir(data_dir)
    running = await _look(data, min(_HEALTH_TIMEOUT_S, timeout_s))
    if running is None:
        return False
    await _ask_to_stop(running, timeout_s)
    process = running.health.get("process")
    while time.monotonic() < deadline_s:
        is_alive = is_process_alive(process) if isinstance(process, dict) else None
        if is_alive is False:
            return True
        # Its process cannot be seen from here (another container): it is gone when nobody answers.
        if is_alive is None and await _look(data, _HEALTH_TIMEOUT_S) is None:
            return True
        await asyncio.sleep(_POLL_S)
    raise WaitTimeoutError(
        f"the local server (pid {running.health.get('pid')}) has not ended after {timeout_s:g} s"
    )


async def _fit(data: Path, deadline_s: float) -> ServerAddress | None:
    """The running server's address, if this release can use it; asks an older one to make room."""
    # A server that hangs must not use up the time in which another could be started.
    left_s = max(0.0, deadline_s - time.monotonic())
    running = await _look(data, min(_HEALTH_TIMEOUT_S, left_s / 2))
    if running is None:
        return None
    running.check_not_newer()
    if not running.is_of_older_release:
        return running.address
    _logger.info("the local server is of release %s; replaced", running.health.get("version"))
    await _ask_to_stop(running, max(left_s, _POLL_S))
    return None


async def _ask_to_stop(running: _Running, timeout_s: float) -> None:
    try:
        await _post(running.address, "/server/stop", min(timeout_s, _HEALTH_TIMEOUT_S))
    except NotFoundError as error:
        raise InitError(
            f"the local server (pid {running.health.get('pid')}) is too old to be asked to stop",
            hint="end that process; the next init() starts the right one",
        ) from error
    except MetranaError:
        return  # it is going already


async def _look(data: Path, timeout_s: float) -> _Running | None:
    """The server that a card of this user leads to, and that answers."""
    point = locations.meeting_point(data)
    for path in (point.card, point.card_beside):
        card = _read_card(path)
        if card is None:
            continue
        address = ServerAddress(card["url"], card.get("socket"), card.get("token"))
        health = await _health(address, timeout_s)
        if health is not None:
            return _Running(address, health)
    return None


def _read_card(path: Path) -> dict[str, str] | None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            # Whoever can put a card there could have our points sent to him.
            if os.fstat(file).st_uid != os.geteuid():
                return None
            card = orjson.loads(os.read(file, 1 << 16))
        finally:
            os.close(file)
    except (OSError, orjson.JSONDecodeError):
        return None
    return card if isinstance(card, dict) and isinstance(card.get("url"), str) else None


async def _health(address: ServerAddress, timeout_s: float) -> dict[str, Any] | None:
    try:
        answer = orjson.loads(await _post(address, "/health", timeout_s))
    except (MetranaError, orjson.JSONDecodeError):
        return None
    return answer if isinstance(answer, dict) else None


async def _post(address: ServerAddress, path: str, timeout_s: float) -> bytes:
    from metrana_async.transport.http import HttpTransport

    transport = HttpTransport(address)
    try:
        return await transport.post(path, b"", timeout_s=timeout_s)
    finally:
        await transport.close()


class _StartLock:
    """The right to start a server; given back at the end of the block, or of the process."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> _StartLock:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def is_taken(self) -> bool:
        """Try to take it; whether it is ours now."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


async def _start(data: Path, point: locations.MeetingPoint, deadline_s: float, port: int) -> None:
    """Start a server, and wait until it says that it serves."""
    pause_s = _started_s.get(data, -_START_EVERY_S) + _START_EVERY_S - time.monotonic()
    if pause_s > 0:
        # One that ends as soon as it is started must not be started without end.
        await asyncio.sleep(min(pause_s, max(0.0, deadline_s - time.monotonic())))
    while time.monotonic() < deadline_s:
        leaving = await _look(data, _HEALTH_TIMEOUT_S)
        if leaving is None or not leaving.is_of_older_release:
            break
        await asyncio.sleep(_POLL_S)
    _started_s[data] = time.monotonic()
    with _starter(data, point.log, port) as process:
        while process.poll() is None:
            if time.monotonic() > deadline_s:
                raise InitError("the local server did not start in time", hint=_log_tail(point.log))
            await asyncio.sleep(_POLL_S)
    if process.returncode == 0:
        return
    # Another environment's lock is not ours: somebody may have started one for the same store.
    until_s = min(deadline_s, time.monotonic() + _BESIDE_S)
    while time.monotonic() < until_s and point.card_beside.exists():
        if await _look(data, _HEALTH_TIMEOUT_S) is not None:
            return
        await asyncio.sleep(_LOCK_POLL_S)
    raise InitError(f"the local server ended with {process.returncode}", hint=_log_tail(point.log))


@contextmanager
def _starter(data: Path, log: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    # The package must be found by the child wherever this process took it from.
    paths = [_PACKAGE_ROOT, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
    command = [sys.executable, "-m", "metrana_async.server", "--detach", "--data-dir", str(data)]
    command += ["--port", str(port)] if port else []
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        # Starting takes a few milliseconds; the waiting for it is what is async.
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
            env=environment,
        )
    except OSError as error:
        raise InitError(f"cannot start the local server: {error}") from error
    finally:
        os.close(output)
    try:
        yield process
    finally:
        # It ends by itself once its child serves; waiting for it leaves no zombie behind.
        if process.poll() is None:
            process.kill()
            process.wait()


def _say_once(text: str | None) -> None:
    if text is not None and text not in _said:
        _said.add(text)
        _logger.warning("%s", text)


def _log_tail(log: Path, lines: int = 5) -> str:
    try:
        tail = log.read_text("utf-8", "replace").splitlines()[-lines:]
    except OSError:
        tail = []
    return f"its log {log} ends: " + " | ".join(tail) if tail else f"its log {log} is empty"
