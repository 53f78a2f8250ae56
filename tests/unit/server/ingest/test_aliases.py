"""Writers that started without a server: their batches name a run uid that they made up."""

from __future__ import annotations

import pytest

from metrana_async.errors import NotFoundError, ProtocolError, RunDeletedError
from metrana_async.wire.acks import BatchStatus
from metrana_async.wire.messages import HeartbeatRequest
from metrana_async.wire.run_life import RunChange
from tests.unit.server.ingest.conftest import Kept
from tests.unit.server.ingest.helpers import rows

ONE, OTHER = "a" * 32, "b" * 32


def test_a_run_that_is_created_gets_the_uid(kept: Kept) -> None:
    """The batches name the run as it is; opening again changes nothing."""
    writer = kept.writer(1, made_up_uid=ONE)
    replies = [writer.open(), writer.open()]
    assert [(r.run_uid, r.created) for r in replies] == [(ONE, True)] * 2
    assert writer.send(rows([None], [1.0])).run_uid == ONE
    assert [w.alias for w in kept.store.run_contents(1).writers] == [""]


def test_a_later_writer_has_its_uid_as_an_alias(kept: Kept) -> None:
    """Points, signs of life and the leave reach the run; answers echo what was asked."""
    first = kept.writer(1, made_up_uid=ONE)
    first.open()
    second = kept.writer(2, made_up_uid=OTHER)
    assert [second.open().run_uid, second.open().run_uid] == [ONE, ONE]
    reply = second.send(rows([None], [1.0]))
    assert (reply.run_uid, reply.replies[0].status) == (OTHER, BatchStatus.STORED)
    assert kept.service.heartbeat(HeartbeatRequest(OTHER, second.writer_id)).state == "running"
    assert kept.service.heartbeat(HeartbeatRequest(ONE, second.writer_id)).state == "running"
    first.leave()
    assert second.leave().state == "finished"
    assert len(kept.store.runs()) == 1


def test_an_alias_outlives_a_restart_and_a_new_name(kept: Kept) -> None:
    """The restarted server knows it without being introduced again."""
    kept.writer(1, made_up_uid=ONE).open()
    writer = kept.writer(2, made_up_uid=OTHER)
    writer.open()
    kept.service.change_run(ONE, RunChange(name="new"))
    kept.restart(writer)
    assert writer.send(rows([None], [1.0])).replies[0].status is BatchStatus.STORED
    assert writer.open().run_name == "new"
    kept.restart(writer)
    assert writer.leave(status="failed").state == "running"


def test_an_alias_is_of_one_writer(kept: Kept) -> None:
    """Nobody else reaches the run by it, not its other writers and not strangers."""
    first = kept.writer(1, made_up_uid=ONE)
    first.open()
    kept.writer(2, made_up_uid=OTHER).open()
    for writer_id in (first.writer_id, "f" * 32):
        with pytest.raises(NotFoundError, match="no run"):
            kept.service.heartbeat(HeartbeatRequest(OTHER, writer_id))
    with pytest.raises(NotFoundError, match="no writer"):
        kept.service.heartbeat(HeartbeatRequest(ONE, "f" * 32))


@pytest.mark.parametrize("is_restarted", [False, True])
def test_an_alias_may_be_the_uid_of_another_run(kept: Kept, is_restarted) -> None:
    """A uid that is taken is given to no second run; each writer reaches its own."""
    first = kept.writer(1, made_up_uid=ONE)
    first.open()
    second = kept.writer(2, made_up_uid=ONE, run_name="second")
    uid = second.open().run_uid
    assert uid != ONE
    third = kept.writer(3, run_name="second")
    third.open()
    if is_restarted:
        kept.restart(first, second, third)
    for value, writer in enumerate((second, first, third)):
        writer.send(rows([None], [float(value)]))
    counts = {run.name: run.counters for run in kept.store.runs()}
    assert counts == {"run": {"stored": 1}, "second": {"stored": 2}}


def test_a_deleted_run_answers_under_its_alias(kept: Kept) -> None:
    """Late points are told, also after a restart; the uid comes back for no other run."""
    first = kept.writer(1, made_up_uid=ONE)
    first.open()
    second = kept.writer(2, made_up_uid=OTHER)
    second.open()
    kept.service.delete_run(ONE)
    for _ in range(2):
        for writer in (first, second):
            with pytest.raises(RunDeletedError):
                writer.send(rows([None], [1.0]))
            with pytest.raises(RunDeletedError):
                writer.open()
        kept.restart(first, second)
    heir = kept.writer(3, made_up_uid=ONE)
    assert heir.open().run_uid not in (ONE, OTHER)
    assert heir.send(rows([None], [1.0])).run_uid == ONE


def test_a_writer_keeps_its_alias(kept: Kept) -> None:
    """It may be named late, and is then the one; sealed batches do not change."""
    kept.writer(1, made_up_uid=ONE).open()
    writer = kept.writer(2)
    writer.open()
    writer.made_up_uid = OTHER
    writer.open()
    assert writer.send(rows([None], [1.0])).run_uid == OTHER
    writer.made_up_uid = "c" * 32
    with pytest.raises(ProtocolError, match=OTHER):
        writer.open()
    kept.restart(writer)
    writer.made_up_uid = OTHER
    writer.open()


@pytest.mark.parametrize("uid", ["A" * 32, "a" * 31, "../" + "a" * 29])
def test_a_run_uid_is_32_hex_digits_or_none(kept: Kept, uid) -> None:
    """Anything else is refused and creates nothing."""
    with pytest.raises(ProtocolError, match="run_uid"):
        kept.writer(1, made_up_uid=uid).open()
    assert kept.store.runs() == []
