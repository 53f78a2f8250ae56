"""What type checkers must refuse: every line marked ``# error`` and no other. Never run."""

from __future__ import annotations

import metrana_async
import metrana_sync_shim
from metrana_async import QueryClient, Run
from metrana_async.testing import FaultyTransport, ManualClock, MemoryServer


async def awaited(run: Run) -> None:
    run.lgo("m", 1.0)  # error
    run.log()  # error
    run.log(3, 1.0)  # error
    run.log("m", 1.0, 3)  # error
    run.log("m", 1.0, stpe=3)  # error
    run.log("m", 1.0, labels={"k": 1})  # error
    run.log("m", 1.0, evaluation="yes")  # error
    run.log("m", 1.0, scale=3)  # error
    run.log_rl_episode("m", 1.0)  # error
    run.log_rl_episode({"m": 1.0}, 1.0, 0)  # error
    run.log_rl_environment_step("m", 1.0)  # error
    run.log_rl_environment_step("m", 1.0, 0, layout=3)  # error
    run.set_tags(3)  # error
    run.set_description(None)  # error
    run.log_env_attributes(None, {})  # error
    await run.get_metrics()  # error
    await run.flush("5")  # error
    run.flush().committed  # error
    run.close().is_complete  # error
    value: int = await run.get_last_step("m")  # error
    run.name = "other"  # error
    print(value)


async def opened() -> None:
    run: Run = metrana_async.init(project_name="p")  # error
    with metrana_async.init(project_name="p"):  # error
        pass
    await metrana_async.init(projcet="p")  # error
    await metrana_async.init(project_name=3)  # error
    await metrana_async.init(project_name="p", tags=3)  # error
    await metrana_async.init(project_name="p", init_timeout_secs="5")  # error
    await metrana_async.init(project_name="p", config=["lr"])  # error
    await metrana_async.init(project_name="p", transport="http://host")  # error
    print(run)


async def blocking() -> None:
    run = metrana_sync_shim.init(project_name="p")
    await run.log("m", 1.0)  # error
    await metrana_sync_shim.flush()  # error
    run.log("m", 1.0, 3)  # error
    run.log("m", 1.0, labels=["k"])  # error
    metrana_sync_shim.log_rl_episode("m", 1.0)  # error
    async with run:  # error
        pass


async def reads(reader: QueryClient) -> None:
    await reader.series("run")  # error
    await reader.series("run", "m", step_range=3)  # error
    (await reader.series("run", "m")).steps  # error
    text: str = await reader.aggregate("run", "m", "mean")  # error
    print(text)


def tests() -> None:
    MemoryServer(clock=3.0)  # error
    FaultyTransport()  # error
    FaultyTransport(MemoryServer())  # error
    ManualClock().advance("1")  # error
