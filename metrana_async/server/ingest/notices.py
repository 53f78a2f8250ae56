"""From tellings of the rules to notices: who is told what, once, in which words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from metrana_async.server.ingest.catalogue import RunState, WriterState
from metrana_async.server.ingest.rules.verdict import Telling
from metrana_async.wire.acks import Notice
from metrana_async.wire.model import SeriesDef

# A writer that fetches nothing must not fill memory; beyond this, notices of a kind are summed.
_PENDING_MAX: Final = 256
_TOLD_MAX: Final = 100_000

_TEXTS: Final = {
    "DuplicateStep": "{points} point(s) of {where} came at a step that was already taken",
    "EpisodeRestarted": "{where} began again; {points} earlier point(s) are discarded",
    "EpisodeTakenOver": "{where} is logged by another live writer too ({other})",
    "SecondWriter": "{where} is logged by another live writer too ({other})",
    "PinConflict": "{points} point(s) of {where} were lost: it is pinned otherwise",
    "RlStepDecreased": "the rl_step of {where} decreased",
}


def tell(run: RunState, telling: Telling, definition: SeriesDef, env_id: str | None) -> None:
    """Queue a telling for its recipient, unless it was told already.

    Every restart is told. The rest is told once per series (and episode and other writer, where
    there is one); counters keep the sums.
    """
    recipient = run.writers[telling.recipient]
    if telling.kind != "EpisodeRestarted":
        is_about_unit = telling.kind == "EpisodeTakenOver"
        unit = (env_id, telling.episode) if is_about_unit else None
        once = (telling.kind, definition.identity, unit, telling.other)
        if once in recipient.told or len(recipient.told) >= _TOLD_MAX:
            return
        recipient.told.add(once)
    other = None if telling.other is None else describe_writer(run.writers[telling.other])
    where = f"metric {definition.metric!r}"
    if env_id is not None:
        where += f", environment {env_id!r}"
    if telling.episode is not None:
        where += f", episode {telling.episode}"
    text = _TEXTS[telling.kind].format(
        points=telling.points_count,
        where=where,
        other="" if other is None else f"pid {other['pid']} on {other['host'] or 'unknown host'}",
    )
    enqueue(
        recipient,
        Notice(
            kind=telling.kind,
            text=text,
            metric=definition.metric,
            labels=dict(definition.labels),
            env_id=env_id,
            episode=telling.episode,
            points_count=telling.points_count,
            other=other,
        ),
    )


def tell_same_logger(one: WriterState, other: WriterState) -> None:
    """Tell two live writers that they share a logger_id."""
    for recipient, stranger in ((one, other), (other, one)):
        details = describe_writer(stranger)
        text = (
            f"logger_id {details['logger_id']!r} is in use by another live process too "
            f"(pid {details['pid']} on {details['host'] or 'unknown host'})"
        )
        enqueue(recipient, Notice("SecondWriter", text, other=details))


def enqueue(recipient: WriterState, notice: Notice) -> None:
    """Add a notice, or its points to an earlier one of its kind when too many wait."""
    pending, first_at = recipient.pending, recipient.pending_at
    kind = (notice.kind, notice.metric)
    if len(pending) >= _PENDING_MAX and kind in first_at:
        earlier = pending[first_at[kind]]
        total = earlier.points_count + notice.points_count
        pending[first_at[kind]] = replace(earlier, points_count=total)
        return
    first_at.setdefault(kind, len(pending))
    pending.append(notice)


def take(recipient: WriterState) -> tuple[Notice, ...]:
    """What waits for a writer; it is told once."""
    notices = tuple(recipient.pending)
    recipient.pending.clear()
    recipient.pending_at.clear()
    return notices


def describe_writer(writer: WriterState) -> dict[str, Any]:
    """How a person tells writers apart."""
    process = writer.row.process
    return {
        "host": str(process.get("host", "")),
        "pid": int(process.get("pid", 0)),
        "logger_id": writer.row.logger_id,
    }
