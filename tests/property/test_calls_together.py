"""Calls cut together become the segments that they become one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from metrana_async.columns.blocks import GridBlock
from metrana_async.columns.spans import EpisodeSpans, episode_spans
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
        episode, mask = None, None
        if is_episodic:
            form = draw(st.sampled_from(["one", "rows", "runs", "grid"]))
            episode = int(at[0]) if form == "one" else at[env_nos]
            if form in {"runs", "grid"}:
                rises = draw(hnp.arrays(np.int64, (m, t), elements=st.sampled_from([0, 0, 1])))
                episode = at[env_nos][:, None] + np.cumsum(rises, axis=1)
                at[env_nos] = episode[:, -1]
            if form == "runs":
                episode = episode_spans(episode, "episode")
        if not isinstance(episode, EpisodeSpans) and draw(st.booleans()):
            mask = draw(hnp.arrays(bool, (m, t)))
            mask[0, 0] = True
        time_ms = draw(st.sampled_from([5, np.arange(m), np.arange(m * t).reshape(m, t)]))
        value = np.arange(m * t, dtype=np.float32).reshape(m, t) + 100 * len(blocks)
        rl_step = draw(st.integers(0, 3))
        blocks.append(
            GridBlock(7, StepMode.AUTO, env_nos, value, rl_step, episode, None, mask, time_ms)
        )
    return blocks


def columns(pieces):
    names = ("env", "episode", "rl_step", "start", "count", "time_ms", "value")
    return {name: np.concatenate([getattr(p, name) for p in pieces]).tolist() for name in names}


@settings(max_examples=400, deadline=None)
@given(loops(), loops())
def test_calls_cut_together_equal_calls_cut_one_by_one(first, later):
    """Also what follows is numbered alike: the numbering was left in the same state."""
    together, apart = MinorNumbering(1000), MinorNumbering(1000)
    for blocks in (first, later):
        singly = [piece for block in blocks for piece in cut_segments([block], apart)]
        assert columns(cut_segments(blocks, together)) == columns(singly)


def test_rollouts_of_the_same_environments_are_cut_as_one():
    """Grids of rising episodes are one piece (the fast way is taken), whatever a mask hides."""
    env_nos, numbering = np.arange(3), MinorNumbering()
    blocks = []
    for k in range(4):
        episode = np.array([[2 * k, 2 * k, 2 * k + 1, 2 * k + 1]] * 3)
        mask = np.ones((3, 4), bool)
        mask[k % 3, 2] = False
        value = np.full((3, 4), k, np.float32)
        blocks += [
            GridBlock(0, StepMode.AUTO, env_nos, value, 2 * k, episode, None, mask, k),
            GridBlock(
                0, StepMode.AUTO, env_nos, value, 2 * k + 1, episode[:, 2:] * 1, None, None, k
            ),
        ]
        blocks[-1].value = value[:, 2:].copy()
    (piece,) = cut_segments(blocks, numbering)
    assert piece.count.sum() == len(piece.value) == 4 * (11 + 6)
    assert not piece.start.any()


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
