"""What queries answer: frozen columns and facts.

Columns are numpy arrays of one length (int64, or float32/float64 as stored), read-only where they
are views of the answer. Every point the run shows is there; nothing is sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
import orjson

from metrana_async.errors import ProtocolError
from metrana_async.query.tables import Frames, InfoList, column_of
from metrana_async.wire.answers import Columns, decode_number
from metrana_async.wire.model import FloatArray, Int64Array

_Fact = TypeVar("_Fact")


class ColumnTable(Frames):
    """Equal-length columns, all fields of the dataclass that are arrays."""

    __slots__ = ()

    def columns(self) -> dict[str, Any]:
        """The columns by name, in the order of the fields. No copies."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]  # every subclass is a dataclass
        return {name: value for name, value in named.items() if isinstance(value, np.ndarray)}

    def __len__(self) -> int:
        return len(next(iter(self.columns().values())))


@dataclass(frozen=True, slots=True, eq=False)
class Series(ColumnTable):
    """One standard series, ordered by step, one row a step."""

    step: Int64Array
    value: FloatArray
    time_ms: Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class MergedSeries(ColumnTable):
    """A `log_distributed` series, one row a step.

    Attributes:
        count: points at the step, NaN among them; `nan_count` of them are NaN.
        min, max: NaN left out, unless there is nothing else.
        first, last: by point time, then writer id.
        time_ms: of the last point.
    """

    step: Int64Array
    min: FloatArray
    max: FloatArray
    first: FloatArray
    last: FloatArray
    count: Int64Array
    nan_count: Int64Array
    time_ms: Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class EnvSeries(ColumnTable):
    """Environment steps of one environment, ordered by (episode, env_step).

    `episode` is -1 throughout where the metric is logged without episodes.
    """

    env_step: Int64Array
    value: FloatArray
    rl_step: Int64Array
    time_ms: Int64Array
    episode: Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class EnvSeriesTable(ColumnTable):
    """Environment steps of all environments, ordered by (env, episode, env_step).

    Attributes:
        env_ids: the run's environments; `env` holds positions in it.
    """

    env_ids: tuple[str, ...]
    env: Int64Array
    episode: Int64Array
    env_step: Int64Array
    rl_step: Int64Array
    value: FloatArray
    time_ms: Int64Array

    def categories(self) -> Mapping[str, Sequence[str]]:
        """Environment ids behind their positions."""
        return {"env": self.env_ids}


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeSeries(ColumnTable):
    """Episodes of one environment, ordered by episode."""

    episode: Int64Array
    rl_step: Int64Array
    value: FloatArray
    time_ms: Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeSeriesTable(ColumnTable):
    """Episodes of all environments, ordered by (env, episode); `env` counts through `env_ids`."""

    env_ids: tuple[str, ...]
    env: Int64Array
    episode: Int64Array
    rl_step: Int64Array
    value: FloatArray
    time_ms: Int64Array

    def categories(self) -> Mapping[str, Sequence[str]]:
        """Environment ids behind their positions."""
        return {"env": self.env_ids}


@dataclass(frozen=True, slots=True)
class ProjectInfo:
    """A project and how much is in it."""

    project: str
    runs_count: int
    last_created_ms: int


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run without its points.

    Attributes:
        created_ms, state_ms: when it was created, and when its state last changed (Unix ms).
        state: running, finished, failed, stopped or crashed.
        exception_type: class name of what ended it, or None.
        orchestration_id: the creator's; `orchestration_ids` has every job's that joined.
        notes, is_archived: what people set from outside (`set_notes`, `archive_run`).
        config: nested as it was logged.
        attributes: every attribute of the run by its path, config among them.
        counters: points by outcome, as the server counted them (see `ledger`).
        writers: one mapping for each writer: id, process, when it came, was seen and left, and its
            own `counters` as it last reported them.
    """

    run_uid: str
    workspace: str
    project: str
    name: str
    created_ms: int
    state: str
    state_ms: int
    exception_type: str | None
    orchestration_id: str
    orchestration_ids: tuple[str, ...]
    config: Mapping[str, Any]
    tags: tuple[str, ...]
    description: str | None
    git_sha: str | None
    notes: str
    is_archived: bool
    attributes: Mapping[str, Any]
    counters: Mapping[str, int]
    writers: tuple[Mapping[str, Any], ...]

    @property
    def duration_s(self) -> float:
        """Seconds from the start to the end, or to the last sign of life of any writer."""
        seen_ms = [int(writer["seen_ms"]) for writer in self.writers]
        is_over = self.state in ("finished", "failed", "stopped")
        last_ms = self.state_ms if is_over else max([self.created_ms, *seen_ms])
        return (last_ms - self.created_ms) / 1000

    @property
    def warnings(self) -> Mapping[str, int]:
        """How often its writers were told something, by the warning's class name."""
        return self._sum("warned/")

    @property
    def lost(self) -> Mapping[str, int]:
        """Points that its writers lost on the way, by reason, as they reported them."""
        return self._sum("lost/")

    def _sum(self, prefix: str) -> dict[str, int]:
        sums: dict[str, int] = {}
        for writer in self.writers:
            for name, count in writer["counters"].items():
                if name.startswith(prefix):
                    kind = name.removeprefix(prefix)
                    sums[kind] = sums.get(kind, 0) + count
        return sums


