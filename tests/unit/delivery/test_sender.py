"""Facts about retrying and sending."""

from __future__ import annotations

import asyncio
import random

import pytest

from metrana_async.delivery import retry
from metrana_async.delivery.batcher import Batcher
from metrana_async.delivery.outbox import Outbox
from metrana_async.delivery.retry import Backoff
from metrana_async.delivery.sender import Sender
from metrana_async.engine.clock import SystemClock
from metrana_async.errors import (
    ConnectError,
    RateLimitedError,
    TransportError,
    UnavailableError,
)
from metrana_async.statistics import Ledger
from metrana_async.transport.base import ServerAddress
from metrana_async.transport.http import HttpTransport


def test_delays_grow_and_are_capped():
    """Every delay lies within the jitter's ceiling, which doubles up to its maximum."""
    backoff = Backoff(random.Random(1))
    ceilings = [min(retry.DELAY_MAX_S, retry.BASE_S * 2.0**n) for n in range(40)]
    delays = [backoff.delay_s(ConnectError("x")) for _ in ceilings]
    assert all(0 <= d <= c for d, c in zip(delays, ceilings, strict=True))
    assert max(delays) > 10


def test_a_cut_after_a_success_is_retried_at_once_but_only_once():
    """The first cut is most likely a stale connection; the second is an outage."""
    backoff = Backoff(random.Random(1))
    assert backoff.delay_s(TransportError("cut")) == 0.0
    assert backoff.delay_s(TransportError("cut")) > 0.0
    backoff.succeeded()
    assert backoff.delay_s(TransportError("cut")) == 0.0
    backoff.succeeded()
    assert backoff.delay_s(UnavailableError("503")) > 0.0


@pytest.mark.parametrize(("asked", "expected"), [(7.0, 7.0), (1e9, 300.0), (-5.0, 0.0)])
def test_the_servers_wish_is_honoured_and_capped(asked, expected):
    """Retry-After beats our schedule, within reason."""
    assert Backoff().delay_s(RateLimitedError("slow down", retry_after_s=asked)) == expected


def test_a_week_of_failures_does_not_overflow():
    """The exponent is bounded before it is raised."""
    backoff = Backoff(random.Random(1))
    backoff.failures_count = 100_000
    assert backoff.delay_s(ConnectError("x")) <= retry.DELAY_MAX_S


@pytest.mark.asyncio
async def test_a_hurry_cuts_a_pause_short():
    """Somebody who waits ends the current back-off."""

    async def nothing() -> None: ...

    ledger = Ledger()
    batcher = Batcher("a" * 32, "b" * 32, series_of=None, env_of=str)
    outbox = Outbox(batcher, batcher, ledger, run_uid="a" * 32, writer_id="b" * 32)
    sender = Sender(
        HttpTransport(ServerAddress("http://127.0.0.1:1")),
        outbox,
        ledger,
        clock=SystemClock(),
        on_reply=lambda reply: None,
        on_trouble=lambda error: None,
        reopen=nothing,
        renew=nothing,
    )
    pause = asyncio.ensure_future(sender._pause(3600))
    await asyncio.sleep(0)
    sender.hurry()
    await asyncio.wait_for(pause, 10)
