"""What users of other trackers ran into (`US-nn`), and what happens here instead.

The cases are kept by number; each test asserts the right behaviour of its case on the real client
and a real server process.
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import metrana_async
import metrana_sync_shim as metrana
from metrana_async.errors import InvalidNameError, InvalidStepError, UnsupportedAggregationError

from .faults import faulty_transport


def test_us01_mixing_implicit_and_explicit_steps_throws_nothing_away(place, capfd):
    """Steps belong to a series: implicit train steps and explicit eval steps are both complete."""
    with place.init():
        for epoch in range(3):
            for i in range(10):
                metrana.log("train/loss", float(i))
            metrana.log("eval/loss", 0.5, step=epoch)
    assert [step for step, _ in place.points("train/loss")] == list(range(30))
    assert place.points("eval/loss") == [(0, 0.5), (1, 0.5), (2, 0.5)]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("caller", ["loop", "threads", "async"])
def test_us02_a_series_that_runs_ahead_holds_no_other_back(place, caller):
    """A rollout series at step 8,073 does not make a train series starting at 0 late."""
    run = place.init()

    def infer():
        for i in range(8074):
            run.log("infer/latency", 0.25, step=i)

    def train():
        for i in range(100):
            run.log("train/loss", 0.5, step=i)

    async def both():
        async with metrana_async.init(
            project_name=place.project, run_name="async", data_dir=place.data_dir, quiet=True
        ) as other:
            for i in range(8074):
                await other.log("infer/latency", 0.25, step=i)
            for i in range(100):
                await other.log("train/loss", 0.5, step=i)

    if caller == "loop":
        infer(), train()
    elif caller == "threads":
        threads = [threading.Thread(target=infer), threading.Thread(target=train)]
        [t.start() for t in threads], [t.join() for t in threads]
    else:
        asyncio.run(both())
    run.close()
    name = "async" if caller == "async" else "run"
    assert [s for s, _ in place.points("infer/latency", name)] == list(range(8074))
    assert [s for s, _ in place.points("train/loss", name)] == list(range(100))


def test_us03_late_results_go_to_their_own_step_also_after_the_run_ended(place):
    """A late evaluation is stored at its own step; a finished run can be reopened."""
    with place.init():
        metrana.log("eval/acc", 0.75, step=50)
        metrana.log("eval/acc", 0.5, step=20)
    with place.init(resume_strategy="allow"):
        metrana.log("eval/f1", 0.25, step=20)
    assert place.points("eval/acc") == [(20, 0.5), (50, 0.75)]
    assert place.points("eval/f1") == [(20, 0.25)]
    with place.reader() as reader:
        assert reader.aggregate("run", "eval/acc", "last") == 0.75


@pytest.mark.fault_row("G7")
def test_us04_resume_behind_the_last_step_rewrites_the_overlap(place):
    """Each step reads back once and the newer attempt wins in the overlap, after a real kill."""
    killed = place.script("""
        import signal
        run = metrana.init(run_name="run")
        for step in range(51):
            run.log("data", 1.0, step=step)
        run.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    assert killed.returncode == -9
    with place.init(resume_strategy="allow"):
        for step in range(40, 61):
            metrana.log("data", 2.0, step=step)
    assert place.points("data") == [(s, 1.0 if s < 40 else 2.0) for s in range(61)]


def test_us09_nan_and_infinities_are_values(place):
    """NaN and infinities read back as such; JSON answers stay strict."""
    values = [1.0, math.nan, math.inf, -math.inf, 0.0]
    with place.init():
        for i, value in enumerate(values):
            metrana.log("loss", value, step=i)
    found = place.points("loss")
    assert [step for step, _ in found] == [0, 1, 2, 3, 4]
    assert np.array_equal([v for _, v in found], values, equal_nan=True)
    with place.reader() as reader:
        assert math.isinf(reader.aggregate("run", "loss", "max"))
    question = {"workspace": "default", "project": place.project, "run": "run", "metric": "loss"}
    body = place.post("/query/aggregate", json.dumps({**question, "function": "max"}).encode())
    json.loads(body, parse_constant=lambda token: pytest.fail(f"bare {token} in JSON"))


def test_us13_the_same_step_twice_keeps_the_newer_and_harms_no_other_key(place, recwarn):
    """The later call replaces at its step, its new keys are stored, and the message comes once."""
    run = place.init()
    run.log({"loss": 1.0}, step=100)
    run.log({"loss": 2.0, "img_count": 9}, step=100)
    for _ in range(10_000):
        run.log("loss", 2.0, step=100)
    run.close()
    assert place.points("loss") == [(100, 2.0)]
    assert place.points("img_count") == [(100, 9.0)]
    told = [w for w in recwarn if issubclass(w.category, metrana_async.errors.DuplicateStep)]
    assert len(told) == 1
    with place.reader() as reader:
        ledger = reader.ledger("run")
    assert (ledger.replaced, ledger.visible, ledger.difference) == (10_001, 2, 0)


