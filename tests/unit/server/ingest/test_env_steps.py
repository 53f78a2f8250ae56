"""Worked cases of the env-step axis, through the service: what is visible, and what was counted."""

from __future__ import annotations

import pytest

from metrana_async.server.ingest.service import IngestService
from metrana_async.wire.model import StepMode
from tests.unit.server.ingest.helpers import env_steps, segments

AUTO, EXPLICIT, FROM_ONE = StepMode.AUTO, StepMode.EXPLICIT, StepMode.AUTO_FROM_ONE

# (about, mode, is_episodic, deliveries, visible). A delivery is (writer, rl_step, start, values),
# or (writer, "dies"). Writers are opened in order of appearance; all are live until they die.
CASES = [
    (
        "a replayed opening restarts the episode",
        AUTO,
        True,
        [("A", 5, 0, [1, 2]), ("A", 6, 0, [3]), ("A", "dies"), ("B", 5, 0, [10, 20])],
        [(0, 10), (1, 20)],
    ),
    (
        "a replayed opening may land on an earlier rl_step",
        AUTO,
        True,
        [("A", 5, 0, [1, 2]), ("A", "dies"), ("B", 4, 0, [10]), ("B", 5, 0, [30])],
        [(0, 10), (1, 30)],
    ),
    (
        "a new incarnation at a later rl_step continues",
        AUTO,
        True,
        [("A", 5, 0, [1, 2]), ("A", "dies"), ("B", 7, 0, [3])],
        [(0, 1), (1, 2), (2, 3)],
    ),
    (
        "two calls at the opening rl_step are one opening",
        AUTO,
        True,
        [("A", 5, 0, [1, 2]), ("A", 5, 2, [3])],
        [(0, 1), (1, 2), (2, 3)],
    ),
    (
        "without episodes nothing restarts",
        AUTO,
        False,
        [("A", 5, 0, [1, 2]), ("A", "dies"), ("B", 5, 0, [10, 20]), ("B", 6, 0, [40])],
        [(0, 1), (1, 2), (2, 10), (3, 20), (4, 40)],
    ),
    (
        "what one incarnation logs again is a duplicate",
        AUTO,
        True,
        [("A", 0, 0, [1]), ("A", 1, 0, [2, 3]), ("A", 1, 1, [9, 4])],
        [(0, 1), (1, 2), (2, 3), (3, 4)],
    ),
    (
        "automatic steps may count from one",
        FROM_ONE,
        True,
        [("A", 0, 0, [1, 2]), ("A", 0, 0, [5])],
        [(1, 5)],
    ),
    (
        "a live writer that joins later appends, the first goes on",
        AUTO,
        True,
        [("A", 0, 0, [1, 2]), ("B", 2, 0, [3]), ("A", 1, 0, [4])],
        [(0, 1), (1, 2), (2, 3), (3, 4)],
    ),
    (
        "after a take-over the first writer's points are not mixed in",
        AUTO,
        True,
        [("A", 0, 0, [1, 2]), ("B", 0, 0, [5]), ("A", 0, 2, [3]), ("B", 1, 0, [6])],
        [(0, 5), (1, 6)],
    ),
    (
        "a new opening of the first writer restarts again",
        AUTO,
        True,
        [("A", 0, 0, [1, 2]), ("B", 0, 0, [5]), ("A", 0, 0, [7]), ("B", 1, 0, [6])],
        [(0, 7)],
    ),
    (
        "a dead writer's late points behind a successor that opened are superseded",
        AUTO,
        True,
        [("A", "dies"), ("B", 5, 0, [10]), ("A", 5, 0, [1, 2]), ("A", 6, 0, [3])],
        [(0, 10)],
    ),
    (
        "a dead writer's late points are appended where the successor continued",
        AUTO,
        True,
        [("A", "dies"), ("B", 7, 0, [10]), ("A", 5, 0, [1]), ("A", 6, 0, [2])],
        [(0, 10), (1, 1), (2, 2)],
    ),
    (
        "everyone in a superseded generation is behind it, not only who wrote last",
        AUTO,
        True,
        [("A", 0, 0, [1]), ("B", 1, 0, [2]), ("C", 0, 0, [5]), ("A", 1, 0, [9])],
        [(0, 5)],
    ),
    (
        "exact steps drop what is not above the last",
        EXPLICIT,
        True,
        [("A", 0, 5, [1]), ("A", 1, 4, [2]), ("A", 1, 6, [3])],
        [(5, 1), (6, 3)],
    ),
    (
        "dropping back to 1 restarts, 1 after 0 does not",
        EXPLICIT,
        True,
        [("A", 0, 0, [1, 2, 3]), ("A", 1, 1, [9, 8])],
        [(1, 9), (2, 8)],
    ),
    (
        "a writer that goes on to 1 behind its own 0 does not restart what another added",
        EXPLICIT,
        True,
        [("A", 0, 0, [1]), ("B", 0, 1, [2]), ("A", 0, 1, [7, 3])],
        [(0, 1), (1, 2), (2, 3)],
    ),
    (
        "exact steps already taken are duplicates for a new incarnation too",
        EXPLICIT,
        True,
        [("A", 0, 0, [0, 1, 2, 3, 4]), ("A", "dies"), ("B", 0, 3, [30, 40, 50])],
        [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 50)],
    ),
    (
        "without episodes 0 does not restart",
        EXPLICIT,
        False,
        [("A", 0, 0, [1, 2]), ("A", 1, 0, [9]), ("A", 1, 2, [3])],
        [(0, 1), (1, 2), (2, 3)],
    ),
    (
        "what continues above the own last step belongs to the superseded generation",
        EXPLICIT,
        True,
        [("A", 0, 0, [1, 2]), ("B", 0, 0, [5]), ("A", 0, 2, [3]), ("B", 0, 1, [6])],
        [(0, 5), (1, 6)],
    ),
    (
        "a dead writer's late exact steps behind an opening are superseded",
        EXPLICIT,
        True,
        [("A", "dies"), ("B", 0, 0, [10]), ("A", 0, 0, [1, 2, 3])],
        [(0, 10)],
    ),
]


