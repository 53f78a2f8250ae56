"""The query service over a memory store filled by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from metrana_async.errors import (
    InvalidQueryError,
    NotFoundError,
    UnsupportedAggregationError,
)
from metrana_async.server.query import service as module
from metrana_async.server.query.service import QueryService
from metrana_async.server.store.memory import MemoryStore
from metrana_async.wire import limits
from metrana_async.wire.model import Family, Ordering
from tests.unit.server.query.stored_run import StoredRun


@pytest.fixture
def stored():
    return StoredRun()


@pytest.fixture
def service(stored):
    service = QueryService(stored.store)
    yield service
    service.close()


def test_an_ordered_series_shows_the_newest_value_of_each_step(stored, service):
    """A resumed run's overlap replaces; rows come by step, values as stored."""
    first, second = stored.writer("a" * 32), stored.writer("b" * 32)
    loss = stored.series("loss")
    stored.points(loss, first, [(0, 0.0), (1, 1.0), (2, math.nan), (3, 3.0)])
    stored.points(loss, second, [(2, 20.0), (1, math.inf)])

    columns = service.series(stored.row, "loss")

    assert columns.step.tolist() == [0, 1, 2, 3]
    assert columns.value.tolist() == [0.0, math.inf, 20.0, 3.0]
    assert columns.value.dtype == np.float32


def test_float64_blocks_keep_their_digits(stored, service):
    """A series of float32 and float64 blocks reads as float64, each value exact."""
    writer, series = stored.writer("a" * 32), stored.series("n")
    stored.points(series, writer, [(0, 0.5)])
    stored.points(series, writer, [(1, 16777217.0), (2, 1e300)], dtype=np.float64)
    assert service.series(stored.row, "n").value.tolist() == [0.5, 16777217.0, 1e300]


def test_a_step_range_is_inclusive(stored, service):
    """Only the steps asked for come back, both ends among them."""
    series = stored.series("x")
    stored.points(series, stored.writer("a" * 32), [(step, step) for step in range(10)])
    assert service.series(stored.row, "x", step_range=(3, 5)).step.tolist() == [3, 4, 5]


def test_labels_and_scale_select_exactly_one_series(stored, service):
    """Labels match as a set of pairs, all or nothing, in any order of keys."""
    writer = stored.writer("a" * 32)
    for at, labels in enumerate(({}, {"a": "1"}, {"a": "1", "b": "2"})):
        stored.points(stored.series("r", labels=labels), writer, [(0, float(at))])
    stored.points(stored.series("r", scale="EPISODE"), writer, [(0, 9.0)])
    assert service.series(stored.row, "r").value.tolist() == [0.0]
    assert service.series(stored.row, "r", labels={"b": "2", "a": "1"}).value.tolist() == [2.0]
    assert service.series(stored.row, "r", scale="EPISODE").value.tolist() == [9.0]
    with pytest.raises(NotFoundError, match=r"'r'.*b=2.*is there as.*a=1"):
        service.series(stored.row, "r", labels={"b": "2"})


def test_a_series_that_came_after_the_last_read_is_found(stored, service):
    """What is kept of names never hides a new series, environment or writer."""
    with pytest.raises(NotFoundError, match="losss"):
        service.series(stored.row, "losss")
    merge = stored.series("loss", ordering=Ordering.MERGE)
    stored.points(merge, stored.writer("a" * 32), [(0, 1.0)])
    assert service.series(stored.row, "loss").value.tolist() == [1.0]
    stored.points(merge, stored.writer("b" * 32), [(1, 2.0)])
    assert service.merged(stored.row, "loss").last.tolist() == [1.0, 2.0]
    reward = stored.series("reward", Family.ENV_STEP, episodic=False)
    stored.segments(reward, 1, [("late", -1, 0, 0, 0, [1.0])])
    assert service.env_series(stored.row, "reward", env_id="late").value.tolist() == [1.0]
    with pytest.raises(NotFoundError, match=r"did you mean 'reward'"):
        service.series(stored.row, "rewardd")


