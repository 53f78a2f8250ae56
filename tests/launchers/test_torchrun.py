"""The real torchrun: one run a job, on one node and on two."""

from __future__ import annotations

import socket
import subprocess

import pytest

from tests.launchers.conftest import BIN, EXAMPLES

pytestmark = [pytest.mark.launchers, pytest.mark.e2e, pytest.mark.timeout(300)]

TORCHRUN, TRAIN = BIN / "torchrun", EXAMPLES / "torchrun_train.py"
PLAIN = """
import os
assert "TORCHELASTIC_RUN_ID" in os.environ
os.environ["TORCHELASTIC_RUN_ID"] = "none"
exec(compile(open(os.environ["SCRIPT"]).read(), os.environ["SCRIPT"], "exec"))
"""


RESOLVE = "from metrana_async.orchestration import *; resolve_orchestration_id()"


def check(launch, ranks):
    """One run, every rank's values in every step, every environment's steps, one learning rate."""
    run = launch.only_run("ddp")
    assert len(run.writers) == ranks
    with launch.reader("ddp") as reader:
        assert reader.merged(run.name, "loss").count.tolist() == [ranks] * 50
        assert reader.series(run.name, "lr").step.tolist() == list(range(50))
        for rank in range(ranks):
            for m in range(2):
                found = reader.env_series(run.name, "reward", env_id=f"rank{rank}-env{m}")
                assert found.episode.tolist() == [k for k in range(50) for _ in range(8)]
                assert found.env_step.tolist() == list(range(8)) * 50
        assert reader.ledger(run.name).committed == 50 * (ranks + 1 + ranks * 16)
    return run


def test_plain(launch):
    """`torchrun --nproc-per-node 4` and nothing else."""
    launch(TORCHRUN, "--nproc-per-node", 4, TRAIN)
    check(launch, 4)


def test_an_agent_that_gives_no_id(launch, tmp_path):
    """TORCHELASTIC_RUN_ID=none: the ranks agree on their agent, and the next job is another."""
    script = tmp_path / "plain.py"
    script.write_text(PLAIN)
    launch(TORCHRUN, "--nproc-per-node", 4, script, SCRIPT=str(TRAIN))
    run = check(launch, 4)
    assert run.orchestration_id.startswith(f"torchrun:{socket.gethostname()}:")
    job = launch.start(TORCHRUN, "--nproc-per-node", 1, script, SCRIPT=str(TRAIN))
    out, _ = job.communicate(timeout=120)
    assert job.returncode != 0
    assert "RunAlreadyExistsError" in out


def test_with_an_id(launch):
    """`--rdzv-id` names the job."""
    launch(
        TORCHRUN, "--nproc-per-node", 2, "--rdzv-backend", "c10d", "--rdzv-endpoint",
        "127.0.0.1:0", "--rdzv-id", "job-7", TRAIN,
    )  # fmt: skip
    assert check(launch, 2).orchestration_ids == ("job-7",)


def two_nodes(launch, *, port, **more):
    """Two agents of one job on this machine."""
    words = [
        TORCHRUN, "--nnodes", 2, "--nproc-per-node", 2, "--master-addr", "127.0.0.1",
        "--master-port", port,
    ]  # fmt: skip
    words += [] if "RDZV_ID" not in more else ["--rdzv-id", more.pop("RDZV_ID")]
    agents = [launch.start(*words, "--node-rank", n, TRAIN, **more) for n in range(2)]
    try:
        return [(a.communicate(timeout=120)[0], a.returncode) for a in agents]
    finally:
        for agent in agents:
            agent.kill()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def test_two_nodes_with_a_url_and_an_id(launch):
    """A server that both reach, and `--rdzv-id`: one run of four ranks."""
    with launch.home.reader() as reader:
        reader.projects()  # starts the server
    card = launch.home.card
    ends = two_nodes(
        launch, port=free_port(), RDZV_ID="job-9",
        METRANA_INGESTION_URL=card["url"], METRANA_API_KEY=card["token"],
    )  # fmt: skip
    assert [code for _, code in ends] == [0, 0], "\n".join(out for out, _ in ends)
    assert check(launch, 4).orchestration_id == "job-9"


def test_two_nodes_without_are_told_the_ways_out(launch):
    """No URL: each rank's message names what gave it away, and what to start; no run is made."""
    ends = two_nodes(launch, port=free_port(), RDZV_ID="job-9")
    assert all(code != 0 for _, code in ends)
    text = "".join(out for out, _ in ends)
    assert "WORLD_SIZE=4 > LOCAL_WORLD_SIZE=2" in text
    assert "--allow-remote --token-file" in text
    assert launch.home.servers() == []


def test_two_plain_nodes_are_told_about_the_id(launch):
    """Neither URL nor id, by a torchrun that gives none: `--rdzv-id` is named."""
    done = subprocess.run(
        [BIN / "python", "-c", RESOLVE],
        env=launch.environment(TORCHELASTIC_RUN_ID="none", WORLD_SIZE="4", LOCAL_WORLD_SIZE="2"),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "--rdzv-id=NAME" in done.stderr
