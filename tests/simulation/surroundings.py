"""While a simulation runs, every clock and every source of chance in this Python is its own.

The product reads clocks in many places and takes identities from `secrets`; aiohttp stamps its
answers and shuffles its pools. Replacing the sources themselves, rather than each reader, means
that whatever comes to read them later is simulated, too.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from aiohttp import web_app

import metrana_async.run
from metrana_async import waiting
from metrana_async.delivery import retry
from tests.simulation.machine import Scheduler

real_monotonic_s = time.monotonic
"""The machine's clock, for measuring the simulation itself."""


@contextmanager
def simulated(scheduler: Scheduler) -> Iterator[None]:
    """Let clocks and chance come from `scheduler` for the length of the block."""
    rng = random.Random(f"secrets {scheduler.seed}")

    def token_hex(nbytes: int = 32) -> str:
        return rng.randbytes(nbytes).hex()

    def time_ns() -> int:
        return int(scheduler.wall_s() * 1e6) * 1000

    replaced: list[tuple[Any, str, Any]] = [
        (time, "monotonic", lambda: scheduler.now_s),
        (time, "time", scheduler.wall_s),
        (time, "time_ns", time_ns),
        (metrana_async.run, "time_ns", time_ns),
        (secrets, "token_hex", token_hex),
        (secrets, "token_bytes", lambda nbytes=32: rng.randbytes(nbytes)),
        (secrets, "randbelow", rng.randrange),
        (secrets, "randbits", rng.getrandbits),
        (secrets, "choice", rng.choice),
        # The one thing that outlives a run in a process: when a call last gave way.
        (waiting, "_last_yield", SimpleNamespace(at_s=0.0)),
        # A generator without a seed would take one from the machine.
        (retry, "random", SimpleNamespace(Random=lambda: random.Random(rng.getrandbits(64)))),
    ]
    state = random.getstate()
    random.seed(f"module {scheduler.seed}")
    try:
        with ExitStack() as stack:
            for owner, name, value in replaced:
                stack.enter_context(patch.object(owner, name, value))
            yield
    finally:
        random.setstate(state)
        # aiohttp remembers handlers, and with them whole worlds.
        remembered = getattr(web_app, "_cached_build_middleware", None)
        if remembered is not None:
            remembered.cache_clear()
