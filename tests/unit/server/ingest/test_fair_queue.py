"""Taking turns: order, room and credit by client."""

from __future__ import annotations

import random

from metrana_async.server.ingest.fair_queue import FairQueue, sender_of
from metrana_async.wire.batch import encode_batch
from metrana_async.wire.frames import FRAME_PAGE, encode_frame
from metrana_async.wire.limits import REQUEST_BYTES
from metrana_async.wire.model import Batch, PointTable
from tests.unit.server.ingest.helpers import i64

ALL = {"bytes_max": 1 << 40, "count_max": 1 << 20}


def test_clients_take_turns_and_keep_their_own_order() -> None:
    """One of each, round and round, whoever has sent how much."""
    queue = FairQueue(1 << 30)
    for n in range(4):
        queue.push("greedy", 10, f"g{n}")
    queue.push("a", 10, "a0")
    queue.push("b", 10, "b0")
    queue.push("a", 10, "a1")
    assert queue.take(bytes_max=1 << 20, count_max=4) == ["g0", "a0", "b0", "g1"]
    queue.push("b", 10, "b1")
    assert queue.take(**ALL) == ["a1", "g2", "b1", "g3"]
    assert queue.is_empty
    assert queue.nbytes == 0


def test_64_writers_wait_for_one_round_whatever_one_of_them_sends() -> None:
    """The greedy one has 1,000 requests waiting; each other one is in the very next group."""
    queue = FairQueue(1 << 30)
    for n in range(1000):
        queue.push("greedy", 1000, n)
    for writer in range(63):
        queue.push(str(writer), 1000, f"w{writer}")
    group = queue.take(bytes_max=1 << 30, count_max=64)
    assert group == [0, *(f"w{n}" for n in range(63))]


def test_a_group_has_at_most_so_many_bytes_but_one_request_always_goes() -> None:
    """And who was left out is first in the next group."""
    queue = FairQueue(100)
    queue.push("a", 500, "big")
    queue.push("b", 30, "b0")
    queue.push("c", 90, "c0")
    assert queue.take(bytes_max=100, count_max=10) == ["big"]
    assert queue.take(bytes_max=100, count_max=10) == ["b0"]
    assert queue.take(bytes_max=100, count_max=10) == ["c0"]
    assert queue.take(bytes_max=100, count_max=10) == []


def test_greedy_clients_leave_room_for_whoever_comes_next() -> None:
    """Some of them fill k/(k+1) of the queue and are refused; a newcomer is admitted."""
    for k in (1, 2, 5):
        queue = FairQueue(60_000)
        for _ in range(10_000):
            for client in range(k):
                if queue.admits(str(client), 100):
                    queue.push(str(client), 100, None)
        assert not any(queue.admits(str(client), 100) for client in range(k))
        assert 60_000 * k // (k + 1) - 100 * k <= queue.nbytes <= 60_000 * k // (k + 1)
        assert queue.admits("newcomer", REQUEST_BYTES)


def test_a_full_queue_admits_nobody() -> None:
    """First requests may exceed the bound by one request, and then all wait."""
    queue = FairQueue(1000)
    queue.push("a", 999, None)
    assert queue.admits("b", 5000)
    queue.push("b", 5000, None)
    assert not queue.admits("c", 0)
    queue.take(**ALL)
    assert queue.admits("c", 0)


def test_credit_is_what_all_active_clients_can_send_at_once() -> None:
    """It shrinks by what is queued, most for who queued it, and by how many send."""
    queue = FairQueue(6400)
    assert queue.credit_bytes("a") == 3200
    assert queue.credit_bytes("a", also_active=62) == 100
    for client in "bcd":
        queue.push(client, 800, None)
    assert queue.credit_bytes("a") == 800
    assert queue.credit_bytes("b") == 1000 - 800
    queue.push("b", 800, None)
    assert queue.credit_bytes("b") < 0 < queue.credit_bytes("a")


def test_bytes_are_counted_as_they_come_and_go() -> None:
    """Against a plain model, by a printed seed."""
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    queue, model = FairQueue(5000), {}
    for _ in range(5000):
        if rng.random() < 0.6:
            client, nbytes = rng.choice("abcdef"), rng.randrange(400)
            if queue.admits(client, nbytes):
                item = object()
                queue.push(client, nbytes, item)
                model[item] = nbytes
        else:
            for item in queue.take(bytes_max=rng.randrange(2000), count_max=rng.randrange(1, 9)):
                del model[item]
        assert queue.nbytes == sum(model.values())
        assert queue.is_empty == (not model)


def test_the_sender_is_read_off_the_first_batch() -> None:
    """Behind pages, plain or compressed; what is no request is nobody's."""
    writer = "ab" * 16
    table = PointTable(i64([0] * 999), i64(range(999)), i64([5] * 999), i64(range(999)) / 7)
    page = encode_frame(FRAME_PAGE, b'"writer":"' + b"c" * 32 + b'"')
    for is_compressed in (False, True):
        frame = encode_batch(Batch("f" * 32, writer, 0, 1, points=[table]), compress=is_compressed)
        assert (frame[6] == 1) is is_compressed
        assert sender_of(page + frame + frame) == writer
        assert sender_of(page + frame[:60]) == ""
    assert sender_of(b"") == sender_of(page) == sender_of(b"x" * 500) == ""
    assert sender_of(page * 1000 + frame) == ""
