"""Event loops of every kind around the async surface, each in a process of its own."""

from __future__ import annotations

import asyncio
import textwrap

import pytest

import metrana_sync_shim as metrana
from metrana_async.errors import TransportError
from metrana_async.transport.http import HttpTransport

pytestmark = pytest.mark.e2e

HEAD = """
import anyio, asyncio, threading, time
import metrana_async as m

def quiet_debug(coroutine):
    # Does not mind the imports of the first init.
    loop = asyncio.new_event_loop()
    loop.set_debug(True)
    loop.slow_callback_duration = 10
    loop.run_until_complete(coroutine)
    loop.close()
"""


def run(place, code, **more):
    """Run a script that has to end in time, without a word."""
    done = place.script(HEAD + textwrap.dedent(code), timeout_s=40, **more)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def values(place, metric="m"):
    return [value for _, value in place.points(metric)]


def test_one_run_across_several_asyncio_runs(place):
    """A handle outlives its loop: opened, used, flushed and closed in four loops."""
    run(
        place,
        """
        async def opened():
            return await m.init(run_name="run")
        handle = asyncio.run(opened())
        async def log(k):
            for i in range(10):
                await handle.log("m", float(10 * k + i))
            return await handle.flush(10)
        for k in range(3):
            assert asyncio.run(log(k)).committed == 10 * (k + 1)
        info = asyncio.run(handle.close(10))
        assert info.is_complete
        """,
    )
    assert values(place) == [float(k) for k in range(30)]


def test_two_loops_in_two_threads(place):
    """Two loops at once log through one handle and flush side by side."""
    run(
        place,
        """
        handle = asyncio.run(m.init(run_name="run")._open())
        async def work(name):
            for k in range(500):
                await handle.log(name, float(k))
                if k % 100 == 99:
                    await handle.flush(10)
        threads = [threading.Thread(target=asyncio.run, args=(work(n),)) for n in ("a", "b")]
        [t.start() for t in threads], [t.join() for t in threads]
        asyncio.run(handle.close(10))
        """,
    )
    for name in ("a", "b"):
        assert values(place, name) == [float(k) for k in range(500)]


LIFE = """
async def life():
    async with m.init(run_name="run") as run:
        await run.log("m", 0.0)
        await m.log("m", 1.0)
        await m.log_rl_environment_step("r", [[1.0, 2.0]] * 2, 0, ["a", "b"], 0)
        await run.flush(10)
        assert await run.get_last_step("m") == 1
        assert await m.get_env_last_rl_step_and_episode("a") == (0, 0)
        await run.log("m", 2.0)
"""


@pytest.mark.fault_row("B8")
@pytest.mark.parametrize(
    "start",
    [
        "asyncio.run(life())",
        "import uvloop; uvloop.install(); asyncio.run(life())",
        "import uvloop; uvloop.run(life())",
        "import trio; trio.run(life)",
        "import anyio; anyio.run(life, backend='trio')",
        "quiet_debug(life())",
    ],
)
def test_a_whole_life_under_every_loop(place, start):
    """The same program under asyncio, uvloop and trio."""
    run(place, LIFE + start, PYTHONWARNINGS="ignore::DeprecationWarning")
    assert values(place) == [0.0, 1.0, 2.0]


def test_every_way_to_wait_or_not(place):
    """Tasks, gather, wait_for, shield, a cancelled task, a forgotten await: one point each."""
    run(
        place,
        """
        async def main():
            async with m.init(run_name="run") as run:
                await asyncio.create_task(run.log("m", 0.0))
                await asyncio.gather(run.log("m", 1.0), run.log("m", 2.0))
                await asyncio.wait_for(run.log("m", 3.0), 5)
                await asyncio.shield(asyncio.ensure_future(run.log("m", 4.0)))
                task = asyncio.create_task(run.log("m", 5.0))
                task.cancel()
                await asyncio.wait([task])
                run.log("m", 6.0)
                with anyio.fail_after(5):
                    await run.log("m", 7.0)
                done, _ = await asyncio.wait([asyncio.create_task(run.log("m", 8.0))])
                assert [t.result() for t in done] == [None]
                asyncio.get_running_loop().call_soon(run.log, "m", 9.0)
                await asyncio.sleep(0)
                async with anyio.create_task_group() as group:
                    group.start_soon(run.log, "m", 10.0)
        quiet_debug(main())
        """,
    )
    assert values(place) == [float(k) for k in range(11)]


def test_flush_and_close_can_be_cancelled(place):
    """A cancelled flush stops waiting at once; a cancelled close goes on by itself."""
    run(
        place,
        """
        async def main():
            run = await m.init(run_name="run")
            for k in range(20):
                await run.log("m", float(k))
                try:
                    await asyncio.wait_for(run.flush(10), 0.0001)
                except asyncio.TimeoutError:
                    pass
            closing = asyncio.create_task(run.close(10))
            await asyncio.sleep(0)
            closing.cancel()
            try:
                await closing
            except asyncio.CancelledError:
                pass
            assert (await run.close(10)).is_complete
        asyncio.run(main())
        """,
    )
    assert values(place) == [float(k) for k in range(20)]


