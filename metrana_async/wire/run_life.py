"""What people do to a run from outside: rename, archive, annotate, tag, delete.

Endpoints (all POST, a `RunChange` as JSON; paths under ``/api/v1``):

====================  ==============================================  ==========================
path                  reads                                           answer
====================  ==============================================  ==========================
``/runs/change``      the run, and whatever is not None               the run, as ``/query/run``
``/runs/delete``      the run                                         ``{"run_uid", "name"}``
====================  ==============================================  ==========================

A change is made as a whole or not at all.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Final

import orjson

from metrana_async.errors import InvalidNameError, InvalidQueryError
from metrana_async.wire import limits
from metrana_async.wire.queries import DEFAULT_WORKSPACE

NOTES_PATH: Final = "sys/notes"
ARCHIVED_PATH: Final = "sys/archived"
TAGS_PATH: Final = "sys/tags"
FORMER_NAMES_PATH: Final = "sys/former_names"


@dataclass(frozen=True, slots=True)
class RunChange:
    """One change of one run; None leaves a thing as it is.

    Attributes:
        run: the run's name (within `project`, or where it is the only one of that name) or uid.
        name: the new name; the uid stays.
        is_archived: whether the run is put aside; lists hold it still, `archived` filters.
        notes: free text, the old one is replaced.
        add_tags, remove_tags: tags to add, then tags to take away.
    """

    workspace: str = DEFAULT_WORKSPACE
    project: str | None = None
    run: str = ""
    name: str | None = None
    is_archived: bool | None = None
    notes: str | None = None
    add_tags: list[str] | None = None
    remove_tags: list[str] | None = None


def encode_run_change(change: RunChange) -> bytes:
    """Encode as JSON; what is None is left out.

    Raises:
        InvalidQueryError, InvalidNameError: a field is wrong; names it.
    """
    _check(change)
    content = dataclasses.asdict(change)
    return orjson.dumps({name: value for name, value in content.items() if value is not None})


def decode_run_change(data: bytes | memoryview) -> RunChange:
    """Decode and check a change; the errors of `encode_run_change`."""
    try:
        content = orjson.loads(data)
        change = RunChange(**content)
    except (orjson.JSONDecodeError, TypeError) as error:
        raise InvalidQueryError(f"the change of a run is malformed: {error}") from error
    _check(change)
    return change


def _check(change: RunChange) -> None:
    for name in ("workspace", "run"):
        _require(isinstance(getattr(change, name), str), name, getattr(change, name), "a str")
    for name in ("project", "name", "notes"):
        text = getattr(change, name)
        _require(text is None or isinstance(text, str), name, text, "a str")
    for name in ("add_tags", "remove_tags"):
        tags = getattr(change, name)
        is_right = isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)
        _require(tags is None or is_right, name, tags, "a list of str")
    archived = change.is_archived
    _require(archived is None or isinstance(archived, bool), "is_archived", archived, "a bool")
    for text in (change.notes, *(change.add_tags or ())):
        size = 0 if text is None else len(text.encode())
        _require(
            size <= limits.ATTRIBUTE_STRING_BYTES,
            "notes or tag",
            f"of {size} bytes",
            f"at most {limits.ATTRIBUTE_STRING_BYTES}",
        )
    new = change.name
    if new is not None and not (
        1 <= len(new.encode()) <= limits.RUN_NAME_BYTES and new.isprintable()
    ):
        raise InvalidNameError(
            f"run name {new!r:.300} is not 1..{limits.RUN_NAME_BYTES} printable bytes"
        )


def _require(condition: bool, name: str, value: Any, wanted: str) -> None:  # noqa: FBT001
    if not condition:
        raise InvalidQueryError(f"{name} of the change is {value!r:.200}; it is {wanted}")
