"""What a batch says: series, tables of points, segments, attribute updates. Plain data, no I/O.

Vocabulary (see the glossary): a *series* is (metric, scale, labels) within a run; the RL families
add an environment. A *table* is a set of equal-length columns. Integers in columns are int64 in
memory whatever they were on the wire; values are float32 or float64.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.floating[Any]]

AUTOMATIC: Final = -1
"""In a `step` column: the server gives the next number of the series."""

NO_EPISODE: Final = -1
"""In an `episode` column: the series has no episodes, one axis per environment."""

UNKNOWN_DIGEST: Final = 2**64 - 1
"""What a batch stands for whose digest nobody knows any more."""

DEFAULT_ENV: Final = "default"
"""The environment that `env_id=None` names."""

ML_STEP: Final = "ML_STEP"
EPISODE_SCALE: Final = "EPISODE"
ENVIRONMENT_STEP_SCALE: Final = "ENVIRONMENT_STEP"


class Family(str, enum.Enum):
    """Which function a series belongs to; part of its identity."""

    STANDARD = "standard"
    EPISODE = "rl_episode"
    ENV_STEP = "rl_env_step"


class Ordering(str, enum.Enum):
    """Whether one writer's call order counts, or any order gives the same result."""

    ORDERED = "ordered"
    MERGE = "merge"


class StepMode(str, enum.Enum):
    """How an env-step axis is fed; pinned per (env, metric, labels) by the first stored point."""

    AUTO = "auto"
    AUTO_FROM_ONE = "auto_from_one"
    EXPLICIT = "explicit"


class SeriesDef(NamedTuple):
    """Identity of a series plus the pins its calls claim.

    `labels` is sorted by key. `episodic` is None except for ENV_STEP.
    Two definitions that differ only in `ordering` or `episodic` name the same series and conflict.
    """

    family: Family
    metric: str
    scale: str
    labels: tuple[tuple[str, str], ...]
    ordering: Ordering
    episodic: bool | None = None

    @property
    def identity(self) -> tuple[Family, str, str, tuple[tuple[str, str], ...]]:
        """What makes the series this one and no other."""
        return (self.family, self.metric, self.scale, self.labels)


@dataclass(slots=True)
class PointTable:
    """Rows of the STANDARD and EPISODE families, in call order.

    Every column has n rows. `series` indexes the batch's series pages (concatenated), `env` its
    environment pages; `env` and `rl_step` are None when the table holds STANDARD rows only.
    `step` is the episode for EPISODE rows; AUTOMATIC asks for the next number.
    A table never mixes the two families.
    """

    series: Int64Array
    step: Int64Array
    time_ms: Int64Array
    value: FloatArray
    env: Int64Array | None = None
    rl_step: Int64Array | None = None

    @property
    def points_count(self) -> int:
        """Number of rows."""
        return len(self.step)


@dataclass(slots=True)
class SegmentTable:
    """Points of one ENV_STEP series over many environments, as segments in call order.

    A segment is n consecutive points of one (env, episode) logged under one rl_step whose numbers
    are start, start + 1, …: the position within the rl_step under the automatic modes (`minor`),
    the env step itself under EXPLICIT. Segment columns have k rows; `value` (and `point_time_ms`,
    where points carry their own times) has sum(count) rows, segment after segment.
    """

    series: int
    mode: StepMode
    env: Int64Array
    episode: Int64Array
    rl_step: Int64Array
    start: Int64Array
    count: Int64Array
    time_ms: Int64Array
    value: FloatArray
    point_time_ms: Int64Array | None = None

    @property
    def points_count(self) -> int:
        """Number of points, over all segments."""
        return len(self.value)


class AttributeOp(str, enum.Enum):
    """What an attribute update does."""

    SET = "set"
    TAGS_SET = "tags_set"
    TAGS_ADD = "tags_add"
    TAGS_REMOVE = "tags_remove"


class AttributeUpdate(NamedTuple):
    """One change of a run's (or, with `env_id`, an environment's) attributes.

    `value` is JSON: None, bool, int, float (NaN and infinities as the strings of
    `encode_attribute`), str, list or dict for SET; a list of str for the tag operations.
    """

    op: AttributeOp
    path: str
    value: Any
    env_id: str | None = None
    episode: int | None = None


@dataclass(slots=True)
class Batch:
    """An immutable sealed unit of sending, spooling, retry and ack.

    Identity is (run_uid, writer_id, lane, seq); seq is contiguous from 1 within a lane.
    `series_pages` and `env_pages` name dictionaries (wire.pages) whose entries, concatenated in
    this order, are what the `series` and `env` columns index.
    `lost` declares points of earlier calls that will never come, by reason.
    `before` is what the lane carried and declared lost before this batch: where the batches before
    it are gone, it says how many points went with them.
    `stands_for` is set in a batch that takes the place of another (damaged, refused, forgotten):
    the digest of that other, with which the chain goes on behind it; 0 otherwise. Only such a
    batch may leave `prev_digest` 0 behind another: its sender does not know it any more.
    """

    run_uid: str
    writer_id: str
    lane: int
    seq: int
    prev_digest: int = 0
    before: int = 0
    stands_for: int = 0
    wall_ms: int = 0
    monotonic_ms: int = 0
    series_pages: tuple[str, ...] = ()
    env_pages: tuple[str, ...] = ()
    points: list[PointTable] = field(default_factory=list)
    segments: list[SegmentTable] = field(default_factory=list)
    attributes: list[AttributeUpdate] = field(default_factory=list)
    lost: dict[str, int] = field(default_factory=dict)

    @property
    def points_count(self) -> int:
        """Points the batch carries; lost ones are not among them."""
        return sum(t.points_count for t in self.points) + sum(t.points_count for t in self.segments)
