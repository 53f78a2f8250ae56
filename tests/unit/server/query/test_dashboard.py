"""What the dashboard's pages list."""

from __future__ import annotations

import math

import pytest

import metrana_sync_shim as metrana
from metrana_async.errors import InvalidQueryError, NotFoundError
from metrana_async.server.query import dashboard
from metrana_async.testing import MemoryServer
from metrana_async.wire.statistics import StatisticsQuery


@pytest.fixture(scope="module")
def service():
    with MemoryServer() as server:
        for name in ("a", "b"):
            with metrana.init(
                workspace_name="w",
                project_name="p",
                run_name=name,
                transport=server.transport(),
                quiet=True,
            ) as run:
                run.log("loss", [1.0, 2.0], labels={"split": name})
                run.log_distributed("steps", 1.0, step=0)
                for episode in range(3):
                    run.log_rl_episode(
                        "return",
                        [1.0 + episode, 2.0],
                        rl_step=episode,
                        env_id=["e0", "e1"],
                        episode=episode,
                    )
                run.log_rl_episode("length", 7.0, rl_step=5, env_id="e1", episode=1)
                for rl_step, value in enumerate(([1.0, 2.0], [3.0])):  # from 0 again: a restart
                    run.log_rl_environment_step(
                        "reward", value, rl_step=rl_step, env_id="e0", episode=0, env_step=0
                    )
        with metrana.init(
            workspace_name="v", project_name="q", transport=server.transport(), quiet=True
        ):
            yield server.backend.query


def ask(**fields) -> StatisticsQuery:
    return StatisticsQuery(workspace="w", project="p", **fields)


def test_projects_of_every_workspace_are_listed(service):
    """The latest first, with how many runs there are and how many run."""
    found = dashboard.projects(service)
    assert {(p["workspace"], p["project"], p["runs_count"], p["running_count"]) for p in found} == {
        ("w", "p", 2, 0),
        ("v", "q", 1, 1),
    }
    assert [p["last_ms"] for p in found] == sorted((p["last_ms"] for p in found), reverse=True)


def test_curves_say_which_runs_have_them(service):
    """One entry for each identity: labels tell apart, merge series say so."""
    found = dashboard.curves(service, ask(runs=["a", "b"]))
    labelled = [(c["labels"], c["runs"]) for c in found if c["metric"] == "loss"]
    assert labelled == [({"split": "a"}, [0]), ({"split": "b"}, [1])]
    assert [(c["merges"], c["runs"]) for c in found if c["metric"] == "steps"] == [(True, [0, 1])]
    assert {c["metric"]: c["family"] for c in found}["reward"] == "rl_env_step"


def test_episodes_join_their_metrics(service):
    """A row an episode; a metric it has not got is NaN; newest first, ties as stored."""
    table = dashboard.episode_table(service, ask(runs=["a"], metrics=["return", "length"]))
    names = table.facts["env_names"]
    rows = [
        (names[env], episode, rl_step, value, length)
        for env, episode, rl_step, value, length in zip(
            *(table.columns[c].tolist() for c in ("env", "episode", "rl_step", "return", "length")),
            strict=True,
        )
    ]
    assert table.facts["total_count"] == len(rows) == 6
    assert rows[0] == ("e1", 1, 5, 2.0, 7.0)
    assert [row[:3] for row in rows[1:3]] == [("e0", 2, 2), ("e1", 2, 2)]
    assert sum(math.isnan(row[4]) for row in rows) == 5


def test_episodes_are_ordered_limited_and_of_one_environment(service):
    """A cut table says how many rows there are; restarts are counted."""
    table = dashboard.episode_table(
        service, ask(runs=["a"], metrics=["return"], order_by="-return", limit=2)
    )
    assert table.columns["return"].tolist() == [3.0, 2.0]
    assert table.facts["total_count"] == 6
    of_one = dashboard.episode_table(service, ask(runs=["a"], metrics=["return"], env_id="e0"))
    assert of_one.columns["restarts"].tolist() == [0, 0, 1]  # newest first
    for wrong in ({"order_by": "size"}, {"metrics": []}):
        with pytest.raises(InvalidQueryError):
            dashboard.episode_table(service, ask(**{"runs": ["a"], "metrics": ["return"], **wrong}))
    with pytest.raises(NotFoundError):
        dashboard.episode_table(service, ask(runs=["a"], metrics=["return"], env_id="e9"))


def test_trends_are_means_on_one_grid(service):
    """Each environment's mean at each place, in the order of the question."""
    table = dashboard.env_trends(
        service, ask(runs=["a"], metrics=["return"], scale="EPISODE", env_ids=["e1", "e0"])
    )
    of_e0 = table.columns["mean"][table.columns["env"] == 1]
    assert of_e0.tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(InvalidQueryError):
        dashboard.env_trends(service, ask(runs=["a"], metrics=["return"]))
