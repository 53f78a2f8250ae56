"""Leases of episodes: no number twice, whoever asks, however often, after whatever."""

from __future__ import annotations

import secrets
from dataclasses import replace

import numpy as np
import pytest

from metrana_async.errors import (
    InvalidStepError,
    NotFoundError,
    ProtocolError,
    RunDeletedError,
    UnavailableError,
)
from metrana_async.server.store.base import Commit
from metrana_async.wire import limits
from metrana_async.wire.messages import ReserveRequest
from metrana_async.wire.model import PointTable
from tests.unit.server.ingest.conftest import Kept
from tests.unit.server.ingest.helpers import TestWriter, env_steps, episodes, i64, segments


def opened(kept: Kept, number: int, **options) -> TestWriter:
    """A writer that is open."""
    writer = kept.writer(number, **options)
    writer.open()
    return writer


def ask(kept: Kept, writer: TestWriter, n: int, env_id: str = "cart", nonce: str = "") -> int:
    """Lease n episodes of an environment; returns the first."""
    nonce = nonce or secrets.token_hex(16)
    request = ReserveRequest(writer.run_uid, writer.writer_id, env_id, n, nonce)
    return kept.service.reserve_episodes(request).first


@pytest.mark.parametrize("is_restarted", [False, True])
def test_leases_of_an_environment_never_meet(kept: Kept, is_restarted) -> None:
    """Each begins behind the last, over all writers and also after a restart of the server."""
    one, two = opened(kept, 1), opened(kept, 2)
    assert [ask(kept, w, n) for w, n in ((one, 5), (two, 3), (two, 10), (one, 1))] == [0, 5, 8, 18]
    if is_restarted:
        kept.restart(one, two)
    assert ask(kept, two, 2) == 19
    assert ask(kept, one, 2, env_id="other") == 0


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_request_that_comes_again_is_given_the_same(kept: Kept, is_restarted) -> None:
    """The answer was lost: the lease is answered once more, and no second one is taken."""
    one, two = opened(kept, 1), opened(kept, 2)
    nonce = "ab" * 16
    assert ask(kept, one, 4, nonce=nonce) == 0
    assert ask(kept, two, 4, nonce=nonce) == 4
    if is_restarted:
        kept.restart(one, two)
    assert ask(kept, one, 4, nonce=nonce) == 0
    assert ask(kept, two, 1) == 8


@pytest.mark.parametrize("is_restarted", [False, True])
def test_stored_episodes_are_not_leased(kept: Kept, is_restarted) -> None:
    """A lease begins behind every episode of the environment that is stored, of any metric."""
    one = opened(kept, 1, series=(env_steps("reward"), episodes("return", is_merge=True)))
    one.send(segments([(0, 6, 0, 0, [1.0, 2.0]), (0, 2, 0, 0, [1.0])]))
    ended = PointTable(i64([1]), i64([11]), i64([5]), np.float32([3.0]), i64([1]), i64([0]))
    one.send(ended)
    if is_restarted:
        kept.restart(one)
    assert ask(kept, one, 3, env_id=one.envs[0]) == 7
    assert ask(kept, one, 3, env_id=one.envs[1]) == 12


def test_what_no_client_sends_is_refused(kept: Kept) -> None:
    """Counts out of range, nonces and ids that are none, writers and runs that are none."""
    one = opened(kept, 1)
    for n in (0, -1, limits.LEASE_EPISODES + 1):
        with pytest.raises(ProtocolError, match="count"):
            ask(kept, one, n)
    for more in ({"nonce": "x"}, {"env_id": ""}, {"env_id": "e" * 200}):
        with pytest.raises(ProtocolError):
            ask(kept, one, 1, **more)
    with pytest.raises(NotFoundError):
        kept.service.reserve_episodes(ReserveRequest(one.run_uid, "0" * 32, "e", 1, "0" * 32))
    kept.service.delete_run(one.run_uid)
    with pytest.raises(RunDeletedError):
        ask(kept, one, 1)


def test_an_axis_that_is_used_up_is_refused(kept: Kept) -> None:
    """Numbers end at 2**63-1; nothing is leased beyond."""
    one = opened(kept, 1)
    ask(kept, one, 1)
    (lease,) = kept.store.run_contents(1).leases
    far = replace(lease, first=2**63 - 4)
    kept.store.commit(Commit(leases=[far]))
    kept.restart(one)
    with pytest.raises(InvalidStepError):
        ask(kept, one, 4)
    assert ask(kept, one, 3) == 2**63 - 3


def test_a_lease_that_is_not_durable_is_not_answered(kept: Kept, monkeypatch) -> None:
    """The disk refuses: the caller gets the error; asked again, it gets what nobody else has."""
    one, two = opened(kept, 1), opened(kept, 2)
    commit = kept.store.commit

    def refuse(changes):
        raise UnavailableError("no")

    monkeypatch.setattr(kept.store, "commit", refuse)
    nonce = "cd" * 16
    with pytest.raises(UnavailableError):
        ask(kept, one, 4, nonce=nonce)
    monkeypatch.setattr(kept.store, "commit", commit)
    assert ask(kept, two, 2) == 0
    assert ask(kept, one, 4, nonce=nonce) == 2
