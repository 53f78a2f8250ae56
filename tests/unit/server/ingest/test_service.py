"""The service: lanes, pages, poison, one commit, notices, seeds, upkeep."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from metrana_async.errors import NotFoundError, ProtocolError, UnavailableError
from metrana_async.server.ingest.service import IngestService
from metrana_async.server.store.memory import MemoryStore
from metrana_async.wire.acks import BatchStatus
from metrana_async.wire.batch import encode_batch
from metrana_async.wire.frames import FRAME_BATCH, encode_frame
from metrana_async.wire.messages import HeartbeatRequest
from metrana_async.wire.model import AttributeOp, AttributeUpdate, Batch, StepMode
from tests.unit.server.ingest.helpers import (
    TestWriter,
    env_steps,
    episodes,
    i64,
    rows,
    segments,
    standard,
)


def values_of(store: MemoryStore, series_no: int = 1) -> list[tuple[int, float]]:
    """Visible (step, value) of a STANDARD series."""
    stored = store.read_points(series_no)
    return sorted(dict(zip(stored.step.tolist(), stored.value.tolist(), strict=True)).items())


def test_a_batch_is_stored_once(make_writer, store) -> None:
    """The same bytes again are a duplicate and change nothing."""
    writer = make_writer()
    body = writer.pages + writer.seal(rows([None, None], [1.0, 2.0]))
    first, again = writer.deliver(body), writer.deliver(body)
    assert first.replies[0].counts == {"stored": 2}
    assert again.replies[0].status is BatchStatus.DUPLICATE
    assert again.acked == {0: 1}
    assert values_of(store) == [(0, 1.0), (1, 2.0)]


@pytest.mark.fault_row("G11")
def test_other_bytes_under_a_sequence_are_a_conflict_also_behind_the_mark(
    make_writer, store
) -> None:
    """A clone that lags behind is never told "duplicate" for points that nobody stored."""
    writer = make_writer()
    clone = TestWriter(writer.service, writer.number, run_uid=writer.run_uid)
    for n in range(3):
        writer.send(rows([None], [float(n)]))
    body = clone.pages + clone.seal(rows([None], [9.0])) + clone.seal(rows([None], [8.0]))
    statuses = [reply.status for reply in writer.deliver(body).replies]
    assert statuses == [BatchStatus.CONFLICT, BatchStatus.CONFLICT]
    assert values_of(store) == [(0, 0.0), (1, 1.0), (2, 2.0)]


def test_a_hole_in_a_lane_is_answered_with_what_is_expected(make_writer, store) -> None:
    """A later batch waits for the missing one; then both are taken in order, in one request."""
    writer = make_writer()
    first = writer.seal(rows([None], [1.0]))
    second = writer.seal(rows([None], [2.0]))
    reply = writer.deliver(writer.pages + second).replies[0]
    assert (reply.status, reply.expected) == (BatchStatus.GAP, 1)
    both = writer.deliver(writer.pages + first + second)
    assert [r.status for r in both.replies] == [BatchStatus.STORED] * 2
    assert values_of(store) == [(0, 1.0), (1, 2.0)]


@pytest.mark.fault_row("G11")
def test_other_bytes_under_a_stored_sequence_are_a_conflict(make_writer, store) -> None:
    """A cloned writer is noticed by the digest, of the same batch and of the one before."""
    writer = make_writer()
    writer.send(rows([None], [1.0]))
    writer.seq, good, writer.prev = 0, writer.prev, 0
    assert writer.send(rows([None], [9.0])).replies[0].status is BatchStatus.CONFLICT
    assert writer.send(rows([None], [9.0])).replies[0].status is BatchStatus.CONFLICT
    writer.seq, writer.prev = 1, good
    assert writer.send(rows([None], [2.0])).replies[0].status is BatchStatus.STORED
    assert values_of(store) == [(0, 1.0), (1, 2.0)]


def test_unknown_pages_are_asked_for(make_writer) -> None:
    """Nothing is stored until the pages come, and they are kept for later batches."""
    writer = make_writer()
    frame = writer.seal(rows([None], [1.0]))
    reply = writer.deliver(frame).replies[0]
    assert reply.status is BatchStatus.NEED_PAGES
    assert len(reply.pages) == 2
    assert writer.deliver(writer.pages + frame).replies[0].status is BatchStatus.STORED
    assert writer.deliver(writer.seal(rows([None], [2.0]))).replies[0].status is (
        BatchStatus.STORED
    )


def test_pages_survive_a_restart(make_writer, store, clock) -> None:
    """A new service finds them in the store."""
    writer = make_writer()
    writer.send(rows([None], [1.0]))
    writer.service = IngestService(store, clock=clock)
    reply = writer.deliver(writer.seal(rows([None], [2.0])))
    assert reply.replies[0].status is BatchStatus.STORED


@pytest.mark.fault_row("D7")
@pytest.mark.parametrize(
    "table",
    [
        rows([None], [1.0], series=7),
        segments([(0, 0, 0, 0, [1.0])]),
        segments([(9, 0, 0, 0, [1.0])], series=1),
        segments([(0, None, 0, 0, [1.0])], series=1),
        segments([(0, None, 0, 0, [1.0])], series=2, mode=StepMode.AUTO_FROM_ONE),
    ],
)
def test_a_poison_batch_is_rejected_and_its_lane_goes_on(make_writer, store, table) -> None:
    """Its sequence is taken, its points are counted, the next batch is stored."""
    writer = make_writer(series=(standard(), env_steps(), env_steps("flat", episodic=False)))
    reply = writer.send(table).replies[0]
    assert reply.status is BatchStatus.REJECTED
    assert reply.reason
    assert writer.send(rows([None], [2.0])).replies[0].status is BatchStatus.STORED
    assert store.runs()[0].counters == {"rejected": 1, "stored": 1}


def test_an_undecodable_batch_takes_its_sequence(make_writer) -> None:
    """A frame whose description is broken but names its writer is rejected, not refused."""
    writer = make_writer()
    head = b'{"run":"%s","writer":"%s"}' % (writer.run_uid.encode(), writer.writer_id.encode())
    body = len(head).to_bytes(4, "little") + head
    reply = writer.deliver(encode_frame(FRAME_BATCH, body, seq=1, lane=0, points_count=3))
    assert reply.replies[0].status is BatchStatus.REJECTED
    assert reply.acked == {0: 1}


@pytest.mark.fault_row("C21")
def test_damaged_bytes_are_refused_and_do_not_hurt_others(make_writer, service, store) -> None:
    """In a group, the damaged request gets its error, the other is stored."""
    writer = make_writer()
    body = writer.pages + writer.seal(rows([None], [1.0]))
    damaged, good = service.ingest_many([body[:-1], body])
    assert isinstance(damaged, ProtocolError)
    assert not isinstance(good, Exception)
    assert values_of(store) == [(0, 1.0)]


@pytest.mark.fault_row("H5")
def test_an_unknown_run_or_writer_is_not_found(make_writer, service) -> None:
    """A batch of a writer that was never opened is refused by name."""
    writer = make_writer()
    stranger = encode_batch(Batch(writer.run_uid, "f" * 32, 0, 1))
    lost = encode_batch(Batch("e" * 32, writer.writer_id, 0, 1))
    answers = service.ingest_many([stranger, lost])
    assert all(isinstance(answer, NotFoundError) for answer in answers)


class RefusingStore(MemoryStore):
    """A store whose disk is full while `is_full`."""

    is_full = False

    def commit(self, changes) -> None:
        if self.is_full:
            raise UnavailableError("disk full")
        super().commit(changes)


def test_a_row_that_was_high_is_known_to_a_later_look_up(make_writer, store) -> None:
    """7 and 9 extend the axis, 5 and 8 look it up between: then 7 is held, by its writer."""
    one, other = make_writer(), make_writer()
    other.send(rows([7, 9, 5, 8], [1.0, 2.0, 3.0, 4.0]))
    assert one.send(rows([7, 6], [50.0, 60.0])).replies[0].counts == {
        "stored": 1,
        "superseded": 1,
    }
    assert values_of(store) == [(5, 3.0), (6, 60.0), (7, 1.0), (8, 4.0), (9, 2.0)]


def test_a_failed_commit_leaves_nothing_behind(clock) -> None:
    """After the disk took nothing, the same bytes are judged as if for the first time."""
    from tests.unit.server.ingest.helpers import TestWriter

    store = RefusingStore()
    service = IngestService(store, clock=clock)
    writer = TestWriter(service, 1, series=(standard(), env_steps()))
    writer.open()
    writer.send(rows([None], [1.0]), segments([(0, 0, 0, 0, [1.0])], series=1))
    frame = writer.seal(
        rows([None], [2.0]),
        segments([(0, 0, 0, 0, [5.0])], series=1),
        lost={"inbox_full": 4},
    )
    store.is_full = True
    with pytest.raises(UnavailableError):
        service.ingest_many([frame])
    store.is_full = False
    assert writer.deliver(frame).replies[0].counts == {
        "stored": 2,
        "discarded_by_restart": 1,
    }
    assert values_of(store) == [(0, 1.0), (1, 2.0)]
    counters = store.runs()[0].counters
    assert counters == {"stored": 4, "discarded_by_restart": 1, "lost:inbox_full": 4}


def test_an_episode_that_begins_again_is_cut(make_writer, store) -> None:
    """The cut row, the notice and the counts name what was discarded."""
    writer = make_writer(series=(env_steps(),))
    writer.send(segments([(0, 3, 5, 0, [1.0, 2.0]), (0, 3, 6, 0, [3.0])]))
    reply = writer.send(segments([(0, 3, 5, 0, [10.0])]))
    (notice,) = reply.notices
    assert (notice.kind, notice.points_count) == ("EpisodeRestarted", 3)
    assert (notice.env_id, notice.episode) == ("a", 3)
    ((cut),) = store.cuts(1)
    assert (cut.generation, cut.discarded_points) == (1, 3)


def test_two_live_writers_of_an_episode_are_both_told(make_writer, service) -> None:
    """The other's notice waits for its next heartbeat, and names who took over."""
    one = make_writer(series=(env_steps(),))
    other = make_writer(series=(env_steps(),), logger_id="late")
    one.send(segments([(0, 0, 0, 0, [1.0])]))
    kinds = {n.kind for n in other.send(segments([(0, 0, 0, 0, [2.0])])).notices}
    assert kinds == {"EpisodeRestarted", "EpisodeTakenOver"}
    heartbeat = HeartbeatRequest(one.run_uid, one.writer_id)
    (notice,) = service.heartbeat(heartbeat).notices
    assert notice.kind == "EpisodeTakenOver"
    assert notice.other["logger_id"] == "late"
    assert service.heartbeat(heartbeat).notices == []


