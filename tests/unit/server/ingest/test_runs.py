"""Runs and their writers: who may join, in which order, and when a run ends."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from metrana_async.errors import NotFoundError, ProtocolError, RunAlreadyExistsError
from metrana_async.server.ingest.liveness import ProcessWatch, is_live, started_ticks
from metrana_async.server.ingest.service import IngestService
from metrana_async.wire import limits
from metrana_async.wire.messages import HeartbeatRequest, ProcessIdentity
from tests.unit.server.ingest.helpers import rows


def state(store) -> str:
    """State of the one run."""
    (row,) = store.runs()
    return row.state


def test_another_job_is_refused_with_both_ids_and_three_ways_on(make_writer) -> None:
    """Under "never", the message names the ids and what can be done."""
    make_writer(orchestration_id="job-1")
    with pytest.raises(RunAlreadyExistsError) as caught:
        make_writer(orchestration_id="job-2")
    text = str(caught.value)
    for part in ("job-1", "job-2", "run_name", "resume_strategy='allow'", "orchestration_id="):
        assert part in text


def test_siblings_join_and_only_one_is_the_creator(make_writer, store) -> None:
    """Create-only attributes come from the creator; a retried open is the same answer."""
    first = make_writer(attributes=[["set", "config/lr", 0.1]])
    second = make_writer(attributes=[["set", "config/lr", 0.2]])
    assert first.open().created is True
    assert second.open().created is False
    assert [a.value for a in store.run_contents(1).attributes] == [0.1]
    assert len(store.run_contents(1).writers) == 2


def test_allow_adds_the_job_so_that_its_siblings_may_join(make_writer) -> None:
    """`orchestration_id` stays the creator's."""
    make_writer(orchestration_id="one")
    make_writer(orchestration_id="two", resume_strategy="allow")
    reply = make_writer(orchestration_id="two").open()
    assert reply.orchestration_id == "one"
    assert reply.orchestration_ids == ["one", "two"]


def test_runs_without_a_name_get_one(make_writer, service) -> None:
    """Generated names are readable and a retried open finds its run again."""
    writer = make_writer(run_name=None)
    reply = writer.open()
    assert reply.run_name.count("-") == 2
    assert writer.open().run_uid == reply.run_uid
    assert make_writer(run_name=None).open().run_uid != reply.run_uid


def test_writer_order_is_strict_for_online_writers(make_writer, store) -> None:
    """Two opened in one microsecond still come one after the other; offline ones keep theirs."""
    for _ in range(3):
        make_writer()
    make_writer(is_online=False, started_us=5)
    orders = [w.order_us for w in store.run_contents(1).writers]
    assert orders[3] == 5
    assert orders[0] < orders[1] < orders[2]


def test_a_malformed_open_is_refused(make_writer) -> None:
    """Names, strategy and ids are checked before anything is made."""
    for options in ({"run_name": ""}, {"resume_strategy": "maybe"}, {"orchestration_id": ""}):
        with pytest.raises(ProtocolError):
            make_writer(**options)
    with pytest.raises(ProtocolError, match="attribute"):
        make_writer(attributes=[["set"]])


def test_two_live_writers_of_one_logger_id_are_warned(make_writer, service) -> None:
    """Both hear of it; a restarted one whose predecessor left does not."""
    one = make_writer(logger_id="rank-0")
    other = make_writer(logger_id="rank-0")
    assert [n.kind for n in other.open().notices] == []
    heard = service.heartbeat(HeartbeatRequest(one.run_uid, one.writer_id)).notices
    assert [n.kind for n in heard] == ["SecondWriter"]
    one.leave()
    other.leave(is_dead=True)
    third = make_writer(logger_id="rank-0")
    assert service.heartbeat(HeartbeatRequest(third.run_uid, third.writer_id)).notices == []


def test_the_run_ends_when_its_last_live_writer_closed(make_writer, store) -> None:
    """The last one's status counts; a process that joins later reopens it."""
    one, other = make_writer(), make_writer()
    assert one.leave(status="finished").state == "running"
    assert other.leave(status="failed", exception_type="ValueError").state == "failed"
    assert store.runs()[0].exception_type == "ValueError"
    make_writer()
    assert state(store) == "running"


