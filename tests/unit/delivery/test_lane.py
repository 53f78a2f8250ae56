"""Facts about lanes and the outbox: nothing is dropped before it is stored, nothing goes twice."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from metrana_async.delivery import outbox as outbox_module
from metrana_async.delivery.batcher import Batcher
from metrana_async.delivery.lane import DAMAGED, ROLLBACK
from metrana_async.delivery.outbox import RETENTION_S, Outbox, Request
from metrana_async.errors import BatchTooLargeError, ProtocolError
from metrana_async.statistics import Ledger
from metrana_async.wire import limits
from metrana_async.wire.acks import BatchReply, BatchStatus, IngestReply
from metrana_async.wire.batch import decode_batch, read_head
from metrana_async.wire.frames import (
    FRAME_BATCH,
    FRAME_PAGE,
    decode_frame,
    frame_digest,
    iter_frames,
)
from metrana_async.wire.model import Family, Ordering, PointTable, SeriesDef

RUN, WRITER = "a" * 32, "b" * 32


@dataclass
class Load:
    points: list = field(default_factory=list)
    segments: list = field(default_factory=list)
    attributes: list = field(default_factory=list)


def series_of(n: int) -> SeriesDef:
    return SeriesDef(Family.STANDARD, f"m{n}", "ML_STEP", (), Ordering.ORDERED)


def load(n: int, series: int = 0) -> Load:
    column = np.arange(n, dtype=np.int64)
    return Load([PointTable(column * 0 + series, column, column, np.ones(n, np.float32))])


class World:
    """An outbox, its ledger, and answers as a server would give them."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        batcher = Batcher(RUN, WRITER, series_of=series_of, env_of=str)
        self.outbox = Outbox(batcher, batcher, self.ledger, run_uid=RUN, writer_id=WRITER)

    def seal(self, *points: int, lane: int = 0) -> None:
        for n in points:
            self.ledger.accepted += n
            self.outbox.seal({lane: load(n)}, {}, 0.0)

    def request(self) -> Request:
        request = self.outbox.next_request()
        assert request is not None
        return request

    def reply(self, request: Request, *replies: BatchReply, now_s: float = 0.0, **changes) -> None:
        acked = {lane: queue.acked_seq for lane, queue in self.outbox.lanes.items()}
        for reply in replies:
            if reply.status in (BatchStatus.STORED, BatchStatus.DUPLICATE, BatchStatus.REJECTED):
                acked[reply.lane] = max(acked.get(reply.lane, 0), reply.seq)
        fields = {
            "run_uid": RUN, "writer_id": WRITER, "acked": acked, "generation": "g", **changes
        }  # fmt: skip
        self.outbox.on_reply(request, IngestReply(replies=replies, **fields), now_s)

    def store(self, now_s: float = 0.0) -> None:
        request = self.request()
        replies = (
            BatchReply(b.lane, b.seq, BatchStatus.STORED, {"stored": b.points_count})
            for b in request.batches
        )
        self.reply(request, *replies, now_s=now_s)

    def assert_balanced(self) -> None:
        in_memory = self.outbox.waiting_points - self.ledger.spooled
        statistics = self.ledger.snapshot(in_flight=in_memory)
        assert statistics.is_balanced, statistics


def stored(lane: int, seq: int, **counts: int) -> BatchReply:
    return BatchReply(lane, seq, BatchStatus.STORED, counts)


def test_sequences_are_contiguous_and_chained():
    """Batches of a lane are numbered from 1, and each names the digest of the one before."""
    world = World()
    world.seal(3, 4, 5)
    frames = [f for f in iter_frames(world.request().body) if f.type == FRAME_BATCH]
    assert [f.seq for f in frames] == [1, 2, 3]
    digests = [frame_digest(f.encoded) for f in frames]
    assert [decode_batch(f).prev_digest for f in frames] == [0, *digests[:-1]]


def test_an_unanswered_request_is_repeated_byte_for_byte():
    """Until an answer arrives the same batches travel as the same bytes."""
    world = World()
    world.seal(3, 4)
    assert world.request().body == world.request().body
    world.assert_balanced()


