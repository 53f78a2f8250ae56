"""Which job is this process part of, and which process is it.

Processes of one job share a run; strangers must not. The ladder: argument,
``METRANA_ORCHESTRATION_ID``, ``TORCHELASTIC_RUN_ID``, ``SLURM_JOB_ID``, Ray, a random token. An
empty value counts as unset. The answer is written back to ``METRANA_ORCHESTRATION_ID`` so that
children agree with their parent.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
from pathlib import Path
from typing import Final

from metrana_async.errors import InitError
from metrana_async.wire.messages import ProcessIdentity

ORCHESTRATION_VARIABLE: Final = "METRANA_ORCHESTRATION_ID"

# Field 22 of /proc/PID/stat, counted behind the command name's closing parenthesis.
_STAT_START_TICKS: Final = 19
_STAT_PARENT: Final = 1
_ANCESTORS_MAX: Final = 64


def resolve_orchestration_id(explicit: str | None = None) -> str:
    """Resolve the ladder and write the answer back to the environment.

    Raises:
        InitError: a plain multi-node ``torchrun`` gives its ranks nothing to agree on.
    """
    found = explicit or _variable(ORCHESTRATION_VARIABLE) or _job_id() or secrets.token_hex(16)
    os.environ[ORCHESTRATION_VARIABLE] = found
    return found


def spans_hosts() -> str | None:
    """What says that this job runs on several hosts, or None; a local server cannot serve it."""
    for name in ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"):
        if _number(name) > 1:
            return f"{name}={_number(name)}"
    world, local = _number("WORLD_SIZE"), _number("LOCAL_WORLD_SIZE")
    if 0 < local < world:
        return f"WORLD_SIZE={world} > LOCAL_WORLD_SIZE={local}"
    return None


def process_identity() -> ProcessIdentity:
    """Host, boot, pid and start of this process; zeros where the platform does not tell."""
    pid = os.getpid()
    return ProcessIdentity(
        host=socket.gethostname(),
        boot_id=_read_text("/proc/sys/kernel/random/boot_id").strip(),
        pid=pid,
        pid_namespace=_pid_namespace(),
        started_ticks=_stat_field(pid, _STAT_START_TICKS),
    )


def _variable(name: str) -> str | None:
    return os.environ.get(name) or None


def _number(name: str) -> int:
    text = os.environ.get(name, "").strip()
    return int(text) if text.isdecimal() else 0


def _job_id() -> str | None:
    elastic = _variable("TORCHELASTIC_RUN_ID")
    if elastic is not None and elastic != "none":
        return elastic
    if elastic == "none" and spans_hosts() is None:
        return _elastic_agent_id()
    later = _variable("SLURM_JOB_ID") or _ray_id()
    if later is None and elastic == "none":
        raise InitError(
            "torchrun on several nodes gave its ranks no id to agree on (TORCHELASTIC_RUN_ID=none)",
            hint="start torchrun with --rdzv-id=NAME, or pass orchestration_id= to init()",
        )
    return later


def _ray_id() -> str | None:
    # Looked up, never imported: a process that uses Ray has already imported it.
    ray = sys.modules.get("ray")
    if ray is not None and getattr(ray, "is_initialized", bool)():
        context = ray.get_runtime_context()
        return f"{context.get_session_name()}:{context.get_job_id()}"
    bare = _variable("RAY_JOB_ID")
    return None if bare is None or bare.lower() == "ffffffff" else bare


def _elastic_agent_id() -> str:
    """Host, pid and start of the elastic agent: what the ranks of one plain torchrun share.

    The agent is the nearest ancestor that was started without TORCHELASTIC_RUN_ID; where the
    system does not show that, the parent.
    """
    agent = os.getppid()
    candidate = agent
    for _ in range(_ANCESTORS_MAX):
        environment = _read_text(f"/proc/{candidate}/environ")
        if not environment:
            break
        if not any(row.startswith("TORCHELASTIC_RUN_ID=") for row in environment.split("\0")):
            agent = candidate
            break
        candidate = _stat_field(candidate, _STAT_PARENT)
    return f"torchrun:{socket.gethostname()}:{agent}:{_stat_field(agent, _STAT_START_TICKS)}"


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def _stat_field(pid: int, index: int) -> int:
    fields = _read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[index]) if len(fields) > index else 0


def _pid_namespace() -> int:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0
