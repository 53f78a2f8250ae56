"""A batch without content takes the place of another; the chain goes on behind it."""

from __future__ import annotations

import pytest

from metrana_async.wire.acks import BatchStatus
from metrana_async.wire.frames import frame_digest
from metrana_async.wire.model import AttributeOp, AttributeUpdate
from tests.unit.server.ingest.conftest import Kept
from tests.unit.server.ingest.helpers import TestWriter, rows

CONFLICT, DUPLICATE = BatchStatus.CONFLICT, BatchStatus.DUPLICATE
REJECTED, STORED = BatchStatus.REJECTED, BatchStatus.STORED


def batch(writer: TestWriter, seq: int, prev: int, *tables, **fields) -> bytes:
    """A batch at this place of the lane."""
    writer.seq, writer.prev = seq - 1, prev
    return writer.seal(*tables, **fields)


def statuses(writer: TestWriter, *frames: bytes) -> list[BatchStatus]:
    return [r.status for r in writer.deliver(writer.pages + b"".join(frames)).replies]


class Lane:
    """A lane with one stored batch, a second one that is not, and a stand-in for the second."""

    def __init__(self, writer: TestWriter) -> None:
        self.writer = writer
        writer.open()
        writer.send(rows([None], [1.0]))
        self.mark = writer.prev
        self.original = batch(writer, 2, self.mark, rows([None, None], [2.0, 3.0]))
        self.digest = frame_digest(self.original)
        self.stand_in = batch(writer, 2, self.mark, stands_for=self.digest, lost={"damaged": 2})
        self.behind = batch(writer, 3, self.digest, rows([None], [4.0]))


@pytest.fixture
def lane(kept: Kept) -> Lane:
    return Lane(kept.writer(1))


def test_the_chain_goes_on_behind_a_stand_in(kept: Kept, lane: Lane) -> None:
    """What was sealed behind the original is stored, also after a restart; the loss is counted."""
    assert statuses(lane.writer, lane.stand_in) == [STORED]
    kept.restart(lane.writer)
    assert statuses(lane.writer, lane.behind) == [STORED]
    assert kept.store.runs()[0].counters == {"stored": 2, "lost:damaged": 2}


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_stand_in_again_and_its_original_are_duplicates(
    kept: Kept, lane: Lane, is_restarted
) -> None:
    """Neither the retry nor the original that turns up changes anything; other bytes conflict."""
    other = batch(lane.writer, 2, lane.mark, rows([None], [9.0]))
    for_other = batch(lane.writer, 2, lane.mark, stands_for=frame_digest(other))
    assert statuses(lane.writer, lane.stand_in) == [STORED]
    if is_restarted:
        kept.restart(lane.writer)
    sent = (lane.stand_in, lane.original, other, for_other)
    assert statuses(lane.writer, *sent) == [DUPLICATE, DUPLICATE, CONFLICT, CONFLICT]
    assert kept.store.runs()[0].counters == {"stored": 1, "lost:damaged": 2}


def test_a_stand_in_behind_its_original_declares_nothing(kept: Kept, lane: Lane) -> None:
    """Where the original is stored, its late stand-in is a duplicate and no point is lost."""
    sent = (lane.original, lane.stand_in, lane.behind)
    assert statuses(lane.writer, *sent) == [STORED, DUPLICATE, STORED]
    assert kept.store.runs()[0].counters == {"stored": 4}


def test_a_stand_in_follows_the_batch_before_it(lane: Lane) -> None:
    """It takes no other place: a foreign chain is a conflict, a leap is a gap."""
    foreign = batch(lane.writer, 2, lane.mark ^ 1, stands_for=lane.digest)
    leap = batch(lane.writer, 3, lane.mark, stands_for=lane.digest)
    assert statuses(lane.writer, foreign, leap) == [CONFLICT, BatchStatus.GAP]


@pytest.mark.parametrize(
    ("tables", "attributes"),
    [
        ([rows([None], [2.0])], []),
        ([], [AttributeUpdate(AttributeOp.SET, "a", 1)]),
    ],
)
def test_a_batch_with_content_stands_for_nothing(
    kept: Kept, lane: Lane, tables, attributes
) -> None:
    """It is rejected for good, and never taken for a repetition of what it names."""
    fields = {"stands_for": lane.digest, "attributes": attributes}
    posing = batch(lane.writer, 2, lane.mark, *tables, **fields)
    assert statuses(lane.writer, posing, posing) == [REJECTED, REJECTED]
    assert statuses(lane.writer, lane.original, lane.behind) == [CONFLICT, CONFLICT]
    rejected = {"rejected": 1} if tables else {}
    assert kept.store.runs()[0].counters == {"stored": 1, **rejected}


def test_content_under_a_known_digest_is_a_conflict(lane: Lane) -> None:
    """Answered "duplicate", its points would be gone and nobody the wiser."""
    assert statuses(lane.writer, lane.original) == [STORED]
    posing = batch(lane.writer, 2, lane.mark, rows([None], [7.0]), stands_for=lane.digest)
    assert statuses(lane.writer, posing) == [CONFLICT]


def test_a_claim_of_many_losses_does_not_hurt_the_run(kept: Kept) -> None:
    """Counters stop at the largest integer a store keeps; the lane goes on."""
    writer = kept.writer(1)
    writer.open()
    claims = [writer.send(lost={"made_up": 2**64 - 1}).replies[0].status for _ in range(2)]
    assert claims == [STORED, STORED]
    kept.restart(writer)
    assert writer.send(rows([None], [1.0])).replies[0].status is STORED
    assert kept.store.runs()[0].counters == {"lost:made_up": 2**63 - 1, "stored": 1}


def test_a_stand_in_follows_a_batch_that_nobody_can_name_any_more(kept: Kept) -> None:
    """A heir whose files begin in the middle of a lane fills the hole; the chain goes on behind."""
    writer = kept.writer(1)
    writer.open()
    writer.send(rows([None], [1.0]))
    original = batch(writer, 4, 77, rows([None], [4.0]))
    unknown = 2**64 - 1
    holes = [
        batch(writer, 2, 0, stands_for=unknown, lost={"spool_damaged": 5}),
        batch(writer, 3, 0, stands_for=77),
    ]
    assert statuses(writer, *holes) == [STORED, STORED]
    assert statuses(writer, *holes) == [DUPLICATE, DUPLICATE]
    kept.restart(writer)
    assert statuses(writer, original) == [STORED]
    assert kept.store.runs()[0].counters == {"stored": 2, "lost:spool_damaged": 5}


def test_the_mark_of_an_unknown_batch_survives_a_restart(kept: Kept) -> None:
    """Its digest is the greatest there is; the store must hold it."""
    writer = kept.writer(1)
    writer.open()
    hole = batch(writer, 1, 0, stands_for=2**64 - 1)
    assert statuses(writer, hole) == [STORED]
    kept.restart(writer)
    assert statuses(writer, hole) == [DUPLICATE]


def test_a_stand_in_for_anything_contradicts_nothing(kept: Kept) -> None:
    """What it stands for arrived after all, from a late request of the dead writer."""
    writer = kept.writer(1)
    writer.open()
    writer.send(rows([None], [1.0]))
    writer.send(rows([None], [2.0]))
    late = [batch(writer, seq, 0, stands_for=2**64 - 1) for seq in (1, 2)]
    assert statuses(writer, *late) == [DUPLICATE, DUPLICATE]
