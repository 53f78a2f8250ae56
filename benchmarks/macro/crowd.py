"""Do thousands of metrics and of runs stay usable (US-53)?

20 runs of 2,000 metrics with 20 points each, beside 2,000 small runs. Expected: everything that a
page asks for first in well under a second and a megabyte.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import metrana_async
import metrana_sync_shim as metrana
from benchmarks.rows import APPEND, Row
from metrana_async.transport.base import ServerAddress
from metrana_async.transport.http import HttpTransport
from metrana_async.wire.messages import JSON_TYPE
from tests.conformance.runner import ServerProcess

PROJECT = "crowd"
_METRICS, _STEPS, _REPEATS = 2_000, 20, 5


class Weighing:
    """The usual transport, with the size of the largest answer."""

    def __init__(self, address: ServerAddress) -> None:
        self._transport = HttpTransport(address)
        self.largest_bytes = 0

    async def post(
        self, path: str, body: bytes, *, timeout_s: float, content_type: str = JSON_TYPE
    ) -> bytes:
        answer = await self._transport.post(
            path, body, timeout_s=timeout_s, content_type=content_type
        )
        self.largest_bytes = max(self.largest_bytes, len(answer))
        return answer

    async def close(self) -> None:
        await self._transport.close()


def fill(data_dir: Path, wide: int, small: int) -> None:
    """The runs, all stored."""
    names = [f"layer{n // 50}/unit{n % 50}" for n in range(_METRICS)]
    for number in range(wide):
        with _opened(data_dir, f"wide-{number}") as run:
            for step in range(_STEPS):
                run.log(dict.fromkeys(names, step * 0.5), step=step)
    for number in range(small):
        with _opened(data_dir, f"small-{number}") as run:
            run.log("loss", [0.5, 0.25], step=0)


def _opened(data_dir: Path, name: str) -> metrana.Run:
    return metrana.init(project_name=PROJECT, run_name=name, data_dir=str(data_dir), quiet=True)


def measure(scale: float = 1.0) -> Sequence[Row]:
    """All of it, against a server of its own."""
    wide, small = max(2, int(20 * scale)), max(20, int(2_000 * scale))
    with tempfile.TemporaryDirectory(prefix="metrana-bench-") as folder:
        server = ServerProcess(Path(folder) / "data")
        try:
            fill(server.data_dir, wide, small)
            return asyncio.run(_reads(server.address, [f"wide-{n}" for n in range(wide)]))
        finally:
            server.stop()


async def _reads(address: ServerAddress, wide: list[str]) -> list[Row]:
    """What pages ask for: milliseconds, and the largest answer."""
    transport = Weighing(address)
    charts = [f"layer0/unit{n}" for n in range(50)]
    rows = []
    async with metrana_async.QueryClient(project=PROJECT, transport=transport) as client:

        async def draw() -> None:
            for name in charts:
                await client.series(wide[0], name)

        for what, read, aim in (
            ("list all runs", client.runs, 1_000),
            ("a page of 100 runs", lambda: client.runs(limit=100), 200),
            ("search runs by name", lambda: client.runs(where="name = 'small-7'"), 200),
            ("metric names of a run", lambda: client.metrics(wide[0]), 1_000),
            ("50 metrics x 20 runs", lambda: client.series_summaries(wide, charts), 1_000),
            ("50 charts of a run", draw, 3_000),
        ):
            transport.largest_bytes = 0
            took_ms = await _median_ms(read)
            largest_mb = transport.largest_bytes / 1e6
            rows.append(Row(f"US-53: {what}", took_ms, "ms", aim, APPEND, 2.0))
            rows.append(Row(f"US-53: largest answer, {what}", largest_mb, "MB", 5, "", 1.2))
    await transport.close()
    return rows


async def _median_ms(read: Callable[[], Awaitable[object]]) -> float:
    took_s = []
    for _ in range(_REPEATS):
        start_s = time.perf_counter()
        await read()
        took_s.append(time.perf_counter() - start_s)
    return statistics.median(took_s) * 1e3
