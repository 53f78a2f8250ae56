"""Two processes under one writer's name (a machine that was cloned): neither loses in silence.

The client that is told `conflict` takes another name and sends again; told `duplicate`, it would
take for stored what nobody has.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from metrana_async.server.store.base import SEQS_KEPT, Commit, LaneRow
from metrana_async.wire.model import UNKNOWN_DIGEST
from tests.unit.server.ingest.conftest import Kept
from tests.unit.server.ingest.helpers import TestWriter, rows

pytestmark = pytest.mark.fault_row("G11")


def cloned(kept: Kept, *, shared: int) -> tuple[TestWriter, TestWriter]:
    """A writer that has sent `shared` batches, and its copy."""
    writer = kept.writer(1)
    writer.open()
    for value in range(shared):
        writer.send(rows([None], [float(value)]))
    return writer, replace(writer)


def statuses(writer: TestWriter, frames: list[bytes]) -> list[str]:
    """What one request with these batches is answered."""
    return [r.status.value for r in writer.deliver(writer.pages + b"".join(frames)).replies]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_twin_that_is_behind_is_told_so_also_by_a_server_that_has_just_started(
    kept: Kept, is_restarted
) -> None:
    """Its batches have other bytes than those that are stored under their sequences."""
    writer, twin = cloned(kept, shared=2)
    mine = [writer.seal(rows([None], [float(10 + i)])) for i in range(5)]
    assert statuses(writer, mine) == ["stored"] * 5
    if is_restarted:
        kept.restart(writer, twin)
    others = [twin.seal(rows([None], [float(20 + i)])) for i in range(3)]
    assert statuses(twin, others) == ["conflict"] * 3
    assert statuses(writer, mine) == ["duplicate"] * 5
    (series,) = kept.store.run_contents(1).series
    assert kept.store.read_points(series.series_no).value.tolist() == [0, 1, 10, 11, 12, 13, 14]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_twin_that_is_far_behind_is_not_believed(kept: Kept, is_restarted) -> None:
    """No digest of so long ago is kept; and no retry can come from there."""
    writer, twin = cloned(kept, shared=1)
    mine = [writer.seal(rows([None], [1.0])) for _ in range(SEQS_KEPT + 1)]
    for frame in mine:
        writer.deliver(writer.pages + frame)
    if is_restarted:
        kept.restart(writer, twin)
    assert statuses(twin, [twin.seal(rows([None], [2.0]))]) == ["conflict"]
    assert statuses(writer, mine[:2]) == ["conflict", "duplicate"]


def test_a_whole_request_of_the_longest_is_known_when_it_comes_again(kept: Kept) -> None:
    """Where its answer was lost together with the server."""
    writer, _ = cloned(kept, shared=40)
    mine = [writer.seal(rows([None], [1.0])) for _ in range(64)]
    assert statuses(writer, mine) == ["stored"] * 64
    kept.restart(writer)
    assert statuses(writer, mine) == ["duplicate"] * 64


def test_what_an_older_server_has_stored_is_a_duplicate(kept: Kept) -> None:
    """It kept no digests: a retry across the upgrade must not be taken for a clone's."""
    writer, _ = cloned(kept, shared=0)
    mine = [writer.seal(rows([None], [float(i)])) for i in range(3)]
    assert statuses(writer, mine) == ["stored"] * 3
    (mark,) = kept.store.run_contents(1).lanes
    kept.store.commit(Commit(lanes=[replace(mark, recent=b"")]))
    kept.restart(writer)
    assert statuses(writer, mine) == ["duplicate"] * 3
    assert statuses(writer, [writer.seal(rows([None], [3.0]))]) == ["stored"]
    assert statuses(writer, mine) == ["duplicate"] * 3


def test_a_lane_knows_its_newest_digests() -> None:
    """Each under its sequence; what is older is gone, what was never there is unknown."""
    mark = LaneRow(1, 0, 0, 0)
    for digest in range(1, 301):
        mark = mark.followed_by(digest)
        oldest = max(1, digest - SEQS_KEPT + 1)
        for seq in (oldest, digest - 1, digest):
            assert mark.digest_at(seq) == (seq or None), (seq, digest)
        assert mark.digest_at(oldest - 1) is None
        assert not mark.has_outgrown(oldest)
        assert mark.has_outgrown(oldest - 1) is (digest >= SEQS_KEPT)
    assert mark.followed_by(UNKNOWN_DIGEST).followed_by(1).digest_at(301) == UNKNOWN_DIGEST