def test_pins_are_of_the_metric_over_all_its_labels(make_writer, store) -> None:
    """The other side's points are lost, told once, and no series is made for them."""
    writer = make_writer(series=(standard("m"), standard("m", is_merge=True)))
    writer.send(rows([None], [1.0]))
    reply = writer.send(rows([1, 2], [5.0, 6.0], series=1))
    assert reply.replies[0].counts == {"pin_conflict": 2}
    assert [n.kind for n in reply.notices] == ["PinConflict"]
    assert writer.send(rows([3], [5.0], series=1)).notices == ()
    assert len(store.run_contents(1).series) == 1


def test_attributes_apply_in_order_also_of_environments(make_writer, store) -> None:
    """Sets replace, tags add and remove, an environment's lie beside the run's."""
    writer = make_writer()
    writer.send(
        attributes=[
            AttributeUpdate(AttributeOp.SET, "config/lr", 0.1),
            AttributeUpdate(AttributeOp.TAGS_SET, "tags", ["a", "b", "a"]),
            AttributeUpdate(AttributeOp.TAGS_ADD, "tags", ["c", "b"]),
        ]
    )
    writer.send(
        attributes=[
            AttributeUpdate(AttributeOp.SET, "config/lr", None),
            AttributeUpdate(AttributeOp.TAGS_REMOVE, "tags", ["a"]),
            AttributeUpdate(AttributeOp.SET, "seed", 7, "b", 2),
        ]
    )
    found = {(a.env_no, a.episode, a.path): a.value for a in store.run_contents(1).attributes}
    assert found == {
        (None, None, "config/lr"): None,
        (None, None, "tags"): ["b", "c"],
        (1, 2, "seed"): 7,
    }


