"""What changed since somebody looked."""

from __future__ import annotations

import numpy as np
import pytest

from metrana_async.server import changes
from metrana_async.server.changes import ChangeFeed
from metrana_async.server.store.base import AcceptedPoints, Commit, DeletedRun, RunRow


def row(run_no: int, project: str = "p") -> RunRow:
    return RunRow(
        run_no, f"uid{run_no}", "default", project, f"run{run_no}", 0, "running", 0, ["job"]
    )


def points(run_no: int) -> AcceptedPoints:
    none = np.zeros(0, dtype=np.int64)
    return AcceptedPoints(run_no, 1, none, none, none, none, none, none.astype(np.float32))


@pytest.fixture
def feed() -> ChangeFeed:
    return ChangeFeed({1: row(1), 2: row(2, "other")}.get)


def test_a_place_has_seen_what_was_before_it(feed):
    """Asked with the latest place nothing is new; with an older one what came since is."""
    feed.note(Commit(points=[points(1)]))
    first = feed.since(None, "default", "p")
    assert first["reset"]
    assert feed.since(first["cursor"], "default", "p")["runs"] == {}
    feed.note(Commit(points=[points(1)]))
    news = feed.since(first["cursor"], "default", "p")
    assert not news["reset"]
    assert news["runs"]["uid1"]["state"] == "running"
    assert news["cursor"] == feed.place != first["cursor"]


def test_other_projects_are_no_news(feed):
    """Only the project asked for is told of; without one, every project of the workspace."""
    before = feed.place
    feed.note(Commit(points=[points(2)]))
    assert feed.since(before, "default", "p")["runs"] == {}
    assert list(feed.since(before, "default", None)["runs"]) == ["uid2"]
    assert feed.since(before, "elsewhere", None)["runs"] == {}


def test_the_newest_row_of_a_run_is_told(feed):
    """A state that a commit brings is told without asking the store."""
    before = feed.place
    ended = row(1)
    ended.state = "finished"
    feed.note(Commit(runs=[ended]))
    assert feed.since(before, "default", "p")["runs"]["uid1"]["state"] == "finished"


def test_a_deleted_run_is_told_once_more(feed):
    """Whoever shows it learns that it is gone."""
    feed.note(Commit(runs=[row(1)]))
    before = feed.place
    feed.note(Commit(deleted=[DeletedRun(1, "uid1", "default", "p", "run1", 0)]))
    assert feed.since(before, "default", "p")["runs"]["uid1"]["state"] == "deleted"


def test_an_empty_commit_is_nothing(feed):
    """A commit that no page could see moves no place."""
    before = feed.place
    feed.note(Commit())
    assert feed.place == before


@pytest.mark.parametrize("place", ["", "x", "x-1", "-", "x-99999999999999999999", "x-²"])
def test_a_foreign_place_means_look_at_everything(feed, place):
    """A place of another server, or nonsense, is answered by a reset."""
    assert feed.since(place, "default", "p")["reset"]


def test_what_was_forgotten_is_a_reset(feed, monkeypatch):
    """Beyond its bound the feed forgets the oldest runs, and says so to who missed them."""
    monkeypatch.setattr(changes, "_RUNS_COUNT", 2)
    before = feed.place
    for run_no in (1, 2, 3):
        feed.note(Commit(runs=[row(run_no)]))
    assert feed.since(before, "default", None)["reset"]
    assert not feed.since(feed.place, "default", None)["reset"]
