"""A batch that comes again, its first answer lost, is told what became of it the first time."""

from __future__ import annotations

import pytest

from metrana_async.server.store.base import SEQS_KEPT
from metrana_async.wire.acks import BatchStatus
from tests.unit.server.ingest.conftest import Kept
from tests.unit.server.ingest.helpers import TestWriter, rows, standard


def writer_of(kept: Kept, number: int, **options) -> TestWriter:
    """A writer that is open."""
    writer = kept.writer(number, **options)
    writer.open()
    return writer


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_refusal_is_told_again(kept: Kept, is_restarted) -> None:
    """Told "duplicate", its client would take the points for stored."""
    writer = writer_of(kept, 1)
    sent = [writer.seal(rows([None], [1.0])), writer.seal(rows([None], [2.0], series=7))]
    sent.append(writer.seal(rows([None], [3.0])))
    body = writer.pages + b"".join(sent)
    first = writer.deliver(body).replies
    assert [r.status.value for r in first] == ["stored", "rejected", "stored"]
    if is_restarted:
        kept.restart(writer)
    again = writer.deliver(body).replies
    assert [r.status.value for r in again] == ["duplicate", "rejected", "duplicate"]
    assert again[1].reason == first[1].reason
    assert kept.store.runs()[0].counters == {"stored": 2, "rejected": 1}


@pytest.mark.parametrize("is_restarted", [False, True])
def test_points_that_were_not_kept_are_told_again(kept: Kept, is_restarted) -> None:
    """A pin conflict loses points: the client learns of it also from the second answer."""
    writer_of(kept, 1).send(rows([0], [1.0]))
    other = writer_of(kept, 2, series=(standard("loss", is_merge=True), standard("own")))
    body = other.pages + other.seal(rows([0], [1.0]), rows([0, 1], [1.0, 2.0], series=1))
    (first,) = other.deliver(body).replies
    assert first.counts == {"pin_conflict": 1, "stored": 2}
    if is_restarted:
        kept.restart(other)
    (again,) = other.deliver(body).replies
    assert (again.status, again.counts) == (BatchStatus.DUPLICATE, first.counts)


def test_answers_are_kept_for_as_many_batches_as_a_retry_can_repeat(kept: Kept) -> None:
    """Older ones are forgotten, in memory and in the store: nobody can say that they are stored."""
    writer = writer_of(kept, 1)
    sent = [writer.seal(rows([None], [1.0], series=7)) for _ in range(SEQS_KEPT + 2)]
    for frame in sent:
        writer.deliver(writer.pages + frame)
    for _ in range(2):
        statuses = [writer.deliver(writer.pages + f).replies[0].status.value for f in sent]
        assert statuses == ["conflict"] * 2 + ["rejected"] * SEQS_KEPT
        kept.restart(writer)
