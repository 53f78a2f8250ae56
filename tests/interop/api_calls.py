"""Every logging call once, as data, and the ways to make them. Imported by scripts, too."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np

import metrana_async
import metrana_sync_shim

T0 = 1_700_000_000_000
ENVS = ["e0", "e1", "e2"]
GRID = np.arange(12, dtype=np.float32).reshape(3, 4)
MASK = np.array([[True] * 4, [True, False, True, True], [False] * 4])

Call = tuple[str, tuple[Any, ...], dict[str, Any]]


def call(name: str, *args: Any, **kwargs: Any) -> Call:
    return name, args, kwargs


CALLS: list[Call] = [
    # standard
    call("log", "s/scalar", 0.5),
    call("log", "s/scalar", 1),
    call("log", "s/scalar", np.float32(2.5)),
    call("log", "s/scalar", True),
    call("log", "s/nan", float("nan")),
    call("log", "s/stepped", 1.5, step=7),
    call("log", "s/stepped", 2.5),
    call("log", "s/array", np.linspace(0, 1, 5)),
    call("log", "s/array", [1, 2, 3], step=10, timestamp=T0),
    call("log", "s/steps", [1.0, 2.0], step=[3, 9], timestamp=[T0, T0 + 1]),
    call("log", "s/scaled", 1.0, scale="EPOCH"),
    call("log", "s/labelled", 1.0, labels={"a": "1", "b": "2"}),
    call("log", "s/evaluated", 1.0, evaluation=True),
    call("log", "s/double", 0.1, dtype="float64"),
    call("log", "s/half", 0.1, dtype="float16"),
    call("log", "s/int", 2.9, dtype="int64"),
    call("log", {"map/a": 1.0, "map/b": {"c": 2.0}}),
    call("log", {"map/a": 3.0, "map/b": {"c": 4.0}}, step=5),
    call("log_distributed", "d/scalar", 1.0, step=3),
    call("log_distributed", "d/scalar", 2.0, step=3),
    call("log_distributed", "d/array", [1.0, 2.0, 3.0], step=4),
    call("log_distributed", {"d/m1": 1.0, "d/m2": 2.0}, step=1, labels={"rank": "0"}),
    # episodes
    call("log_rl_episode", "ep/auto", 1.0, 0),
    call("log_rl_episode", "ep/auto", 2.0, 1),
    call("log_rl_episode", "ep/explicit", 3.0, 1, 5, "e0"),
    call("log_rl_episode", "ep/vector", [1.0, 2.0, 3.0], [0, 1, 1], [4, 5, 4], ["e0", "e0", "e1"]),
    call("log_rl_episode", "ep/auto_vector", [1.0, 2.0, 3.0], 2, None, ["e0", "e1", "e0"]),
    call("log_rl_episode", "ep/evaluated", 1.0, 0, 0, "e0", None, True, "float64", timestamp=T0),
    # environment steps
    call("log_rl_environment_step", "st/scalar", 1.0, 0),
    call("log_rl_environment_step", "st/scalar", 2.0, 1),
    call("log_rl_environment_step", "st/t", [1.0, 2.0, 3.0], 0, "e0", 0),
    call("log_rl_environment_step", "st/1t", [[1.0, 2.0]], 0, ["e0"], 0),
    call("log_rl_environment_step", "st/m", [1.0, 2.0, 3.0], 0, ENVS, [0, 1, 2]),
    call("log_rl_environment_step", "st/mt", GRID, 0, ENVS, 0),
    call("log_rl_environment_step", "st/mt", GRID + 100, 1, ENVS, [0, 0, 1]),
    call("log_rl_environment_step", "st/no_episode", GRID, 0, ENVS),
    call("log_rl_environment_step", "st/mask", GRID, 0, ENVS, 0, mask=MASK),
    call("log_rl_environment_step", "st/tm", GRID.T, 0, ENVS, 0, layout="TM"),
    call("log_rl_environment_step", "st/one", GRID, 0, ENVS, 0, auto_start_from_one=True),
    call("log_rl_environment_step", "st/start", GRID, 0, ENVS, 0, [5, 0, 1]),
    call("log_rl_environment_step", "st/exact", [1.0, 2.0], 0, "e0", 0, [0, 4]),
    call(
        "log_rl_environment_step", "st/mixed", [1.0, 2.0, 3.0, 4.0], 3, "e1", [0, 0, 1, 1],
        labels={"k": "v"}, dtype="float64", timestamp=[T0, T0 + 1, T0 + 2, T0 + 3],
    ),
    # attributes
    call("log_config", {"lr": 1e-4, "net": {"layers": [64, 64], "act": None}, "flag": False}),
    call("log_attributes", "host", {"gpus": 8, "name": "node-1"}),
    call("log_env_attributes", "e0", {"seed": 3}),
    call("log_env_attributes", "e0", {"won": True}, 5),
    call("set_tags", ["a", "b"]),
    call("add_tags", ["c"]),
    call("remove_tags", ["b"]),
    call("set_description", "every call once"),
]  # fmt: skip

QUESTIONS: list[Call] = [
    call("get_last_step", "s/stepped"),
    call("get_last_step", "s/scaled", "EPOCH"),
    call("get_last_step", "s/labelled", None, {"b": "2", "a": "1"}),
    call("get_last_step", "s/unknown"),
    call("get_env_last_rl_step_and_episode", "e0"),
    call("get_env_last_rl_step_and_episode", "nobody"),
]

ANSWERS = [8, 0, 0, None, (2, 5), (None, None)]
"""What `QUESTIONS` are answered after `CALLS`."""


async def log_all(target: Any) -> list[Any]:
    """Make every call on a run, or on the module; await each; answer the questions."""
    for name, args, kwargs in CALLS:
        assert await getattr(target, name)(*args, **kwargs) is None
    statistics = await target.flush(30)
    assert statistics.committed == target.get_metrics().committed == statistics.accepted
    assert target.is_initialized()
    return [await getattr(target, name)(*args, **kwargs) for name, args, kwargs in QUESTIONS]


def log_all_blocking(target: Any) -> list[Any]:
    """The same through the blocking twin."""
    for name, args, kwargs in CALLS:
        assert getattr(target, name)(*args, **kwargs) is None
    statistics = target.flush(30)
    assert statistics.committed == target.get_metrics().committed == statistics.accepted
    assert target.is_initialized()
    return [getattr(target, name)(*args, **kwargs) for name, args, kwargs in QUESTIONS]


async def life(*, is_module: bool, **arguments: Any) -> list[Any]:
    """Open, log everything, close: under any event loop."""
    async with metrana_async.init(**arguments) as run:
        return await log_all(metrana_async if is_module else run)


def blocking_life(*, is_module: bool, **arguments: Any) -> list[Any]:
    """The same in a plain thread."""
    with metrana_sync_shim.init(**arguments) as run:
        return log_all_blocking(metrana_sync_shim if is_module else run)


def _asyncio(**arguments: Any) -> list[Any]:
    return asyncio.run(life(**arguments))


def _uvloop(**arguments: Any) -> list[Any]:
    import uvloop

    return uvloop.run(life(**arguments))


def _trio(**arguments: Any) -> list[Any]:
    import functools

    import trio

    return trio.run(functools.partial(life, **arguments))


def _thread(**arguments: Any) -> list[Any]:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(blocking_life(**arguments)))
    thread.start()
    thread.join(60)
    return found


def _shim_in_a_loop(**arguments: Any) -> list[Any]:
    async def main() -> list[Any]:
        return blocking_life(**arguments)

    return asyncio.run(main())


CALLERS = {
    "asyncio": _asyncio,
    "uvloop": _uvloop,
    "trio": _trio,
    "shim": blocking_life,
    "thread": _thread,
    "shim in a loop": _shim_in_a_loop,
}
