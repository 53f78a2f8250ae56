"""What type checkers must accept. Checked by mypy and pyright (strict), never run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
from typing_extensions import assert_type

import metrana_async
import metrana_sync_shim
from metrana_async import CloseInfo, QueryClient, Run, Statistics
from metrana_async.query import Series
from metrana_async.testing import FaultyTransport, ManualClock, MemoryServer, MemoryTransport


async def awaited() -> None:
    run = await metrana_async.init(
        "workspace",
        "project",
        "run",
        ingestion_url="http://127.0.0.1:7007",
        resume_strategy="allow",
        tags=["a", "b"],
        description="text",
        config={"lr": 1e-4, "net": {"layers": [64, 64]}},
        logger_id=3,
        data_dir=Path("store"),
        default_dtype=np.float32,
        init_timeout_secs=5,
        redact=False,
        quiet=True,
    )
    assert_type(run, Run)
    async with metrana_async.init(project_name="p") as entered:
        assert_type(entered, Run)

    assert_type(await run.log("m", 1.0), None)
    await run.log("m", 1, step=3)
    await run.log("m", np.arange(3), step=[1, 2, 3], timestamp=0, scale="EPOCH")
    await run.log({"a": 1.0, "b": {"c": 2}}, step=1, labels={"k": "v"}, evaluation=True)
    await run.log("m", [1.0, 2.0], dtype="float64")
    await run.log_distributed("m", 1.0, step=0)
    await run.log_rl_episode("m", 1.0, 0)
    await run.log_rl_episode("m", [1.0, 2.0], [0, 1], [4, 5], ["e0", "e1"], {"k": "v"}, True)
    await run.log_rl_environment_step("m", 1.0, 0)
    await run.log_rl_environment_step(
        "m",
        np.zeros((2, 3)),
        0,
        ("e0", "e1"),
        np.zeros(2, dtype=np.int64),
        None,
        True,
        mask=np.ones((2, 3), dtype=bool),
        layout="TM",
    )
    await run.log_config({"a": 1})
    await run.log_attributes("prefix", 3)
    await run.log_env_attributes("e0", {"seed": 1}, episode=4)
    await run.set_tags(("a",))
    await run.add_tags(["a"])
    await run.remove_tags(["a"])
    await run.set_description("text")

    run.log("not", 1.0)
    task = asyncio.create_task(run.log("m", 1.0))
    await asyncio.gather(task, run.log("m", 1.0), run.flush())
    await asyncio.wait_for(run.log("m", 1.0), timeout=1)

    assert_type(await run.get_last_step("m", labels={"k": "v"}), "int | None")
    assert_type(await run.get_env_last_rl_step_and_episode("e0"), "tuple[int | None, int | None]")
    assert_type(await run.reserve_episodes("e0", 8), int)
    assert_type(await run.flush(timeout_secs=5), Statistics)
    assert_type(run.get_metrics(), Statistics)
    assert_type(run.is_initialized(), bool)
    assert_type(run.name, str)
    info = await run.close(close_timeout=5)
    assert_type(info, CloseInfo)
    assert_type(info.is_complete, bool)
    assert_type(await run.shutdown_logger(), CloseInfo)


async def awaited_module_functions() -> None:
    await metrana_async.log("m", 1.0)
    await metrana_async.log_distributed({"a": 1.0}, step=1)
    await metrana_async.log_rl_episode("m", 1.0, 0, env_id="e0")
    await metrana_async.log_rl_environment_step("m", [1.0, 2.0], 0, episode=0)
    assert_type(metrana_async.current_run(), Run)
    assert_type(await metrana_async.get_last_step("m"), "int | None")
    assert_type(await metrana_async.flush(), Statistics)
    assert_type(await metrana_async.close(), CloseInfo)


def blocking() -> None:
    run = metrana_sync_shim.init(project_name="p", run_name="r", config={"a": 1})
    assert_type(run, metrana_sync_shim.Run)
    with run as entered:
        assert_type(entered, metrana_sync_shim.Run)
    run.log("m", 1.0)
    run.log({"a": 1.0}, step=1)
    run.log_distributed("m", [1.0], step=0)
    run.log_rl_episode("m", 1.0, 0)
    run.log_rl_environment_step("m", 1.0, 0, mask=None)
    metrana_sync_shim.log("m", 1.0)
    assert_type(metrana_sync_shim.get_last_step("m"), "int | None")
    assert_type(run.flush(5), Statistics)
    assert_type(metrana_sync_shim.close(), CloseInfo)


async def reads() -> None:
    async with QueryClient("project", token="t", timeout_secs=3) as reader:
        series = await reader.series("run", "m", step_range=(0, 10))
        assert_type(series, Series)
        assert_type(await reader.aggregate("run", "m", "mean"), float)
        for run in await reader.runs():
            assert_type(run.name, str)


def tests(path: str) -> None:
    clock = ManualClock()
    with MemoryServer(clock=clock) as server:
        assert_type(server.transport(), MemoryTransport)
        transport = FaultyTransport(server.transport(), seed=1, refuse=0.1, paths=None)
        metrana_sync_shim.init(project_name=path, transport=transport)
        metrana_async.init(project_name=path, transport=server.transport())
        clock.advance(1.5)
        assert_type(transport.faults["refused"], int)
    try:
        metrana_sync_shim.flush()
    except metrana_async.RateLimitedError as error:
        assert_type(error.retry_after_s, "float | None")
    except metrana_async.MetranaError as error:
        assert_type(error.retryable, bool)
