"""What is logged, asked and refused: the real client against the real server in memory."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
import warnings

import numpy as np
import pytest
import trio

import metrana_async as metrana
from metrana_async.errors import (
    InvalidNameError,
    InvalidStepError,
    InvalidTypeError,
    NotInitializedError,
    PinConflictError,
    RunClosedError,
)
from tests.unit.client.runs import awaited, open_run, values

pytestmark = pytest.mark.usefixtures("alone")


@pytest.mark.asyncio
async def test_what_was_logged_is_stored(server):
    """Scalars, mappings, arrays and RL blocks arrive, and the ledger balances."""
    async with open_run(server) as run:
        for n in range(100):
            await run.log("loss", n / 2)
        await run.log({"a": 1, "deep": {"b": 2.5}}, step=7)
        await run.log("vector", np.arange(5.0), step=10)
        await run.log_distributed("shared", 1.5, step=3)
        await run.log_rl_episode("return", [1.0, 2.0], 1, env_id=["x", "y"])
        await run.log_rl_environment_step("reward", np.ones((2, 3)), 1, env_id=["x", "y"])
        statistics = await run.flush(20)
        assert statistics.is_balanced
        assert (statistics.committed, statistics.in_flight) == (116, 0)
    assert values(server, "loss") == {n: n / 2 for n in range(100)}
    assert values(server, "deep/b") == {7: 2.5}
    assert values(server, "vector") == {10 + n: float(n) for n in range(5)}
    assert server.store.runs()[0].state == "finished"


@pytest.mark.asyncio
async def test_every_kind_of_number_is_stored(server):
    """Python and numpy numbers of a known metric take the short way with the same result."""
    async with open_run(server) as run:
        for value in (0.5, 3, True, np.float32(0.1), np.float64(0.25), np.int64(7)):
            for _ in range(2):
                run.log("m", value)
    found = list(values(server, "m").values())
    expected = [0.5, 3.0, 1.0, float(np.float32(0.1)), 0.25, 7.0]
    assert found == [v for v in expected for _ in range(2)]


@pytest.mark.asyncio
async def test_a_forgotten_await_loses_nothing(server):
    """The work of a call is done at the call; nothing is warned."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with open_run(server) as run:
            run.log("m", 1.0)
            run.log_rl_environment_step("g", [1.0, 2.0], 0)
            gc.collect()
            assert (await run.flush(20)).committed == 3


@pytest.mark.asyncio
async def test_every_way_of_awaiting(server):
    """create_task, gather and wait_for carry logging calls too."""
    async with open_run(server) as run:
        await asyncio.create_task(run.log("m", 1.0))
        await asyncio.gather(run.log("m", 2.0), run.log("m", 3.0))
        await asyncio.wait_for(run.log("m", 4.0), 10)
    assert values(server, "m") == {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0}


@pytest.mark.asyncio
async def test_the_module_level_functions_use_the_current_run(server):
    """init() makes the run current; afterwards the refusal names init()."""
    with pytest.raises(NotInitializedError, match=r"init\(\)"):
        metrana.log("m", 1.0)
    assert not metrana.is_initialized()
    await open_run(server)
    assert metrana.is_initialized()
    await metrana.log("m", 1.0)
    assert await metrana.get_last_step("m") == 0
    info = await metrana.close(20)
    assert info.is_complete
    assert not metrana.is_initialized()
    with pytest.raises(NotInitializedError, match=r"init\(\)"):
        metrana.log("m", 1.0)
    assert (await metrana.close()).is_complete


@pytest.mark.asyncio
async def test_a_refused_call_has_no_effect(server):
    """One bad value in a mapping logs none of it, and pins nothing."""
    async with open_run(server) as run:
        with pytest.raises(InvalidTypeError):
            run.log({"good": 1.0, "bad": "text"})
        with pytest.raises(InvalidNameError):
            run.log("a\nb", 1.0)
        with pytest.raises(InvalidStepError):
            run.log("m", 1.0, step=-1)
        with pytest.raises(InvalidTypeError, match="step"):
            run.log_distributed("d", 1.0)
        with pytest.raises(InvalidTypeError):
            run.log({"a": 1.0}, 2.0)
        run.log_distributed("good", 1.0, step=1)
        with pytest.raises(PinConflictError):
            run.log("good", 1.0)
        assert (await run.flush(20)).accepted == 1


