"""Applies attribute updates of a batch, or of a creator's open request, in order."""

from __future__ import annotations

from typing import Any

from metrana_async.errors import ProtocolError
from metrana_async.server.ingest.catalogue import Changes, RunState
from metrana_async.server.store.base import AttributeRow
from metrana_async.wire import limits
from metrana_async.wire.model import AttributeOp, AttributeUpdate


def check_attribute(update: AttributeUpdate) -> None:
    """Raise ProtocolError for an update that cannot be applied."""
    if not 1 <= len(update.path.encode()) <= limits.ATTRIBUTE_PATH_BYTES:
        raise ProtocolError(
            f"attribute path of {len(update.path.encode())} bytes is not within 1.."
            f"{limits.ATTRIBUTE_PATH_BYTES}"
        )
    is_tags = isinstance(update.value, list) and all(isinstance(t, str) for t in update.value)
    if update.op is not AttributeOp.SET and not is_tags:
        raise ProtocolError(f"tags of {update.path!r} are no list of strings")


def attribute_from_open(row: list[Any]) -> AttributeUpdate:
    """Read ``[op, path, value]`` of an open request; ProtocolError when it is none."""
    try:
        op, path, value = row
        update = AttributeUpdate(AttributeOp(op), path, value)
        if not isinstance(path, str):
            raise TypeError("path is no string")
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"create-only attribute {row!r} is malformed: {error}") from error
    check_attribute(update)
    return update


def apply_attribute(run: RunState, update: AttributeUpdate, changes: Changes) -> None:
    """Apply one checked update; the last one of a path stays."""
    env_no = None if update.env_id is None else run.env_no(update.env_id, changes)
    key = (env_no, update.episode, update.path)
    current = run.attributes.get(key)
    value = _new_value(update, None if current is None else current.value)
    row = AttributeRow(run.row.run_no, env_no, update.episode, update.path, value)
    run.attributes[key] = row
    changes.attributes[run.row.run_no, key] = row


def _new_value(update: AttributeUpdate, current: Any) -> Any:
    if update.op is AttributeOp.SET:
        return update.value
    if update.op is AttributeOp.TAGS_SET:
        return list(dict.fromkeys(update.value))
    tags = list(current) if isinstance(current, list) else []
    if update.op is AttributeOp.TAGS_ADD:
        return list(dict.fromkeys([*tags, *update.value]))
    return [tag for tag in tags if tag not in update.value]