def test_pages_travel_until_confirmed_and_again_when_asked_for():
    """A page goes with the first request; after an answer it stays away until need_pages."""
    world = World()
    world.seal(3)
    first = world.request()
    assert [f.type for f in iter_frames(first.body)] == [FRAME_PAGE, FRAME_BATCH]
    world.reply(first, stored(0, 1, stored=3))
    world.seal(3)
    second = world.request()
    assert [f.type for f in iter_frames(second.body)] == [FRAME_BATCH]
    pages = second.batches[0].pages
    world.reply(second, BatchReply(0, 2, BatchStatus.NEED_PAGES, pages=pages))
    third = world.request()
    assert [f.type for f in iter_frames(third.body)] == [FRAME_PAGE, FRAME_BATCH]
    assert third.batches[0].frame == second.batches[0].frame


def test_pages_are_confirmed_by_what_is_stored_only():
    """The server keeps no page of a batch that it rejects or asks pages for: they go again."""
    world = World()
    world.seal(3, 3)
    first = world.request()
    pages = first.batches[0].pages
    rejected = BatchReply(0, 1, BatchStatus.REJECTED, reason="bad series")
    need = BatchReply(0, 2, BatchStatus.NEED_PAGES, pages=())
    world.reply(first, rejected, need)
    assert world.request().pages == pages
    world.assert_balanced()


def test_stored_and_duplicate_are_committed():
    """A batch that was stored, now or in an earlier attempt, leaves the queue once."""
    world = World()
    world.seal(3, 4)
    request = world.request()
    world.reply(request, BatchReply(0, 1, BatchStatus.DUPLICATE), stored(0, 2, stored=4))
    assert world.outbox.is_empty()
    assert world.ledger.committed == 7
    world.assert_balanced()


def test_an_answer_settles_its_own_batch_only():
    """An answer that comes twice, or to a batch that waits behind another, settles nothing else."""
    world = World()
    world.seal(3, 4)
    world.reply(world.request(), stored(0, 1, stored=3), stored(0, 1, stored=3))
    assert [b.seq for b in world.request().batches] == [2]
    world.assert_balanced()


def test_pin_conflicts_are_lost_not_committed():
    """Points the server declares lost to another writer's pin are counted so."""
    world = World()
    world.seal(5)
    world.reply(world.request(), stored(0, 1, stored=3, pin_conflict=2))
    assert world.ledger.committed == 3
    assert world.ledger.lost["pin_conflict"] == 2
    world.assert_balanced()


def test_a_rejected_batch_never_blocks_its_lane():
    """What can never be stored is counted with its reason, and the next batch goes on."""
    world = World()
    world.seal(3, 4)
    rejected = BatchReply(0, 1, BatchStatus.REJECTED, reason="bad series")
    world.reply(world.request(), rejected, stored(0, 2, stored=4))
    assert world.outbox.is_empty()
    assert world.ledger.rejected == {"bad series": 3}
    world.assert_balanced()


def test_what_lies_behind_a_gap_is_sent_again():
    """After need_pages the followers of the lane get a gap and simply wait for their turn."""
    world = World()
    world.seal(3, 4)
    request = world.request()
    pages = request.batches[0].pages
    need = BatchReply(0, 1, BatchStatus.NEED_PAGES, pages=pages)
    world.reply(request, need, BatchReply(0, 2, BatchStatus.GAP, expected=1))
    assert [b.seq for b in world.request().batches] == [1, 2]
    world.assert_balanced()


@pytest.mark.fault_row("C10")
@pytest.mark.parametrize(
    ("replies", "changes"),
    [
        ([stored(0, 1)], {"acked": {0: 99}}),
        ([stored(0, 1)], {"acked": {0: 0}}),
        ([stored(0, 7)], {"acked": {0: 7}}),
        ([stored(5, 1)], {"acked": {5: 1}}),
        ([stored(0, 1)], {"writer_id": "c" * 32}),
        ([BatchReply(0, 1, BatchStatus.GAP, expected=9)], {}),
        ([BatchReply(0, 1, BatchStatus.NEED_PAGES, pages=("f" * 32,))], {}),
    ],
)
def test_a_lying_answer_is_an_error_and_deletes_nothing(replies, changes):
    """Marks beyond what was sent, foreign ids or batches are refused; the queue stays whole."""
    world = World()
    world.seal(3)
    with pytest.raises(ProtocolError):
        world.reply(world.request(), *replies, **changes)
    assert world.outbox.waiting_points == 3
    world.assert_balanced()