def test_merged_steps_go_by_time_then_writer(stored, service):
    """Four ranks at one step: first and last by time, ties by writer id, whatever arrived first."""
    late, early = stored.writer("f" * 32), stored.writer("0" * 32)
    loss = stored.series("loss", ordering=Ordering.MERGE)
    stored.points(loss, late, [(0, 4.0, 100), (0, 1.0, 300), (7, math.nan, 5)])
    stored.points(loss, early, [(0, 2.0, 100), (0, 3.0, 300)])

    merged = service.merged(stored.row, "loss")

    assert merged.step.tolist() == [0, 7]
    assert merged.count.tolist() == [4, 1]
    assert merged.min.tolist()[0] == 1.0
    assert math.isnan(merged.min[1])
    assert merged.first.tolist()[0] == 2.0
    assert merged.last.tolist()[0] == 1.0
    assert service.series(stored.row, "loss").value.tolist()[0] == 1.0


def test_an_ordered_series_has_nothing_to_merge(stored, service):
    """merged() of a log() series is refused by name."""
    stored.series("loss")
    with pytest.raises(InvalidQueryError, match="'loss'"):
        service.merged(stored.row, "loss")


def test_episodes_come_by_environment_and_the_newest_wins(stored, service):
    """(env, episode) logged again replaces; each environment reads alone or all together."""
    writer, ret = stored.writer("a" * 32), stored.series("ret", Family.EPISODE)
    stored.episodes(ret, writer, [("b", 3, 4, 20.0), ("a", 7, 4, 10.0), ("b", 3, 5, 40.0)])
    one = service.episode_series(stored.row, "ret", env_id="b")
    assert (one.episode.tolist(), one.rl_step.tolist(), one.value.tolist()) == ([3], [5], [40.0])
    everything = service.episode_series(stored.row, "ret")
    assert [everything.env_names[no] for no in everything.env_no] == ["b", "a"]
    with pytest.raises(NotFoundError, match="'c'"):
        service.episode_series(stored.row, "ret", env_id="c")


def test_a_restart_hides_the_older_generation(stored, service):
    """Only the current generation shows; the discarded one can still be asked for."""
    writer = stored.writer("a" * 32)
    reward = stored.series("r", Family.ENV_STEP, episodic=True)
    stored.segments(
        reward,
        writer,
        [("e", 0, 0, 0, 0, [1.0, 2.0]), ("e", 1, 0, 0, 0, [5.0]), ("f", 0, 0, 0, 0, [9.0])],
    )
    stored.segments(reward, writer, [("e", 0, 1, 0, 0, [3.0])], cut=("e", 0, 1, 2))
    read = service.env_series
    assert read(stored.row, "r", env_id="e", episode_range=(0, 0)).value.tolist() == [3.0]
    assert read(stored.row, "r", env_id="e").value.tolist() == [3.0, 5.0]
    old = read(stored.row, "r", env_id="e", episode_range=(0, 0), generation=0)
    assert old.value.tolist() == [1.0, 2.0]
    everything = read(stored.row, "r")
    assert everything.value.tolist() == [3.0, 5.0, 9.0]
    assert everything.episode.tolist() == [0, 1, 0]
    assert everything.env_step.tolist() == [0, 0, 0]


def test_an_environment_without_points_of_the_metric_reads_empty(stored, service):
    """The environment is known, the series has nothing of it: empty columns, no error."""
    writer = stored.writer("a" * 32)
    reward = stored.series("r", Family.ENV_STEP, episodic=True)
    stored.segments(reward, writer, [("e", 0, 0, 0, 0, [1.0])])
    stored.env("idle")
    columns = service.env_series(stored.row, "r", env_id="idle")
    assert len(columns.env_step) == 0
    assert service.aggregate(stored.row, "r", "count", env_id="idle") == 0.0


