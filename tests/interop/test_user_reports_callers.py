"""User reports (`US-nn`) about where a call comes from: loops, threads, notebooks, secrets."""

from __future__ import annotations

import asyncio
import enum
import fractions
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

import metrana_async
import metrana_sync_shim as metrana
from metrana_async.errors import (
    InvalidQueryError,
    InvalidTypeError,
    NotInitializedError,
    RunClosedError,
    ValidationError,
)
from metrana_async.query import F
from metrana_async.testing import FaultyTransport, MemoryServer

from .faults import faulty_transport
from .test_api_matrix import run_notebook

pytestmark = pytest.mark.e2e


def names(place, run_name="run", **more):
    return {
        "project_name": place.project,
        "run_name": run_name,
        "data_dir": place.data_dir,
        "quiet": True,
        **more,
    }


def test_us18_runs_side_by_side_do_not_mix(place):
    """Two tasks with a run each, then ten threads with a run each, closed at any time."""

    async def sleeper(name, value):
        async with metrana_async.init(**names(place, name)) as run:
            await asyncio.sleep(0.05 * value)
            await run.log("sleep", float(value))

    async def both():
        await asyncio.gather(sleeper("run1", 5), sleeper("run2", 3))

    asyncio.run(both())
    assert place.points("sleep", "run1") == [(0, 5.0)]
    assert place.points("sleep", "run2") == [(0, 3.0)]

    def work(k):
        run = place.init(f"thread{k}")
        for i in range(100):
            run.log("x", float(100 * k + i))
            if i == 10 * k:
                with place.init(f"other{k}") as other:
                    other.log("y", 1.0)
        run.close(30)

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(work, range(10)))
    for k in range(10):
        assert [v for _, v in place.points("x", f"thread{k}")] == [
            100.0 * k + i for i in range(100)
        ]


def test_us18_the_current_run_is_the_processs(place):
    """Module functions go to the run opened last; the handles stay apart from it."""
    first, second = place.init("first"), place.init("second")
    metrana.log("m", 1.0)
    first.log("m", 2.0)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(metrana.log, "m", 3.0).result()
    assert metrana.current_run().name == "second"
    second.close(30)
    with pytest.raises(NotInitializedError, match="init"):
        metrana.log("m", 4.0)
    first.log("m", 5.0)
    first.close(30)
    assert [v for _, v in place.points("m", "first")] == [2.0, 5.0]
    assert [v for _, v in place.points("m", "second")] == [1.0, 3.0]


@pytest.mark.fault_row("B8")
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_us25_blocking_and_awaited_calls_inside_a_running_loop(place, loop):
    """Both work in a running loop; asyncio is neither patched nor its policy changed."""
    done = place.script(f"""
        import asyncio, {loop}
        import metrana_async
        original, policy = asyncio.run, asyncio.get_event_loop_policy()
        async def main():
            run = metrana.init(run_name="run")
            metrana.log("x", 1)
            await metrana_async.log_rl_environment_step("r", [1.0], 0)
            metrana.flush(5)
            metrana.close()
        {loop}.run(main())
        assert asyncio.run is original and asyncio.get_event_loop_policy() is policy
    """)
    assert (done.returncode, done.stderr) == (0, "")
    assert place.points("x") == [(0, 1.0)]


def test_us26_asyncio_run_several_times(place):
    """Three loops one after the other, then blocking calls, then two loops at once: 71 points."""
    done = place.script("""
        import asyncio, threading
        import metrana_async
        run = metrana.init(run_name="run")
        async def go():
            for _ in range(10):
                await metrana_async.log("x", 1.0)
        for k in range(3):
            asyncio.run(go())
        metrana.log("x", 1.0)
        async def twenty(name):
            for _ in range(20):
                await metrana_async.log(name, 1.0)
                await asyncio.sleep(0)
        threads = [threading.Thread(target=lambda n=n: asyncio.run(twenty(n))) for n in "ab"]
        [t.start() for t in threads], [t.join() for t in threads]
        metrana.close()
    """)
    assert (done.returncode, done.stderr) == (0, "")
    assert [len(place.points(name)) for name in ("x", "a", "b")] == [31, 20, 20]


