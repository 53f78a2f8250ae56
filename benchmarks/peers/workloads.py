"""What is logged: shapes of calls, with their data made before the clock starts.

Nothing but numpy is imported: every peer's environment runs this.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from benchmarks.peers.adapters.base import Adapter
from benchmarks.peers.timing import Call

METRIC = "loss"
_VALUES = 1_024
SERIES = 10_000
_EPISODE_END = 0.01


@dataclass(frozen=True)
class Workload:
    """One table."""

    what: str
    shape: str
    """Which method of `Calls`."""
    calls: int
    """Of each loop and thread, at most."""
    points: int = 1
    """Of each call."""
    environments: tuple[int, int] = (0, 0)
    """[M, T] of a rollout."""
    threads: int = 1
    processes: int = 1
    rate_hz: float = 0.0
    """Paced, so many calls a second; 0 = as fast as it goes."""
    is_pending: bool = False
    """Whether `close` comes right behind the last call of one loop."""


WORKLOADS = {
    "scalar": Workload("one scalar, as fast as it goes", "scalar", 60_000),
    "scalar_paced": Workload("one scalar, 1,000 calls a second", "scalar", 3_000, rate_hz=1_000),
    "dict20": Workload("a dict of 20", "mapping", 3_000, 20),
    "block": Workload(
        "a rollout of 64 environments x 128 steps", "rollout", 300, 64 * 128, environments=(64, 128)
    ),
    "wide": Workload("1,024 environments x 1 step", "rollout", 600, 1_024, environments=(1_024, 1)),
    "series": Workload("10,000 series, one scalar each in turn", "series", 50_000),
    "threads": Workload("one scalar, 8 threads at once", "scalar", 10_000, threads=8),
    "processes": Workload("one scalar, 4 processes at once", "scalar", 20_000, processes=4),
    "pending": Workload(
        "close behind 1M points", "rollout", 123, 64 * 128, environments=(64, 128), is_pending=True
    ),
}
READY = "peer is ready\n"
"""What a child prints when its run is open."""
READ = "read"
"""The workload that reads back what another process wrote; no loop of calls."""


def scaled(name: str, share: float) -> Workload | None:
    """The workload with this share of its calls; None for `READ`."""
    workload = WORKLOADS.get(name)
    return workload and replace(workload, calls=max(1, int(workload.calls * share)))


class Calls:
    """The calls of one thread of a workload, with their data."""

    def __init__(self, workload: Workload, thread: int = 0) -> None:
        """Make the data: enough for a first call and two loops."""
        self._shape = workload.shape
        self._metric = f"{METRIC}{thread}" if thread else METRIC
        random = np.random.default_rng(thread)
        self._values = random.standard_normal(_VALUES).tolist()
        self._names = [f"layer{n // 100}/unit{n % 100}" for n in range(SERIES)]
        self._dicts = [
            {f"metric{n}": self._values[n + 20 * k] for n in range(20)} for k in range(50)
        ]
        self._rollouts: list[tuple[np.ndarray, np.ndarray]] = []
        if workload.shape == "rollout":
            self._rollouts = rollouts(random, 2 * workload.calls + 1, workload.environments)

    def of(self, client: Adapter) -> Call:
        """The call; its argument counts up from 0."""
        return getattr(self, f"_{self._shape}")(client)

    def _scalar(self, client: Adapter) -> Call:
        scalar, metric, values = client.scalar, self._metric, self._values

        def call(number: int) -> None:
            scalar(metric, values[number % _VALUES], number)

        return call

    def _series(self, client: Adapter) -> Call:
        scalar, names, values = client.scalar, self._names, self._values

        def call(number: int) -> None:
            scalar(names[number % SERIES], values[number % _VALUES], number // SERIES)

        return call

    def _mapping(self, client: Adapter) -> Call:
        mapping, dicts = client.mapping, self._dicts

        def call(number: int) -> None:
            mapping(dicts[number % len(dicts)], number)

        return call

    def _rollout(self, client: Adapter) -> Call:
        block, rollouts = client.block, self._rollouts

        def call(number: int) -> None:
            values, episodes = rollouts[number]
            block(values, episodes, number)

        return call


def rollouts(
    random: np.random.Generator, count: int, shape: tuple[int, int]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Consecutive rollouts: float32 values of [M, T], and the int64 episode of each."""
    made = []
    latest = np.zeros((shape[0], 1), np.int64)
    for _ in range(count):
        # An episode's number rises behind the step that ended it.
        ends = random.random(shape) < _EPISODE_END
        passed = latest + np.cumsum(ends, axis=1)
        made.append((random.standard_normal(shape, np.float32), passed - ends))
        latest = passed[:, -1:]
    return made
