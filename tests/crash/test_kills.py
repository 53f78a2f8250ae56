"""The server is killed, at every call by which its store is written, and at any time at all."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path

import pytest

from tests.crash.lanes import Client, check_all
from tests.crash.servers import STORE_CALLS, Server, Unanswered, has_fired, needs_strace

pytestmark = [pytest.mark.e2e, pytest.mark.fault_row("D1")]

IS_WHOLE = "METRANA_TEST_FAULTS" in os.environ
"""`make test-faults`: at every single call, not at every fifth of the many, and more often."""
KILLS = int(os.environ.get("METRANA_TEST_KILLS", "200" if IS_WHOLE else "30"))
"""How often the server is killed at random."""
BATCHES = 4


@needs_strace
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("call", STORE_CALLS)
def test_killed_at_every_call_of_the_store(server: Server, tmp_path: Path, call: str) -> None:
    """Start, four commits, seal and close, killed at the nth call: what was acked is there once.

    The store of one kill is the one that the next is tried on, so recovery is killed as well.
    """
    stride = 5 if call == "pwrite64" and not IS_WHOLE else 1
    client = Client(server)
    assert server.start()
    client.open()
    client.log()
    client.send()
    server.kill()
    nth = kills = 0
    while True:
        nth += 1 if kills == 0 else stride
        trace = tmp_path / f"trace-{nth}"
        is_up = server.start_with_fault(f"{call}:signal=KILL:when={nth}", trace)
        if is_up and client.try_to(client.open, client.check):
            for _ in range(BATCHES):
                client.log()
                if not client.try_to(client.send):
                    break
        if is_up and client.acked == len(client.frames):
            server.send_signal(signal.SIGTERM)
        ended = server.wait()
        if ended == 0:
            break
        assert (ended, has_fired(trace, "= ?")) == (-signal.SIGKILL, True)
        kills += 1
    print(f"{call}: {kills} kills, {client.acked} batches, {client.duplicates} duplicates")
    assert kills >= 1
    assert server.start()
    client.open()
    client.send()
    client.check()
    assert client.acked == len(client.frames)
    assert server.stop() == 0


@pytest.mark.slow
@pytest.mark.timeout(120 + 10 * KILLS)
@pytest.mark.parametrize("seed", [None])
def test_killed_at_any_time(server: Server, seed: int | None) -> None:
    """Two clients load it without pause; what each was promised is there after every kill."""
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    print("seed", seed)
    rng = random.Random(seed)
    clients = [Client(server, 1), Client(server, 2)]
    caught = 0
    for _ in range(KILLS):
        assert server.start()
        for client in clients:
            client.open()
        if rng.random() < 0.3:
            check_all(*clients)
        threads = [threading.Thread(target=load, args=(client, rng.random())) for client in clients]
        killer = threading.Timer(rng.uniform(0.0, 0.3), server.send_signal, [signal.SIGKILL])
        for thread in [killer, *threads]:
            thread.start()
        for thread in [killer, *threads]:
            thread.join()
        assert server.wait() == -signal.SIGKILL
        caught += any(client.acked < len(client.frames) for client in clients)
    assert caught, "no kill came while something was on its way"
    assert server.start()
    for client in clients:
        client.open()
        client.send()
        assert client.acked == len(client.frames)
    check_all(*clients)
    print(f"{sum(c.acked for c in clients)} batches, {sum(c.duplicates for c in clients)} twice")
    assert server.stop() == 0


def load(client: Client, greed: float) -> None:
    """Log and send until the server is gone."""
    try:
        while True:
            for _ in range(1 + int(8 * greed)):
                client.log()
            client.send()
    except Unanswered:
        return