@pytest.mark.filterwarnings("ignore")
def test_us37_a_notebook_goes_on_after_an_interrupt(place, tmp_path):
    """An interrupted cell, a bad call and a new init: the next cells work, no hook is left."""
    cells = [
        """
        import os, signal, sys, threading
        import metrana_sync_shim as metrana
        hooks = {{k: list(v) for k, v in get_ipython().events.callbacks.items()}}
        names = dict(project_name={project!r}, data_dir={data_dir!r}, quiet=True)
        run = metrana.init(run_name="run", **names)
        """,
        """
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
        while True:
            metrana.log("loop", 1.0)
        """,
        'metrana.log("after", "no number")',
        'metrana.log("after", 1.0)',
        "assert metrana.close(30).is_complete",
        'metrana.init(run_name="second", **names)\nmetrana.log("x", 2.0)\nmetrana.close(30)',
        """
        assert hooks == {{k: list(v) for k, v in get_ipython().events.callbacks.items()}}
        """,
    ]
    notebook = run_notebook(place, tmp_path, cells, allow_errors=True)
    errors = [
        output["ename"]
        for cell in notebook.cells
        for output in cell.outputs
        if output["output_type"] == "error"
    ]
    assert errors == ["KeyboardInterrupt", "InvalidTypeError"]
    assert place.points("after") == [(0, 1.0)]
    assert place.points("x", "second") == [(0, 2.0)]


DTYPES = [
    (1, 1.0),
    (True, 1.0),
    (np.int8(-5), -5.0),
    (np.int64(2**40), 2.0**40),
    (np.uint64(2**63), 2.0**63),
    (np.float16(0.1), 0.0999755859375),
    (np.float32(0.1), 0.10000000149011612),
    (np.float64(0.1), 0.10000000149011612),
    (np.array(3.0), 3.0),
    (np.array([3.0]), 3.0),
    (np.bool_(True), 1.0),
]


def test_us40_numbers_of_every_kind(place):
    """Scalars of every numpy dtype are stored as they are; what is no number is refused."""
    with place.init() as run:
        for k, (value, _) in enumerate(DTYPES):
            run.log(f"v{k}", value)
        run.log("double", np.float64(0.1), dtype="float64")
        for value in (Decimal("0.1"), fractions.Fraction(1, 4), "0.1", None, 1j, object()):
            with pytest.raises((InvalidTypeError, ValidationError)):
                run.log("bad", value)
    for k, (_, stored) in enumerate(DTYPES):
        assert place.points(f"v{k}") == [(0, stored)], DTYPES[k]
    assert place.points("double") == [(0, 0.1)]


def test_us40_torch(place):
    """Tensors are taken as numbers: 0-d, requiring grad, bfloat16, on a GPU when there is one."""
    torch = pytest.importorskip("torch")
    tensors = [
        torch.tensor(2.0),
        torch.tensor(2.0, requires_grad=True),
        torch.tensor(1.5, dtype=torch.bfloat16),
        torch.tensor([2.0, 1.5]),
        *([torch.tensor(1.5, device="cuda")] if torch.cuda.is_available() else []),
    ]
    with place.init() as run:
        for k, tensor in enumerate(tensors):
            run.log(f"t{k}", tensor)
        run.log_rl_environment_step("r", torch.ones(2, 3), torch.tensor(0), ["a", "b"])
    stored = [[v for _, v in place.points(f"t{k}")] for k in range(len(tensors))]
    assert stored[:4] == [[2.0], [2.0], [1.5], [2.0, 1.5]]


def test_us40_the_package_works_without_torch_and_jax(place):
    """Nothing of the learning libraries is needed."""
    done = place.script("""
        import importlib.abc
        class Blocked(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in {"torch", "jax", "tensorflow", "pandas", "cupy"}:
                    raise ImportError(name)
        sys.meta_path.insert(0, Blocked())
        with metrana.init(run_name="run") as run:
            run.log("x", 1.0)
    """)
    assert (done.returncode, done.stderr) == (0, "")
    assert place.points("x") == [(0, 1.0)]


@pytest.mark.fault_row("A19")
def test_us56_calls_before_init_and_after_close(place):
    """At once a specific error that names init(); closing twice and a new init are fine."""
    metrana_async.current._current = None
    started = time.monotonic()
    with pytest.raises(NotInitializedError, match=r"init\(\)"):
        metrana.log("x", 1.0)
    with pytest.raises(NotInitializedError, match=r"init\(\)"):
        metrana.flush()
    run = place.init()
    metrana.log("x", 1.0)
    first = metrana.close(30)
    assert metrana.close(30).statistics.committed == first.statistics.committed == 1
    with pytest.raises(NotInitializedError, match=r"init\(\)"):
        metrana.log("x", 2.0)
    with pytest.raises(RunClosedError):
        run.log("x", 2.0)

    async def awaited():
        with pytest.raises(NotInitializedError, match=r"init\(\)"):
            await metrana_async.log("x", 2.0)

    asyncio.run(awaited())
    assert time.monotonic() - started < 10
    with place.init(resume_strategy="allow") as again:
        again.log("x", 3.0)
    assert place.points("x") == [(0, 1.0), (1, 3.0)]


