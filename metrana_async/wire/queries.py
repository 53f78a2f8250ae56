"""What a reader asks: one message for every query, and where to send it.

Endpoints (all POST, a `Query` as JSON; paths under ``/api/v1``):

============================  =====================================  ===========================
path                          reads                                  answer
============================  =====================================  ===========================
``/query/projects``           workspace                              JSON list of projects
``/query/runs``               where, order_by, limit, after          ``{"runs", "after"}``
``/query/run``                the run                                JSON object
``/query/metrics``            the run                                JSON list of series
``/query/environments``       the run                                JSON list of environments
``/query/last_steps``         the run                                JSON list of series
``/query/ledger``             the run                                JSON object of counts
``/query/attributes``         the run                                JSON list of attributes
``/query/definitions``        workspace, project                     ``{"attributes", "metrics"}``
``/query/aggregate``          metric, function, env_id, episode      ``{"value": number}``
``/query/series``             metric, scale, labels, step_range      columns
``/query/scan``               metric, scale, labels, limit           columns, ``next_step``
``/query/scan_episodes``      metric, labels, step_range, limit      columns, ``next_episode``
``/query/scan_env_steps``     metric, labels, step_range, limit,     columns, ``after``
                              after
``/query/merged``             metric, scale, labels, step_range      columns
``/query/episode_series``     metric, env_id, labels                 columns
``/query/env_series``         metric, env_id, episode, generation    columns
============================  =====================================  ===========================

A number is as `answers.encode_number` writes it: ``"nan"``, ``"inf"``, ``"-inf"`` are strings.
Reads are complete, never sampled; an answer beyond `limits.ANSWER_ROWS` is refused.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Final

import orjson

from metrana_async.errors import InvalidQueryError
from metrana_async.wire import limits

DEFAULT_WORKSPACE: Final = "default"


@dataclass(frozen=True, slots=True)
class Query:
    """One read. An endpoint looks at the fields its row above names.

    Attributes:
        run: the run's name (within `project`, or where it is the only one of that name) or uid.
        scale: None is ML_STEP, or for `aggregate` with an `env_id` the RL scale the metric has.
        labels: exactly the labels of the series; none by default.
        env_id: one environment; None is all of them.
        episode: one episode; None is all of them.
        generation: a superseded generation instead of the current one.
        step_range: first and last step, inclusive; of RL series episodes.
        function: what to aggregate by (see `server.query.aggregate`).
        where: a filter of runs (see `server.query.filters`).
        order_by: a field of runs, with ``-`` before it for the highest first.
        limit: rows to answer; the rest is on the next page.
        after: the cursor that the page before gave.
    """

    workspace: str = DEFAULT_WORKSPACE
    project: str | None = None
    run: str | None = None
    metric: str | None = None
    scale: str | None = None
    labels: dict[str, str] | None = None
    env_id: str | None = None
    episode: int | None = None
    generation: int | None = None
    step_range: list[int] | None = None
    function: str | None = None
    where: str | None = None
    order_by: str | None = None
    limit: int | None = None
    after: str | None = None

    def require(self, name: str) -> str:
        """The text of a field this endpoint cannot do without; InvalidQueryError when missing."""
        value: str | None = getattr(self, name)
        if value is None:
            raise InvalidQueryError(f"the query names no {name}")
        return value


_TEXT: Final = (
    *("project", "run", "metric", "scale", "env_id", "function", "where", "order_by", "after"),
)
_NUMBERS: Final = ("episode", "generation", "limit")
_FIELDS: Final = frozenset(field.name for field in dataclasses.fields(Query))


def encode_query(query: Query) -> bytes:
    """Encode as JSON; fields that are None are left out.

    Raises:
        InvalidQueryError: a field is of the wrong type; names it.
    """
    _check_types(query)
    content = {name: getattr(query, name) for name in _FIELDS}
    return orjson.dumps({name: value for name, value in content.items() if value is not None})


def decode_query(data: bytes | memoryview) -> Query:
    """Decode a query; InvalidQueryError naming the field that is unknown or of the wrong type."""
    try:
        content = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidQueryError(f"the query is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise InvalidQueryError(f"the query is not a JSON object: {content!r:.80}")
    if unknown := sorted(content.keys() - _FIELDS):
        raise InvalidQueryError(f"the query has no field {unknown[0]!r}")
    query = Query(**content)
    _check_types(query)
    return query


def _check_types(query: Query) -> None:
    _check(isinstance(query.workspace, str), "workspace", query.workspace, "a str")
    for name in _TEXT:
        text = getattr(query, name)
        _check(text is None or isinstance(text, str), name, text, "a str")
    for name in _NUMBERS:
        number = getattr(query, name)
        _check(number is None or _is_number(number), name, number, "an integer from 0")
    labels, bounds = query.labels, query.step_range
    _check(labels is None or _is_labels(labels), "labels", labels, "a mapping of str to str")
    wanted = "(first, last), two integers from 0 in this order"
    _check(bounds is None or _is_range(bounds), "step_range", bounds, wanted)


def _is_labels(labels: Any) -> bool:
    return isinstance(labels, dict) and all(
        isinstance(key, str) and isinstance(value, str) for key, value in labels.items()
    )


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value <= limits.STEP_MAX


def _is_range(bounds: Any) -> bool:
    is_pair = isinstance(bounds, list) and len(bounds) == 2 and all(map(_is_number, bounds))
    return is_pair and bool(bounds[0] <= bounds[1])


def _check(condition: bool, name: str, value: Any, wanted: str) -> None:  # noqa: FBT001
    if not condition:
        raise InvalidQueryError(f"{name} of the query is {value!r:.200}; it is {wanted}")