class RunList(InfoList[RunInfo]):
    """Runs of one page.

    Attributes:
        after: the cursor of the next page, for ``runs(after=…)``; None at the end.
    """

    def __init__(self, runs: Iterable[RunInfo] = (), after: str | None = None) -> None:
        super().__init__(runs)
        self.after = after

    def columns(self) -> dict[str, Any]:
        """A row a run: facts, and a column ``config.<path>`` for each config path."""
        plain = ("run_uid", "project", "name", "state", "exception_type", "notes", "is_archived")
        columns = {name: column_of(getattr(run, name) for run in self) for name in plain}
        columns["created"] = np.array([r.created_ms for r in self], dtype="datetime64[ms]")
        columns["duration_s"] = np.array([r.duration_s for r in self], dtype=np.float64)
        columns["tags"] = column_of(list(run.tags) for run in self)
        prefix = "config/"
        paths = {path for run in self for path in run.attributes if path.startswith(prefix)}
        for path in sorted(paths):
            name = f"config.{path.removeprefix(prefix)}"
            columns[name] = column_of(run.attributes.get(path) for run in self)
        return columns


@dataclass(frozen=True, slots=True)
class AttributeInfo:
    """A current attribute of a run; of one environment or episode where `env_id` says so."""

    path: str
    value: Any
    env_id: str | None
    episode: int | None


@dataclass(frozen=True, slots=True)
class AttributeDefinition:
    """An attribute path of a project.

    Attributes:
        is_of_environments: whether it is logged of environments rather than of runs.
        kinds: types of its values: bool, float, int, null, object, str.
        runs_count: runs that have it.
    """

    path: str
    is_of_environments: bool
    kinds: tuple[str, ...]
    runs_count: int


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """A metric of a project: name and axis, and how many runs log it."""

    metric: str
    family: str
    scale: str
    runs_count: int


@dataclass(frozen=True, slots=True, eq=False)
class SeriesSummaries(ColumnTable):
    """Six numbers for each metric of each run that has points of it.

    Attributes:
        runs, metrics: as asked for; the columns `run` and `metric` are positions in them.
        last: by step; of an RL metric the point logged last, over all environments.
        min, max, mean, count: NaN left out. A `log_distributed` metric has no mean (NaN).
        last_step: of an RL metric the highest rl_step.
    """

    runs: tuple[str, ...]
    metrics: tuple[str, ...]
    run: Int64Array
    metric: Int64Array
    last: FloatArray
    min: FloatArray
    max: FloatArray
    mean: FloatArray
    count: Int64Array
    last_step: Int64Array

    def categories(self) -> Mapping[str, Sequence[str]]:
        """Run and metric names behind their positions."""
        return {"run": self.runs, "metric": self.metrics}


@dataclass(frozen=True, slots=True)
class SeriesInfo:
    """A series and what it is pinned to.

    Attributes:
        family: standard, rl_episode or rl_env_step: which function logs it.
        ordering: ordered or merge.
        episodic: whether environment steps have episodes; None for the other families.
    """

    family: str
    metric: str
    scale: str
    labels: Mapping[str, str]
    ordering: str
    episodic: bool | None


@dataclass(frozen=True, slots=True)
class LastStep:
    """The highest step of a standard series."""

    metric: str
    scale: str
    labels: Mapping[str, str]
    last_step: int


@dataclass(frozen=True, slots=True)
class EnvironmentInfo:
    """An environment and the highest rl_step and episode logged for it (None where unknown)."""

    env_id: str
    last_rl_step: int | None
    last_episode: int | None


@dataclass(frozen=True, slots=True)
class Ledger:
    """Where the points are that the server committed for a run.

    ``committed = visible + duplicate + replaced + merged + discarded_by_restart + superseded``
    whenever nothing is on its way. `visible` and `merged` are measured by reading every series.

    Attributes:
        merged: points of `log_distributed` series that share a step with another one.
        counters: every counter of the run, also those outside the sum (late, pin_conflict, lost).
    """

    committed: int
    visible: int
    duplicate: int
    replaced: int
    merged: int
    discarded_by_restart: int
    superseded: int
    counters: Mapping[str, int]

    @property
    def difference(self) -> int:
        """Points unaccounted for: 0 when the ledger balances."""
        placed = self.visible + self.duplicate + self.replaced + self.merged
        return self.committed - placed - self.discarded_by_restart - self.superseded


