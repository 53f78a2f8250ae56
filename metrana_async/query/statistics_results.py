"""What statistical queries answer: curves on one grid, groups, environments.

Values are float64 columns by name beside the integer columns: ``answer["mean"]``. NaN means that
nothing took part, never that something was left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from metrana_async.errors import ProtocolError, UsageError
from metrana_async.query.results import ColumnTable, readable
from metrana_async.wire.answers import Column, Columns, narrowest
from metrana_async.wire.model import FloatArray, Int64Array


@dataclass(frozen=True, slots=True)
class Latest:
    """The slice at which each environment shows its own highest rl_step."""


@dataclass(frozen=True, slots=True)
class RLStep:
    """The slice of the points logged at one rl_step."""

    rl_step: int


@dataclass(frozen=True, slots=True)
class Episode:
    """The slice of one episode number of every environment."""

    episode: int


Slice = Latest | RLStep | Episode


class ValueTable(ColumnTable):
    """Columns of which some are functions that were asked for, by their names in `values`."""

    __slots__ = ()
    values: Mapping[str, Column]

    def columns(self) -> dict[str, Any]:
        """The columns by name, those of `values` last. No copies."""
        return {**ColumnTable.columns(self), **self.values}

    def __getitem__(self, name: str) -> Any:
        return self.columns()[name]


@dataclass(frozen=True, slots=True)
class BucketLine:
    """One curve of `Buckets`.

    Attributes:
        found: whether the run has the series at all.
        exact: whether its rows are its points (of a merge series its steps), not buckets.
        points_count: points in the window, NaN and infinities among them.
        x_first, x_last: of the first and last point in the window; None without any.
        version: of its rows, for `if_version`; None where it is not found.
        unchanged: whether the reader has this version: then it has no rows here.
        revised_from: its rows here replace those of the reader's version from this x on, and
            before it nothing changed; None = its rows here are all there are.
    """

    run: str
    run_uid: str
    project: str
    metric: str
    found: bool
    exact: bool
    points_count: int
    x_first: int | None
    x_last: int | None
    version: str | None = None
    unchanged: bool = False
    revised_from: int | None = None

    @property
    def is_complete(self) -> bool:
        """Whether all its rows are here."""
        return not self.unchanged and self.revised_from is None


@dataclass(frozen=True, slots=True, eq=False)
class Buckets(ValueTable):
    """Curves of many runs and metrics on one grid; rows ordered by (line, x).

    Buckets without points have no row. Only finite values are summarised; the others are counted.

    Attributes:
        lines: the curves; `line` holds positions in it.
        axis: what x counts.
        width: of every bucket, a power of two; edges are multiples of it.
        first_edge, buckets_count: the grid over the window and its padding.
        x: lower edge of the bucket; in an exact line the point's own x.
        x_first, x_last: of the first and last point in the bucket.
        count: finite values.
        values: mean, min, max, first, last, sum, std, as asked for; in an exact line the point's
            value as it is, NaN and infinities too. A `log_distributed` line has no mean, sum, std.
    """

    lines: tuple[BucketLine, ...]
    axis: str
    width: int
    first_edge: int
    buckets_count: int
    line: Int64Array
    x: Int64Array
    x_first: Int64Array
    x_last: Int64Array
    count: Int64Array
    nan_count: Int64Array
    positive_inf_count: Int64Array
    negative_inf_count: Int64Array
    values: Mapping[str, FloatArray]

    @property
    def edges(self) -> Int64Array:
        """Lower edges of all buckets of the grid, empty ones too, int64 [buckets_count]."""
        return self.first_edge + np.arange(self.buckets_count, dtype=np.int64) * self.width

    def of(self, line: int) -> dict[str, Any]:
        """The columns of one line, by name: its rows only. No copies."""
        first, end = np.searchsorted(self.line, (line, line + 1))
        return {name: column[first:end] for name, column in self.columns().items()}

    @property
    def versions(self) -> list[str]:
        """The versions of the lines that were found."""
        return [line.version for line in self.lines if line.version is not None]

    def updated_by(self, newer: Buckets) -> Buckets:
        """These curves as they are now: `newer` is the answer to ``if_version=`` these.

        Raises:
            UsageError: `newer` builds on curves that are not these, or these are not complete.
        """
        ours = {(line.run_uid, line.metric): at for at, line in enumerate(self.lines)}
        parts = []
        for at, line in enumerate(newer.lines):
            rows = newer.of(at)
            if not line.is_complete:
                before = ours.get((line.run_uid, line.metric))
                if before is None or not self.lines[before].is_complete:
                    raise UsageError(
                        f"what {line.metric!r} of run {line.run!r} was before is not all here",
                        hint="update the answer whose versions were asked about",
                    )
                kept = self.of(before)
                end = len(kept["x"])
                if line.revised_from is not None:
                    end = int(np.searchsorted(kept["x"], line.revised_from))
                rows = {name: np.concatenate([kept[name][:end], rows[name]]) for name in rows}
            parts.append({**rows, "line": np.full(len(rows["x"]), at, dtype=np.int64)})
        columns: dict[str, Any] = {
            name: np.concatenate([part[name] for part in parts]) for name in parts[0]
        }
        values = {name: narrowest(columns.pop(name)) for name in newer.values}
        lines = tuple(replace(x, unchanged=False, revised_from=None) for x in newer.lines)
        return replace(newer, lines=lines, values=values, **columns)

    def dense(self, name: str) -> FloatArray:
        """A column on the whole grid, float64 [lines, buckets_count]; NaN in empty buckets.

        Raises:
            UsageError: a line is exact, so its rows are no buckets; ask with ``exact=False``. Or
                a line has only what changed: see `updated_by`.
        """
        for line in self.lines:
            if not line.is_complete:
                raise UsageError(
                    f"of {line.metric!r} of run {line.run!r} there is only what changed",
                    hint="before.updated_by(this) has everything",
                )
        exact = [line for line in self.lines if line.exact and line.points_count]
        if exact:
            raise UsageError(
                f"{exact[0].metric!r} of run {exact[0].run!r} is answered by its points",
                hint="buckets(..., exact=False) puts every line on the grid",
            )
        grid = np.full((len(self.lines), self.buckets_count), np.nan)
        grid[self.line, (self.x - self.first_edge) // self.width] = self.columns()[name]
        return grid


@dataclass(frozen=True, slots=True)
class MemberGroup:
    """Runs or environments that were put together.

    Attributes:
        by: what they have in common, by the names asked for; None where they have nothing.
        members: run names or environment ids.
    """

    by: Mapping[str, Any]
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class GroupStatistics(ValueTable):
    """Statistics across the members of each group; rows ordered by (group, x).

    Each member's points at an x were reduced to one number first.

    Attributes:
        groups: `group` holds positions in it.
        missing: runs that have no such series.
        width: of a bucket; 1 = every x by itself.
        count: members that take part (the n of the statistics).
        members_count: members that have points here, NaN or not.
        points_count: points behind the row; `nan_count` of them were skipped (in buckets the
            infinities as well).
        values: mean, std, min, max and quantiles across members, as asked for.
    """

    groups: tuple[MemberGroup, ...]
    missing: tuple[str, ...]
    width: int
    group: Int64Array
    x: Int64Array
    count: Int64Array
    members_count: Int64Array
    points_count: Int64Array
    nan_count: Int64Array
    values: Mapping[str, FloatArray]

    def of(self, group: int) -> dict[str, Any]:
        """The columns of one group, by name: its rows only. No copies."""
        first, end = np.searchsorted(self.group, (group, group + 1))
        return {name: column[first:end] for name, column in self.columns().items()}


@dataclass(frozen=True, slots=True, eq=False)
class EnvironmentTable(ValueTable):
    """Environments at a slice, one row each.

    Attributes:
        env_ids: by row.
        total_count: environments there are, also those beyond the limit that was asked for.
        rl_step, episode: the highest logged for the environment by now; -1 = none.
        values: ``metric.function`` for each metric and function, NaN where the environment has no
            points at the slice, and ``metric.points_count``.
    """

    env_ids: tuple[str, ...]
    total_count: int
    rl_step: Int64Array
    episode: Int64Array
    values: Mapping[str, Column]

    def columns(self) -> dict[str, Any]:
        """The columns by name, the ids first."""
        ids = np.array(self.env_ids, dtype=object)
        return {"env_id": ids, **ValueTable.columns(self)}


@dataclass(frozen=True, slots=True)
class RLSeriesInfo:
    """An RL series and how far it goes; None where it has no points, or no episodes."""

    family: str
    metric: str
    scale: str
    labels: Mapping[str, str]
    ordering: str
    episodic: bool | None
    points_count: int
    envs_count: int
    first_rl_step: int | None
    last_rl_step: int | None
    first_episode: int | None
    last_episode: int | None


@dataclass(frozen=True, slots=True)
class RLInfo:
    """What a run has of reinforcement learning.

    Attributes:
        last_rl_step, last_episode: the highest that is visible; None without any.
        env_attributes: paths that environments can be grouped by.
        episode_attributes: paths that single episodes have values of their own under.
    """

    envs_count: int
    last_rl_step: int | None
    last_episode: int | None
    env_attributes: tuple[str, ...]
    episode_attributes: tuple[str, ...]
    series: tuple[RLSeriesInfo, ...]


def buckets_from(answer: Columns) -> Buckets:
    """The answer of ``/query/buckets``."""
    facts = answer.scalars
    with _checked("buckets"):
        lines = tuple(_line_from(row) for row in facts["lines"])
        grid: dict[str, Any] = {
            name: int(facts[name]) for name in ("width", "first_edge", "buckets_count")
        }
        axis, functions = str(facts["axis"]), list(facts["functions"])
    line = answer.integers("line")
    if len(line) and not (int(line.min()) >= 0 and int(line.max()) < len(lines)):
        raise ProtocolError(f"line goes to {int(line.max())}, of {len(lines)}")
    return Buckets(
        lines=lines,
        axis=axis,
        **grid,
        **_integers(answer, Buckets),
        values={name: answer.floats(name) for name in functions},
    )


def groups_from(answer: Columns) -> GroupStatistics:
    """The answer of ``/query/group_runs`` and ``/query/across``."""
    facts = answer.scalars
    with _checked("groups"):
        groups = tuple(
            MemberGroup(readable(row["by"]), tuple(row["members"])) for row in facts["groups"]
        )
        missing, width = tuple(facts["missing"]), int(facts["width"])
        functions = list(facts["functions"])
    return GroupStatistics(
        groups=groups,
        missing=missing,
        width=width,
        **_integers(answer, GroupStatistics),
        values={name: answer.floats(name) for name in functions},
    )


def environment_table_from(answer: Columns) -> EnvironmentTable:
    """The answer of ``/query/environment_table``."""
    facts = answer.scalars
    with _checked("environments"):
        ids, total_count = tuple(facts["env_ids"]), int(facts["total_count"])
        values = {name: answer.columns[name] for name in facts["names"]}
        del values["rl_step"], values["episode"]
    numbers = _integers(answer, EnvironmentTable)
    return EnvironmentTable(env_ids=ids, total_count=total_count, **numbers, values=values)


def rl_info_from(content: Any) -> RLInfo:
    """The answer of ``/query/rl_info``."""
    with _checked("RL series"):
        return RLInfo(
            envs_count=content["envs_count"],
            last_rl_step=content["last_rl_step"],
            last_episode=content["last_episode"],
            env_attributes=tuple(content["env_attributes"]),
            episode_attributes=tuple(content.get("episode_attributes", ())),
            series=tuple(
                RLSeriesInfo(**{field.name: row[field.name] for field in fields(RLSeriesInfo)})
                for row in content["series"]
            ),
        )


def _line_from(row: Any) -> BucketLine:
    facts = {"points_count": 0, "x_first": None, "x_last": None, **row}
    names = [field.name for field in fields(BucketLine)]
    return BucketLine(**{name: facts[name] for name in names if name in facts})


def _integers(answer: Columns, table: type[ValueTable]) -> dict[str, Any]:
    """The int64 columns that are fields of the table, by name."""
    named = [field.name for field in fields(table) if field.type == "Int64Array"]  # type: ignore[arg-type]  # every subclass is a dataclass
    return {name: answer.integers(name) for name in named}


@contextlib.contextmanager
def _checked(what: str) -> Iterator[None]:
    """ProtocolError where the facts of an answer are not what they must be."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"the answer describes no {what}: {error!r}") from error
