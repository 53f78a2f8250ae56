"""Facts about which job a process is part of."""

from __future__ import annotations

import os
import subprocess
import sys
import types

import pytest

from metrana_async import orchestration
from metrana_async.errors import InitError

NAMES = (
    "METRANA_ORCHESTRATION_ID", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "RAY_JOB_ID",
    "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NNODES", "SLURM_JOB_NUM_NODES",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    # Restores the variable that resolving writes back.
    monkeypatch.setenv("METRANA_ORCHESTRATION_ID", "")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"METRANA_ORCHESTRATION_ID": "own", "SLURM_JOB_ID": "7"}, "own"),
        ({"TORCHELASTIC_RUN_ID": "elastic", "SLURM_JOB_ID": "7"}, "elastic"),
        ({"TORCHELASTIC_RUN_ID": "", "SLURM_JOB_ID": "7"}, "7"),
        ({"SLURM_JOB_ID": "7", "RAY_JOB_ID": "01000000"}, "7"),
        ({"RAY_JOB_ID": "01000000"}, "01000000"),
    ],
)
def test_the_ladder(monkeypatch, variables, expected):
    """The first rung that is set decides, and the answer is written back."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert orchestration.resolve_orchestration_id() == expected
    assert os.environ["METRANA_ORCHESTRATION_ID"] == expected


def test_the_argument_beats_everything(monkeypatch):
    """An explicit id is taken whatever the environment says."""
    monkeypatch.setenv("METRANA_ORCHESTRATION_ID", "env")
    assert orchestration.resolve_orchestration_id("mine") == "mine"


def test_strangers_get_random_tokens(monkeypatch):
    """Without any rung, and with Ray's placeholder, two jobs do not agree by accident."""
    monkeypatch.setenv("RAY_JOB_ID", "ffffffff")
    first = orchestration.resolve_orchestration_id()
    monkeypatch.setenv("METRANA_ORCHESTRATION_ID", "")
    assert len(first) == 32
    assert orchestration.resolve_orchestration_id() != first


def test_an_initialised_ray_gives_session_and_job(monkeypatch):
    """The bare job id is the same in every fresh cluster; the session name is not."""
    context = types.SimpleNamespace(
        get_session_name=lambda: "session_1", get_job_id=lambda: "01000000"
    )
    ray = types.SimpleNamespace(is_initialized=lambda: True, get_runtime_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setenv("RAY_JOB_ID", "01000000")
    assert orchestration.resolve_orchestration_id() == "session_1:01000000"


def test_a_plain_torchrun_on_several_nodes_needs_help(monkeypatch):
    """Where nothing makes the ranks agree, the error names both ways out."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(InitError, match=r"--rdzv-id.*orchestration_id="):
        orchestration.resolve_orchestration_id()
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    assert orchestration.resolve_orchestration_id() == "42"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ranks_of_a_plain_torchrun_agree_on_their_agent():
    """Children of one agent resolve one id, also through a shell; another agent's differ."""
    code = "from metrana_async.orchestration import *; print(resolve_orchestration_id())"
    environment = {k: v for k, v in os.environ.items() if k not in NAMES}
    environment["TORCHELASTIC_RUN_ID"] = "none"

    def rank(*wrapper: str) -> str:
        command = [*wrapper, f"{sys.executable} -c '{code}'"] if wrapper else [
            sys.executable, "-c", code]  # fmt: skip
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    first = rank()
    assert first.startswith("torchrun:")
    assert f":{os.getpid()}:" in first
    assert rank() == first
    assert rank("sh", "-c") == first


def test_spanning_hosts(monkeypatch):
    """Slurm's node count and torchrun's world size both tell."""
    assert orchestration.spans_hosts() is None
    monkeypatch.setenv("SLURM_NNODES", "2")
    assert "SLURM_NNODES=2" in orchestration.spans_hosts()


def test_a_process_says_who_it_is():
    """The identity is this process's, and its start time is known on Linux."""
    identity = orchestration.process_identity()
    assert identity.pid == os.getpid()
    assert identity.host
    if sys.platform == "linux":
        assert identity.started_ticks > 0
        assert identity.pid_namespace > 0