def test_shutdown_leaves_the_run_open(make_writer, store, service, clock) -> None:
    """A writer that only shut down does not end the run, and nothing crashes it."""
    make_writer().leave(is_run_over=False)
    clock.now_s += 10_000
    service.maintain(1.0)
    assert state(store) == "running"


def test_late_points_are_stored_and_reopen_nothing(make_writer, store) -> None:
    """After the end, leftovers of an offline writer arrive; the state stays."""
    make_writer().leave()
    late = make_writer(is_online=False, started_us=1)
    late.send(rows([None], [1.0]))
    late.leave(status="stopped")
    assert state(store) == "finished"
    assert store.runs()[0].counters == {"stored": 1}


def test_a_silent_writer_crashes_the_run_until_it_speaks_again(
    make_writer, store, service, clock
) -> None:
    """No heartbeat for the documented time, and no goodbye."""
    writer = make_writer()
    clock.now_s += limits.WRITER_LIVE_S - 1
    service.maintain(1.0)
    assert state(store) == "running"
    clock.now_s += 6
    service.maintain(1.0)
    assert state(store) == "crashed"
    beat = HeartbeatRequest(writer.run_uid, writer.writer_id, {"accepted": 3})
    assert service.heartbeat(beat).state == "running"
    assert store.run_contents(1).writers[0].counters == {"accepted": 3}


def test_an_adopter_declares_a_writer_dead(make_writer, store, service, clock) -> None:
    """Opening a writer offline that was online: its process is gone, its run may have crashed."""
    writer = make_writer()
    writer.is_online = False
    writer.open()
    clock.now_s += 6
    service.maintain(1.0)
    assert state(store) == "crashed"
    assert store.run_contents(1).writers[0].left == "dead"
    writer.send(rows([None], [1.0]))
    assert state(store) == "crashed"


def test_an_unknown_status_is_refused(make_writer) -> None:
    """A run ends finished, failed or stopped."""
    with pytest.raises(ProtocolError, match="exploded"):
        make_writer().leave(status="exploded")
    writer = make_writer()
    writer.run_uid = "0" * 32
    with pytest.raises(NotFoundError):
        writer.leave()


def test_liveness_looks_processes_of_this_machine_up(make_writer, store, clock) -> None:
    """This very process is there; one with another start time is not it."""
    watch = ProcessWatch()
    here = {
        "host": os.uname().nodename,
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "pid": os.getpid(),
        "pid_namespace": os.stat("/proc/self/ns/pid").st_ino,
        "started_ticks": started_ticks(os.getpid()),
    }
    assert here["started_ticks"] is not None
    assert watch.is_gone(here) is False
    assert watch.is_gone({**here, "started_ticks": here["started_ticks"] - 1}) is True
    assert watch.is_gone({**here, "host": "elsewhere", "pid": 2**22 + 1}) is False
    assert watch.is_gone({**here, "pid": 2**22 + 1}) is True
    writer = make_writer(process=ProcessIdentity(**here))
    row = store.run_contents(1).writers[0]
    now_ms = int(clock.now_s * 1000)
    assert is_live(row, now_ms=now_ms, watch=watch)
    gone = replace(row, process={**here, "pid": 2**22 + 1})
    assert not is_live(gone, now_ms=now_ms, watch=watch)
    assert not is_live(replace(row, left="closed"), now_ms=now_ms, watch=watch)
    assert writer.run_uid


def test_a_restarted_server_keeps_writers_and_order(make_writer, store, clock) -> None:
    """Liveness and order are those of before."""
    one = make_writer()
    service = IngestService(store, clock=clock)
    other = make_writer(service=service)
    one.service = service
    other.send(rows([None], [1.0]))
    reply = one.send(rows([0], [5.0]))
    assert reply.replies[0].counts == {"superseded": 1}
    assert [n.kind for n in reply.notices] == ["SecondWriter"]


def test_a_run_that_nobody_writes_to_leaves_memory_and_comes_back(
    make_writer, store, service, clock
) -> None:
    """Dropped once its writers are gone for long; its next point is judged as ever."""
    writer = make_writer()
    writer.send(rows([None], [1.0]))
    clock.now_s += 700
    service.maintain(1.0)
    assert state(store) == "crashed"
    assert service._runs == {}
    clock.now_s += 6
    service.maintain(1.0)
    assert service._runs == {}
    writer.send(rows([None], [2.0]))
    assert store.read_points(1).step.tolist() == [0, 1]
    assert state(store) == "running"