def test_us15_a_second_process_with_explicit_steps_overwrites_nothing(place):
    """Two processes log two metrics at the same steps into one run: both complete, one run."""
    code = """
        name, offset = os.environ["METRIC"], int(os.environ["OFFSET"])
        run = metrana.init(run_name="run", orchestration_id="job")
        for i in range(10):
            run.log(name, offset + i, step=i)
        run.close()
    """
    with ThreadPoolExecutor(2) as pool:
        jobs = [
            pool.submit(place.script, code, METRIC=m, OFFSET=o)
            for m, o in (("metric_A", "0"), ("metric_B", "200"))
        ]
        done = [job.result() for job in jobs]
    assert [(d.returncode, d.stderr) for d in done] == [(0, ""), (0, "")]
    assert place.points("metric_A") == [(i, i) for i in range(10)]
    assert place.points("metric_B") == [(i, 200 + i) for i in range(10)]
    with place.reader() as reader:
        assert [run.name for run in reader.runs()] == ["run"]


def test_us16_threads_with_the_same_step_numbers_lose_nothing(place):
    """Two threads, two names, the same steps; then 16 threads x 1,000 points in order."""
    run = place.init()

    def write(name, n):
        for i in range(n):
            run.log(name, float(i), step=i)

    threads = [threading.Thread(target=write, args=(name, 100)) for name in ("test", "train")]
    threads += [threading.Thread(target=write, args=(f"series{k}", 1000)) for k in range(16)]
    [t.start() for t in threads], [t.join() for t in threads]
    run.close()
    for name, n in [("test", 100), ("train", 100), *((f"series{k}", 1000) for k in range(16))]:
        assert place.points(name) == [(i, float(i)) for i in range(n)]


def test_us17_child_threads_see_the_current_run(place):
    """The process-wide run is visible in every thread; no extra run appears."""
    place.init()
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda k: [metrana.log(f"k{k}", float(i), step=i) for i in range(10)], range(8)
            )
        )
    metrana.close()
    assert sum(len(place.points(f"k{k}")) for k in range(8)) == 80
    with place.reader() as reader:
        assert len(reader.runs()) == 1


def test_us44_means_over_workers_weigh_every_episode_once(place):
    """One episode of 100 and nine of 0 from two workers have mean 10, in any order of arrival."""
    run = place.init()
    run.log_rl_episode("ret", [0.0] * 9, 0, list(range(1, 10)), "env0")
    run.log_rl_episode("ret", 100.0, 0, 0, "env0")
    run.log_distributed("loss", [1.0, 3.0], step=0)
    run.close()
    with place.reader() as reader:
        assert reader.aggregate("run", "ret", "mean", env_id="env0") == 10.0
        assert reader.aggregate("run", "ret", "count", env_id="env0") == 10
        with pytest.raises(UnsupportedAggregationError, match="min.*max.*first.*last"):
            reader.aggregate("run", "loss", "mean")


@pytest.mark.parametrize("seed", range(10))
def test_us66_order_survives_failed_and_delayed_sends(place, seed):
    """Every third request fails once and others are delayed: each series keeps its order."""
    transport = faulty_transport(
        place.data_dir, seed=seed, fail_every=3, lose_answer=0.15, delay_s=0.01
    )
    with place.init(transport=transport) as run:
        for i in range(2500):
            run.log("single", float(i))
            for k in range(4):
                run.log(f"series{k}", float(i))
            if i % 100 == 99:
                run.flush(timeout_secs=30)
    assert transport.faults, f"seed {seed}: no fault fired"
    for name in ("single", *(f"series{k}" for k in range(4))):
        assert place.points(name) == [(i, float(i)) for i in range(2500)], f"seed {seed}"


def test_us68_changing_what_was_logged_changes_nothing(place):
    """The snapshot is taken at the call, by the blocking, the awaited and the unawaited form."""
    run = place.init()
    metrics, array = {"x": 1.0, "n": {"y": 2.0}}, np.array(1.0)
    block = np.ones((2, 3), dtype=np.float32)
    run.log(metrics)
    run.log("a", array)
    run.log_rl_environment_step("r", block, 0, ["e0", "e1"])
    metrics["x"], metrics["z"], metrics["n"]["y"], array[...], block[...] = 9.0, 1.0, 9.0, 9.0, 9.0
    run.close()
    assert (place.points("x"), place.points("n/y"), place.points("a")) == (
        [(0, 1.0)],
        [(0, 2.0)],
        [(0, 1.0)],
    )
    with place.reader() as reader:
        assert "z" not in {metric.metric for metric in reader.metrics("run")}
    with place.reader() as reader:
        assert reader.env_series("run", "r", env_id="e1").value.tolist() == [1.0, 1.0, 1.0]

    async def awaited():
        async with metrana_async.init(
            project_name=place.project, run_name="async", data_dir=place.data_dir, quiet=True
        ) as other:
            values = {"x": 1.0}
            await other.log(values)
            values["x"] = 9.0
            values2 = {"y": 1.0}
            task = asyncio.create_task(other.log(values2))
            values2["y"] = 9.0
            await task

    asyncio.run(awaited())
    assert place.points("x", "async") == [(0, 1.0)]
    assert place.points("y", "async") == [(0, 1.0)]