def test_us56_disabled_costs_next_to_nothing(place):
    """A million calls in about a second; no thread, no file, no socket, no server."""
    done = place.script("""
        import threading, time
        before = threading.active_count(), len(os.listdir("/proc/self/fd"))
        run = metrana.init(init_mode="disabled")
        started = time.process_time()
        for _ in range(1_000_000):
            run.log("x", 1.0)
        spent = time.process_time() - started
        run.log_rl_environment_step("r", [[1.0] * 4] * 2, 0, ["a", "b"], 0)
        run.log_config({"lr": 1})
        for bad in ("text", None, [[1.0], [1.0, 2.0]]):
            try:
                run.log("x", bad)
            except metrana.ValidationError:
                continue
            raise AssertionError(bad)
        assert run.flush().committed == 0 and run.get_last_step("x") is None
        assert run.close().is_complete and not metrana.is_initialized()
        assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before
        assert "aiohttp" not in sys.modules and not os.path.exists(os.environ["METRANA_DATA_DIR"])
        print(spent)
    """, METRANA_DATA_DIR=f"{place.data_dir}-nowhere")  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert float(done.stdout) < 3


def test_us67_a_blocked_loop_does_not_stop_delivery(place):
    """The point is stored while the caller's loop sleeps synchronously."""

    async def main():
        async with metrana_async.init(**names(place)) as run:
            await run.log("x", 1.0)
            time.sleep(2)  # the report: synchronous code holds the loop up
            seen = place.points("x")
            await run.log("x", 2.0)
            return seen

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: asyncio.run(main())).result() == [(0, 1.0)]
    assert place.points("x") == [(0, 1.0), (1, 2.0)]


def test_us69_fire_and_forget_tasks_under_a_greedy_collector(place):
    """Awaited logs, tasks nobody holds and calls nobody awaits are all stored, without a word."""
    done = place.script("""
        import asyncio, gc
        import metrana_async
        async def main():
            async with metrana_async.init(run_name="run") as run:
                gc.set_threshold(1)
                for k in range(1000):
                    await run.log("awaited", float(k))
                for k in range(100):
                    asyncio.create_task(run.log("task", float(k)))
                    run.log("forgotten", float(k))
                gc.collect()
                await asyncio.sleep(0)
                gc.set_threshold(700)
        asyncio.run(main(), debug=False)
    """)
    assert (done.returncode, done.stderr) == (0, "")
    for name, n in (("awaited", 1000), ("task", 100), ("forgotten", 100)):
        assert [v for _, v in place.points(name)] == [float(k) for k in range(n)], name


def test_us78_unicode_and_ascii_terminals(place):
    """Mathematical letters and odd text are stored as they are, on an ASCII terminal, twice."""
    done = place.script("""
        for k in range(2):
            run = metrana.init(run_name=f"r\\u00fcn-\\U0001f680-{k}", config={"\\u00e9": "\\u00df"})
            run.log("\\U0001d53c(X)", 1.0)
            run.log_config({"text": "a\\u000bb\\u200bc\\uf0e9d\\u0000e"})
            try:
                run.log_config({"text": "\\ud800"})
            except metrana.ValidationError as error:
                assert "surrogate" in str(error)
            else:
                raise AssertionError
            run.close(5)
    """, PYTHONIOENCODING="ascii", LC_ALL="C", METRANA_QUIET="")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.isascii()
    for k in range(2):
        name = f"rün-🚀-{k}"
        assert place.points("𝔼(X)", name) == [(0, 1.0)]
        with place.reader() as reader:
            config = reader.run(name).config
        assert config == {"é": "ß", "text": "a\x0bb\u200bc\uf0e9d\x00e"}
    body = place.post(
        "/query/runs", json.dumps({"workspace": "default", "project": place.project}).encode()
    )
    assert len(json.loads(body.decode("utf-8", "strict"))) == 2


class Kind(enum.Enum):
    A = 1


