"""Lists of runs: filtered, ordered, a page at a time; and what their attributes are.

A page ends where the next begins: the cursor names the last run of a page and its place in the
order, so runs that come, go or change meanwhile neither repeat nor hide the others.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import orjson

from metrana_async.errors import InvalidQueryError, NotFoundError
from metrana_async.server.query import runs, summaries
from metrana_async.server.query.catalogue import Catalogue
from metrana_async.server.query.filters import Field, parse_field, parse_filter, select_runs
from metrana_async.server.query.near_names import nearest
from metrana_async.server.query.service import QueryService
from metrana_async.server.store.base import RunContents, RunRow
from metrana_async.wire.answers import decode_number
from metrana_async.wire.model import Family
from metrana_async.wire.run_life import ARCHIVED_PATH, NOTES_PATH, TAGS_PATH

_END_STATES: Final = ("finished", "failed", "stopped")
_KINDS: Final = {type(None): 0, bool: 1, int: 2, float: 2, str: 3}


def list_runs(
    service: QueryService,
    workspace: str,
    project: str | None,
    *,
    where: str | None = None,
    order_by: str | None = None,
    limit: int | None = None,
    after: str | None = None,
) -> tuple[list[dict[str, Any]], str | None]:
    """Runs as `runs.describe_run` has them, and the cursor of the next page, None at the end.

    `order_by` is a field, with ``-`` before it for the highest first; oldest first without one.
    Runs that have not got it come last.

    Raises:
        InvalidQueryError: filter, order or cursor mean nothing.
    """
    node = None if where is None else parse_filter(where)
    is_descending = order_by is not None and order_by.startswith("-")
    field = parse_field("created" if order_by is None else order_by.removeprefix("-"))
    table = RunTable(service, service.run_rows(workspace, project))
    chosen = list(range(len(table)))
    if node is not None:
        held = select_runs(node, table)
        chosen = [at for at in chosen if held[at]]
    places = _places(table, field, chosen, is_descending=is_descending)
    start = 0 if after is None else _start(places, after, order_by)
    page = places[start:] if limit is None else places[start : start + limit]
    is_end = start + len(page) == len(places)
    cursor = None if is_end or not page else _cursor(page[-1], order_by)
    return [runs.describe_run(table.contents[place.at]) for place in page], cursor


class RunTable:
    """Runs as columns of a filter (see `filters.RunColumns`). Reads series only when asked."""

    def __init__(self, service: QueryService, rows: Iterable[RunRow]) -> None:
        self._service = service
        self.contents: list[RunContents] = []
        for row in rows:
            try:
                self.contents.append(service.contents(row))
            except NotFoundError:
                continue  # deleted since it was listed
        self._catalogues: dict[int, Catalogue] = {}

    def __len__(self) -> int:
        return len(self.contents)

    def values(self, field: Field, rows: Sequence[int]) -> list[tuple[Any, ...]]:
        """See RunColumns."""
        return [self._values(field, at) for at in rows]

    def _values(self, field: Field, at: int) -> tuple[Any, ...]:
        contents = self.contents[at]
        if field.root == "summary":
            return self._summary(field, at)
        if field.root == "env":
            return tuple(
                value
                for flat in _by_env(contents).values()
                for value in _read(flat, field.path, field.below)
            )
        flat = {a.path: a.value for a in contents.attributes if a.env_no is None}
        if field.root == "attributes":
            return _read(flat, field.path, field.below)
        if field.root == "config":
            paths = (field.path, field.path.replace(".", "/"))
            found = (_read(flat, runs.CONFIG_PREFIX + path, field.below) for path in paths)
            return next((values for values in found if values), ())
        value = _plain_value(field.root, contents, flat)
        return () if value is None else _scalars(value)

    def _summary(self, field: Field, at: int) -> tuple[Any, ...]:
        row = self.contents[at].row
        try:
            chosen = summaries.choose_series(self._catalogue_of(at), field.path)
            if chosen is None:
                return ()
            summary = summaries.summarize(self._service, row, chosen, (field.function,))
        except NotFoundError:
            return ()  # deleted since it was listed
        return () if summary is None else (getattr(summary, field.function),)

    def _catalogue_of(self, at: int) -> Catalogue:
        if at not in self._catalogues:
            self._catalogues[at] = self._service.catalogue(self.contents[at].row)
        return self._catalogues[at]

    def names(self, field: Field) -> set[str]:
        """See RunColumns."""
        if field.root == "summary":
            metrics = {name for at in range(len(self)) for name in self._catalogue_of(at).by_metric}
            return {f"summary.{metric}.{field.function}" for metric in metrics}
        prefix = runs.CONFIG_PREFIX if field.root == "config" else ""
        return {
            f"{field.root}.{a.path.removeprefix(prefix)}"
            for contents in self.contents
            for a in contents.attributes
            if (a.env_no is not None) == (field.root == "env") and a.path.startswith(prefix)
        }


def _plain_value(root: str, contents: RunContents, flat: dict[str, Any]) -> Any:
    row = contents.row
    if root == "created":
        return row.created_ms
    if root == "duration":
        return (last_sign_ms(contents) - row.created_ms) / 1000
    if root == "uid":
        return row.run_uid
    if root == "archived":
        return flat.get(ARCHIVED_PATH) is True
    paths = {"notes": NOTES_PATH, "tags": TAGS_PATH, "description": runs.DESCRIPTION_PATH}
    return flat.get(paths[root]) if root in paths else getattr(row, root)


def last_sign_ms(contents: RunContents) -> int:
    """When the run ended, or was last heard of (Unix ms)."""
    row = contents.row
    if row.state in _END_STATES:
        return row.state_ms
    return max([row.created_ms, *(writer.seen_ms for writer in contents.writers)])


def _by_env(contents: RunContents) -> dict[int, dict[str, Any]]:
    """Attributes of each environment by path; none of single episodes."""
    found: dict[int, dict[str, Any]] = {}
    for a in contents.attributes:
        if a.env_no is not None and a.episode is None:
            found.setdefault(a.env_no, {})[a.path] = a.value
    return found


def _read(flat: dict[str, Any], path: str, below: tuple[int | str, ...]) -> tuple[Any, ...]:
    """The values at a path and below it; () where there is nothing.

    A list of plain values is one attribute; of any other list each item has a path of its own.
    """
    if path in flat:
        return _at(flat[path], below)
    if not below:
        return ()
    step, *rest = below
    if isinstance(step, int) and step < 0:
        start = len(path) + 1
        heads = {key[start:].partition("/")[0] for key in flat if key.startswith(f"{path}/")}
        step += sum(head.isdecimal() for head in heads)
    return _read(flat, f"{path}/{step}", tuple(rest))


def _at(value: Any, below: tuple[int | str, ...]) -> tuple[Any, ...]:
    """The values of what is below a value; () where there is no such thing."""
    for step in below:
        is_there = (
            isinstance(value, list) and -len(value) <= step < len(value)
            if isinstance(step, int)
            else isinstance(value, dict) and step in value
        )
        if not is_there:
            return ()
        value = value[step]
    return _scalars(value)


def _scalars(value: Any) -> tuple[Any, ...]:
    """The values a test looks at: items of a list, numbers that JSON cannot hold as floats."""
    if isinstance(value, list):
        return tuple(scalar for item in value for scalar in _scalars(item))
    if isinstance(value, dict) and value.keys() == {"float"}:
        return (decode_number(value["float"]),)
    return (value,)


# --- order -------------------------------------------------------------------------------------
class _Place:
    """Where a run stands in an order; places compare as the runs do."""

    __slots__ = ("at", "created_ms", "is_descending", "is_missing", "key", "run_uid")

    def __init__(
        self, at: int, key: tuple[int, Any] | None, row: RunRow, *, is_descending: bool
    ) -> None:
        self.at = at
        self.key = key
        self.is_missing = key is None
        self.created_ms = row.created_ms
        self.run_uid = row.run_uid
        self.is_descending = is_descending

    def is_before(self, key: tuple[int, Any] | None, created_ms: int) -> bool:
        """Whether the run comes before one of this key and time, or at the same place."""
        if self.key is None or key is None or self.key == key:
            same = self.key == key
            return self.created_ms <= created_ms if same else key is None
        return bool(self.key > key) if self.is_descending else bool(self.key < key)


def _places(
    table: RunTable, field: Field, chosen: list[int], *, is_descending: bool
) -> list[_Place]:
    """The chosen runs (positions, oldest first) in order."""
    places = [
        _Place(at, _key(values), table.contents[at].row, is_descending=is_descending)
        for at, values in zip(chosen, table.values(field, chosen), strict=True)
    ]
    if (
        chosen
        and field.root in ("config", "summary", "attributes", "env")
        and all(place.is_missing for place in places)
    ):
        near = nearest(field.text, table.names(field), "attributes()")
        raise InvalidQueryError(f"order_by: no run has {field.text}", hint=near)
    present = [place for place in places if place.key is not None]
    present.sort(key=lambda place: place.key or (0, 0), reverse=is_descending)
    return [*present, *(place for place in places if place.key is None)]


def _key(values: tuple[Any, ...]) -> tuple[int, Any] | None:
    value = values[0] if values else None
    if value is None or type(value) not in _KINDS or (value != value):  # noqa: PLR0124  # NaN
        return None
    return _KINDS[type(value)], value


def _cursor(place: _Place, order_by: str | None) -> str:
    key = None if place.key is None else [place.key[0], _text(place.key[1])]
    content = orjson.dumps([order_by, key, place.created_ms, place.run_uid])
    return base64.urlsafe_b64encode(content).decode()


def _text(value: Any) -> Any:
    return {"float": repr(value)} if isinstance(value, float) and math.isinf(value) else value


def _start(places: list[_Place], cursor: str, order_by: str | None) -> int:
    """Position of the first run behind the one that the cursor names."""
    try:
        of_order, key, created_ms, run_uid = orjson.loads(base64.urlsafe_b64decode(cursor))
        key = None if key is None else (int(key[0]), _scalars(key[1])[0])
        created_ms = int(created_ms)
    except (ValueError, TypeError, LookupError, binascii.Error) as error:
        raise InvalidQueryError(f"after={cursor!r:.80} is no cursor of this server") from error
    if of_order != order_by:
        raise InvalidQueryError(f"the cursor is of order_by={of_order!r}, not {order_by!r}")
    for position, place in enumerate(places):
        if place.run_uid == run_uid and (place.key, place.created_ms) == (key, created_ms):
            return position + 1
    try:
        return next(
            (n for n, p in enumerate(places) if not p.is_before(key, created_ms)), len(places)
        )
    except TypeError as error:
        raise InvalidQueryError(f"after={cursor!r:.80} is no cursor of this order") from error


# --- attributes ---------------------------------------------------------------------------------
def attributes(service: QueryService, run: RunRow) -> list[dict[str, Any]]:
    """Every current attribute of a run and its environments."""
    contents = service.contents(run)
    names = service.env_names(run)
    return [
        {
            "path": a.path,
            "value": a.value,
            "env_id": None if a.env_no is None else names[a.env_no],
            "episode": a.episode,
        }
        for a in contents.attributes
    ]


def definitions(
    service: QueryService, workspace: str, project: str | None
) -> dict[str, list[dict[str, Any]]]:
    """What the runs of a project log: its attributes and its metrics, each with its run count."""
    paths: dict[tuple[str, bool], dict[str, Any]] = {}
    metrics: Counter[tuple[str, Family, str]] = Counter()
    for contents in RunTable(service, service.run_rows(workspace, project)).contents:
        found: dict[tuple[str, bool], set[str]] = {}
        for a in contents.attributes:
            kinds = {_kind_name(scalar) for scalar in _scalars(a.value)}
            found.setdefault((a.path, a.env_no is not None), set()).update(kinds)
        for (path, is_env), kinds in found.items():
            empty = {"path": path, "is_of_environments": is_env, "kinds": set(), "runs_count": 0}
            entry = paths.setdefault((path, is_env), empty)
            entry["kinds"] |= kinds
            entry["runs_count"] += 1
        series = [row.definition for row in service.series_rows(contents.row)]
        metrics.update({(of.metric, of.family, of.scale) for of in series})
    for entry in paths.values():
        entry["kinds"] = sorted(entry["kinds"])
    return {
        "attributes": [paths[key] for key in sorted(paths)],
        "metrics": [
            {"family": family, "metric": metric, "scale": scale, "runs_count": count}
            for (metric, family, scale), count in sorted(metrics.items())
        ],
    }


def _kind_name(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "bool", int: "int", float: "float", str: "str"}
    return names.get(type(value), "object")
