"""Checks of a decoded batch against its pages, before anything of it takes effect.

A batch that fails can never be stored: it is rejected, its sequence is taken, its lane goes on.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from metrana_async.errors import ProtocolError
from metrana_async.wire.model import (
    NO_EPISODE,
    Batch,
    Family,
    Int64Array,
    PointTable,
    SegmentTable,
    SeriesDef,
    StepMode,
)

FAMILY_CODES: Final = {family: code for code, family in enumerate(Family)}


def family_codes(definitions: tuple[SeriesDef, ...]) -> npt.NDArray[np.int8]:
    """Code of each definition's family, to check whole columns of entries against."""
    return np.array([FAMILY_CODES[d.family] for d in definitions], np.int8)


def check_batch(
    batch: Batch,
    definitions: tuple[SeriesDef, ...],
    families: npt.NDArray[np.int8],
    envs_count: int,
) -> None:
    """Raise ProtocolError unless every table fits the definitions and pages it names."""
    for table in batch.points:
        _check_points(table, definitions, families, envs_count)
    for segments in batch.segments:
        _check_segments(segments, definitions, envs_count)


def _check_index(column: Int64Array, count: int, what: str) -> None:
    if len(column) and int(column.max()) >= count:
        raise ProtocolError(f"{what} {int(column.max())} is beyond the {count} on the pages")


def _check_points(
    table: PointTable,
    definitions: tuple[SeriesDef, ...],
    families: npt.NDArray[np.int8],
    envs_count: int,
) -> None:
    _check_index(table.series, len(definitions), "series index")
    family = Family.STANDARD
    if table.env is not None:
        family = Family.EPISODE
        _check_index(table.env, envs_count, "environment index")
    is_wrong = families[table.series] != FAMILY_CODES[family]
    if is_wrong.any():
        wrong = definitions[int(table.series[is_wrong][0])]
        raise ProtocolError(
            f"rows of {wrong.metric!r} ({wrong.family.value}) stand in a table of "
            f"{family.value} rows"
        )


def _check_segments(
    table: SegmentTable, definitions: tuple[SeriesDef, ...], envs_count: int
) -> None:
    if table.series >= len(definitions):
        raise ProtocolError(f"series index {table.series} is beyond {len(definitions)} on pages")
    _check_index(table.env, envs_count, "environment index")
    definition = definitions[table.series]
    if definition.family is not Family.ENV_STEP:
        raise ProtocolError(f"segments of {definition.metric!r} ({definition.family.value})")
    has_episode = table.episode != NO_EPISODE
    if bool(has_episode.any() if not definition.episodic else not has_episode.all()):
        raise ProtocolError(
            f"metric {definition.metric!r} is {'' if definition.episodic else 'not '}episodic, "
            "its segments say otherwise"
        )
    if table.mode is StepMode.AUTO_FROM_ONE and not definition.episodic:
        raise ProtocolError(f"metric {definition.metric!r} counts from one without episodes")