def test_aggregates_take_the_series_that_the_question_means(stored, service):
    """With an environment it is an RL series, without it the standard one."""
    writer = stored.writer("a" * 32)
    stored.points(stored.series("x"), writer, [(0, 1.0), (1, 2.0), (1, 4.0)])
    stored.episodes(
        stored.series("ret", Family.EPISODE), writer, [("e", 0, 0, 1.0), ("e", 1, 0, 3.0)]
    )
    reward = stored.series("r", Family.ENV_STEP, episodic=True)
    rows = [("e", 0, 0, 0, 0, [1.0, 2.0]), ("e", 1, 0, 0, 0, [6.0])]
    stored.segments(reward, writer, rows)
    ask = service.aggregate
    assert ask(stored.row, "x", "sum") == 5.0
    assert ask(stored.row, "ret", "mean", scale="EPISODE", env_id="e") == 2.0
    assert ask(stored.row, "ret", "sum", env_id="e") == 4.0
    assert ask(stored.row, "ret", "last", env_id="e", episode=0) == 1.0
    assert ask(stored.row, "r", "mean", env_id="e") == 3.0
    assert ask(stored.row, "r", "max", env_id="e", episode=0) == 2.0
    with pytest.raises(InvalidQueryError, match="env_id"):
        ask(stored.row, "r", "max", episode=0)
    with pytest.raises(InvalidQueryError, match="ML_STEP"):
        ask(stored.row, "r", "max", env_id="e", scale="ML_STEP")
    with pytest.raises(NotFoundError, match="nothing"):
        ask(stored.row, "nothing", "max", env_id="e")
    stored.episodes(stored.series("r", Family.EPISODE), writer, [("e", 0, 0, 1.0)])
    with pytest.raises(InvalidQueryError, match="name the scale"):
        ask(stored.row, "r", "max", env_id="e")


def test_a_merge_series_offers_four_aggregations(stored, service):
    """min, max, first, last over all its points; mean is refused, naming them."""
    one, two = stored.writer("b" * 32), stored.writer("a" * 32)
    loss = stored.series("loss", ordering=Ordering.MERGE)
    stored.points(loss, one, [(5, 4.0, 10), (2, 9.0, 90)])
    stored.points(loss, two, [(5, 3.0, 10), (2, math.nan, 1)])
    ask = service.aggregate
    assert [ask(stored.row, "loss", f) for f in ("min", "max", "first", "last")] == [3, 9, 9, 4]
    with pytest.raises(UnsupportedAggregationError, match=r"min, max, first, last"):
        ask(stored.row, "loss", "mean")


def test_last_steps_and_environments(stored, service):
    """The highest step of each standard series; two maxima for each environment."""
    writer = stored.writer("a" * 32)
    stored.points(stored.series("x"), writer, [(10, 1.0), (3, 2.0)])
    stored.series("empty")
    stored.episodes(stored.series("ret", Family.EPISODE), writer, [("e", 9, 2, 1.0)])
    reward = stored.series("r", Family.ENV_STEP, episodic=True)
    stored.segments(reward, writer, [("e", 3, 0, 7, 0, [1.0]), ("f", -1, 0, 5, 0, [1.0])])
    stored.env("idle")
    assert [(row["metric"], row["last_step"]) for row in service.last_steps(stored.row)] == [
        ("x", 10)
    ]
    assert service.environments(stored.row) == [
        {"env_id": "e", "last_rl_step": 7, "last_episode": 9},
        {"env_id": "f", "last_rl_step": 5, "last_episode": None},
        {"env_id": "idle", "last_rl_step": None, "last_episode": None},
    ]
    metrics = service.metrics(stored.row)
    assert [(m["metric"], m["family"], m["episodic"]) for m in metrics] == [
        ("x", "standard", None),
        ("empty", "standard", None),
        ("ret", "rl_episode", None),
        ("r", "rl_env_step", True),
    ]