def test_numbers_that_would_pass_the_largest_step_are_rejected(make_writer, store) -> None:
    """Behind 2**63-1 there is no next number; explicit steps up to it are fine."""
    writer = make_writer()
    writer.send(rows([2**63 - 1], [1.0]))
    reply = writer.send(rows([None], [2.0])).replies[0]
    assert reply.status is BatchStatus.REJECTED
    assert "2**63-1" in reply.reason
    assert values_of(store) == [(2**63 - 1, 1.0)]


def test_a_series_at_its_end_costs_the_others_of_its_batch_nothing(make_writer, store) -> None:
    """An explicit 2**63-1 beside automatic points of another series: all of them are stored."""
    writer = make_writer(series=(standard(), standard("top")))
    table = rows([None, 2**63 - 1, None], [1.0, 2.0, 3.0])
    reply = writer.send(replace(table, series=i64([0, 1, 0]))).replies[0]
    assert reply.status is BatchStatus.STORED
    found = store.read_points(1)
    assert (found.step.tolist(), found.value.tolist()) == ([0, 1], [1.0, 3.0])


def test_a_late_explicit_segment_fills_free_steps_only(make_writer, store) -> None:
    """Of a dead writer's steps 2..7 only those its successor left free are stored."""
    series = (env_steps(),)
    dead = make_writer(series=series)
    dead.leave(is_dead=True)
    successor = make_writer(series=series)
    successor.send(segments([(0, 0, 0, 3, [30.0]), (0, 0, 0, 5, [50.0])], mode=StepMode.EXPLICIT))
    late = segments([(0, 0, 0, 2, [2.0, 3.0, 4.0, 5.0, 6.0, 7.0])], mode=StepMode.EXPLICIT)
    assert dead.send(late).replies[0].counts == {"stored": 4, "late": 4, "superseded": 2}
    stored = store.read_env_steps(1)
    found = sorted(zip(stored.step.tolist(), stored.value.tolist(), strict=True))
    assert found == [(2, 2.0), (3, 30.0), (4, 4.0), (5, 50.0), (6, 6.0), (7, 7.0)]


