"""What a reader of statistics asks: one message for every such question, and where to send it.

Endpoints (all POST, a `StatisticsQuery` as JSON; paths under ``/api/v1``):

=============================  ==========================================  =====================
path                           reads                                       answer
=============================  ==========================================  =====================
``/query/buckets``             runs, metrics, axis, window, pad, buckets,  columns, lines
                               if_version
``/query/group_runs``          runs, metric, by, axis, window, buckets     columns, groups
``/query/rl_info``             the run                                     JSON object
``/query/environment_table``   the run, metrics, at, functions, order_by   columns, environments
``/query/across``              the run, metric, over, first, functions     columns, groups
=============================  ==========================================  =====================

Integers are int64; an axis is counted in steps or milliseconds. Reads are complete, never sampled:
a question beyond a bound of `limits` is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import orjson

from metrana_async.errors import InvalidQueryError
from metrana_async.wire import limits
from metrana_async.wire.queries import DEFAULT_WORKSPACE

AXES: Final = ("step", "rl_step", "time", "relative_time")
OVER: Final = ("rl_step", "episode", "env_step")
SLICES: Final = ("latest", "rl_step", "episode")


@dataclass(frozen=True, slots=True)
class StatisticsQuery:
    """One question. An endpoint looks at the fields its row above names; None is its default.

    Attributes:
        runs: names (within `project`, or where each is the only one of its name) or uids.
        metrics: exact names, each read in every run.
        scale: None is ML_STEP, or the RL scale the metric has.
        labels: exactly the labels of the series; none by default.
        env_id: the RL series of this environment.
        all_envs: the RL series of every environment, each of them reduced first.
        env_ids: only these environments.
        env_where: only environments (across them also: only episodes) whose attributes have these
            values.
        episode: one episode.
        generation: of that episode, one that a restart superseded.
        axis: what x counts, one of `AXES`.
        from_x, to_x: first and last x, inclusive; None = wherever the points begin and end.
        pad: how much more to answer on each side where the window is cut, as a share of it.
        buckets: n; between n and 2n buckets cover the window. None = every x by itself.
        exact: whether a line with at most 2n points is answered by its points.
        if_version: versions of lines that the reader has; None = none, and it will not come back.
        first: how points of a member (environment, run) are reduced to one number.
        functions: statistics to answer.
        over: what x counts across environments, one of `OVER`.
        by: fields of a run, or attribute paths of an environment or episode, that make groups.
        rl_step_range, episode_range: first and last to read, inclusive.
        at: the slice, one of `SLICES`; `at_number` is its rl_step or episode.
        order_by: a column, with ``-`` before it for the highest first.
        limit: rows to answer, the rest left out on purpose.
    """

    workspace: str = DEFAULT_WORKSPACE
    project: str | None = None
    runs: list[str] = dataclasses.field(default_factory=list)
    metrics: list[str] = dataclasses.field(default_factory=list)
    scale: str | None = None
    labels: dict[str, str] | None = None
    env_id: str | None = None
    all_envs: bool = False
    env_ids: list[str] | None = None
    env_where: dict[str, Any] | None = None
    episode: int | None = None
    generation: int | None = None
    axis: str = "step"
    from_x: int | None = None
    to_x: int | None = None
    pad: float = 0.0
    buckets: int | None = None
    exact: bool = True
    if_version: list[str] | None = None
    first: str | None = None
    functions: list[str] | None = None
    over: str = "rl_step"
    by: list[str] = dataclasses.field(default_factory=list)
    rl_step_range: list[int] | None = None
    episode_range: list[int] | None = None
    at: str = "latest"
    at_number: int | None = None
    order_by: str | None = None
    limit: int | None = None

    @property
    def run(self) -> str:
        """The one run; InvalidQueryError where the question names none or several."""
        if len(self.runs) != 1:
            raise InvalidQueryError(f"the query names {len(self.runs)} runs; it is about one")
        return self.runs[0]

    @property
    def metric(self) -> str:
        """The one metric; InvalidQueryError where the question names none or several."""
        if len(self.metrics) != 1:
            raise InvalidQueryError(f"the query names {len(self.metrics)} metrics; it is about one")
        return self.metrics[0]


def encode_statistics_query(query: StatisticsQuery) -> bytes:
    """Encode as JSON; fields that have their default are left out.

    Raises:
        InvalidQueryError: a field is of the wrong type; names it.
    """
    _check_types(query)
    content = {field.name: getattr(query, field.name) for field in _FIELDS}
    try:
        return orjson.dumps({name: value for name, value in content.items() if value is not None})
    except TypeError as error:  # only env_where may hold something that is no JSON value
        raise InvalidQueryError(f"env_where of the query is {query.env_where!r:.200}") from error


def decode_statistics_query(data: bytes | memoryview) -> StatisticsQuery:
    """Decode a query; InvalidQueryError naming the field that is unknown or of the wrong type."""
    try:
        content = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidQueryError(f"the query is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise InvalidQueryError(f"the query is not a JSON object: {content!r:.80}")
    if unknown := sorted(content.keys() - {field.name for field in _FIELDS}):
        raise InvalidQueryError(f"the query has no field {unknown[0]!r}")
    query = StatisticsQuery(**content)
    _check_types(query)
    return query


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value))


def _is_labels(value: Any) -> bool:
    return _is_mapping(value) and all(map(_is_text, value.values()))


def _is_integer(value: Any) -> bool:
    return type(value) is int and -(2**63) <= value <= limits.STEP_MAX


def _is_natural(value: Any) -> bool:
    return _is_integer(value) and value >= 0


def _is_range(value: Any) -> bool:
    is_pair = isinstance(value, list) and len(value) == 2 and all(map(_is_natural, value))
    return is_pair and bool(value[0] <= value[1])


def _one_of(words: tuple[str, ...]) -> tuple[Callable[[Any], bool], str]:
    return lambda value: value in words, f"one of {', '.join(words)}"


_RANGE: Final = "(first, last), two integers from 0 in this order"
_CHECKS: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    **dict.fromkeys(
        ("workspace", "project", "scale", "env_id", "first", "order_by"), (_is_text, "a str")
    ),
    **dict.fromkeys(
        ("runs", "metrics", "env_ids", "functions", "by", "if_version"),
        (_is_texts, "a sequence of str"),
    ),
    "labels": (_is_labels, "a mapping of str to str"),
    "env_where": (_is_mapping, "a mapping of attribute paths to values"),
    **dict.fromkeys(("all_envs", "exact"), (lambda value: type(value) is bool, "a bool")),
    **dict.fromkeys(("episode", "generation", "at_number"), (_is_natural, "an integer from 0")),
    **dict.fromkeys(("from_x", "to_x"), (_is_integer, "an integer")),
    **dict.fromkeys(("rl_step_range", "episode_range"), (_is_range, _RANGE)),
    "buckets": (
        lambda value: _is_natural(value) and 1 <= value <= limits.BUCKETS_COUNT,
        f"an integer from 1 to {limits.BUCKETS_COUNT}",
    ),
    "pad": (lambda value: type(value) in (int, float) and 0 <= value <= 1, "a number from 0 to 1"),
    "limit": (lambda value: _is_natural(value) and value > 0, "an integer from 1"),
    "axis": _one_of(AXES),
    "over": _one_of(OVER),
    "at": _one_of(SLICES),
}
_NAMES_IN_CALLS: Final = {"from_x": "from_", "to_x": "to", "buckets": "n", "functions": "fn"}
_FIELDS: Final = dataclasses.fields(StatisticsQuery)
_REQUIRED: Final = (
    *("workspace", "runs", "metrics", "by", "axis", "over", "at", "all_envs", "exact", "pad"),
)


def _check_types(query: StatisticsQuery) -> None:
    for name, (is_right, wanted) in _CHECKS.items():
        value = getattr(query, name)
        if (value is None and name not in _REQUIRED) or is_right(value):
            continue
        name = _NAMES_IN_CALLS.get(name, name)  # noqa: PLW2901
        raise InvalidQueryError(f"{name} of the query is {value!r:.200}; it is {wanted}")
