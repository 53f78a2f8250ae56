"""Facts about the hand-off between callers and the engine."""

from __future__ import annotations

import threading

import pytest

from metrana_async.engine.inbox import SCALAR_BYTES, Inbox
from metrana_async.errors import RunClosedError


def make(points: int = 100, nbytes: int = 1 << 20, *, discards: bool = False):
    wakes: list[int] = []
    return Inbox(points, nbytes, lambda: wakes.append(1), discards=discards), wakes


def scalar(n: int):
    return (0, n, 0, float(n))


def test_an_armed_inbox_wakes_once():
    """The first append after idleness wakes the engine, the following ones do not."""
    inbox, wakes = make()
    for n in range(5):
        inbox.append_scalars([scalar(n)])
    assert len(wakes) == 1
    assert len(inbox.take()) == 5


def test_arming_sees_what_was_appended_before():
    """Going idle with something waiting is refused, so that nothing is left behind."""
    inbox, _ = make()
    inbox.append_scalars([scalar(1)])
    assert not inbox.arm()
    inbox.take()
    assert inbox.arm()


def test_points_and_bytes_are_both_bounds():
    """Either bound is enough to be over, and taking everything makes room again."""
    inbox, _ = make(points=10, nbytes=10_000)
    inbox.append_blocks(["block"], 11, 10)
    assert inbox.is_over()
    assert inbox.points_count == 11
    inbox.take()
    assert not inbox.is_over()
    inbox.append_blocks(["block"], 1, 10_001)
    assert inbox.is_over()


def test_a_block_larger_than_the_bound_fits_an_empty_inbox():
    """One call that is larger than the inbox is admitted alone."""
    inbox, _ = make(points=10)
    assert inbox.has_room(1000, 10)
    inbox.append_scalars([scalar(1)])
    assert not inbox.has_room(1000, 10)


def test_scalars_take_the_slow_path_at_the_bound():
    """The mark for scalars shrinks with what blocks already take."""
    inbox, _ = make(points=100, nbytes=SCALAR_BYTES * 1000)
    assert inbox.scalars_max == 100
    inbox.append_blocks(["block"], 60, 10)
    assert inbox.scalars_max == 41  # 40 scalars beside the block


def test_counts_survive_taking():
    """Items and points taken are counted for flush marks and the ledger."""
    inbox, _ = make()
    inbox.append_scalars([scalar(1), scalar(2)])
    inbox.append_blocks(["block"], 7, 10)
    assert inbox.appended_count == 3
    inbox.take()
    assert (inbox.taken_count, inbox.taken_points, inbox.points_count) == (3, 9, 0)


def test_after_stop_a_straggler_is_taken_back():
    """A scalar appended without the lock after the last look is refused, not lost silently."""
    inbox, _ = make()
    inbox.stop(RunClosedError("closed"))
    inbox.take()
    assert inbox.is_armed
    inbox.items.append(scalar(1))
    with pytest.raises(RunClosedError):
        inbox.wake_for(scalar(1))
    assert not inbox.items


def test_after_stop_a_straggler_that_was_taken_counts():
    """A scalar that the last look still took is accepted."""
    inbox, _ = make()
    inbox.stop(RunClosedError("closed"))
    inbox.items.append(scalar(1))
    assert inbox.take() == [scalar(1)]
    inbox.wake_for(scalar(1))


def test_blocks_are_refused_after_stop():
    """A stopped inbox raises its cause and takes nothing."""
    inbox, _ = make()
    inbox.stop(RunClosedError("closed"))
    with pytest.raises(RunClosedError):
        inbox.append_blocks(["block"], 1, 1)
    with pytest.raises(RunClosedError):
        inbox.append_scalars([scalar(1)])
    assert not inbox.items


def test_waiting_for_room_ends_when_the_engine_takes():
    """A blocked thread goes on as soon as the inbox was emptied, and not before."""
    inbox, _ = make(points=1)
    inbox.append_blocks(["a", "b"], 5, 10)
    assert not inbox.wait_for_room(0.01)
    done = threading.Event()

    def wait() -> None:
        assert inbox.wait_for_room(10)
        done.set()

    thread = threading.Thread(target=wait)
    thread.start()
    inbox.take()
    assert done.wait(10)
    thread.join()


def test_no_item_is_lost_between_many_threads():
    """Every scalar that eight threads append is taken exactly once, in each thread's order."""
    inbox, _ = make(points=1 << 20, nbytes=1 << 40)
    per_thread = 2000

    def work(k: int) -> None:
        for n in range(per_thread):
            inbox.items.append((k, n, 0, 0.0))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    taken = []
    while any(thread.is_alive() for thread in threads) or inbox.items:
        taken += inbox.take()
    for k in range(8):
        assert [item[1] for item in taken if item[0] == k] == list(range(per_thread))


def test_a_discarding_inbox_accepts_and_forgets():
    """Disabled runs take every call and keep nothing."""
    inbox, wakes = make(discards=True)
    inbox.append_blocks(["block"], 5, 10)
    inbox.append_scalars([scalar(1)])
    assert inbox.points_count == 0
    assert not wakes
    assert inbox.scalars_max > 1 << 60
