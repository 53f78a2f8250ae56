"""Two network namespaces with addresses of their own: a server here, a job over both."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

import metrana_sync_shim as metrana
from tests.interop.conftest import JOB_VARIABLES, ROOT
from tests.interop.life import Home, home_in

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

HERE, THERE = "10.231.77.1", "10.231.77.2"


def ip(*words: str, check: bool = True) -> int:
    return subprocess.run(["ip", *words], check=check, capture_output=True).returncode


def may_make_namespaces() -> bool:
    if os.geteuid() != 0 or not shutil.which("ip"):
        return False
    name = f"mtry{os.getpid()}"
    made = ip("netns", "add", name, check=False) == 0
    ip("netns", "del", name, check=False)
    return made


@pytest.fixture
def machines() -> Iterator[tuple[str, str]]:
    """Two network namespaces joined by one cable; nothing else is reachable from them."""
    if not may_make_namespaces():
        pytest.skip("needs root and iproute2 (ip netns)")
    names = tuple(f"m{side}{os.getpid()}" for side in "ab")
    try:
        for name in names:
            ip("netns", "add", name)
        ip("-n", names[0], "link", "add", "cable", "type", "veth", "peer", "cable", "netns",
           names[1])  # fmt: skip
        for name, address in zip(names, (HERE, THERE), strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            ip("netns", "del", name, check=False)


RANK = """
    rank = int(os.environ["RANK"])
    run = metrana.init(run_name="run", config={"rank": rank, "pid": os.getpid()})
    for step in range(100):
        run.log_distributed("loss", float(rank), step=step)
        run.log_rl_environment_step("reward", [float(step)] * 5, step, f"env{rank}", episode=step)
    print(run.close(20).is_complete)
"""


def inside(machine: str, home: Home, code: str, **more: str) -> subprocess.Popen[str]:
    """Start a program on a machine; it has that machine's temporary directory."""
    variables = {
        k: v
        for k, v in os.environ.items()
        if k not in JOB_VARIABLES and not k.startswith("METRANA_")
    }
    head = f"import os, sys\nimport metrana_sync_shim as metrana\nPROJECT = {home.project!r}\n"
    return subprocess.Popen(
        ["ip", "netns", "exec", machine, sys.executable, "-c", head + textwrap.dedent(code)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**variables, "METRANA_PROJECT": home.project, "METRANA_QUIET": "1",
             "PYTHONPATH": str(ROOT), **more},
    )  # fmt: skip


def test_a_job_over_two_machines_logs_to_one_run(machines, tmp_path):
    """One rank on each, by URL and token: one run, all points, the creator's configuration."""
    token = tmp_path / "token"
    with home_in(tmp_path) as home:
        server = subprocess.Popen(
            ["ip", "netns", "exec", machines[0], sys.executable, "-m", "metrana_async.server",
             "--data-dir", home.data_dir, "--host", HERE, "--allow-remote", "--token-file",
             str(token)],
            stderr=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        first = server.stderr.readline()
        assert f" on http://{HERE}:" in first, first
        url = first.split(" on ")[1].split(",")[0]
        job = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "2"}
        by_url = {"METRANA_INGESTION_URL": url, "METRANA_API_KEY": token.read_text().strip()}

        # Without the URL, and with a wrong token, one is told what to do.
        refused = inside(machines[1], home, RANK, RANK="1", **job)
        assert "SLURM_NNODES=2" in refused.communicate(timeout=60)[1]
        wrong = {**by_url, "METRANA_API_KEY": "x" * 64}
        refused = inside(machines[1], home, RANK, RANK="1", **job, **wrong)
        assert "AuthError: missing or wrong token" in refused.communicate(timeout=60)[1]

        ranks = [
            inside(machine, home, RANK, RANK=str(rank), **job, **by_url)
            for rank, machine in enumerate(machines)
        ]
        ends = [(*rank.communicate(timeout=60), rank.returncode) for rank in ranks]
        assert ends == [("True\n", "", 0)] * 2
        with metrana.QueryClient(project=home.project, data_dir=home.data_dir) as reader:
            (found,) = reader.runs()
            run = reader.run(found.name)
            assert run.orchestration_ids == ("7",)
            assert run.config["pid"] == run.writers[0]["process"]["pid"]
            assert run.config["pid"] == ranks[run.config["rank"]].pid
            assert reader.merged("run", "loss").count.tolist() == [2] * 100
            for rank in range(2):
                reward = reader.env_series("run", "reward", env_id=f"env{rank}")
                assert reward.value.tolist() == [float(s) for s in range(100) for _ in range(5)]
            assert reader.ledger("run").difference == 0
        server.terminate()
        assert server.communicate(timeout=30)[1] == ""