def test_us68_a_racing_mutator_never_breaks_a_call(place):
    """A thread that edits the mapping and the array all the time causes no exception."""
    metrics, array, stop = {f"k{i}": 1.0 for i in range(20)}, np.zeros(64), threading.Event()

    def mutate():
        i = 0
        while not stop.is_set():
            i += 1
            array[...] = i
            metrics["k0"] = float(i)

    mutator = threading.Thread(target=mutate)
    mutator.start()
    try:
        with place.init() as run:
            for _ in range(1000):
                run.log(metrics)
                run.log("array", array)
    finally:
        stop.set()
        mutator.join()
    assert len(place.points("k0")) == 1000
    assert len(place.points("array")) == 64_000


USEFUL_NAMES = [
    "MAP@k",
    "huber_loss[delta=1.3]",
    "f1-score",
    "01: running time in mins",
    "CPU-%",
    "a=b&c=d",
    "#1",
    "?x",
    "it's",
    "x" * 256,
    "𝔼(X)",
    "Samples / training samples",
    "a/b",
    "a.b",
    "A/b",
    "a//b",
]


def test_us77_useful_names_are_accepted_distinct_and_addressable(place):
    """Names that people use are stored under themselves and read back by themselves."""
    with place.init() as run:
        for i, name in enumerate(USEFUL_NAMES):
            run.log(name, float(i))
        with pytest.raises(InvalidNameError, match="256"):
            run.log("x" * 257, 1.0)
    for i, name in enumerate(USEFUL_NAMES):
        assert place.points(name) == [(0, float(i))], name
    with place.reader() as reader:
        assert {metric.metric for metric in reader.metrics("run")} == set(USEFUL_NAMES)


def test_us83_integral_steps_are_exact_and_others_are_refused_at_the_call(place):
    """Integral floats and numpy integers are taken exactly; the rest names `step`."""
    good = [4096.0, np.int64(7), np.float32(8.0), np.array(9), 2**31, 2**53 + 1, 2**63 - 1]
    with place.init() as run:
        for step in good:
            run.log("x", 1.0, step=step)
        for step in (4096.5, "10", math.nan, 2**63, -1, True):
            with pytest.raises((InvalidStepError, TypeError), match="step"):
                run.log("x", 2.0, step=step)
    assert place.points("x") == [(s, 1.0) for s in sorted(int(s) for s in good)]


def test_us83_with_on_error_warn_training_goes_on(place):
    """`on_error="warn"` counts the caller's mistakes instead of raising them."""
    with place.init(on_error="warn") as run:
        run.log("x", 1.0, step=4096.5)
        run.log("x", 2.0, step=1)
    assert place.points("x") == [(1, 2.0)]


def test_us84_ten_thousand_points_in_one_call_are_few_requests(place):
    """Bulk is one snapshot, few requests, and the same order and numbering as single calls."""
    transport = faulty_transport(place.data_dir, seed=0)
    with place.init(transport=transport) as run:
        run.log("x", 0.0, step=0)
        run.log("x", np.arange(10_000, dtype=np.float64), step=np.arange(1, 20_001, 2))
        run.log("x", -1.0)
    found = place.points("x")
    assert found == [(0, 0.0), *((2 * i + 1, float(i)) for i in range(10_000)), (20_000, -1.0)]
    assert transport.served <= 20


@pytest.mark.slow
def test_us93_many_runs_in_one_process_leak_nothing(place):
    """300 runs: threads, descriptors and memory are back where they were."""
    import os
    import resource

    def census():
        gc.collect()
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    for i in range(5):
        with place.init(f"warm{i}") as run:
            run.log("x", 1.0)
    before, memory = census(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for i in range(300):
        with place.init(f"r{i}") as run:
            run.log("x", float(i))
    after, grown_kib = census(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    assert all(b - a <= 2 for a, b in zip(before, after, strict=True)), (before, after)
    assert grown_kib < 30 * 1024
    with place.reader() as reader:
        values = [reader.series(f"r{i}", "x").value.tolist() for i in range(300)]
    assert values == [[float(i)] for i in range(300)]
