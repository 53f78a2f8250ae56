"""The vector pass and the unit judge give the same answer and leave the same state."""

from __future__ import annotations

import numpy as np
import pytest

from metrana_async.server.ingest.dumps import dump_units, load_units
from metrana_async.server.ingest.rules import env_steps
from metrana_async.server.ingest.rules.env_steps import EnvCursors
from metrana_async.server.ingest.rules.unit_table import Segments
from metrana_async.server.ingest.rules.verdict import Writers
from metrana_async.wire.model import StepMode

NEVER = 1 << 60


def random_table(rng: np.random.Generator, mode: StepMode, clock: dict) -> Segments:
    """Segments of many environments, mostly going on, sometimes replaying or returning."""
    rows = []
    for _ in range(int(rng.integers(1, 80))):
        env = int(rng.integers(0, 12))
        episode, rl, minor = clock.get(env, (0, 0, 0))
        dice = rng.random()
        if dice < 0.2:
            episode, minor = episode + 1, 0
        elif dice < 0.25:
            episode, rl, minor = max(episode - 1, 0), int(rng.integers(0, 3)), 0
        elif dice < 0.3:
            rl = max(rl - 2, 0)
        elif dice < 0.5:
            rl, minor = rl + 1, minor if mode is StepMode.EXPLICIT else 0
        n = int(rng.integers(1, 4))
        rows.append((env, episode, rl, minor, n))
        clock[env] = (episode, rl, minor + n)
    if rng.random() < 0.5:
        rows.sort(key=lambda row: row[0])
    return Segments(mode, *np.array(rows, np.int64).T)


def state(cursors: EnvCursors) -> list:
    """Everything that decides, in an order of its own."""
    table = cursors.table
    used = int(np.flatnonzero(table.mode).max(initial=-1)) + 1
    rows = [*table.latest_row[table.latest_row >= 0].tolist(), *table.older_rows.values()]
    units = sorted((*table.units[:, row].tolist(), repr(table.others.get(row))) for row in rows)
    per_env = (table.mode, table.max_episode, table.max_rl)
    return [[column[:used].tolist() for column in per_env], sorted(table.older_rows), units]


@pytest.mark.parametrize("mode", list(StepMode))
def test_vector_and_loop_agree(monkeypatch, mode) -> None:
    """Verdicts, numbers and state are equal, table after table, also through a dump."""
    for seed in range(120):
        rng = np.random.default_rng(seed)
        vector, loop, clock = EnvCursors(), EnvCursors(), {}
        dead = rng.random() < 0.3
        view = Writers({1: (1, "a"), 2: (2, "b")}, lambda w, dead=dead: w == 2 or not dead)
        for _ in range(8):
            table = random_table(rng, mode, clock)
            writer = int(rng.integers(1, 3)) if rng.random() < 0.3 else 1
            answers = []
            for cursors, vector_from in ((vector, 1), (loop, NEVER)):
                monkeypatch.setattr(env_steps, "VECTOR_FROM_SEGMENTS", vector_from)
                verdict = cursors.judge(
                    table,
                    writer,
                    view,
                    taken_steps=lambda *_: np.empty(0, np.int64),
                    cold_units=lambda *_: (),
                )
                s = verdict.stored
                columns = (s.source, s.offset, s.count, s.generation, s.step)
                parts = [column.tolist() for column in columns]
                answers.append((verdict.counts, verdict.cuts, verdict.tellings, parts))
            assert answers[0] == answers[1], f"seed {seed}"
            assert state(vector) == state(loop), f"seed {seed}"
            if rng.random() < 0.3:
                vector = EnvCursors(load_units(dump_units(vector.table)))
