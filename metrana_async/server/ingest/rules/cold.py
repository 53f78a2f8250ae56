"""Rebuilds the state of a trimmed ENV_STEP unit from its stored points."""

from __future__ import annotations

import numpy as np

from metrana_async.server.ingest.rules.units import Others, Piece, Segment, Unit, absorb
from metrana_async.wire.model import Int64Array, StepMode


def rebuild_unit(
    segment: tuple[int, int],
    *,
    mode: StepMode,
    generation: Int64Array,
    rl_step: Int64Array,
    step: Int64Array,
    writer_no: Int64Array,
) -> tuple[Unit, Others] | None:
    """State of unit (env, episode) after these points, all of it and in arrival order.

    The store does not keep the automatic position within the rl_step. It is counted instead:
    what one writer stored of one rl_step and generation was numbered 0, 1, … by its client, so
    the count is the position unless points were lost before they came here, and then it is too
    small by those: a later point is never mistaken for a duplicate.
    """
    if len(step) == 0:
        return None
    is_explicit = mode is StepMode.EXPLICIT
    env, episode = segment
    is_head = np.ones(len(step), np.bool_)
    is_head[1:] = np.diff(step) != 1
    for column in (generation, rl_step, writer_no):
        is_head[1:] |= column[1:] != column[:-1]
    heads = np.flatnonzero(is_head)
    lengths = np.diff(np.append(heads, len(step)))
    unit: Unit | None = None
    others = Others()
    positions: dict[tuple[int, int], tuple[int, int]] = {}
    for head, length in zip(heads.tolist(), lengths.tolist(), strict=True):
        gen, rl, first, writer = (
            int(column[head]) for column in (generation, rl_step, step, writer_no)
        )
        known_rl, position = positions.get((writer, gen), (rl, 0))
        minor = first if is_explicit else (position if known_rl == rl else 0)
        positions[writer, gen] = (rl, minor + length)
        piece = Piece(0, length, gen, first)
        stretch = Segment(env, episode, rl, minor, length)
        unit = absorb(unit, others, writer, stretch, piece, is_explicit=is_explicit)
    assert unit is not None
    return unit, others
