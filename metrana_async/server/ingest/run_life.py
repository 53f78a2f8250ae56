"""What people do to a run while its writers go on, or after them.

Functions over a loaded run; they change it and put the new rows into the commit in the making.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from metrana_async.errors import RunAlreadyExistsError, RunDeletedError
from metrana_async.server.ingest.attributes import apply_attribute
from metrana_async.server.ingest.catalogue import Changes, RunState
from metrana_async.server.store.base import AttributeRow, DeletedRun, PointStore, RunRow
from metrana_async.wire.messages import OpenRequest
from metrana_async.wire.model import AttributeOp, AttributeUpdate
from metrana_async.wire.run_life import (
    ARCHIVED_PATH,
    FORMER_NAMES_PATH,
    NOTES_PATH,
    TAGS_PATH,
    RunChange,
)


def apply_change(store: PointStore, run: RunState, change: RunChange, changes: Changes) -> None:
    """Make a change as a whole.

    Raises:
        RunAlreadyExistsError: another run of the project has the new name.
    """
    row = run.row
    if change.name is not None and change.name != row.name:
        if store.find_run(row.workspace, row.project, change.name) is not None:
            raise RunAlreadyExistsError(
                f"there is a run {change.name!r} in {row.workspace}/{row.project} already",
                hint="choose another name, or rename or delete that run first",
            )
        former = [*former_names(run.attributes.values()), row.name]
        kept = AttributeUpdate(AttributeOp.SET, FORMER_NAMES_PATH, list(dict.fromkeys(former)))
        apply_attribute(run, kept, changes)
        row.name = change.name
        run.is_row_changed = True
    updates: list[tuple[AttributeOp, str, Any]] = [
        (AttributeOp.SET, NOTES_PATH, change.notes),
        (AttributeOp.SET, ARCHIVED_PATH, change.is_archived),
        (AttributeOp.TAGS_ADD, TAGS_PATH, change.add_tags),
        (AttributeOp.TAGS_REMOVE, TAGS_PATH, change.remove_tags),
    ]
    for op, path, value in updates:
        if value is not None:
            apply_attribute(run, AttributeUpdate(op, path, value), changes)


def former_names(attributes: Iterable[AttributeRow]) -> list[str]:
    """The names that a run with these attributes had before it was renamed."""
    for row in attributes:
        if row.env_no is None and row.episode is None and row.path == FORMER_NAMES_PATH:
            return list(row.value)
    return []


def renamed_run(store: PointStore, request: OpenRequest) -> int | None:
    """The run_no of the run that was renamed while the job that asks for it was at it, or None.

    For everybody else the old name is free again.
    """
    for row in reversed(store.runs()):
        is_theirs = (row.workspace, row.project) == (request.workspace, request.project)
        if is_theirs and request.orchestration_id in row.orchestration_ids:
            contents = store.run_contents(row.run_no, with_series=False)
            if request.run_name in former_names(contents.attributes):
                return row.run_no
    return None


def tombstone(row: RunRow, now_ms: int) -> DeletedRun:
    """What a run that is deleted now leaves behind."""
    return DeletedRun(row.run_no, row.run_uid, row.workspace, row.project, row.name, now_ms)


def refuse_deleted(store: PointStore, identity: str) -> None:
    """RunDeletedError when this run, or the run of this writer, was deleted."""
    deleted = store.find_deleted(identity)
    if deleted is not None:
        raise RunDeletedError(
            f"run {deleted.name!r} of {deleted.workspace}/{deleted.project} was deleted",
            hint="init() again for a new run",
        )