def test_requests_are_bounded_and_carry_every_lane():
    """A request holds consecutive batches of all lanes, at most as many as allowed."""
    world = World()
    world.seal(*[1] * (limits.REQUEST_BATCHES - 1))
    world.seal(1, 1, 1, lane=1)
    request = world.request()
    assert len(request.batches) == limits.REQUEST_BATCHES
    assert {b.lane for b in request.batches} == {0, 1}


def test_credit_bounds_a_request_but_one_batch_always_goes():
    """A tiny credit slows the writer down and never stops it."""
    world = World()
    world.seal(3, 3, 3)
    request = world.request()
    world.reply(request, stored(0, 1, stored=3), credit_bytes=1)
    assert [b.seq for b in world.request().batches] == [2]


def test_a_restored_server_gets_retained_batches_again():
    """Marks that went back queue what was acknowledged, as the same bytes, and in order."""
    world = World()
    world.seal(3, 4, 5)
    before = [b.frame for b in world.request().batches]
    world.store()
    assert world.ledger.committed == 12
    world.outbox.on_marks({0: 1})
    assert world.ledger.committed == 3
    assert [b.frame for b in world.request().batches] == before[1:]
    world.assert_balanced()
    world.store()
    assert world.ledger.committed == 12
    world.assert_balanced()


def test_beyond_the_retention_a_loss_is_declared():
    """Stand-ins declare forgotten batches lost; what lies behind goes on as the same bytes."""
    world = World()
    world.seal(3)
    forgotten = world.request().batches[0].digest
    world.store(now_s=0.0)
    world.seal(4)
    retained = world.request().batches[0].frame
    world.store(now_s=RETENTION_S + 1.0)
    world.seal(5)
    world.outbox.on_marks({})
    frames = [f for f in iter_frames(world.request().body) if f.type == FRAME_BATCH]
    batches = [decode_batch(f) for f in frames]
    assert [b.seq for b in batches] == [1, 2, 3]
    assert batches[0].lost == {ROLLBACK: 3}
    assert [b.points_count for b in batches] == [0, 4, 5]
    assert [b.stands_for for b in batches] == [forgotten, 0, 0]
    assert bytes(frames[1].encoded) == retained
    assert batches[1].prev_digest == forgotten
    assert world.ledger.lost[ROLLBACK] == 3
    world.assert_balanced()
    world.store()
    assert world.ledger.committed == 9
    world.assert_balanced()


def test_a_mark_beyond_what_was_sealed_is_refused_at_open():
    """A server that claims what nobody sealed lies; nothing is deleted for it."""
    world = World()
    world.seal(3)
    with pytest.raises(ProtocolError):
        world.outbox.on_marks({0: 2})
    assert [b.seq for b in world.request().batches] == [1]


def test_a_mark_beyond_what_was_sent_deletes_nothing():
    """Somebody replayed our spool, or the server lies: the batches go out and are answered."""
    world = World()
    world.seal(3, 4)
    world.outbox.on_marks({0: 2})
    assert [b.seq for b in world.request().batches] == [1, 2]
    world.reply(world.request(), *(BatchReply(0, n, BatchStatus.DUPLICATE) for n in (1, 2)))
    assert (world.ledger.committed, world.outbox.is_empty()) == (7, True)
    world.assert_balanced()


def test_marks_of_somebody_else_twice_are_a_conflict():
    """A cloned machine that is ahead of us: we take another name instead of asking for ever."""
    world = World()
    world.seal(3)
    for _ in range(2):
        assert not world.outbox.is_conflicted
        with pytest.raises(ProtocolError):
            world.outbox.on_marks({0: 99})
    assert world.outbox.is_conflicted
    world.outbox.rename("d" * 32, 0.0)
    assert not world.outbox.is_conflicted


def test_what_a_conflicting_answer_says_of_our_own_batches_stands():
    """Batches that it calls stored are not sent once more under the new name."""
    world = World()
    world.seal(3, 4)
    with pytest.raises(ProtocolError):
        world.reply(world.request(), stored(0, 1, stored=3), acked={0: 1, 9: 5})
    world.reply(world.request(), stored(0, 1, stored=3), acked={0: 1, 9: 5})
    assert world.outbox.is_conflicted
    world.outbox.rename("d" * 32, 0.0)
    assert [b.points_count for b in world.request().batches] == [4]
    world.assert_balanced()


