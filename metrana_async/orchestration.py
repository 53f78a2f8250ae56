"""Which job is this process part of, and which process is it.

Processes of one job share a run; strangers must not. The ladder: argument,
``METRANA_ORCHESTRATION_ID``, ``TORCHELASTIC_RUN_ID``, ``SLURM_JOB_ID``, Ray, the launcher of an MPI
job on one host, a random token. An empty value counts as unset. The answer is written back to
``METRANA_ORCHESTRATION_ID`` so that children agree with their parent.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
from pathlib import Path
from typing import Any, Final

from metrana_async.errors import InitError
from metrana_async.wire.messages import ProcessIdentity

_logger = logging.getLogger("metrana_async")

ORCHESTRATION_VARIABLE: Final = "METRANA_ORCHESTRATION_ID"

# Field 22 of /proc/PID/stat, counted behind the command name's closing parenthesis.
_STAT_START_TICKS: Final = 19
_STAT_PARENT: Final = 1
_ANCESTORS_MAX: Final = 64

# Size of the job and of its part on this host, as launchers tell their processes.
_SIZES: Final = (
    ("WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_SIZE", "MPI_LOCALNRANKS"),
)
_MPI_RANKS: Final = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")


def resolve_orchestration_id(explicit: str | None = None) -> str:
    """Resolve the ladder and write the answer back to the environment.

    Raises:
        InitError: the ranks of a plain ``torchrun`` or MPI job on several hosts have nothing to
            agree on.
    """
    found = explicit or _variable(ORCHESTRATION_VARIABLE) or _job_id() or secrets.token_hex(16)
    os.environ[ORCHESTRATION_VARIABLE] = found
    return found


def spans_hosts() -> str | None:
    """What says that this job runs on several hosts, or None; a local server cannot serve it."""
    for name in ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"):
        if _number(name) > 1:
            return f"{name}={_number(name)}"
    for whole, part in _SIZES:
        world, local = _number(whole), _number(part)
        if 0 < local < world:
            return f"{whole}={world} > {part}={local}"
    hosts = _ray_hosts()
    return f"{len(hosts)} Ray nodes" if len(hosts) > 1 else None


def _ray_hosts() -> set[str]:
    ray = _initialised_ray()
    if ray is None:
        return set()
    try:
        # Several nodes of one host are how Ray is tried out: one local server serves them.
        return {str(node["NodeManagerHostname"]) for node in ray.nodes() if node.get("Alive")}
    except Exception as error:  # foreign code across versions: what it cannot tell is not known
        _logger.info("Ray does not tell its nodes: %s", error)
        return set()


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


def is_process_alive(identity: dict[str, Any]) -> bool | None:
    """Whether the process of a `ProcessIdentity` still runs; None = that cannot be seen here."""
    here = process_identity()
    if not here.started_ticks or any(
        identity.get(name) != getattr(here, name) for name in ("boot_id", "pid_namespace")
    ):
        return None
    fields = _stat_fields(int(identity["pid"]))
    if not fields or fields[0] in "ZX":  # a zombie does nothing any more
        return False
    return int(fields[_STAT_START_TICKS]) == identity.get("started_ticks")


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
        return _launcher_id("torchrun", "TORCHELASTIC_RUN_ID")
    later = _variable("SLURM_JOB_ID") or _ray_id()
    if later is not None:
        return later
    if elastic == "none":
        raise InitError(
            "torchrun on several nodes gave its ranks no id to agree on (TORCHELASTIC_RUN_ID=none)",
            hint="start torchrun with --rdzv-id=NAME, or pass orchestration_id= to init()",
        )
    return _mpi_id()


def _mpi_id() -> str | None:
    rank = next((name for name in _MPI_RANKS if _variable(name)), None)
    if rank is None:
        return None
    spread = spans_hosts()
    if spread is not None:
        raise InitError(
            f"the ranks of an MPI job on several hosts ({spread}) have no id to agree on",
            hint=f"give every rank the same {ORCHESTRATION_VARIABLE} "
            f"(mpirun -x {ORCHESTRATION_VARIABLE}, mpiexec -genv), or pass orchestration_id=",
        )
    return _launcher_id("mpi", rank)


def _initialised_ray() -> Any:
    # Looked up, never imported: a process that uses Ray has already imported it.
    ray = sys.modules.get("ray")
    return ray if ray is not None and getattr(ray, "is_initialized", bool)() else None


def _ray_id() -> str | None:
    ray = _initialised_ray()
    if ray is not None:
        context = ray.get_runtime_context()
        return f"{context.get_session_name()}:{context.get_job_id()}"
    bare = _variable("RAY_JOB_ID")
    return None if bare is None or bare.lower() == "ffffffff" else bare


def _launcher_id(kind: str, variable: str) -> str:
    """Host, pid and start of the process that launched this job's processes on this host.

    It is the nearest ancestor that was started without `variable`, which it gives to its own;
    where the system does not show that, the parent.
    """
    launcher = os.getppid()
    candidate = launcher
    for _ in range(_ANCESTORS_MAX):
        environment = _read_text(f"/proc/{candidate}/environ")
        if not environment:
            break
        if not any(row.startswith(f"{variable}=") for row in environment.split("\0")):
            launcher = candidate
            break
        candidate = _stat_field(candidate, _STAT_PARENT)
    return f"{kind}:{socket.gethostname()}:{launcher}:{_stat_field(launcher, _STAT_START_TICKS)}"


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def _stat_field(pid: int, index: int) -> int:
    fields = _stat_fields(pid)
    return int(fields[index]) if len(fields) > index else 0


def _stat_fields(pid: int) -> list[str]:
    """What the kernel says of a process, from its state on; empty where there is none."""
    return _read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _pid_namespace() -> int:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0