@pytest.mark.fault_row("G8")
@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_worked_case(make_writer, store, case) -> None:
    """What readers see after the deliveries is what the case says."""
    _, mode, episodic, deliveries, visible = case
    names = dict.fromkeys(delivery[0] for delivery in deliveries)
    writers = {name: make_writer(series=(env_steps(episodic=episodic),)) for name in names}
    for name, rl_step, *rest in deliveries:
        if rl_step == "dies":
            writers[name].leave(is_dead=True)
            continue
        start, values = rest
        episode = 3 if episodic else None
        writers[name].send(segments([(0, episode, rl_step, start, values)], mode=mode))
    points = store.read_env_steps(1)
    generation = max((cut.generation for cut in store.cuts(1)), default=0)
    is_current = points.generation == generation
    found = zip(points.step[is_current].tolist(), points.value[is_current].tolist(), strict=True)
    assert sorted(found) == visible
    counters = store.runs()[0].counters
    gone = counters.get("discarded_by_restart", 0)
    assert len(visible) == counters["stored"] - gone


def test_a_resumed_run_asks_the_store_once_for_all_its_old_episodes(store, clock, make_writer):
    """Thousands of episodes that memory had given up are found, and restart, in a few reads."""
    reads = []
    read_env_steps = store.read_env_steps

    def counted(*arguments, **asked):
        reads.append(asked)
        return read_env_steps(*arguments, **asked)

    store.read_env_steps = counted
    service = IngestService(store, clock=clock, older_units_kept=0)
    envs, episodes = 40, 75
    rows = [
        (env, episode, 2 * episode, 0, [env + 0.5, episode])
        for episode in range(episodes)
        for env in range(envs)
    ]
    world = {"service": service, "series": (env_steps(),), "envs": [f"e{n}" for n in range(envs)]}
    first = make_writer(**world)
    first.send(segments(rows))
    first.leave(is_dead=True)
    second = make_writer(**world)
    second.send(segments([(env, ep, rl, 0, [9.0]) for env, ep, rl, _, _ in rows]))
    assert len(reads) <= 4, f"{len(reads)} look-ups"
    counters = store.runs()[0].counters
    assert counters["discarded_by_restart"] == 2 * envs * episodes
    assert len(store.cuts(1)) == envs * episodes