def test_no_new_name_is_taken_before_the_old_ones_answers_are_known():
    """What was sent may be stored: it is asked for first, or it would be stored twice."""
    world = World()
    world.seal(3)
    world.seal(4, lane=2)
    world.outbox.note_sent(world.request())
    conflict = BatchReply(0, 1, BatchStatus.CONFLICT)
    world.outbox.lanes[0].apply(conflict, 0.0)
    assert world.outbox.is_conflicted
    assert not world.outbox.must_rename
    world.reply(world.request(), conflict, stored(2, 1, stored=4))
    assert world.outbox.must_rename
    world.outbox.rename("d" * 32, 0.0)
    assert [b.points_count for b in world.request().batches] == [3]
    world.assert_balanced()


@pytest.mark.fault_row("D7")
def test_a_poison_batch_is_isolated_and_declared():
    """A request refused as a whole is split until the culprit is alone; its loss is declared."""
    world = World()
    world.seal(3, 4)
    error = BatchTooLargeError("too large")
    world.outbox.on_refused(world.request(), error)
    alone = world.request()
    assert [b.seq for b in alone.batches] == [1]
    world.outbox.on_refused(alone, error)
    stand_in = world.request().batches[0]
    assert decode_batch(decode_frame(stand_in.frame)).stands_for == alone.batches[0].digest
    assert world.ledger.rejected == {"batch_too_large": 3}
    world.assert_balanced()
    world.store()
    world.store()
    assert world.ledger.committed == 4
    assert world.outbox.is_empty()
    world.assert_balanced()


def test_who_takes_no_large_requests_gets_smaller_ones():
    """Halved until it passes, and no larger again; one batch is never cut, nor given up by this."""
    world = World()
    world.seal(*[100] * 16)
    limit = len(world.request().body) // 3
    refused = 0
    while len(world.request().body) > limit:
        assert world.outbox.shrink(world.request())
        refused += 1
    assert refused == 2
    while not world.outbox.is_empty():
        assert len(world.request().body) <= limit
        world.store()
    assert world.ledger.committed == 1600
    world.seal(100)
    assert not world.outbox.shrink(world.request())
    assert world.ledger.rejected == {}
    world.assert_balanced()


def test_after_a_conflict_the_rest_is_sealed_under_a_new_name():
    """Another writer under our identity: what is not stored goes on as a new incarnation."""
    world = World()
    world.seal(3, 4)
    world.store()
    world.seal(5)
    world.reply(world.request(), BatchReply(0, 3, BatchStatus.CONFLICT, reason="clone"))
    assert world.outbox.is_conflicted
    marks = world.outbox.marks()
    world.outbox.rename("d" * 32, 0.0)
    frames = [f for f in iter_frames(world.request().body) if f.type == FRAME_BATCH]
    (batch,) = map(decode_batch, frames)
    assert (batch.writer_id, batch.seq, batch.prev_digest) == ("d" * 32, 1, 0)
    assert not world.outbox.has_reached(marks)
    world.reply(world.request(), stored(0, 1, stored=5), writer_id="d" * 32)
    assert world.outbox.has_reached(marks)
    world.assert_balanced()


def test_answers_that_settle_nothing_are_noticed():
    """A server that keeps asking makes the sender pause instead of hammering."""
    world = World()
    world.seal(3)
    for _ in range(3):
        request = world.request()
        pages = request.batches[0].pages
        world.reply(request, BatchReply(0, 1, BatchStatus.NEED_PAGES, pages=pages))
    assert world.outbox.is_stuck
    world.store()
    assert not world.outbox.is_stuck


def test_retention_is_bounded_in_bytes():
    """Acknowledged batches beyond the byte bound are forgotten, oldest first."""
    world = World()
    world.seal(*[200_000] * 2)
    lane = world.outbox.lanes[0]
    while not world.outbox.is_empty():
        world.store()
    lane.forget(before_s=-1.0, bytes_max=lane.retained_bytes - 1)
    assert lane.retained[0].seq == 2


def test_giving_up_counts_what_was_queued():
    """Abandoning says how many points it loses."""
    world = World()
    world.seal(3, 4)
    assert world.outbox.abandon() == 7
    assert world.outbox.is_empty()


# --- what is on the disk only ------------------------------------------------------------------


