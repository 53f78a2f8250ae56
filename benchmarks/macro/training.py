"""How much does logging slow a training loop down, and how long does it hold the interpreter?

Expected: a per cent or less, and stretches of a millisecond or two. The steps are pure Python: they
need the interpreter's lock all the time, so every moment that the engine's thread has it is lost.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import metrana_sync_shim as metrana
from benchmarks.peers.workloads import rollouts
from benchmarks.rows import Row
from tests.conformance.runner import ServerProcess
from tests.fault.proxy import ChaosProxy, Exchange

_PAIRS, _WARM_S, _SEGMENT_S = 60, 0.1, 0.2
_GAPS_S, _GAP_S = 8.0, 50e-6
_SHORT_SWITCH_S = 0.0005
_GRIDS, _ROUND = 200, 1_000  # a round of rollouts has fewer episodes than that
_ENVIRONMENTS = [f"env{n}" for n in range(64)]


@dataclass
class Paced:
    """A call that is due so many times a second."""

    what: str
    rate_hz: float
    call: Callable[[int], None]
    calls: int = 0
    due_s: float = 0.0

    def start(self) -> None:
        """Nothing is due from before."""
        self.due_s = time.perf_counter()

    def call_if_due(self) -> bool:
        """Call, at most once; says whether it did."""
        if time.perf_counter() < self.due_s:
            return False
        self.call(self.calls)
        self.calls += 1
        self.due_s += 1 / self.rate_hz
        return True


def loads() -> list[Paced]:
    """The two loads: 1,000 scalars a second, and 100 blocks of 64x128."""
    grids = rollouts(np.random.default_rng(0), _GRIDS, (64, 128))

    def block(number: int) -> None:
        values, episodes = grids[number % _GRIDS]
        metrana.log_rl_environment_step(
            "reward", values, number, _ENVIRONMENTS, episode=episodes + _ROUND * (number // _GRIDS)
        )

    return [
        Paced("1,000 scalars/s", 1_000, lambda number: metrana.log("loss", number * 0.5)),
        Paced("100 blocks/s of 64x128", 100, block),
    ]


# --- slowdown ---------------------------------------------------------------------------------
def _work() -> float:
    """A little of a training step: about 20 us of plain Python."""
    total = 0.0
    for number in range(300):
        total += number * 0.5
    return total


def _units_a_second(paced: Paced | None, seconds: float) -> tuple[float, float]:
    """Units of work done in a second, calls between them; share of a core that other threads had.

    The second says what the first loses at most to the engine's thread, whatever else the machine
    does.
    """
    if paced is not None:
        paced.start()
    units = 0
    others_s = time.process_time() - time.thread_time()
    start_s = time.perf_counter()
    while (now_s := time.perf_counter()) - start_s < seconds:
        _work()
        units += 1
        if paced is not None:
            paced.call_if_due()
    others_s = time.process_time() - time.thread_time() - others_s
    return units / (now_s - start_s), others_s / (now_s - start_s)


def slowdown(paced: Paced, pairs: int) -> tuple[list[float], list[float]]:
    """Per cent, of each pair of a stretch with the calls and one without, in random order.

    And the share of a core, per cent, that other threads of this process had in the first.
    """
    chance = random.Random(0)
    lost, others = [], []
    for _ in range(pairs):
        rates = {}
        for is_logging in chance.sample((True, False), 2):
            calls = paced if is_logging else None
            # The engine works behind the caller: what is under way at the end of a stretch is
            # made up for by what is at its beginning.
            _units_a_second(calls, _WARM_S)
            rates[is_logging], share = _units_a_second(calls, _SEGMENT_S)
            if is_logging:
                others.append(share * 100)
            metrana.flush()
        lost.append((1 - rates[True] / rates[False]) * 100)
    return lost, others


def slowdowns(both: Sequence[Paced], pairs: int) -> list[Row]:
    """Median and quartiles of both loads."""
    rows = []
    for paced, aim in zip(both, (1.0, 3.0), strict=True):
        lost, others = slowdown(paced, pairs)
        low, _, high = statistics.quantiles(lost, n=4)
        what = f"training step slowed by {paced.what}"
        rows.append(Row(what, statistics.median(lost), "%", aim, "", 0))
        rows.append(Row(f"{what}: quartiles apart", high - low, "%", None, "", 0))
        share = statistics.median(others)
        rows.append(Row(f"engine's share of a core at {paced.what}", share, "%", None, "", 1.5))
    return rows


# --- the interpreter's lock ---------------------------------------------------------------------
@contextmanager
def _switching(interval_s: float) -> Iterator[None]:
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(interval_s)
    try:
        yield
    finally:
        sys.setswitchinterval(usual_s)


def _held_ms(paced: Paced, seconds: float) -> np.ndarray:
    """Of every gap in this thread's work: what other threads of this process computed in it, ms.

    A gap that the machine's other work makes has no such CPU, and does not count.
    """
    held = [0.0]
    paced.start()
    end_s = time.perf_counter() + seconds
    seen_s, others_s = time.perf_counter(), time.process_time() - time.thread_time()
    while seen_s < end_s:
        now_s = time.perf_counter()
        if now_s - seen_s > _GAP_S:
            now_others_s = time.process_time() - time.thread_time()
            held.append(min(now_s - seen_s, now_others_s - others_s) * 1e3)
            others_s = now_others_s
        seen_s = now_s
        if paced.call_if_due():
            seen_s, others_s = time.perf_counter(), time.process_time() - time.thread_time()
    return np.array(held)


def holds(both: Sequence[Paced], seconds: float) -> list[Row]:
    """How long other threads have the interpreter while this one wants it, by switch interval."""
    rows = []
    for paced in both:
        for interval_s in (sys.getswitchinterval(), _SHORT_SWITCH_S):
            with _switching(interval_s):
                held = _held_ms(paced, seconds)
            metrana.flush()
            what = f"{paced.what}, switch interval {interval_s * 1e3:g} ms"
            worst, tail = float(held.max()), float(np.percentile(held, 99))
            rows.append(Row(f"interpreter held, longest: {what}", worst, "ms", 2, "", 0))
            rows.append(Row(f"interpreter held, p99 of gaps: {what}", tail, "ms", 2, "", 0))
    return rows


# --- as users told it (US-34) -------------------------------------------------------------------
def six_scalars_a_step(steps: int) -> list[Row]:
    """A step of 25 ms with six scalars, beside the same step without; the loop's wall clock."""
    walls: dict[bool, list[float]] = {True: [], False: []}
    calls_s = []
    for number in range(2 * steps):
        is_logging = number // 10 % 2 == 0
        start_s = time.perf_counter()
        time.sleep(0.025)
        if is_logging:
            for index in range(6):
                called_s = time.perf_counter()
                metrana.log(f"train/{index}", number * 0.5)
                calls_s.append(time.perf_counter() - called_s)
        walls[is_logging].append(time.perf_counter() - start_s)
    slower = (sum(walls[True]) / sum(walls[False]) - 1) * 100
    longest = max(walls[True]) / statistics.median(walls[True])
    p99_ms = float(np.percentile(calls_s, 99)) * 1e3
    return [
        Row("US-34: 25 ms steps with 6 scalars, slower by", slower, "%", 5, "", 0),
        Row("US-34: longest step / median step", longest, "x", 2, "", 0),
        Row("US-34: p99 of a log call", p99_ms, "ms", 1, "", 0),
    ]


