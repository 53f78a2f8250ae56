"""Runs as people see them: rows and attributes of the store to plain JSON objects. Pure.

Attributes of a run have paths. Four mean something here: ``config/…`` (nested again from its
slashes), ``sys/tags``, ``sys/description`` and ``sys/git_sha``; everything else is listed as it is.
Values pass unchanged, numbers that JSON cannot hold in the encoding they were logged in.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from metrana_async.errors import InvalidQueryError, NotFoundError
from metrana_async.server.query.near_names import nearest
from metrana_async.server.store.base import (
    AttributeRow,
    PointStore,
    RunContents,
    RunRow,
    SeriesRow,
    WriterRow,
)
from metrana_async.wire.run_life import ARCHIVED_PATH, NOTES_PATH, TAGS_PATH

CONFIG_PREFIX: Final = "config/"
DESCRIPTION_PATH: Final = "sys/description"
GIT_SHA_PATH: Final = "sys/git_sha"


def find_run(store: PointStore, workspace: str, project: str | None, run: str) -> RunRow:
    """The run of this name (within `project` where given) or uid.

    A name wins over a uid.

    Raises:
        NotFoundError: there is none in the workspace.
        InvalidQueryError: several projects have a run of this name, and none was named.
    """
    if project is not None:
        named = store.find_run(workspace, project, run)
        if named is not None:
            return named
    else:
        same = [r for r in store.runs() if r.workspace == workspace and r.name == run]
        if len(same) > 1:
            projects = ", ".join(repr(r.project) for r in same)
            raise InvalidQueryError(
                f"{len(same)} projects have a run {run!r}: {projects}", hint="name the project"
            )
        if same:
            return same[0]
    found = store.find_run_uid(run)
    if found is not None and found.workspace == workspace and project in (None, found.project):
        return found
    raise _missing(store, workspace, project, run)


def _missing(store: PointStore, workspace: str, project: str | None, run: str) -> NotFoundError:
    rows = [row for row in store.runs() if row.workspace == workspace]
    runs = [row.name for row in rows if project in (None, row.project)]
    if project is not None and not runs:
        return NotFoundError(
            f"there is no project {project!r} in workspace {workspace!r}",
            hint=nearest(project, {row.project for row in rows}, "projects()"),
        )
    where = f"workspace {workspace!r}" if project is None else f"{workspace!r}/{project!r}"
    return NotFoundError(f"there is no run {run!r} in {where}", hint=nearest(run, runs, "runs()"))


def describe_run(contents: RunContents) -> dict[str, Any]:
    """Everything known of a run but its points, as a JSON object."""
    row = contents.row
    of_run = [a for a in contents.attributes if a.env_no is None and a.episode is None]
    flat = {a.path: a.value for a in of_run}
    return {
        "run_uid": row.run_uid,
        "workspace": row.workspace,
        "project": row.project,
        "name": row.name,
        "created_ms": row.created_ms,
        "state": row.state,
        "state_ms": row.state_ms,
        "exception_type": row.exception_type,
        "orchestration_id": row.orchestration_id,
        "orchestration_ids": row.orchestration_ids,
        "config": nested(of_run, CONFIG_PREFIX),
        "tags": flat.get(TAGS_PATH) or [],
        "description": flat.get(DESCRIPTION_PATH),
        "git_sha": flat.get(GIT_SHA_PATH),
        "notes": flat.get(NOTES_PATH) or "",
        "is_archived": flat.get(ARCHIVED_PATH) is True,
        "attributes": flat,
        "counters": row.counters,
        "writers": [_describe_writer(writer) for writer in contents.writers],
    }


def nested(attributes: Iterable[AttributeRow], prefix: str) -> dict[str, Any]:
    """Attributes under `prefix` as a tree: ``config/a/b`` is ``{"a": {"b": …}}``.

    Where one path is another's beginning (``a`` and ``a/b``), the longer one keeps the slashes in
    its key, so that nothing is hidden.
    """
    tree: dict[str, Any] = {}
    branches = {id(tree)}  # objects made here; a logged dict is a value, not a branch
    for row in sorted(attributes, key=lambda a: a.path):
        if not row.path.startswith(prefix):
            continue
        *parents, leaf = row.path[len(prefix) :].split("/")
        branch = tree
        for at, part in enumerate(parents):
            if part not in branch:
                branch[part] = {}
                branches.add(id(branch[part]))
            if id(branch[part]) not in branches:
                leaf = "/".join([*parents[at:], leaf])
                break
            branch = branch[part]
        branch[leaf] = row.value
    return tree


def describe_series(row: SeriesRow) -> dict[str, Any]:
    """Identity and pins of a series as a JSON object."""
    definition = row.definition
    return {
        "family": definition.family.value,
        "metric": definition.metric,
        "scale": definition.scale,
        "labels": dict(definition.labels),
        "ordering": definition.ordering.value,
        "episodic": definition.episodic,
    }


def describe_projects(rows: Iterable[RunRow], workspace: str) -> list[dict[str, Any]]:
    """The projects of a workspace by name, with how many runs they have and the newest's start."""
    projects: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row.workspace == workspace:
            empty = {"project": row.project, "runs_count": 0, "last_created_ms": row.created_ms}
            project = projects.setdefault(row.project, empty)
            project["runs_count"] += 1
            project["last_created_ms"] = max(project["last_created_ms"], row.created_ms)
    return [projects[name] for name in sorted(projects)]


def _describe_writer(writer: WriterRow) -> dict[str, Any]:
    return {
        "writer_id": writer.writer_id,
        "logger_id": writer.logger_id,
        "process": writer.process,
        "is_online": writer.is_online,
        "opened_ms": writer.opened_ms,
        "seen_ms": writer.seen_ms,
        "left": writer.left,
        "counters": writer.counters,
    }