class SpoolWorld(World):
    """A world whose outbox overflows: `disk` is what a spool would have, durable, in order."""

    def __init__(self, *, in_memory: tuple[int, ...] = (), overflowing: tuple[int, ...] = ()):
        super().__init__()
        self.outbox.is_spooling = True
        self.disk: list[bytes] = []
        self.seal(*in_memory)
        self.outbox.is_overflowing = True
        self.seal(*overflowing)

    def spool(self) -> None:
        batches = self.outbox.unspooled()
        self.disk += [sealed.frame for sealed in batches]
        self.outbox.note_durable(batches)

    def load(self, *positions: int) -> None:
        for position in positions:
            frame = decode_frame(self.disk[position])
            self.outbox.load(frame, read_head(frame))


def test_what_overflows_is_on_the_disk_only_and_comes_back_in_order():
    """Spooled points are counted as such, take no memory, and are sent behind the older ones."""
    world = SpoolWorld(in_memory=(3, 4), overflowing=(5, 6))
    world.spool()
    assert (world.ledger.spooled, world.outbox.waiting_points) == (18, 18)
    assert world.outbox.queued_bytes == world.outbox.loaded_bytes
    assert [b.seq for b in world.request().batches] == [1, 2]
    world.store()
    assert (world.ledger.spooled, world.outbox.is_empty()) == (11, False)
    world.load(0, 1, 2, 3)
    assert world.outbox.finish_loading()
    assert [b.seq for b in world.request().batches] == [3, 4]
    world.store()
    assert (world.ledger.committed, world.ledger.spooled) == (18, 0)
    assert world.outbox.is_empty()
    world.assert_balanced()


def test_new_points_go_behind_what_is_on_the_disk():
    """While anything is on the disk only, what is sealed later is not sent before it."""
    world = SpoolWorld(overflowing=(5,))
    world.spool()
    world.seal(7)
    assert not world.outbox.finish_loading()
    assert world.outbox.next_request() is None
    world.load(0)
    assert world.outbox.finish_loading()
    assert [b.points_count for b in world.request().batches] == [5, 7]
    world.store()
    world.assert_balanced()


def test_what_is_written_but_not_synced_is_not_taken_from_the_disk():
    """A batch that may be lost with the power is sent from memory, and counted once."""
    world = SpoolWorld(overflowing=(5, 6))
    world.disk = [sealed.frame for sealed in world.outbox.unspooled()]
    world.load(0, 1)
    assert world.outbox.next_request() is None
    assert world.outbox.finish_loading()
    world.store()
    assert (world.ledger.committed, world.ledger.spooled) == (11, 0)
    world.assert_balanced()


@pytest.mark.parametrize("seed", range(20))
def test_damaged_batches_are_declared_with_their_exact_number_of_points(seed):
    """Whatever cannot be read back is lost and counted; everything else keeps its bytes."""
    rng = np.random.default_rng(seed)
    print("seed", seed)
    sizes = rng.integers(1, 9, 8).tolist()
    world = SpoolWorld(in_memory=sizes[:2], overflowing=sizes[2:])
    world.spool()
    readable = sorted(rng.choice(np.arange(2, 8), int(rng.integers(0, 7)), replace=False).tolist())
    world.load(*readable)
    world.outbox.give_up_unloaded()
    lost = sum(sizes[2:]) - sum(sizes[position] for position in readable)
    assert world.ledger.lost.total() == lost
    batches = [decode_batch(decode_frame(b.frame)) for b in world.request().batches]
    assert [b.seq for b in batches] == list(range(1, 9))
    assert sum(sum(b.lost.values()) for b in batches) == lost
    for position in readable:
        assert world.request().batches[position].frame == world.disk[position]
    for before, after in zip(batches, batches[1:], strict=False):
        digest = frame_digest(world.request().batches[before.seq - 1].frame)
        assert after.stands_for or after.prev_digest == (before.stands_for or digest)
    world.assert_balanced()
    world.store()
    assert (world.ledger.spooled, world.outbox.is_empty()) == (0, True)
    world.assert_balanced()
    world.seal(2)
    world.store()
    world.assert_balanced()


