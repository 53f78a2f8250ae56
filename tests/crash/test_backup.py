"""A store goes back to an older backup while its clients live on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import metrana_sync_shim as metrana
from metrana_async.delivery import outbox
from tests.crash.servers import Server
from tests.interop.conftest import JOB_VARIABLES, ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.fault_row("D9")]


@pytest.fixture
def server(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A running server that its clients do not start themselves."""
    for name in JOB_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with server.home.held_down():
        assert server.start()
        yield server
        if metrana.is_initialized():
            metrana.close(5)


def command(server: Server, word: str, folder: Path) -> str:
    """`python -m metrana_async.server backup|restore`; returns what it said."""
    words = [sys.executable, "-m", "metrana_async.server", word, str(folder)]
    done = subprocess.run(
        [*words, "--data-dir", str(server.data_dir)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def go_back(server: Server, backup: Path) -> None:
    """Put the backup in the place of the store, and serve it."""
    generation = server.health()["generation"]
    assert server.stop() == 0
    assert "what was there is in" in command(server, "restore", backup)
    assert server.start()
    assert server.health()["generation"] != generation


def log(run: metrana.Run, numbers: range) -> None:
    """Points that tell where they belong, of every kind, stored when this returns."""
    for k in numbers:
        run.log("auto", float(k))
        run.log_distributed("merge", float(k), step=k)
        run.log_rl_environment_step("grid", [[float(k)] * 5] * 2, k, ["a", "b"], 0)
    run.flush(20)


def check(server: Server, count: int) -> None:
    """All of `count` calls is there once."""
    line = [(k, float(k)) for k in range(count)]
    assert server.home.points("auto") == line
    with server.home.reader() as reader:
        merged = reader.merged("run", "merge")
        assert (merged.last.tolist(), set(merged.count.tolist())) == ([v for _, v in line], {1})
        for env in "ab":
            found = reader.env_series("run", "grid", env_id=env, episode=0)
            assert found.env_step.tolist() == list(range(5 * count))
            assert found.value.tolist() == [float(k) for k in range(count) for _ in range(5)]
        ledger = reader.ledger("run")
    assert (ledger.visible, ledger.difference) == (12 * count, 0)


def test_clients_send_again_what_a_restored_backup_lacks(server: Server, tmp_path: Path) -> None:
    """Backed up while it is logged to, put back later: nothing is missing, nothing is twice."""
    run = server.home.init()
    log(run, range(20))
    assert "1 runs" in command(server, "backup", tmp_path / "backup")
    log(run, range(20, 60))
    check(server, 60)
    go_back(server, tmp_path / "backup")
    assert server.home.points("auto") == [(k, float(k)) for k in range(20)]
    log(run, range(60, 80))
    check(server, 80)
    info = run.close(30)
    assert info.is_complete
    assert info.statistics.losses == {}
    assert info.statistics.committed == 12 * 80
    assert server.stop() == 0


def test_a_run_that_the_backup_does_not_know_comes_back_whole(
    server: Server, tmp_path: Path
) -> None:
    """Made after the backup: its client makes it again, under the uid that its batches carry."""
    other = server.home.init("other")
    other.log("a", 1.0)
    other.close(20)
    command(server, "backup", tmp_path / "backup")
    run = server.home.init()
    log(run, range(20))
    with server.home.reader() as reader:
        uid = reader.run("run").run_uid
    go_back(server, tmp_path / "backup")
    log(run, range(20, 40))
    check(server, 40)
    with server.home.reader() as reader:
        assert reader.run("run").run_uid == uid
    info = run.close(30)
    assert info.is_complete
    assert (info.statistics.losses, info.statistics.committed) == ({}, 12 * 40)
    assert server.stop() == 0


def test_what_no_client_holds_any_more_is_declared_lost(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the retention the lane goes on past the hole, and both sides count the same loss."""
    run = server.home.init()
    log(run, range(20))
    command(server, "backup", tmp_path / "backup")
    log(run, range(20, 40))
    monkeypatch.setattr(outbox, "RETENTION_BYTES", 0)
    log(run, range(40, 60))
    monkeypatch.undo()
    log(run, range(60, 70))
    go_back(server, tmp_path / "backup")
    log(run, range(70, 80))
    info = run.close(30)
    losses = info.statistics.losses
    assert set(losses) == {"server_rollback"}
    assert info.statistics.is_balanced
    with server.home.reader() as reader:
        ledger = reader.ledger("run")
        counters = reader.run("run").counters
        merged = set(reader.merged("run", "merge").step.tolist())
    assert counters["lost:server_rollback"] == losses["server_rollback"] > 0
    assert ledger.difference == 0
    assert ledger.visible + losses["server_rollback"] == 12 * 80
    assert merged >= {*range(20), *range(60, 80)}
    assert not merged & set(range(40, 55))
    assert server.stop() == 0