def far_server(server: ServerProcess) -> list[Row]:
    """1,020 points to a server 50 ms away, from `init` to the end of `close`."""

    async def delay(exchange: Exchange) -> None:
        request = await exchange.request()
        await asyncio.sleep(0.05)
        await exchange.say(await exchange.proxy.ask(request))

    with ChaosProxy(server.address.url) as way:
        way.inject(delay, path="")
        start_s = time.perf_counter()
        run = metrana.init(
            project_name="bench",
            run_name="far",
            ingestion_url=way.url,
            api_key=server.address.token,
            disk=None,
            quiet=True,
        )
        for epoch in range(10):
            for batch in range(100):
                run.log("loss", batch * 0.5)
            run.log("val/loss", epoch * 0.5)
            run.log("val/accuracy", epoch * 0.1)
        statistics_ = run.close().statistics
        took_s = time.perf_counter() - start_s
    assert statistics_.committed == 1_020, statistics_
    return [Row("US-34: 1,020 points to a server 50 ms away", took_s, "s", 5, "", 2.0)]


def measure(scale: float = 1.0) -> Sequence[Row]:
    """All of it, against a server of its own."""
    with tempfile.TemporaryDirectory(prefix="metrana-bench-") as folder:
        server = ServerProcess(Path(folder) / "data")
        try:
            rows = far_server(server)
            with metrana.init(project_name="bench", data_dir=str(server.data_dir), quiet=True):
                both = loads()
                rows += slowdowns(both, max(2, int(_PAIRS * scale)))
                rows += holds(both, _GAPS_S * scale)
                rows += six_scalars_a_step(max(20, int(400 * scale)))
        finally:
            server.stop()
    return rows
