"""Children of a logging process, and ranks of a launcher: one run, by the environment alone."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import metrana_sync_shim as metrana
from tests.interop.conftest import JOB_VARIABLES, ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

CHILDREN = """
import multiprocessing, os, sys
import metrana_sync_shim as metrana

def child(rank):
    run = metrana.init(config={"by": "child"})
    for step in range(10):
        run.log_distributed("m", float(rank), step=10 * rank + step)
    run.close()
    sys.stdout.flush()

if __name__ == "__main__":
    method = os.environ["METHOD"]
    context = multiprocessing.get_context(method)
    if method == "forkserver" and os.environ["EARLY"] == "1":
        # The fork server is there before the run: its children have its environment, not ours.
        os.environ["METRANA_ORCHESTRATION_ID"] = "job-1"
        early = context.Process(target=int)
        early.start(); early.join()
    run = metrana.init(config={"by": "parent"})
    children = [context.Process(target=child, args=(rank,)) for rank in range(4)]
    for process in children: process.start()
    for process in children: process.join()
    assert [process.exitcode for process in children] == [0] * 4
    run.close()
"""


def check(place, writers):
    with place.reader() as reader:
        (run,) = reader.runs()
        assert reader.run(run.name).config == {"by": "parent"}
        assert len(reader.run(run.name).writers) == writers
        merged = reader.merged(run.name, "m")
        assert reader.ledger(run.name).difference == 0
    assert merged.step.tolist() == list(range(40))
    assert merged.last.tolist() == [float(step // 10) for step in range(40)]


@pytest.mark.parametrize(
    ("method", "early"),
    [("spawn", "0"), ("fork", "0"), ("forkserver", "0"), ("forkserver", "1")],
)
def test_us72_children_log_to_their_parents_run(place, tmp_path, method, early):
    """Four children that know only what they inherit: one run, 40 points, the parent's config."""
    script = tmp_path / "train.py"
    script.write_text(CHILDREN)
    variables = {k: v for k, v in os.environ.items() if k not in JOB_VARIABLES}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False,
        env={**variables, "METRANA_DATA_DIR": place.data_dir, "METRANA_PROJECT": place.project,
             "METRANA_RUN_NAME": "run", "METRANA_QUIET": "1", "METHOD": method, "EARLY": early,
             "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    # A forked child inherits the parent's writer and joins as one of its own, as a spawned one.
    check(place, writers=5)


RANK = """
rank = int(os.environ["RANK"])
if rank == 0 or os.environ["ALL"] == "1":
    with metrana.init(run_name="run", config={"by": "parent"}) as run:
        for step in range(10):
            run.log_distributed("m", float(rank), step=10 * rank + step)
"""


@pytest.mark.parametrize("is_all", ["0", "1"])
@pytest.mark.parametrize(
    "variables",
    [
        {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"},
        {"TORCHELASTIC_RUN_ID": "job", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"},
        {"SLURM_JOB_ID": "17", "SLURM_NNODES": "1", "SLURM_NTASKS": "4"},
        {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "."},
        {"PMI_SIZE": "4", "MPI_LOCALNRANKS": "4", "PMI_RANK": "."},
    ],
    ids=["torchrun", "torchrun-id", "slurm", "openmpi", "mpich"],
)  # fmt: skip
def test_us72_ranks_of_a_launcher_make_one_run(place, variables, is_all):
    """Four ranks with a launcher's variables: one run; ranks that never log create nothing."""

    def start(rank):
        own = {k: v.replace(".", str(rank)) for k, v in variables.items()}
        return place.script(RANK, RANK=str(rank), ALL=is_all, **own)

    with ThreadPoolExecutor(4) as pool:
        ends = list(pool.map(start, range(4)))
    assert [(done.returncode, done.stderr) for done in ends] == [(0, "")] * 4
    with place.reader() as reader:
        (run,) = reader.runs()
        assert run.config == {"by": "parent"}
        assert len(reader.run("run").writers) == (4 if is_all == "1" else 1)
        points = len(reader.merged("run", "m").step)
    assert points == (40 if is_all == "1" else 10)


def test_two_jobs_of_one_launcher_do_not_meet(place):
    """The same name under another Slurm job is refused, naming both jobs and the ways on."""
    ok = place.script(RANK, RANK="0", ALL="0", SLURM_JOB_ID="17")
    assert ok.returncode == 0, ok.stderr
    done = place.script(RANK, RANK="0", ALL="0", SLURM_JOB_ID="18")
    assert done.returncode == 1
    assert "RunAlreadyExistsError" in done.stderr
    assert "'17'" in done.stderr
    assert "'18'" in done.stderr
    assert metrana.is_initialized() is False