def test_us79_nested_values_and_configuration(place):
    """One flattening rule for metrics; configuration reads back with its types and its order."""
    config = {
        "max_iter": None,
        "encoder": ["linear", {"n": 2}],
        "lr": 1e-4,
        "flag": False,
        "path": Path("/x"),
        "enum": Kind.A,
        "order": [3, 1, 2],
    }
    with place.init(config=config) as run:
        run.log({"train": {"m2": 10}})
    assert place.points("train/m2") == [(0, 10.0)]
    with place.reader() as reader:
        found = reader.run("run")
    read = {path.removeprefix("config/"): value for path, value in found.attributes.items()}
    assert read["max_iter"] is None
    assert read["flag"] is False
    assert read["lr"] == 1e-4
    assert (read["path"], read["enum"], read["order"]) == ("/x", "A", [3, 1, 2])
    assert (read["encoder/0"], read["encoder/1/n"]) == ("linear", 2)


def test_us79_items_of_lists_are_filtered_by(place):
    """encoder[0] == 'linear' finds the run, in the language and built in Python, and no other."""
    configs = {
        "mixed": {"encoder": ["linear", {"n": 2}], "lr": 1e-4, "flag": False, "max_iter": None},
        "plain": {"encoder": ["conv", "linear"], "lr": 3, "path": Path("/x"), "enum": Kind.A},
        "nested": {"encoder": [["lstm", "conv"], "conv"], "order": [3, 1, 2]},
        "none": {"other": ["linear"]},
    }
    for name, config in configs.items():
        place.init(run_name=name, config=config).close()
    cases = [
        ("config.encoder[0] = 'linear'", F.config.encoder[0] == "linear", ["mixed"]),
        ("config.encoder[-1] = 'linear'", F.config.encoder[-1] == "linear", ["plain"]),
        ("config.encoder[-1].n >= 2", F.config.encoder[-1].n >= 2, ["mixed"]),
        ("config.encoder[0][1] = 'conv'", F.config.encoder[0][1] == "conv", ["nested"]),
        ("config.encoder[1] = 'conv'", F.config.encoder[np.int64(1)] == "conv", ["nested"]),
        ("config.encoder[2] exists", F.config.encoder[2].exists(), []),
        ("config.encoder[-3] exists", F.config.encoder[-3].exists(), []),
        ("config.order[0] = 3", F.config.order[0] == 3, ["nested"]),
        ("3 in config.order", F.config.order.contains(3), ["nested"]),
        ("config.lr < 1e-3", F.config.lr < 1e-3, ["mixed"]),
        ("config.flag = false", F.config.flag == False, ["mixed"]),  # noqa: E712
        ("config.max_iter = null", F.config.max_iter == None, ["mixed"]),  # noqa: E711
        ("config.path = '/x'", F.config.path == "/x", ["plain"]),
        ("config.enum = 'A'", F.config.enum == "A", ["plain"]),
        ("attributes.config/encoder[0] = 'linear'", F.attributes["config/encoder"][0] == "linear",
         ["mixed"]),
    ]  # fmt: skip
    with place.reader() as reader:
        for text, built, names in cases:
            assert [run.name for run in reader.runs(where=text)] == names, text
            assert [run.name for run in reader.runs(where=built)] == names, str(built)
        ordered = reader.runs(order_by="-config.encoder[0]")
        assert [run.name for run in ordered] == ["nested", "mixed", "plain", "none"]
        with pytest.raises(InvalidQueryError, match="no run has config.encoder.7.*encoder"):
            reader.runs(where="config.encoder[7] = 'x'")


def test_us86_import_and_first_log_are_quick(place):
    """The import brings no learning library; the first log after init takes milliseconds."""
    done = place.script("""
        import time
        assert not {"torch", "ray", "jax", "pandas", "aiohttp"} & set(sys.modules)
        run = metrana.init(run_name="run")
        started = time.perf_counter()
        run.log("x", 1.0)
        print(time.perf_counter() - started)
        run.close()
    """)
    assert (done.returncode, done.stderr) == (0, "")
    assert float(done.stdout) < 0.1


@pytest.mark.parametrize("server", ["down", "black hole"])
def test_us86_init_without_a_server_ends_in_time(server):
    """Against a server that refuses or swallows everything init says so within its time-out."""
    with MemoryServer() as memory:
        transport = FaultyTransport(memory.transport(), paths=None)
        transport.is_refusing, transport.is_black_hole = server == "down", server != "down"
        started = time.monotonic()
        with pytest.raises(metrana.InitError, match="within 1 s"):
            metrana.init(project_name="p", transport=transport, init_timeout_secs=1, quiet=True)
        assert time.monotonic() - started < 5


SECRETS = ("hiddenK1x", "hiddenK2x", "hiddenK3x", "hiddenK4x", "hiddenK5x", "hiddenK6x")


