"""Rarer ways through the service: mixed tables, wide look-ups, many notices, malformed requests."""

from __future__ import annotations

import numpy as np
import pytest

from metrana_async.errors import BatchTooLargeError, ProtocolError
from metrana_async.wire import limits
from metrana_async.wire.acks import BatchStatus
from metrana_async.wire.batch import encode_batch
from metrana_async.wire.frames import FRAME_BATCH, encode_frame
from metrana_async.wire.messages import HeartbeatRequest
from metrana_async.wire.model import AttributeOp, AttributeUpdate, Batch, PointTable
from tests.unit.server.ingest.helpers import env_steps, episodes, i64, rows, segments, standard


def test_a_table_may_mix_ordered_and_merge_series(make_writer, store) -> None:
    """Each row under its own law: the ordered ones are numbered, the merge ones all kept."""
    writer = make_writer(series=(standard("o"), standard("m", is_merge=True)))
    table = PointTable(
        i64([0, 1, 0, 1, 1]), i64([-1, 4, -1, 4, 2]), i64([5] * 5), np.float32([1, 2, 3, 4, 5])
    )
    reply = writer.send(table).replies[0]
    assert reply.counts == {"stored": 5}
    assert store.read_points(1).step.tolist() == [0, 1]
    assert store.read_points(2).step.tolist() == [4, 4, 2]


def test_a_wide_look_up_reads_stretches(make_writer, store) -> None:
    """Rows far apart below the maximum find what is there, near or far."""
    writer = make_writer()
    far = [k * 100_000 for k in range(40)]
    writer.send(rows([*far, 10**7], [1.0] * 41))
    few = writer.send(rows([0, 50, 3_900_000], [2.0] * 3)).replies[0]
    assert few.counts == {"stored": 3, "replaced": 2}
    many = writer.send(rows([*far, 51], [3.0] * 41)).replies[0]
    assert many.counts == {"stored": 41, "replaced": 40}


def test_too_many_notices_are_summed(make_writer, service) -> None:
    """A writer that fetches nothing is told of the rest as one number."""
    names = tuple(f"e{k}" for k in range(400))
    series = (env_steps(),)
    one = make_writer(series=series, envs=names)
    other = make_writer(series=series, envs=names)
    table = segments([(k, 0, 0, 0, [1.0]) for k in range(400)])
    one.send(table)
    notices = other.send(table).notices
    restarted = [n for n in notices if n.kind == "EpisodeRestarted"]
    assert sum(n.points_count for n in restarted) == 400
    assert len(notices) < 300
    waiting = service.heartbeat(HeartbeatRequest(one.run_uid, one.writer_id)).notices
    assert {n.kind for n in waiting} == {"EpisodeTakenOver"}
    assert len(waiting) == 256


@pytest.mark.parametrize(
    "update",
    [
        AttributeUpdate(AttributeOp.SET, "x" * (limits.ATTRIBUTE_PATH_BYTES + 1), 1),
        AttributeUpdate(AttributeOp.TAGS_ADD, "tags", "a"),
    ],
)
def test_an_attribute_that_cannot_be_applied_rejects_its_batch(make_writer, store, update) -> None:
    """Nothing of the batch takes effect, its points neither."""
    writer = make_writer()
    reply = writer.send(rows([None], [1.0]), attributes=[update]).replies[0]
    assert reply.status is BatchStatus.REJECTED
    assert store.run_contents(1).attributes == []
    assert store.run_contents(1).series == []


def test_episode_rows_beyond_their_pages_are_rejected(make_writer) -> None:
    """An environment index that no page has cannot be stored."""
    writer = make_writer(series=(episodes(),))
    table = PointTable(i64([0]), i64([-1]), i64([0]), np.float32([1]), i64([5]), i64([0]))
    reply = writer.send(table).replies[0]
    assert reply.status is BatchStatus.REJECTED
    assert "environment index 5" in reply.reason


def test_automatic_episodes_stop_at_the_largest_number(make_writer, store) -> None:
    """Behind the largest episode there is no next one for that environment."""
    writer = make_writer(series=(episodes(),))

    def row(env: int, episode: int) -> PointTable:
        return PointTable(i64([0]), i64([episode]), i64([0]), np.float32([1]), i64([env]), i64([0]))

    writer.send(row(0, limits.STEP_MAX))
    assert writer.send(row(0, -1)).replies[0].status is BatchStatus.REJECTED
    assert writer.send(row(1, -1)).replies[0].status is BatchStatus.STORED
    assert store.read_points(1).step.tolist() == [limits.STEP_MAX, 0]


@pytest.mark.fault_row("H4")
def test_requests_that_are_none_are_refused(make_writer, service, monkeypatch) -> None:
    """No batch, two writers, no identity, too many batches, too many bytes."""
    one, other = make_writer(), make_writer()
    two = one.seal(rows([None], [1.0])) + other.seal(rows([None], [1.0]))
    nameless = encode_frame(FRAME_BATCH, b"\x02\x00\x00\x00{}", seq=1)
    numbers = encode_frame(FRAME_BATCH, b'\x14\x00\x00\x00{"run":1,"writer":2}', seq=1)
    answers = service.ingest_many([one.pages, two, nameless, numbers])
    assert all(isinstance(answer, ProtocolError) for answer in answers)
    empty = encode_batch(Batch(one.run_uid, one.writer_id, 1, 1))
    (too_many,) = service.ingest_many([empty * (limits.REQUEST_BATCHES + 1)])
    assert isinstance(too_many, BatchTooLargeError)
    monkeypatch.setattr(limits, "REQUEST_BYTES", 100)
    (too_large,) = service.ingest_many([two])
    assert isinstance(too_large, BatchTooLargeError)


@pytest.mark.fault_row("H4")
def test_too_many_pages_reject_a_batch(make_writer) -> None:
    """The bound of pages per batch holds before any is looked for."""
    writer = make_writer()
    batch = Batch(writer.run_uid, writer.writer_id, 0, 1)
    batch.series_pages = tuple(f"{k:032x}" for k in range(limits.PAGES_PER_BATCH + 1))
    reply = writer.deliver(encode_batch(batch)).replies[0]
    assert reply.status is BatchStatus.REJECTED
