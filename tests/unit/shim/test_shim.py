"""Facts about the blocking twin: the same names and signatures, and one place that waits."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import metrana_async
import metrana_sync_shim as metrana
from metrana_async import current
from metrana_async.errors import NotInitializedError, RunClosedError, WaitTimeoutError
from metrana_async.testing import MemoryServer

TWINS = (
    "add_tags", "close", "flush", "get_env_last_rl_step_and_episode", "get_last_step",
    "get_metrics", "init", "is_initialized", "log", "log_attributes", "log_config",
    "log_distributed", "log_env_attributes", "log_rl_environment_step", "log_rl_episode",
    "remove_tags", "reserve_episodes", "set_description", "set_tags", "shutdown_logger",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    for name in list(os.environ):
        if name.startswith("METRANA_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("METRANA_ORCHESTRATION_ID", "")
    monkeypatch.setattr(current, "_current", None)


@pytest.fixture
def server():
    with MemoryServer() as server:
        yield server


def open_run(server: MemoryServer, **arguments):
    arguments = {"project_name": "p", "run_name": "r", "quiet": True, **arguments}
    return metrana.init(transport=server.transport(), **arguments)


def shape(function) -> list[tuple]:
    """Names, kinds and defaults of a function's parameters."""
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default) for p in parameters]


@pytest.mark.parametrize("name", TWINS)
def test_module_functions_are_twins(name):
    """A script changes only its import: parameters, order and defaults are the same."""
    assert shape(getattr(metrana, name)) == shape(getattr(metrana_async, name))


@pytest.mark.parametrize("name", [n for n in TWINS if n != "init"])
def test_run_methods_are_twins(name):
    """Methods of both runs agree with each other and with the module-level functions."""
    of_run = shape(getattr(metrana.Run, name))
    assert of_run == shape(getattr(metrana_async.Run, name))
    assert of_run[1:] == shape(getattr(metrana, name))


def test_both_packages_export_the_same_errors():
    """Every public error and warning is importable from either package."""
    common = set(metrana_async.__all__) - {"BlockingQueryClient"}
    assert common <= set(metrana.__all__)
    assert all(getattr(metrana, name) is not None for name in metrana.__all__)
    assert all(getattr(metrana_async, name) is not None for name in metrana_async.__all__)


def test_a_script_logs_and_closes(server):
    """The hosted client's way of use works as it stands."""
    open_run(server)
    metrana.log("loss", 0.5)
    metrana.log({"a": 1.0, "b": 2.0}, step=4)
    metrana.log_distributed("shared", 1.0, step=4)
    metrana.log_rl_episode("ret", 1.0, 2)
    metrana.log_rl_environment_step("rew", np.ones(3), 2)
    metrana.log_config({"lr": 0.1})
    metrana.set_tags(["x"])
    assert metrana.get_last_step("a") == 4
    assert metrana.get_env_last_rl_step_and_episode("default") == (2, 0)
    assert metrana.flush(20).committed == 8
    assert metrana.close(20).is_complete
    assert not metrana.is_initialized()
    with pytest.raises(NotInitializedError):
        metrana.log("loss", 1.0)


def test_the_run_is_a_context_manager(server):
    """Leaving closes; an exception that leaves makes the run failed."""

    def program() -> None:
        with open_run(server) as run:
            run.log("m", 1.0)
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        program()
    assert server.store.runs()[0].state == "failed"


@pytest.mark.asyncio
async def test_it_works_inside_a_running_event_loop(server):
    """Notebooks and servers run the blocking calls inside their loop."""
    run = open_run(server)
    run.log("m", 1.0)
    assert run.flush(20).committed == 1
    assert run.close(20).is_complete


def test_it_works_in_any_thread(server):
    """A thread without an event loop logs and flushes."""
    run = open_run(server)
    found = []

    def work() -> None:
        run.log("m", 1.0)
        found.append(run.flush(20).committed)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    assert found == [1]
    run.close(20)


def test_blocking_calls_wait_for_room(server):
    """Under `block` a call that finds the inbox full waits, and every point arrives."""
    run = open_run(server, queue_capacity=8)
    for _ in range(100):
        run.log("m", np.ones(5))
    assert run.close(20).statistics.committed == 500


def test_a_flush_that_times_out_says_so(server):
    """A time-out is an error, and nothing is lost by it."""
    run = open_run(server)
    server.is_reachable = False
    run.log("m", 1.0)
    with pytest.raises(WaitTimeoutError):
        run.flush(0.2)
    server.is_reachable = True
    assert run.close(20).is_complete
    with pytest.raises(RunClosedError):
        run.log("m", 1.0)


def test_both_surfaces_share_the_current_run(server):
    """What the shim opened, the async functions log to."""
    open_run(server)
    asyncio.run(_log_async())
    assert metrana.close(20).statistics.committed == 1


async def _log_async() -> None:
    await metrana_async.log("m", 1.0)


def test_scripts_for_the_hosted_client_run_unchanged():
    """Registered as `metrana`, the shim serves its submodules and exception names."""
    code = """
import metrana_sync_shim
metrana_sync_shim.install_as_metrana()
metrana_sync_shim.install_as_metrana()
import metrana
from metrana.query import QueryClient
from metrana.utils.exceptions import MetranaNotInitializedError, MetranaRunAlreadyExistsError
assert metrana is metrana_sync_shim
assert QueryClient is metrana.QueryClient
try:
    metrana.log("m", 1.0)
except MetranaNotInitializedError:
    print("ok")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("ok\n", "")


def test_another_metrana_is_not_displaced(monkeypatch):
    """A `metrana` that is imported already stays what it is."""
    monkeypatch.setitem(sys.modules, "metrana", sys)
    with pytest.raises(metrana.UsageError, match="imported already"):
        metrana.install_as_metrana()