@pytest.mark.asyncio
async def test_on_error_warn_counts_instead_of_raising(server):
    """Hour 70 of a run is not ended by a bad name."""
    run = await open_run(server, on_error="warn")
    with pytest.warns(metrana.MetranaWarning, match="name"):
        await run.log("", 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await run.log("", 1.0)
    assert run.get_metrics().usage_errors == 2
    await run.close(20)


@pytest.mark.asyncio
async def test_questions_are_answered_from_what_was_logged(server):
    """Last steps follow the calls at once, without a flush."""
    async with open_run(server) as run:
        run.log("m", [1.0, 2.0, 3.0])
        assert await run.get_last_step("m") == 2
        run.log("m", 1.0, step=10)
        assert await run.get_last_step("m") == 10
        assert await run.get_last_step("unknown") is None
        run.log_rl_episode("ret", 1.0, 5, env_id="e", episode=9)
        assert await run.get_env_last_rl_step_and_episode("e") == (5, 9)


@pytest.mark.asyncio
async def test_attributes_travel_behind_the_points(server):
    """Configuration, tags and description are applied in call order."""
    async with open_run(server, tags=["first"], config={"lr": 0.1}) as run:
        await run.log_config({"net": {"depth": 3}})
        await run.add_tags(["second"])
        await run.set_description("hello")
        await run.log_attributes("machine", {"gpu": "h"})
        await run.log_env_attributes("e0", {"kind": "maze"}, episode=2)
        await run.flush(20)
    contents = server.store.run_contents(1)
    found = {(a.env_no, a.episode, a.path): a.value for a in contents.attributes}
    assert found[None, None, "config/lr"] == 0.1
    assert found[None, None, "config/net/depth"] == 3
    assert found[None, None, "machine/gpu"] == "h"
    assert sorted(found[None, None, "sys/tags"]) == ["first", "second"]
    assert any(path == "kind" and episode == 2 for _, episode, path in found)


@pytest.mark.asyncio
async def test_a_pin_conflict_is_told_and_the_next_call_raises(server):
    """Where two writers pin differently, the loser is told by flush and by its next call."""
    one = await open_run(server)
    other = await open_run(server)
    one.log("m", 1.0)
    await one.flush(20)
    other.log_distributed("m", 1.0, step=1)
    statistics = await other.flush(20)
    assert statistics.lost == {"pin_conflict": 1}
    assert statistics.is_balanced
    assert "PinConflict" in [notice.kind for notice in other.notices]
    with pytest.raises(PinConflictError):
        other.log_distributed("m", 1.0, step=2)
    await one.close(20)
    await other.close(20)


@pytest.mark.asyncio
async def test_widening_is_warned_once_per_series(server):
    """A finite value beyond float32 is kept in float64, and said once."""
    run = await open_run(server)
    with pytest.warns(metrana.ValueWidened, match="'big'"):
        run.log("big", 1e300)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.log("big", 1e300)
    await run.close(20)
    assert list(values(server, "big").values()) == [1e300, 1e300]


@pytest.mark.fault_row("A18")
@pytest.mark.asyncio
async def test_many_threads_log_one_run(server):
    """Every point of eight threads arrives exactly once."""
    run = await open_run(server)

    def work(k: int) -> None:
        for n in range(500):
            run.log(f"thread{k}", float(n))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        await asyncio.sleep(0.01)
    assert (await run.close(20)).statistics.committed == 4000
    for k in range(8):
        assert values(server, f"thread{k}") == {n: float(n) for n in range(500)}


@pytest.mark.asyncio
async def test_disabled_validates_and_does_nothing():
    """Every call is checked, none has an effect, no server is needed."""
    async with metrana.init(project_name="p", init_mode="disabled") as run:
        for _ in range(3):
            await run.log("m", 1.0)
        with pytest.raises(InvalidTypeError):
            run.log("m", "text")
        statistics = await run.flush()
        assert statistics.accepted == 0
    with pytest.raises(RunClosedError):
        run.log("m", 1.0)


@pytest.mark.fault_row("B12")
@pytest.mark.asyncio
async def test_a_handle_pickles_without_secrets(server):
    """What leaves the process holds neither the key nor a socket."""
    run = await open_run(server, api_key="s3cret")
    data = pickle.dumps(run)
    assert b"s3cret" not in data
    again = pickle.loads(data)
    assert again.name == "r"
    assert again.is_initialized()
    await run.close(20)


def test_trio_logs_and_closes(server):
    """The whole surface works under trio."""

    async def main() -> None:
        async with open_run(server) as run:
            await run.log("m", 1.0)
            await run.flush(20)
            assert await run.get_last_step("m") == 0
        assert values(server, "m") == {0: 1.0}

    trio.run(main)


def test_several_event_loops_share_a_run(server):
    """One handle works over several asyncio.run calls."""

    async def first():
        run = await open_run(server)
        await run.log("m", 1.0)
        return run

    run = asyncio.run(first())
    asyncio.run(awaited(run.log("m", 2.0)))
    assert asyncio.run(run.close(20)).is_complete
    assert values(server, "m") == {0: 1.0, 1: 2.0}


@pytest.mark.asyncio
async def test_a_forgotten_await_of_init_is_named(server):
    """An opening that is used as the run says that init was not awaited."""
    opening = open_run(server)
    with pytest.raises(AttributeError, match=r"no 'log': the run is not open yet; write `run ="):
        opening.log("loss", 1.0)


@pytest.mark.asyncio
async def test_a_value_that_is_no_number_is_shown(server):
    """A string, None or bytes is refused with what it was."""
    async with open_run(server) as run:
        for value, text in (
            ("0.5", "value is the str '0.5', which"),
            (None, "value is None, which"),
            (b"x", "value is the bytes b'x', which"),
            ([1.0, None], r"value\[1\] is None, which"),
        ):
            with pytest.raises(InvalidTypeError, match=text):
                run.log("loss", value)


def test_a_refusal_names_its_metric(start_server):
    """Which metric of a mapping, and which of a call, is part of every refusal's text."""
    import metrana_sync_shim as blocking

    server = start_server()
    with blocking.init(project_name="p", transport=server.transport(), quiet=True) as run:
        with pytest.raises(InvalidTypeError, match=r"metric 'b/c': value is the str 'x'"):
            run.log({"a": 1, "b": {"c": "x"}})
        with pytest.raises(InvalidTypeError, match="metric 'd': log_distributed needs step="):
            run.log_distributed("d", 1.0)
        with pytest.raises(InvalidTypeError, match="metric 'e': value is the str"):
            run.log_rl_episode("e", "s", 0)
        with pytest.raises(metrana.InvalidShapeError, match="metric 'r': value has shape"):
            run.log_rl_environment_step("r", [1.0, 2.0], 0, ["a", "b", "c"])
