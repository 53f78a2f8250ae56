"""Calls cut together become the segments that they become one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from metrana_async.columns.blocks import GridBlock
from metrana_async.wire.model import StepMode
from metrana_async.writers.numbering import MinorNumbering
from metrana_async.writers.segments import cut_segments

ENV_SETS = [np.array([0, 1, 2]), np.array([2, 0])]


@st.composite
def loops(draw):
    """Calls of a loop: mostly the same environments, episodes that mostly rise, few rl_steps."""
    is_episodic = draw(st.booleans())
    blocks, at = [], np.zeros(3, dtype=np.int64)
    for _ in range(draw(st.integers(1, 9))):
        env_nos = ENV_SETS[draw(st.sampled_from([0, 0, 0, 1]))]
        m, t = len(env_nos), draw(st.integers(1, 3))
        at = at + np.array(draw(st.lists(st.sampled_from([0, 0, 1, -1]), min_size=3, max_size=3)))
        at = np.maximum(at, 0)
        episode = None if not is_episodic else at[env_nos]
        if is_episodic and draw(st.booleans()):
            episode = int(at[0])
        blocks.append(
            GridBlock(
                7, StepMode.AUTO, env_nos, np.full((m, t), len(blocks), np.float32),
                draw(st.integers(0, 3)), episode, None, None, draw(st.integers(0, 5)),
            )
        )  # fmt: skip
    return blocks


def columns(pieces):
    names = ("env", "episode", "rl_step", "start", "count", "time_ms", "value")
    return {name: np.concatenate([getattr(p, name) for p in pieces]).tolist() for name in names}


@given(loops(), loops())
def test_calls_cut_together_equal_calls_cut_one_by_one(first, later):
    """Also what follows is numbered alike: the numbering was left in the same state."""
    together, apart = MinorNumbering(1000), MinorNumbering(1000)
    for blocks in (first, later):
        singly = [piece for block in blocks for piece in cut_segments([block], apart)]
        assert columns(cut_segments(blocks, together)) == columns(singly)


def test_a_loop_over_all_environments_is_cut_as_one():
    """Calls of rising rl_step over the same environments are one piece (the fast way is taken)."""
    env_nos = np.arange(4)
    blocks = [
        GridBlock(
            0, StepMode.AUTO, env_nos, np.zeros((4, 1), np.float32), k, np.full(4, k // 3), None,
            None, k,
        )
        for k in range(10)
    ]  # fmt: skip
    (piece,) = cut_segments(blocks, MinorNumbering())
    assert piece.start.tolist() == [0] * 40
    assert piece.rl_step.tolist() == np.repeat(np.arange(10), 4).tolist()