def test_what_a_lost_batch_declared_is_declared_again_and_lost_once():
    """Points that were dropped before sealing are no points of the batch that said so."""
    world = SpoolWorld(overflowing=(5,))
    world.ledger.accepted += 96
    world.ledger.lost["drop_new"] += 96
    world.outbox.seal({}, {"drop_new": 96}, 0.0)
    world.seal(7)
    world.spool()
    world.load(2)
    assert world.ledger.lost == {"drop_new": 96, DAMAGED: 5}
    assert (world.ledger.spooled, world.outbox.waiting_points) == (7, 7)
    first = decode_batch(decode_frame(world.request().batches[0].frame))
    assert first.lost == {"drop_new": 96, DAMAGED: 5}
    world.store()
    world.assert_balanced()


def test_a_dead_writers_leftovers_are_taken_up_at_the_servers_mark():
    """Only what the server does not have is sent, under the identity it was sealed with."""
    dead = SpoolWorld(in_memory=(3, 4, 5))
    dead.spool()
    heir = World()
    heir.outbox.start_at({0: 1})
    for encoded in dead.disk:
        frame = decode_frame(encoded)
        heir.outbox.load(frame, read_head(frame))
    assert [b.frame for b in heir.request().batches] == dead.disk[1:]
    assert heir.ledger.accepted == heir.ledger.spooled == 9
    heir.assert_balanced()
    heir.store()
    assert (heir.ledger.committed, heir.ledger.spooled) == (9, 0)
    heir.assert_balanced()


def test_a_new_name_takes_nothing_of_the_disk_along():
    """What is sealed anew is in memory again: the spool holds it under the old name only."""
    world = SpoolWorld(in_memory=(3, 4))
    world.spool()
    assert world.outbox.finish_loading()
    world.outbox.rename("d" * 32, 0.0)
    assert (world.ledger.spooled, world.outbox.waiting_points) == (0, 7)
    assert [b.points_count for b in world.outbox.unspooled()] == [3, 4]
    world.assert_balanced()


def test_foreign_frames_are_passed_over():
    """A frame that another writer sealed is nobody's business here."""
    world = SpoolWorld(overflowing=(5,))
    frame = decode_frame(world.outbox.unspooled()[0].frame)
    world.outbox.load(frame, read_head(frame)._replace(writer_id="e" * 32))
    assert world.outbox.next_request() is None


def test_a_batch_damaged_on_the_way_is_sent_again_and_given_up_at_last():
    """Unreadable there and readable here: the same bytes go again; for ever it cannot be."""
    world = World()
    world.seal(3)
    error = ProtocolError("frame checksum does not match")
    sent = world.request()
    for _ in range(outbox_module._UNREAD_MAX):
        assert world.outbox.on_refused(sent, error)
        assert world.request().body == sent.body
    assert world.ledger.rejected == {}
    assert not world.outbox.on_refused(sent, error)
    assert world.ledger.rejected == {"protocol": 3}
    world.assert_balanced()


def test_what_a_rollback_queues_again_is_spooled_again():
    """It is neither acknowledged nor durable any more, whatever later batches are."""
    world = SpoolWorld(in_memory=(3, 4))
    assert world.outbox.finish_loading()
    world.store()
    world.seal(5)
    world.spool()
    marks = world.outbox.marks()
    assert world.outbox.has_kept(marks)
    world.outbox.on_marks({0: 1})
    assert not world.outbox.has_kept(marks)
    assert [b.seq for b in world.outbox.unspooled()] == [2]
    world.spool()
    assert world.outbox.has_kept(marks)
    assert world.ledger.spooled == 9
    world.assert_balanced()


def test_marks_that_are_older_than_what_a_lane_was_told_rewind_nothing():
    """An answer to an introduction may overtake, or be overtaken by, acknowledgements."""
    world = World()
    world.seal(3)
    when_asked = world.outbox.acked()
    world.store()
    world.outbox.on_marks({}, when_asked)
    assert world.outbox.is_empty()
    world.outbox.on_marks({}, world.outbox.acked())
    assert [b.seq for b in world.request().batches] == [1]


def test_a_stand_in_that_is_forgotten_in_its_turn_leaves_the_chain_as_it_was():
    """The batch behind it names what was there first, however often the server went back."""
    world = World()
    world.seal(3, 2)
    first, second = world.request().batches
    world.store()
    for _ in range(3):
        world.outbox.forget(RETENTION_S + 1.0)
        world.outbox.on_marks({})
        stand_ins = [decode_batch(decode_frame(b.frame)) for b in world.request().batches]
        assert [b.stands_for for b in stand_ins] == [first.digest, second.digest]
        world.store()