def test_the_shim_inside_a_running_loop(place):
    """Blocking calls in a coroutine work: a script that was given a loop by others."""
    run(
        place,
        """
        async def main():
            with metrana.init(run_name="run") as run:
                for k in range(10):
                    metrana.log("m", float(k))
                    await asyncio.sleep(0)
                metrana.flush(10)
                assert run.get_last_step("m") == 9
        asyncio.run(main())
        """,
    )
    assert values(place) == [float(k) for k in range(10)]


def test_a_tight_loop_of_awaits_lets_others_run(place):
    """Nothing but awaits of logging calls for a second: another task still ticks."""
    out = run(
        place,
        """
        async def main():
            async with m.init(run_name="run") as run:
                ticks = 0
                async def tick():
                    nonlocal ticks
                    while True:
                        await asyncio.sleep(0.005)
                        ticks += 1
                other = asyncio.create_task(tick())
                await asyncio.sleep(0)
                until_s = time.monotonic() + 1
                while time.monotonic() < until_s:
                    await run.log("m", 1.0)
                print(ticks)
                other.cancel()
        asyncio.run(main())
        """,
    )
    assert int(out) > 10


def test_a_loop_that_is_closed_early_takes_nothing_along(place):
    """An exception ends asyncio.run and the program, the run still open: nothing is lost."""
    done = place.script(
        HEAD
        + textwrap.dedent("""
        async def main():
            run = await m.init(run_name="run")
            await run.log("m", 1.0)
            raise LookupError
        asyncio.run(main())
        """)
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "LookupError"
    assert values(place) == [1.0]
    with place.reader() as reader:
        info = reader.run("run")
    assert (info.state, info.exception_type) == ("failed", "LookupError")


def test_ctrl_c_under_asyncio(place):
    """SIGINT under asyncio.run leaves `async with` by cancellation: stopped, nothing lost."""
    done = place.script(
        HEAD
        + textwrap.dedent("""
        import signal
        async def main():
            async with m.init(run_name="run") as run:
                await run.log("m", 1.0)
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.sleep(10)
        asyncio.run(main())
        """)
    )
    assert done.returncode == -2, done.stderr
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert values(place) == [1.0]
    with place.reader() as reader:
        assert reader.run("run").state == "stopped"


def test_two_runs_in_one_loop(place):
    """Two runs, opened and closed side by side in one loop, do not mix."""
    run(
        place,
        """
        async def one(name):
            async with m.init(run_name=name) as run:
                for k in range(100):
                    await run.log("m", float(k) if name == "run" else -float(k))
                    await asyncio.sleep(0)
        async def main():
            await asyncio.gather(one("run"), one("other"))
        asyncio.run(main())
        """,
    )
    assert values(place) == [float(k) for k in range(100)]
    assert [v for _, v in place.points("m", run="other")] == [-float(k) for k in range(100)]


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_backpressure_waits_cooperatively(place, loop):
    """A full inbox makes awaits wait, other tasks go on, and everything arrives."""
    run(
        place,
        f"""
        import anyio
        async def main():
            async with m.init(run_name="run", queue_capacity=1000) as run:
                async with anyio.create_task_group() as group:
                    async def writer(n):
                        for k in range(100):
                            await run.log(f"m{{n}}", [float(k)] * 100)
                    for n in range(3):
                        group.start_soon(writer, n)
        anyio.run(main, backend={loop!r})
        """,
    )
    for n in range(3):
        assert values(place, f"m{n}") == [float(k) for k in range(100) for _ in range(100)]


def test_two_closes_at_once_are_one(place):
    """Closes side by side, in tasks and threads, give one result and leave once."""
    run(
        place,
        """
        async def main():
            run = await m.init(run_name="run")
            for k in range(1000):
                await run.log("m", float(k))
            infos = await asyncio.gather(*(run.close(10) for _ in range(3)))
            assert {info.statistics.committed for info in infos} == {1000}
        asyncio.run(main())
        run = metrana.init(run_name="run", resume_strategy="allow")
        run.log("m", 1000.0)
        threads = [threading.Thread(target=run.close) for _ in range(3)]
        [t.start() for t in threads], [t.join() for t in threads]
        """,
    )
    assert values(place) == [float(k) for k in range(1001)]


class Held:
    """Holds the first heartbeat until the connections are closed, and then cuts it off."""

    def __init__(self, inner):
        self._inner, self._heartbeats, self._closed = inner, 0, asyncio.Event()

    async def post(self, path, body, **more):
        if path == "/writers/heartbeat":
            self._heartbeats += 1
            if self._heartbeats == 1:
                await self._closed.wait()
                raise TransportError("the connection was cut before an answer")
        return await self._inner.post(path, body, **more)

    async def close(self):
        self._closed.set()
        await self._inner.close()


def test_an_abandoned_flush_is_cut_off_without_a_word(server, place, recwarn):
    """A flush nobody waits for may still ask when close releases the connections: no warning."""
    run = metrana.init(
        project_name=place.project,
        run_name="run",
        transport=Held(HttpTransport(server.address)),
        quiet=True,
    )
    run.log("m", 1.0)
    abandoned = run._run.begin_flush(10)
    assert run.close(10).is_complete
    assert abandoned.result(5).committed == 1
    assert not [str(w.message) for w in recwarn]
