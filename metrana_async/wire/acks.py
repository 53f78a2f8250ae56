"""What the server answers to a request of batches.

Per batch: one status, and what became of each point. Per request: the lanes' high-water marks,
notices for the writer, the store generation, and flow control. The client treats the answer as
untrusted too: ids are echoed and checked before anything is dropped.
"""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from metrana_async.errors import ProtocolError


class BatchStatus(str, enum.Enum):
    """The fate of one batch."""

    STORED = "stored"
    """Durable; `counts` says what became of its points."""
    DUPLICATE = "duplicate"
    """Its sequence was stored before; nothing changed. `counts` is as it was then, where anything
    but "stored" was in it."""
    GAP = "gap"
    """`expected` is the next sequence this lane may send."""
    CONFLICT = "conflict"
    """Other bytes were stored under this sequence, or nobody can tell any more: a cloned writer."""
    REJECTED = "rejected"
    """It can never be stored (`reason`), also when it comes again; its sequence is taken, the lane
    goes on behind it."""
    NEED_PAGES = "need_pages"
    """Send it again together with the pages named in `pages`; nothing was stored."""


class Outcome(str, enum.Enum):
    """What became of points. The first four partition a batch's points; the rest are older ones.

    ``committed = STORED + DUPLICATE + SUPERSEDED`` and
    ``visible = STORED - REPLACED - DISCARDED - merged``.
    """

    STORED = "stored"
    DUPLICATE = "duplicate"
    SUPERSEDED = "superseded"
    PIN_CONFLICT = "pin_conflict"
    REPLACED = "replaced"
    DISCARDED = "discarded_by_restart"
    LATE = "late"
    """How many of the stored points came from a dead writer behind its successor (informative)."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something a writer is told about its series; a warning class of the same name exists.

    Attributes:
        kind: a key of `errors.WARNING_BY_KIND`.
        text: one sentence for a person.
        metric: the metric concerned, or None.
        env_id: the environment concerned, or None.
        episode: the episode concerned, or None.
        points_count: points dropped, replaced or discarded.
        other: the other writer's host, pid and logger_id, where there is one.
    """

    kind: str
    text: str
    metric: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    env_id: str | None = None
    episode: int | None = None
    points_count: int = 0
    other: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class BatchReply:
    """The answer to one batch, echoing its identity."""

    lane: int
    seq: int
    status: BatchStatus
    counts: dict[str, int] = field(default_factory=dict)
    expected: int | None = None
    reason: str | None = None
    pages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class IngestReply:
    """The answer to one request of batches of one writer.

    Attributes:
        acked: per lane, the greatest sequence with everything up to it durable.
        generation: drawn at random whenever the store is opened; a new one asks the client to
            send retained batches again.
        credit_bytes: most bytes the next request may have.
        retry_after_ms: pause the server asks for, or 0.
    """

    run_uid: str
    writer_id: str
    replies: tuple[BatchReply, ...]
    acked: dict[int, int]
    generation: str
    notices: tuple[Notice, ...] = ()
    credit_bytes: int = 0
    retry_after_ms: int = 0


def encode_reply(reply: IngestReply) -> bytes:
    """Encode as JSON."""
    return orjson.dumps(asdict(reply), option=orjson.OPT_NON_STR_KEYS)


def decode_reply(data: bytes) -> IngestReply:
    """Decode what `encode_reply` made; ProtocolError for anything else."""
    try:
        content = orjson.loads(data)
        return IngestReply(
            run_uid=str(content["run_uid"]),
            writer_id=str(content["writer_id"]),
            replies=tuple(_batch_reply(row) for row in content["replies"]),
            acked={int(lane): int(seq) for lane, seq in content["acked"].items()},
            generation=str(content["generation"]),
            notices=tuple(notice_from_json(row) for row in content["notices"]),
            credit_bytes=int(content["credit_bytes"]),
            retry_after_ms=int(content["retry_after_ms"]),
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"ingest answer is malformed: {error!r}") from error


def _batch_reply(row: dict[str, Any]) -> BatchReply:
    return BatchReply(
        lane=int(row["lane"]),
        seq=int(row["seq"]),
        status=BatchStatus(row["status"]),
        counts={str(k): int(v) for k, v in row["counts"].items()},
        expected=row["expected"],
        reason=row["reason"],
        pages=tuple(row["pages"]),
    )


def notice_from_json(row: dict[str, Any]) -> Notice:
    """Build a notice from its JSON object; unknown keys raise TypeError."""
    return Notice(**row)
