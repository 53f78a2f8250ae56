"""Every commit takes five seconds: writers share them, nobody is turned away, nobody asks twice."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from metrana_async.wire import limits
from tests.crash.lanes import Client, check_all
from tests.crash.servers import Server, needs_strace

pytestmark = [pytest.mark.e2e, pytest.mark.slow, needs_strace, pytest.mark.fault_row("D5")]

WRITERS, ROUNDS = 8, 2
FAST_SYNCS = 30
"""So many syncs pass at full speed: those of the start and of the openings."""


@pytest.mark.timeout(240)
def test_commits_of_five_seconds_are_shared(server: Server, tmp_path: Path) -> None:
    """Credit shrinks to what all can send at once, and is whole again when one is left."""
    trace = tmp_path / "trace"
    fault = f"fdatasync:delay_enter=5000000:when={FAST_SYNCS}+"
    assert server.start_with_fault(fault, trace, endings=["-wal"])
    clients = [Client(server, number) for number in range(1, WRITERS + 1)]
    for client in clients:
        client.open()
    pace = clients[0]
    while delayed(trace) == 0:
        pace.log()
        pace.send()
        assert len(pace.frames) <= FAST_SYNCS, "no sync was delayed"
    before = delayed(trace)
    threads = [threading.Thread(target=send_rounds, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [client.ended for client in clients] == [None] * WRITERS
    assert all(client.acked == len(client.frames) for client in clients)
    assert sum(client.duplicates for client in clients) == 0
    # Alone, each of the 16 requests would have taken a commit.
    assert 1 <= delayed(trace) - before <= ROUNDS + 2
    assert min(min(client.credits) for client in clients) <= limits.REQUEST_BYTES // 2
    pace.log()
    pace.send()
    assert pace.credits[-1] == limits.REQUEST_BYTES
    server.kill()
    assert server.start()
    check_all(*clients)
    assert server.stop() == 0


def send_rounds(client: Client) -> None:
    """One batch after the other; an error is kept."""
    try:
        for _ in range(ROUNDS):
            client.log()
            client.send()
    except Exception as error:
        client.ended = error


def delayed(trace: Path) -> int:
    """How many syncs were held up."""
    return trace.read_text("utf-8", "replace").count("(DELAYED)")
