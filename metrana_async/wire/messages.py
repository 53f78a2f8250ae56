"""The JSON messages beside ingestion: open, heartbeat, leave, and errors.

Endpoints (all POST; paths under ``/api/v1``):

==========================  ==========================  ======================
path                        request                     answer
==========================  ==========================  ======================
``/writers/open``           OpenRequest                 OpenReply
``/writers/seeds``          SeedsRequest                SeedsReply
``/ingest``                 frames (pages, batches)     acks.IngestReply
``/writers/heartbeat``      HeartbeatRequest            HeartbeatReply
``/writers/leave``          LeaveRequest                HeartbeatReply
``/episodes/reserve``       ReserveRequest              ReserveReply
==========================  ==========================  ======================

An error answer is ``{"error": {"code", "message", "hint", ...}}``; every code is a class of
`metrana_async.errors`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import orjson

from metrana_async.errors import (
    BatchTooLargeError,
    MetranaError,
    ProtocolError,
    TransportError,
    UnavailableError,
    error_from_code,
)
from metrana_async.wire.acks import Notice, notice_from_json

PROTOCOL_VERSION: Final = 1
API_PREFIX: Final = "/api/v1"
JSON_TYPE: Final = "application/json"
FRAMES_TYPE: Final = "application/vnd.metrana.frames"
COLUMNS_TYPE: Final = "application/vnd.metrana.columns"

_Message = TypeVar("_Message")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Where a writer lives: enough for a server on the same host to see that it died.

    `pid_namespace` is the inode of the pid namespace and `started_ticks` the kernel's start time
    of the process; both are 0 where the platform does not tell.
    """

    host: str = ""
    boot_id: str = ""
    pid: int = 0
    pid_namespace: int = 0
    started_ticks: int = 0


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """Ask to join (or create) a run as a new writer.

    Attributes:
        run_name: None asks the server for a readable generated name.
        resume_strategy: "never" or "allow".
        writer_id: 32 hex digits, fresh for this incarnation. Opening the same writer again is
            idempotent (a retried request).
        logger_id: the logical writer this is an incarnation of, or None.
        started_us: the writer's own start, Unix microseconds; orders writers that were offline.
        is_online: False while replaying what an ended or offline process left behind; such a
            writer is never live and joins the order at `started_us`.
        attributes: create-only attribute updates `[op, path, value]`, applied by the creator.
        run_uid: 32 hex digits that this writer's batches already carry as their run, sealed before
            any server was asked; "" where there are none. The run gets it if it is created now;
            otherwise the server takes it for the run's own in everything this writer sends.
        seeds_max: series of the largest run whose seeds come with the admission; -1 = any run's.
    """

    workspace: str
    project: str
    run_name: str | None
    orchestration_id: str
    resume_strategy: str
    writer_id: str
    logger_id: str | None = None
    started_us: int = 0
    is_online: bool = True
    process: ProcessIdentity = field(default_factory=ProcessIdentity)
    attributes: list[list[Any]] = field(default_factory=list)
    sdk_version: str = ""
    protocol: int = PROTOCOL_VERSION
    run_uid: str = ""
    seeds_max: int = -1


@dataclass(frozen=True, slots=True)
class Seeds:
    """What a joining writer knows from the start.

    `series` rows: ``[family, metric, scale, labels, ordering, episodic, last_step, modes]`` —
    `labels` a list of pairs sorted by key, `last_step` the highest step (STANDARD) or None,
    `modes` for ENV_STEP ``{"auto": [env ids], ...}`` else ``{}``.
    `environments` rows: ``[env_id, last_rl_step, last_episode]`` (each None where unknown).
    `episodes` rows: ``[index into series, env_id, last_episode]`` for EPISODE series.
    """

    series: list[list[Any]] = field(default_factory=list)
    environments: list[list[Any]] = field(default_factory=list)
    episodes: list[list[Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class OpenReply:
    """A writer's admission."""

    run_uid: str
    workspace: str
    project: str
    run_name: str
    created: bool
    orchestration_id: str
    orchestration_ids: list[str]
    generation: str
    seeds: Seeds
    acked: dict[int, int] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)
    seeds_follow: bool = False
    """Whether the seeds were left out and are to be asked for, see SeedsRequest."""


@dataclass(frozen=True, slots=True)
class SeedsRequest:
    """Ask for the seeds of a run, part after part.

    Attributes:
        run_uid, writer_id: an admitted writer and its run.
        first: index of the first series of the part; 0, then the last part's `next`.
    """

    run_uid: str
    writer_id: str
    first: int = 0


@dataclass(frozen=True, slots=True)
class SeedsReply:
    """One part of a run's seeds.

    Attributes:
        seeds: of some series; indexes in `episodes` count from the part's first. `environments`
            come with the last part.
        next: where the next part begins, None where this was the last.
    """

    seeds: Seeds
    next: int | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    """Sign of life, independent of metrics; also how flush fetches pending notices.

    `counters` is the writer's own ledger, kept on the run for people to see.
    """

    run_uid: str
    writer_id: str
    counters: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LeaveRequest:
    """This writer goes.

    Attributes:
        is_run_over: True for close(): the run ends when its last live writer has left; False
            for shutdown_logger(): the run stays open for a resume.
        status: "finished", "failed" or "stopped".
        exception_type: class name of what ended the program, or None.
        is_dead: set by an adopter that knows the process is gone; the writer is not live any more.
    """

    run_uid: str
    writer_id: str
    is_run_over: bool = True
    status: str = "finished"
    exception_type: str | None = None
    is_dead: bool = False
    counters: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """Answer to heartbeat and leave."""

    state: str
    generation: str
    notices: list[Notice] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ReserveRequest:
    """Lease the next `count` episodes of an environment.

    `nonce` is 32 hex digits, drawn for each request and the same in its retries: repeated, it is
    answered with the same lease.
    """

    run_uid: str
    writer_id: str
    env_id: str
    count: int
    nonce: str


@dataclass(frozen=True, slots=True)
class ReserveReply:
    """The lease is ``first .. first + count - 1``."""

    first: int
    generation: str


def encode_message(message: Any) -> bytes:
    """Encode a message dataclass as JSON."""
    return orjson.dumps(message, option=orjson.OPT_NON_STR_KEYS)


def decode_message(cls: type[_Message], data: bytes | memoryview) -> _Message:
    """Decode a message; ProtocolError on unknown, missing or mistyped fields."""
    try:
        content = orjson.loads(data)
        if not isinstance(content, dict):
            raise TypeError("not an object")
        if cls is OpenRequest:
            content["process"] = ProcessIdentity(**content.get("process", {}))
        elif cls is SeedsReply:
            content["seeds"] = Seeds(**content["seeds"])
        elif cls is OpenReply:
            content["seeds"] = Seeds(**content["seeds"])
            content["acked"] = {int(k): int(v) for k, v in content.get("acked", {}).items()}
        if "notices" in content:
            content["notices"] = [notice_from_json(row) for row in content["notices"]]
        message = cls(**content)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"{cls.__name__} is malformed: {error}") from error
    for name, kind in _SCALAR_FIELDS.get(cls, ()):
        if not isinstance(getattr(message, name), kind):
            raise ProtocolError(f"{cls.__name__}.{name} is {getattr(message, name)!r}")
    return message


