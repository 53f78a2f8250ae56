"""What becomes of a run whose writers come out of their time: offline, dead, replayed by others."""

from __future__ import annotations

import pytest

from metrana_async.server.ingest.service import IngestService
from metrana_async.wire import limits
from metrana_async.wire.messages import HeartbeatRequest
from tests.unit.server.ingest.conftest import Kept
from tests.unit.server.ingest.helpers import TestWriter, rows


def state(service: IngestService) -> str:
    """The run's state as stored."""
    return service._store.runs()[0].state


def offline(make_writer, started_us: int) -> TestWriter:
    """A writer that is replayed: it never asked a server itself."""
    writer = make_writer(is_online=False, started_us=started_us)
    writer.send(rows([None], [1.0]))
    return writer


def let_pass(clock, service: IngestService, seconds: float) -> None:
    """Time goes by and the server looks at its runs."""
    clock.now_s += seconds
    service.maintain(1.0)


def test_a_dead_writer_that_was_adopted_has_crashed_its_run(make_writer, service) -> None:
    """At once where nobody is left; while another is live the run goes on."""
    dead, live = make_writer(), make_writer()
    dead.is_online = False
    dead.open()
    assert dead.leave(is_dead=True).state == "running"
    assert live.leave(is_dead=True).state == "crashed"
    assert state(service) == "crashed"


def test_a_writer_that_was_only_ever_offline_can_crash(make_writer, service, clock) -> None:
    """Killed without a word: the run does not stay running, and a restart changes nothing."""
    writer = offline(make_writer, 1)
    assert state(service) == "running"
    assert writer.leave(is_dead=True).state == "crashed"
    assert state(IngestService(service._store, clock=clock)) == "crashed"


@pytest.mark.parametrize("status", ["finished", "failed", "stopped"])
def test_an_offline_run_ends_as_its_writer_left_it(make_writer, service, clock, status) -> None:
    """The exception is kept; time that goes by changes nothing."""
    name = "ValueError" if status == "failed" else None
    assert offline(make_writer, 1).leave(status=status, exception_type=name).state == status
    let_pass(clock, service, 10_000)
    assert state(service) == status
    assert service._store.runs()[0].exception_type == name


@pytest.mark.fault_row("G13")
@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"is_dead": True}, {"status": "finished"}),
        ({"status": "finished"}, {"is_dead": True}),
        ({"status": "finished"}, {"status": "failed"}),
        ({"status": "failed"}, {"is_run_over": False}),
    ],
)
def test_the_newest_writer_says_how_an_offline_run_ended(
    make_writer, service, first, second, is_reversed
) -> None:
    """In whichever order the two are replayed."""
    parts = [(1, first), (2, second)]
    for started_us, how in reversed(parts) if is_reversed else parts:
        offline(make_writer, started_us).leave(**how)
    wanted = "crashed" if second.get("is_dead") else second.get("status", "running")
    assert state(service) == wanted


def test_a_run_is_running_while_an_offline_writer_is_followed(make_writer, service, clock) -> None:
    """Others that are replayed to their end do not end it; silence does, and a word mends it."""
    followed = offline(make_writer, 2)
    assert offline(make_writer, 1).leave(status="finished").state == "running"
    for _ in range(3):
        let_pass(clock, service, limits.WRITER_LIVE_S - 1)
        followed.send(rows([None], [1.0]))
    assert state(service) == "running"
    let_pass(clock, service, limits.WRITER_LIVE_S + 6)
    assert state(service) == "crashed"
    beat = HeartbeatRequest(followed.run_uid, followed.writer_id)
    assert service.heartbeat(beat).state == "running"
    assert followed.leave(status="finished").state == "finished"


@pytest.mark.fault_row("G13")
def test_leftovers_say_nothing_of_what_newer_writers_said(make_writer, service, clock) -> None:
    """Neither end nor crash of a run, nor that it was left open, is changed by an older writer."""
    for how, wanted in (
        ({"status": "failed"}, "failed"),
        ({"is_dead": True}, "crashed"),
        ({"is_run_over": False}, "running"),
    ):
        make_writer().leave(**how)
        late = offline(make_writer, 1)
        assert state(service) == wanted
        late.leave(status="finished")
        assert state(service) == wanted
    let_pass(clock, service, 10_000)


def test_a_close_that_found_no_server_counts_when_it_arrives(make_writer, service, clock) -> None:
    """The online writer was taken for crashed; its adopter brings the end it left behind."""
    writer = make_writer()
    let_pass(clock, service, limits.WRITER_LIVE_S + 6)
    assert state(service) == "crashed"
    writer.is_online = False
    writer.open()
    writer.send(rows([None], [1.0]))
    assert writer.leave(status="finished").state == "finished"


def test_a_late_close_does_not_override_a_newer_writers_end(make_writer, service) -> None:
    """The job was requeued and failed meanwhile."""
    old = make_writer()
    old.leave(is_dead=True)
    make_writer().leave(status="failed")
    old.is_online = False
    old.open()
    assert old.leave(status="finished").state == "failed"


def test_replay_goes_on_after_a_restart(kept: Kept, clock) -> None:
    """The restarted server knows who is being replayed."""
    writer = kept.writer(1, is_online=False, started_us=1)
    writer.open()
    writer.send(rows([None], [1.0]))
    kept.restart(writer)
    let_pass(clock, kept.service, 6)
    assert state(kept.service) == "running"
    assert writer.leave(is_dead=True).state == "crashed"
