"""Episode numbers: given once, in order, whoever else gives some."""

from __future__ import annotations

import numpy as np
import pytest

from metrana_async.errors import (
    InvalidStepError,
    InvalidTypeError,
    UsageError,
    ValidationError,
)
from metrana_async.rl import EpisodeAllocator, EpisodeKeys, EpisodeLeases, EpisodeTracker


def test_workers_that_share_environments_never_meet():
    """Every number of each environment is given exactly once among the workers."""
    workers = [EpisodeAllocator(i, 3) for i in range(3)]
    rng = np.random.default_rng(0)
    given: dict[str, list[int]] = {"a": [], "b": []}
    for _ in range(200):
        ids = rng.choice(["a", "b"], size=5).tolist()
        for env_id, number in zip(ids, workers[rng.integers(3)].take(ids).tolist(), strict=True):
            given[env_id].append(number)
    for numbers in given.values():
        assert len(set(numbers)) == len(numbers)
    assert workers[1].take(["c", "c", "d"]).tolist() == [1, 4, 1]


def test_a_resumed_worker_goes_on_behind_the_last_known_number():
    """`first` is a lower bound; each worker keeps to its own numbers above it."""
    assert EpisodeAllocator(first=7).take(["a", "a"]).tolist() == [7, 8]
    firsts = [EpisodeAllocator(i, 4, first=10).take(["a"])[0] for i in range(4)]
    assert firsts == [12, 13, 10, 11]
    assert EpisodeAllocator(0, 4, first={"a": 3}).take(["a", "b"]).tolist() == [4, 0]


def test_numbers_do_not_pass_the_last_step():
    """An axis that is used up is refused, and nothing of the call is taken."""
    allocator = EpisodeAllocator(first={"full": 2**63 - 1})
    with pytest.raises(InvalidStepError):
        allocator.take(["a", "full", "full"])
    assert allocator.take(["a", "full"]).tolist() == [0, 2**63 - 1]
    with pytest.raises(ValidationError, match="0..2"):
        EpisodeAllocator(3, 3)


def test_leases_are_used_up_in_order_and_asked_for_when_empty():
    """A lease is `size` numbers or as many as are needed; none is used twice."""
    asked = []

    def reserve(env_id, n):
        asked.append((env_id, n))
        return 1000 * len(asked)

    leases = EpisodeLeases(reserve, size=3)
    assert leases.take(["a", "b", "a"]).tolist() == [1000, 2000, 1001]
    assert leases.remaining("a") == 1
    assert leases.take(["a"] * 6).tolist() == [1002, 3000, 3001, 3002, 3003, 3004]
    assert asked == [("a", 3), ("b", 3), ("a", 5)]


def test_leases_without_a_server_to_ask_are_refused_before_anything_is_taken():
    """Too few numbers: the call fails whole, and goes through once a lease was added."""
    leases = EpisodeLeases()
    leases.add("a", 5, 2)
    leases.add("a", 40, 1)
    with pytest.raises(UsageError, match="'a' has 3 leased episodes left, 1 too few"):
        leases.take(["a"] * 4)
    assert leases.take(["a"] * 3).tolist() == [5, 6, 40]
    with pytest.raises(InvalidStepError):
        leases.add("a", 2**63 - 1, 2)


def test_a_tracker_that_runs_out_of_numbers_has_not_moved():
    """A refused rollout changes nothing: the same call goes through once there are numbers."""
    leases = EpisodeLeases()
    leases.add("cart", 100, 2)
    tracker = EpisodeTracker(["cart"], "same_step", numbers=leases)
    rollout = ([[1.0, 2.0, 3.0]], [[True, True, False]])
    with pytest.raises(UsageError):
        tracker.update(*rollout, layout="MT")
    leases.add("cart", 300, 5)
    block = tracker.update(*rollout, layout="MT")
    assert block.episode.tolist() == [[100, 101, 300]]
    assert block.ended.returns.tolist() == [1.0, 2.0]


def test_a_key_keeps_its_number_and_is_told_once():
    """String keys become numbers of their environment; the caller learns of each new one."""
    told = []
    keys = EpisodeKeys()

    def on_new(*told_of):
        told.append(told_of)

    numbers = [keys.number("a", k, on_new=on_new) for k in ("x", "y", "x")]
    assert numbers == [0, 1, 0]
    assert keys.number("b", "x", on_new=on_new) == 0
    assert told == [
        ("a", {"episode_key": "x"}, 0),
        ("a", {"episode_key": "y"}, 1),
        ("b", {"episode_key": "x"}, 0),
    ]
    with pytest.raises(InvalidTypeError):
        keys.number("a", 3)
