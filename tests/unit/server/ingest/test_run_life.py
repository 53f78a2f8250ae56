"""Runs from outside: rename, archive, annotate, tag and delete, while writers go on."""

from __future__ import annotations

import numpy as np
import pytest

from metrana_async.errors import NotFoundError, RunAlreadyExistsError, RunDeletedError
from metrana_async.server.ingest.liveness import ProcessWatch
from metrana_async.server.ingest.service import IngestService
from metrana_async.server.store.memory import MemoryStore
from metrana_async.wire.messages import OpenRequest
from metrana_async.wire.run_life import RunChange
from tests.unit.server.ingest.helpers import rows


def attributes(store):
    return {a.path: a.value for a in store.run_contents(1).attributes}


def test_a_renamed_run_keeps_its_uid_and_its_writers(service, store, make_writer):
    """The writer goes on, also when it introduces itself again under the old name."""
    writer = make_writer()
    uid = writer.run_uid
    service.change_run(uid, RunChange(name="new"))
    writer.send(rows([0], [1.0]))
    assert writer.open().run_name == "new"
    assert [run.name for run in store.runs()] == ["new"]
    again = IngestService(store)  # a restarted server
    writer.service = again
    assert writer.open().run_uid == uid


def test_a_name_that_is_taken_changes_nothing(service, store, make_writer):
    """The whole change is refused; the run's own name is no conflict."""
    one, _ = make_writer(), make_writer(run_name="other")
    with pytest.raises(RunAlreadyExistsError, match="'other'"):
        service.change_run(one.run_uid, RunChange(name="other", notes="x"))
    assert attributes(store) == {}
    assert store.find_run("ws", "proj", "run") is not None
    service.change_run(one.run_uid, RunChange(name="run"))


def test_notes_tags_and_the_archive_are_attributes(service, store, make_writer):
    """Notes are replaced, tags added and removed, the archive is a flag."""
    uid = make_writer().run_uid
    service.change_run(uid, RunChange(notes="good", add_tags=["a", "b"], is_archived=True))
    service.change_run(uid, RunChange(add_tags=["c"], remove_tags=["a"], is_archived=False))
    assert attributes(store) == {
        "sys/notes": "good",
        "sys/tags": ["b", "c"],
        "sys/archived": False,
    }


@pytest.mark.fault_row("G12")
def test_a_deleted_run_answers_its_late_writers(service, store, make_writer):
    """Points, signs of life and new introductions of its writers are refused by name."""
    writer = make_writer()
    writer.send(rows([0], [1.0]))
    service.delete_run(writer.run_uid)
    for call in (lambda: writer.send(rows([1], [2.0])), writer.open, writer.leave):
        with pytest.raises(RunDeletedError, match="run 'run' of ws/proj was deleted"):
            call()
    assert store.runs() == []
    with pytest.raises(NotFoundError):
        service.delete_run("0" * 32)
    assert make_writer().run_uid != writer.run_uid  # the name is free again
    service.maintain(0.1, everything=True)


def test_the_same_job_finds_its_renamed_run_by_the_old_name(service, store, make_writer):
    """Every former name, also after a restart; another job's old name is free again."""
    first = make_writer()
    uid = first.run_uid
    for name in ("second", "third"):
        service.change_run(uid, RunChange(name=name))
    assert make_writer(run_name="second").run_uid == uid
    late = make_writer(service=IngestService(store))  # a restarted server
    assert late.run_uid == uid
    assert [row.name for row in store.runs()] == ["third"]
    assert attributes(store)["sys/former_names"] == ["run", "second"]

    stranger = make_writer(orchestration_id="other")
    assert stranger.run_uid != uid
    assert {row.name for row in store.runs()} == {"third", "run"}
    # Also where somebody else has the name by now, each job finds its own.
    assert make_writer(service=IngestService(store)).run_uid == uid
    assert make_writer(service=IngestService(store), orchestration_id="other").run_uid != uid
    with pytest.raises(RunAlreadyExistsError):
        make_writer(orchestration_id="third job")


def test_a_delete_that_cannot_be_stored_leaves_the_run(service, store, make_writer, monkeypatch):
    """Nothing is half deleted."""
    writer = make_writer()

    def refuse(changes):
        raise OSError("disk")

    with monkeypatch.context() as patch:
        patch.setattr(store, "commit", refuse)
        with pytest.raises(OSError, match="disk"):
            service.delete_run(writer.run_uid)
    assert writer.send(rows([0], [1.0])).replies[0].counts["stored"] == 1


def test_how_long_silence_is_life_is_a_setting(clock):
    """A run crashes after the watch's limit, and recovers with the next sign of life."""
    store = MemoryStore()
    service = IngestService(store, clock=clock, watch=ProcessWatch(live_s=4.0))
    from tests.unit.server.ingest.helpers import TestWriter

    writer = TestWriter(service, 1)
    writer.open()
    clock.now_s += 3.5
    service.maintain(0.1)
    assert store.run_contents(1).row.state == "running"
    clock.now_s += 1.5
    service.maintain(0.1)
    assert store.run_contents(1).row.state == "crashed"
    writer.send(rows([0], [1.0]))
    assert store.run_contents(1).row.state == "running"


def test_cursors_loaded_at_once_are_those_loaded_one_by_one(tmp_path, clock, monkeypatch):
    """A run of many series judges and seeds the same whichever way it was loaded, half sealed."""
    from metrana_async.server.ingest import cursors
    from metrana_async.server.store.sqlite.store import SqliteStore
    from metrana_async.wire.model import PointTable
    from tests.unit.server.ingest.helpers import TestWriter, env_steps, i64, segments, standard

    store = SqliteStore(tmp_path / "store")
    service = IngestService(store, clock=clock)
    many = tuple(standard(f"m{n}") for n in range(150))
    one, two = (
        TestWriter(service, n, series=(*many, env_steps()), resume_strategy="allow") for n in (1, 2)
    )
    one.open()
    two.open()

    def send(writer, step):
        n = len(many)
        series = i64(range(n)) if step else i64(range(0, n, 2))
        columns = (series, i64([step] * len(series)), i64([5] * len(series)))
        table = PointTable(*columns, np.zeros(len(series), np.float32))
        writer.send(table, segments([(0, 1, step, 0, [1.0])], series=n))

    send(one, 0)
    send(two, 3)
    while service.maintain(10, everything=True):
        pass
    send(one, 7)
    send(two, 5)

    def heads(limit):
        monkeypatch.setattr(cursors, "_ONE_BY_ONE_COUNT", limit)
        again = IngestService(store, clock=clock)
        run = again._load(1)
        view = again._view(run.state)
        run.cursors.ensure_all(view)
        return run.cursors.dump(run.state.index_by_no, view), again.open(
            OpenRequest("ws", "proj", "run", "job", "allow", one.writer_id)
        ).seeds

    assert heads(0) == heads(10**9)
    store.close()
