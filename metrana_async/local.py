"""Find this user's server on this machine, or start it. Eight ranks at once start exactly one.

The running server leaves a *card* (locations.MeetingPoint) in a private directory. A card is
believed only when the server behind it answers. Starting happens under a file lock; whoever gets
the lock second finds the card of the first. The server is its own session with its streams in a
log file, so it survives the program that started it and is not reached by its Ctrl-C.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import orjson

from metrana_async import locations
from metrana_async.errors import InitError, MetranaError
from metrana_async.transport.base import ServerAddress
from metrana_async.wire.messages import PROTOCOL_VERSION

_HEALTH_TIMEOUT_S: Final = 2.0
_POLL_S: Final = 0.02
_PACKAGE_ROOT: Final = str(Path(__file__).absolute().parent.parent)


async def find(
    data_dir: str | None = None, *, timeout_s: float = _HEALTH_TIMEOUT_S
) -> ServerAddress | None:
    """The address of this user's running server for this store; None = none answers in time."""
    point = locations.meeting_point(locations.data_dir(data_dir))
    card = _read_card(point.card)
    if card is None:
        return None
    address = ServerAddress(card["url"], card.get("socket"), card.get("token"))
    health = await _health(address, timeout_s)
    if health is None:
        return None
    if health.get("protocol") != PROTOCOL_VERSION:
        raise InitError(
            f"the local server (pid {health.get('pid')}) speaks protocol "
            f"{health.get('protocol')}, this package {PROTOCOL_VERSION}",
            hint="stop that server; the next init() starts the right one",
        )
    return address


async def find_or_start(data_dir: str | None = None, *, timeout_s: float = 30.0) -> ServerAddress:
    """The address of this user's server for this store; starts it when there is none.

    Raises:
        InitError: it cannot be started, or does not answer in time; the message ends with the
            last lines of its log.
    """
    deadline_s = time.monotonic() + timeout_s
    found = await _find_until(deadline_s, data_dir)
    if found is not None:
        return found
    data = locations.data_dir(data_dir)
    locations.make_private(data)
    point = locations.meeting_point(data)
    locations.make_private(point.directory)
    async with _start_lock(point.lock, deadline_s):
        found = await _find_until(deadline_s, data_dir)
        if found is not None:
            return found
        await _spawn(data, point.log, deadline_s)
        while time.monotonic() < deadline_s:
            found = await _find_until(deadline_s, data_dir)
            if found is not None:
                return found
            await asyncio.sleep(_POLL_S)
    raise InitError(
        f"the local server did not answer within {timeout_s:g} s", hint=_log_tail(point.log)
    )


async def _find_until(deadline_s: float, data_dir: str | None) -> ServerAddress | None:
    # A server that hangs must not use up the time in which another could be started.
    left_s = max(0.0, deadline_s - time.monotonic())
    return await find(data_dir, timeout_s=min(_HEALTH_TIMEOUT_S, left_s / 2))


def _read_card(path: Path) -> dict[str, str] | None:
    try:
        card = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    return card if isinstance(card, dict) and isinstance(card.get("url"), str) else None


async def _health(address: ServerAddress, timeout_s: float) -> dict[str, object] | None:
    from metrana_async.transport.http import HttpTransport

    transport = HttpTransport(address)
    try:
        answer = orjson.loads(await transport.post("/health", b"", timeout_s=timeout_s))
    except (MetranaError, orjson.JSONDecodeError):
        return None
    finally:
        await transport.close()
    return answer if isinstance(answer, dict) else None


@asynccontextmanager
async def _start_lock(path: Path, deadline_s: float) -> AsyncIterator[None]:
    # Polled rather than waited for: the loop thread must not block in flock().
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise InitError(f"another process holds {path} and starts no server") from None
                await asyncio.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)


async def _spawn(data: Path, log: Path, deadline_s: float) -> None:
    # The package must be found by the child wherever this process took it from.
    paths = [_PACKAGE_ROOT, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
    command = [sys.executable, "-m", "metrana_async.server", "--detach", "--data-dir", str(data)]
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        # Starting takes a few milliseconds, once per machine; the waiting below is what is async.
        starter = subprocess.Popen(  # noqa: ASYNC220, S603 - our own interpreter and module
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
    # `--detach` forks and returns at once; waiting for it leaves no zombie behind.
    while starter.poll() is None:
        if time.monotonic() > deadline_s:
            starter.kill()
            starter.wait()
            raise InitError("the local server did not start in time", hint=_log_tail(log))
        await asyncio.sleep(_POLL_S)
    if starter.returncode != 0:
        raise InitError(f"the local server ended with {starter.returncode}", hint=_log_tail(log))


def _log_tail(log: Path, lines: int = 5) -> str:
    try:
        tail = log.read_text("utf-8", "replace").splitlines()[-lines:]
    except OSError:
        tail = []
    return f"its log {log} ends: " + " | ".join(tail) if tail else f"its log {log} is empty"