def decode_answer(cls: type[_Message], data: bytes | memoryview) -> _Message:
    """Decode a server's answer; UnavailableError, so retryable, where nothing can be made of it.

    A captive portal or a confused proxy is no fault of the request: it is asked again.
    """
    try:
        return decode_message(cls, data)
    except ProtocolError as error:
        raise UnavailableError(f"the server's answer makes no sense: {error}") from error


def _scalar_fields(cls: Any) -> tuple[tuple[str, type | tuple[type, ...]], ...]:
    kinds: dict[str, type | tuple[type, ...]] = {
        "str": str,
        "int": int,
        "bool": bool,
        "str | None": (str, type(None)),
        "list[list[Any]]": list,
        "dict[str, int]": dict,
    }
    return tuple(
        (f.name, kinds[str(f.type)]) for f in dataclasses.fields(cls) if str(f.type) in kinds
    )


_SCALAR_FIELDS: Final[dict[Any, tuple[tuple[str, type | tuple[type, ...]], ...]]] = {
    cls: _scalar_fields(cls)
    for cls in (
        OpenRequest,
        OpenReply,
        SeedsRequest,
        HeartbeatRequest,
        LeaveRequest,
        HeartbeatReply,
        ReserveRequest,
        ReserveReply,
    )
}


STATUS_BY_CODE: Final = {
    "auth": 401,
    "not_found": 404,
    "run_deleted": 410,
    "run_already_exists": 409,
    "batch_too_large": 413,
    "rate_limited": 429,
    "unavailable": 503,
    "store_damaged": 503,
    "store_failed": 503,
    "disk_full": 507,
    "internal": 500,
}
"""HTTP status of an error code; 400 for every other one."""


def encode_error(error: MetranaError) -> tuple[int, bytes]:
    """HTTP status and JSON body of an error answer."""
    content: dict[str, Any] = {"code": error.code, "message": error.message, "hint": error.hint}
    if isinstance(error, TransportError) and error.retry_after_s is not None:
        content["retry_after_s"] = error.retry_after_s
    return STATUS_BY_CODE.get(error.code, 400), orjson.dumps({"error": content})


def decode_error(status: int, body: bytes) -> MetranaError:
    """The error that an answer of `status` >= 400 stands for; anything unreadable is retryable."""
    try:
        content = orjson.loads(body)["error"]
        error = error_from_code(
            content["code"], content["message"], retry_after_s=content.get("retry_after_s")
        )
        error.hint = content.get("hint")
    except (orjson.JSONDecodeError, KeyError, TypeError):
        text = body[:200].decode("utf-8", "replace")
        if status == STATUS_BY_CODE[BatchTooLargeError.code]:
            return _too_large_on_the_way(text)
        return UnavailableError(f"the server answered {status}: {text!r}")
    if error.hint is not None:
        error.args = (f"{error.message} — {error.hint}",)
    return error


def _too_large_on_the_way(text: str) -> BatchTooLargeError:
    """A proxy's answer to a body beyond its limit. Unlike the server's own it is not for good."""
    error = BatchTooLargeError(
        f"a proxy before the server takes no request of this size: {text!r}",
        hint="raise its limit of request bodies to 32 MB (nginx: client_max_body_size)",
    )
    # Smaller requests pass, and who runs the proxy may raise the limit: nothing is given up.
    error.retryable = True
    return error