def test_the_ledger_measures_what_is_visible_and_merged(stored, service):
    """Counters plus two measured numbers account for every committed point."""
    writer = stored.writer("a" * 32)
    stored.points(stored.series("x"), writer, [(0, 1.0), (1, 1.0), (1, 2.0)])
    merge = stored.series("m", ordering=Ordering.MERGE)
    stored.points(merge, writer, [(0, 1.0), (0, 2.0), (0, 3.0), (1, 1.0)])
    stored.episodes(
        stored.series("ret", Family.EPISODE, ordering=Ordering.MERGE),
        writer,
        [("a", 0, 0, 1.0), ("b", 0, 0, 1.0), ("a", 0, 0, 2.0)],
    )
    reward = stored.series("r", Family.ENV_STEP, episodic=True)
    stored.segments(reward, writer, [("e", 0, 0, 0, 0, [1.0, 2.0])])
    stored.segments(reward, writer, [("e", 0, 1, 0, 0, [3.0])], cut=("e", 0, 1, 2))
    stored.count(stored=13, duplicate=4, superseded=1, replaced=2, discarded_by_restart=2, late=1)

    ledger = service.ledger(stored.row)

    assert ledger["committed"] == 18
    assert ledger["visible"] == 2 + 2 + 2 + 1
    assert ledger["merged"] == 2
    parts = ("visible", "duplicate", "replaced", "merged", "discarded_by_restart", "superseded")
    assert ledger["committed"] == sum(ledger[name] for name in parts)
    assert ledger["late"] == 1


def test_a_run_shows_its_attributes_nested_again(stored, service):
    """config/… is a tree, a shorter path beside a longer one hides nothing."""
    stored.attributes(
        config__lr=0.1,
        config__net__width=64,
        config__net__act="relu",
        config__a={"float": "nan"},
        config__a__b=1,
        config__empty={},
        sys__tags=["x"],
        sys__description="first",
        sys__git_sha="abc",
        note=None,
    )
    run = service.run(stored.row)
    assert run["config"] == {
        "lr": 0.1,
        "net": {"width": 64, "act": "relu"},
        "a": {"float": "nan"},
        "a/b": 1,
        "empty": {},
    }
    assert (run["tags"], run["description"], run["git_sha"]) == (["x"], "first", "abc")
    assert run["attributes"]["note"] is None
    assert run["orchestration_id"] == "job"


def test_runs_are_found_by_name_or_uid_within_their_project():
    """A name wins; a uid works anywhere in the workspace; two of one name need the project."""
    store = MemoryStore()
    one = StoredRun("run", store=store, project="p1").row
    two = StoredRun("run", store=store, project="p2").row
    other = StoredRun("solo", store=store, project="p2").row
    elsewhere = StoredRun("far", store=store, workspace="w2").row
    service = QueryService(store)
    assert service.find_run("default", "p2", "run") == two
    assert service.find_run("default", "p1", one.run_uid) == one
    assert service.find_run("default", None, "solo") == other
    assert service.find_run("default", None, two.run_uid) == two
    with pytest.raises(InvalidQueryError, match=r"'p1', 'p2'"):
        service.find_run("default", None, "run")
    for project, name in (("p1", "solo"), (None, "far"), (None, elsewhere.run_uid), ("p1", "x")):
        with pytest.raises(NotFoundError, match=name):
            service.find_run("default", project, name)
    assert service.find_run("w2", None, "far") == elsewhere
    assert [r.name for r in service.run_rows("default", "p2")] == ["run", "solo"]
    assert [(p["project"], p["runs_count"]) for p in service.projects("default")] == [
        ("p1", 1),
        ("p2", 2),
    ]
    service.close()


def test_an_answer_beyond_the_limit_is_refused(stored, service, monkeypatch):
    """Nothing is cut silently: too many rows are an error that says how to read them."""
    stored.points(stored.series("x"), stored.writer("a" * 32), [(s, 1.0) for s in range(6)])
    monkeypatch.setattr(limits, "ANSWER_ROWS", 5)
    with pytest.raises(InvalidQueryError, match=r"'x' has 6 rows.*5.*range"):
        service.series(stored.row, "x")
    assert module.limits is limits
    assert len(service.series(stored.row, "x", step_range=(0, 4)).step) == 5