def test_seeds_say_where_everything_stands(make_writer, store, clock) -> None:
    """Also out of a new service: last steps, episodes, maxima, pins and modes."""
    series = (standard(), env_steps(), episodes("ret", is_merge=True), env_steps("q"))
    writer = make_writer(series=series)
    table = episodes_rows = None
    table = segments([(0, 3, 7, 0, [1.0]), (0, 9, 5, 0, [1.0])], series=1)
    explicit = segments([(1, 4, 2, 6, [1.0])], series=3, mode=StepMode.EXPLICIT)
    from metrana_async.wire.model import PointTable

    episodes_rows = PointTable(i64([2]), i64([2]), i64([0]), np.float32([1]), i64([0]), i64([8]))
    writer.send(rows([None, None], [1.0, 2.0]), table, explicit, episodes_rows)
    for service in (writer.service, IngestService(store, clock=clock)):
        joining = make_writer(service=service, series=series)
        seeds = joining.open().seeds
        by_metric = {row[1]: row for row in seeds.series}
        assert by_metric["loss"][6] == 1
        assert by_metric["r"][4:] == ["ordered", True, None, {"auto": ["a"]}]
        assert by_metric["q"][7] == {"explicit": ["b"]}
        assert seeds.environments == [["a", 8, 9], ["b", 2, 4]]
        ((index, env, last),) = seeds.episodes
        assert (seeds.series[index][1], env, last) == ("ret", "a", 2)


def test_maintenance_seals_and_a_new_service_goes_on(make_writer, store, clock) -> None:
    """After seals, cursors come from the heads alone."""
    series = (standard(), env_steps())
    writer = make_writer(series=series)
    writer.send(rows([4, None], [1.0, 2.0]), segments([(0, 0, 0, 0, [1.0, 2.0])], series=1))
    assert writer.service.maintain(10.0, everything=True) is False
    assert store.tail(1) == []
    writer.service = IngestService(store, clock=clock)
    writer.send(rows([None], [3.0]), segments([(0, 0, 0, 2, [3.0])], series=1))
    assert values_of(store) == [(4, 1.0), (5, 2.0), (6, 3.0)]
    assert store.read_env_steps(2).step.tolist() == [0, 1, 2]


def test_a_group_of_many_writers_is_one_commit(make_writer, service, store, monkeypatch) -> None:
    """However many requests lie side by side, the store is asked once."""
    writers = [make_writer() for _ in range(5)]
    bodies = [w.pages + w.seal(rows([k], [float(k)])) for k, w in enumerate(writers)]
    commits = []
    original = store.commit
    monkeypatch.setattr(store, "commit", lambda c: (commits.append(c), original(c)))
    assert len(service.ingest_many(bodies)) == 5
    assert len(commits) == 1
    assert values_of(store) == [(k, float(k)) for k in range(5)]