def test_us90_no_secret_leaves_the_process(place, tmp_path):
    """Not in the store, the messages, debug logs, process title, reprs, answers or pickles."""
    done = place.script("""
        import logging, pickle
        logging.basicConfig(level=1, stream=sys.stderr)
        config = {"wandb_key": "hiddenK1x", "api_key": "hiddenK2x", "password": "hiddenK3x",
                  "uri": "https://u:hiddenK4x@h/x", "aws": {"secret_access_key": "hiddenK5x"},
                  "num_memory_tokens": 4, "use_cls_token": True, "tokenizer": "gpt2",
                  "env": {"HOME": "/root", "METRANA_API_KEY": os.environ["METRANA_API_KEY"]},
                  "note": "run with hiddenK6x"}
        run = metrana.init(run_name="run", config=config, log_level="trace")
        run.log_attributes("launch", {"argv": ["--api-key", "hiddenK2x", "--password=hiddenK3x"]})
        run.log_env_attributes("e", {"password": "hiddenK3x"})
        run.set_description("from https://u:hiddenK4x@h/x")
        run.log("x", 1.0)
        run.flush(10)
        pickled = pickle.dumps(run._run)
        print(repr(run), run._run.settings, pickled, open("/proc/self/cmdline").read())
        try:
            metrana.init(project_name="p", api_key=b"hiddenK6x")
        except metrana.InitError as error:
            print(error)
        run.close()
    """, METRANA_API_KEY="hiddenK6x", METRANA_QUIET="")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "redact=False" in done.stderr
    assert "config/api_key" in done.stderr
    # The script itself is in the command line of this test's interpreter, and nowhere else.
    shown = done.stderr + done.stdout.partition("import os, sys")[0]
    store = b"".join(
        path.read_bytes() for path in Path(place.data_dir).rglob("*") if path.is_file()
    )
    with place.reader() as reader:
        info = reader.run("run")
    for secret in SECRETS:
        assert secret not in shown
        assert secret.encode() not in store
        assert secret not in repr(info)
    config = info.config
    assert (config["num_memory_tokens"], config["use_cls_token"], config["tokenizer"]) == (
        4,
        True,
        "gpt2",
    )
    assert (config["uri"], config["note"]) == ("https://***@h/x", "run with ***")
    assert info.description == "from https://***@h/x"


def test_us90_opting_out_stores_what_was_given(place):
    """`redact=False`, or METRANA_REDACT=0, keeps configuration as it is."""
    with place.init(redact=False, config={"password": "kept"}) as run:
        run.log_config({"token": "kept, too"})
    with place.reader() as reader:
        assert reader.run("run").config == {"password": "kept", "token": "kept, too"}
    done = place.script(
        'metrana.init(run_name="other", config={"password": "kept"}).close()', METRANA_REDACT="0"
    )
    assert (done.returncode, done.stderr) == (0, "")
    with place.reader() as reader:
        assert reader.run("other").config == {"password": "kept"}


@pytest.mark.fault_row("B12")
def test_pickled_handles_of_one_process_share_its_writer(place):
    """Unpickled in the same process, threads and loops: one writer, one order, all points."""
    import pickle

    run = place.init()
    copies = [pickle.loads(pickle.dumps(run._run)) for _ in range(4)]

    def work(copy):
        async def log():
            for k in range(50):
                await copy.log("x", float(k))

        asyncio.run(log())

    threads = [threading.Thread(target=work, args=(copy,)) for copy in copies]
    [t.start() for t in threads], [t.join() for t in threads]
    run.log("x", -1.0)
    run.close(30)
    for copy in copies:
        asyncio.run(copy.close(30))
    assert len(place.points("x")) == 201
    with place.reader() as reader:
        info = reader.run("run")
    assert len(info.writers) == 1
    assert info.state == "finished"


def test_a_slow_server_holds_no_caller_back(place):
    """Logging from a loop against delays and faults takes no time of the loop."""
    transport = faulty_transport(place.data_dir, delay_s=0.3, fail_every=3)

    async def main():
        run = await metrana_async.init(
            project_name=place.project, run_name="run", transport=transport, quiet=True
        )
        await run.log("x", 0.0)
        slowest = 0.0
        for k in range(1, 2000):
            started = time.thread_time()
            await run.log("x", float(k))
            slowest = max(slowest, time.thread_time() - started)
        await run.close(30)
        return slowest

    assert asyncio.run(main()) < 0.05
    assert [v for _, v in place.points("x")] == [float(k) for k in range(2000)]