def rows_of(fact: type[_Fact], below: str | None = None) -> Callable[[bytes], InfoList[_Fact]]:
    """A decoder of JSON answers: a list with an object for each fact, alone or `below` a name."""
    names = [field.name for field in fields(fact)]  # type: ignore[arg-type]  # a dataclass
    values_of = itemgetter(*names)

    def decode(answer: bytes) -> InfoList[_Fact]:
        try:
            content = orjson.loads(answer)
            rows = content if below is None else content[below]
            return InfoList([fact(*values_of(row)) for row in rows])
        except (KeyError, TypeError) as error:
            raise ProtocolError(f"the answer is no list of {fact.__name__}: {error!r}") from error

    return decode


def series_from(answer: Columns) -> Series:
    """The answer of ``/query/series``."""
    return Series(answer.integers("step"), answer.floats("value"), answer.integers("time_ms"))


def merged_from(answer: Columns) -> MergedSeries:
    """The answer of ``/query/merged``."""
    return MergedSeries(
        step=answer.integers("step"),
        min=answer.floats("min"),
        max=answer.floats("max"),
        first=answer.floats("first"),
        last=answer.floats("last"),
        count=answer.integers("count"),
        nan_count=answer.integers("nan_count"),
        time_ms=answer.integers("time_ms"),
    )


def env_series_from(answer: Columns) -> EnvSeriesTable:
    """The answer of ``/query/env_series``."""
    return EnvSeriesTable(
        env_ids=_env_ids(answer),
        env=answer.integers("env_no"),
        episode=answer.integers("episode"),
        env_step=answer.integers("env_step"),
        rl_step=answer.integers("rl_step"),
        value=answer.floats("value"),
        time_ms=answer.integers("time_ms"),
    )


def episode_series_from(answer: Columns) -> EpisodeSeriesTable:
    """The answer of ``/query/episode_series``."""
    return EpisodeSeriesTable(
        env_ids=_env_ids(answer),
        env=answer.integers("env_no"),
        episode=answer.integers("episode"),
        rl_step=answer.integers("rl_step"),
        value=answer.floats("value"),
        time_ms=answer.integers("time_ms"),
    )


def run_from(content: Any) -> RunInfo:
    """The answer of ``/query/run``; ProtocolError when a field is missing."""
    try:
        facts = {field.name: content[field.name] for field in fields(RunInfo)}
    except (KeyError, TypeError) as error:
        raise ProtocolError(f"the answer describes no run: {error!r}") from error
    for name in ("orchestration_ids", "tags", "writers"):
        facts[name] = tuple(facts[name])
    for name in ("config", "attributes"):
        facts[name] = readable(facts[name])
    return RunInfo(**facts)


def summaries_from(answer: Columns) -> SeriesSummaries:
    """The answer of ``/query/series_summaries``."""
    names = [answer.scalars.get(name) for name in ("runs", "metrics")]
    for column, known in zip(("run", "metric"), names, strict=True):
        codes = answer.integers(column)
        if not isinstance(known, list) or (len(codes) and int(codes.max()) >= len(known)):
            raise ProtocolError(f"the answer names no {column} for some of its rows")
    return SeriesSummaries(
        runs=tuple(names[0] or ()),
        metrics=tuple(names[1] or ()),
        run=answer.integers("run"),
        metric=answer.integers("metric"),
        last=answer.floats("last"),
        min=answer.floats("min"),
        max=answer.floats("max"),
        mean=answer.floats("mean"),
        count=answer.integers("count"),
        last_step=answer.integers("last_step"),
    )


def ledger_from(content: Any) -> Ledger:
    """The answer of ``/query/ledger``."""
    names = [field.name for field in fields(Ledger) if field.name != "counters"]
    try:
        counters = {str(name): int(count) for name, count in content.items()}
        return Ledger(**{name: counters[name] for name in names}, counters=counters)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"the answer is no ledger: {error!r}") from error


def readable(value: Any) -> Any:
    """An attribute's value with ``{"float": "nan"}`` and the infinities as floats again."""
    if isinstance(value, dict):
        if len(value) == 1 and value.get("float") in ("nan", "inf", "-inf"):
            return decode_number(value["float"])
        return {key: readable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [readable(item) for item in value]
    return value


def _env_ids(answer: Columns) -> tuple[str, ...]:
    """The environment ids, after checking that every `env_no` is a position among them."""
    names = answer.scalars.get("env_names")
    if not isinstance(names, list):
        raise ProtocolError("the answer names no environments")
    env_no = answer.integers("env_no")
    if len(env_no) and not (int(env_no.min()) >= 0 and int(env_no.max()) < len(names)):
        raise ProtocolError(f"env_no goes to {int(env_no.max())}, of {len(names)} environments")
    return tuple(names)
