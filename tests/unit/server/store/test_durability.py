"""The embedded store under kill -9, a full disk, and readers that do not wait."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from metrana_async.errors import InternalError, UnavailableError
from metrana_async.server.store.base import (
    AcceptedPoints,
    AcceptedSegments,
    Commit,
    CutRow,
    LaneRow,
    SealUnit,
    SeriesRow,
)
from metrana_async.server.store.sqlite import connections
from metrana_async.server.store.sqlite import store as store_module
from metrana_async.server.store.sqlite.store import SqliteStore
from metrana_async.wire.model import Family, StepMode
from tests.unit.server.store.samples import World, definition, run_row

KILLS_COUNT = 24
ENVS_COUNT = 40

# The child commits without end, seals now and then, and says which commit has returned.
CHILD = """
import sys
from tests.unit.server.store.test_durability import block, catalogue, seal_some
from metrana_async.server.store.sqlite.store import SqliteStore
store = SqliteStore(sys.argv[1])
if not store.runs():
    store.commit(catalogue())
first = store.run_contents(1).lanes[0].seq + 1
print("ready", flush=True)
for seq in range(first, 1_000_000):
    store.commit(block(seq))
    print(seq, flush=True)
    if seq % 5 == 0:
        seal_some(store, 1 + seq % 2)
"""


def catalogue() -> Commit:
    """A run with one series of each kind."""
    kinds = (Family.STANDARD, Family.ENV_STEP)
    return Commit(
        runs=[run_row(1)],
        writers=World(1).catalogue().writers,
        series=[SeriesRow(n, 1, definition(f, "m")) for n, f in enumerate(kinds, start=1)],
        lanes=[LaneRow(1, 0, 0, 0)],
    )


def block(seq: int) -> Commit:
    """Commit number `seq`: 5 standard points, 3 points each of 40 environments, a lane mark."""
    five, envs = np.arange(5), np.arange(ENVS_COUNT)
    zeros = np.zeros(ENVS_COUNT, dtype=np.int64)
    points = AcceptedPoints(
        *(1, 1, five * 0 + 1, five * 0, 5 * seq + five, five * 0, five * 0 + seq),
        value=(5 * seq + five).astype(np.float32),
    )
    segments = AcceptedSegments(
        *(1, 1, 2, StepMode.AUTO, envs, zeros, zeros, zeros + seq, zeros, zeros + 3 * seq),
        *(zeros + 3, zeros + seq),
        value=np.full(3 * ENVS_COUNT, seq, dtype=np.float32),
    )
    return Commit(lanes=[LaneRow(1, 0, seq, seq)], points=[points], segments=[segments])


def seal_some(store: SqliteStore, count: int = 100) -> None:
    """Seal some of what has a tail; heads tell how far the series came."""
    for unit in store.due(now_s=0.0, everything=True)[:count]:
        store.seal(unit, dict.fromkeys(unit.series_nos, b"head"))


def assert_whole(store: SqliteStore, acked: int) -> int:
    """Every commit up to the lane mark is there once, and the mark is not below `acked`."""
    seq = store.run_contents(1).lanes[0].seq
    assert acked <= seq <= acked + 1
    stored = store.read_points(1)
    assert stored.step.tolist() == list(range(5, 5 * seq + 5))
    np.testing.assert_array_equal(stored.value, stored.step)
    steps = store.read_env_steps(2)
    assert len(steps) == 3 * ENVS_COUNT * seq
    for env_no in range(ENVS_COUNT):
        mine = steps.env_no == env_no
        assert steps.step[mine].tolist() == list(range(3, 3 * seq + 3))
    np.testing.assert_array_equal(steps.value, steps.step // 3)
    return seq


@pytest.mark.slow
def test_kill_9_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """After each of 24 kills at random moments, every acked commit is there exactly once."""
    seed = int(np.random.default_rng().integers(2**32))
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    acked = 0
    for _ in range(KILLS_COUNT):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        killer = threading.Timer(float(random.uniform(0.0, 0.25)), child.kill)
        killer.start()
        said = child.stdout.read().split("\n")
        child.stdout.close()
        assert child.wait() == -signal.SIGKILL
        killer.join()
        # The line cut by the kill, if any, is the last; whole ones end with a newline.
        acked = max([acked, *map(int, filter(None, said[:-1]))])
        store = SqliteStore(tmp_path)
        acked = assert_whole(store, acked)
        store.close()
    assert acked > KILLS_COUNT


def test_a_full_disk_is_told_and_recovered_from(tmp_path: Path) -> None:
    """Without room commits and seals raise and leave nothing; with room again they succeed."""
    store = SqliteStore(tmp_path)
    store.commit(catalogue())
    store.commit(block(1))
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    largest = max(path.stat().st_size for path in tmp_path.iterdir())
    wide = World(1).standard_points(50_000, [1])
    refused = block(2)
    refused.points.append(wide)
    refused.series.append(SeriesRow(3, 1, definition(Family.STANDARD, "refused")))
    refused.cuts.append(CutRow(2, 0, 0, 1, 0, 1))
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, usual[1]))
        with pytest.raises(UnavailableError, match="committing to the store failed"):
            store.commit(refused)
        with pytest.raises(UnavailableError, match="sealing failed"):
            store.seal(SealUnit(1, (2,)), {2: bytes(1_000_000)})
        assert_whole(store, 1)
        assert sum(len(t.value) for t in store.tail(2)) == 3 * ENVS_COUNT
        assert store.cuts(2) == []
        assert len(store.run_contents(1).series) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    store.commit(block(2))
    seal_some(store)
    store.commit(block(3))
    assert_whole(store, 3)
    store.close()
    store = SqliteStore(tmp_path)
    assert_whole(store, 3)
    store.close()


def test_points_of_an_unknown_series_are_refused(tmp_path: Path) -> None:
    """A commit with points of a series that is not stored raises and leaves nothing."""
    store = SqliteStore(tmp_path)
    changes = block(1)
    changes.runs.append(run_row(1))
    with pytest.raises(InternalError, match="series 1, which is not stored"):
        store.commit(changes)
    assert store.runs() == []
    store.close()


def test_readers_beside_the_sealer_see_every_commit_once(tmp_path: Path) -> None:
    """Reads while commits and seals go on give whole commits, no fewer than had returned."""
    store = SqliteStore(tmp_path)
    store.commit(catalogue())
    returned = [0]
    is_over = threading.Event()
    problems: list[BaseException] = []

    def read() -> None:
        try:
            while not is_over.is_set():
                low = returned[0]
                steps = store.read_points(1).step
                assert len(steps) >= 5 * low
                assert steps.tolist() == list(range(5, len(steps) + 5))
                low = returned[0]
                one = store.read_env_steps(2, env_nos=[7]).step
                assert len(one) >= 3 * low
                assert one.tolist() == list(range(3, len(one) + 3))
        except BaseException as error:
            problems.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for seq in range(1, 300):
        store.commit(block(seq))
        returned[0] = seq
        if seq % 3 == 0:
            seal_some(store)
    is_over.set()
    for reader in readers:
        reader.join()
    assert problems == []
    assert_whole(store, 299)
    store.close()


def test_the_log_is_emptied_once_every_unit_passed(tmp_path: Path) -> None:
    """Log rows stay while one unit needs them and go with its seal; a restart replays the rest."""
    store = SqliteStore(tmp_path)
    store.commit(catalogue())
    for seq in range(1, 11):
        store.commit(block(seq))
    count = "SELECT count(*) FROM log"
    first, second = store.due(now_s=0.0, everything=True)
    store.seal(first, dict.fromkeys(first.series_nos, b""))
    assert store._writer.execute(count).fetchone() == (10,)
    store.close()
    store = SqliteStore(tmp_path)
    assert store.due(now_s=0.0, everything=True) == [second]
    assert_whole(store, 10)
    store.seal(second, dict.fromkeys(second.series_nos, b""))
    assert store._writer.execute(count).fetchone() == (0,)
    store.close()
    store = SqliteStore(tmp_path)
    store.commit(block(11))
    assert_whole(store, 11)
    store.close()
    # Numbers of emptied log rows never come back: the new row is above both marks.
    store = SqliteStore(tmp_path)
    assert_whole(store, 11)
    store.close()


def test_units_are_due_by_size_and_age(tmp_path: Path) -> None:
    """A small tail waits a minute, by the caller's clock; a full one does not wait."""
    store = SqliteStore(tmp_path)
    store.commit(catalogue())
    store.commit(block(1))
    assert store.due(now_s=100.0) == []
    assert store.due(now_s=159.0) == []
    assert len(store.due(now_s=160.0)) == 2
    store.commit(Commit(points=[World(1).standard_points(40_000, [1])]))
    seal_some(store, 1)
    assert store.due(now_s=161.0) == [SealUnit(1, (2,))]
    store.commit(Commit(points=[World(1).standard_points(40_000, [1])]))
    assert SealUnit(1, (1,)) in store.due(now_s=162.0)
    store.close()


def test_a_series_that_joined_since_due_is_not_sealed_without_a_head(tmp_path: Path) -> None:
    """Sealing with heads that do not cover the unit's tail changes nothing."""
    world = World(1)
    store = SqliteStore(tmp_path)
    store.commit(world.catalogue())
    store.commit(Commit(points=[world.standard_points(5, [1])]))
    (unit,) = store.due(now_s=0.0, everything=True)
    store.commit(Commit(points=[world.standard_points(5, [2])]))
    store.seal(unit, {1: b"old"})
    assert store.heads(1) == {}
    assert sum(len(t.value) for t in store.tail(1)) == 5
    (unit,) = store.due(now_s=0.0, everything=True)
    assert unit.series_nos == (1, 2)
    store.seal(unit, {1: b"a", 2: b"b"})
    assert store.tail(1) == store.tail(2) == []
    store.close()


def test_small_tiles_are_merged(tmp_path: Path) -> None:
    """A hundred tiny seals leave a few tiles, not a hundred."""
    store = SqliteStore(tmp_path)
    store.commit(catalogue())
    for seq in range(1, 101):
        store.commit(block(seq))
        seal_some(store)
    groups = "SELECT count(*) FROM tile GROUP BY unit_no, group_no"
    assert max(n for (n,) in store._writer.execute(groups)) <= 8
    assert_whole(store, 100)
    store.close()


def test_the_wal_stays_short(tmp_path: Path) -> None:
    """40 MB of commits under a reader that comes and goes leave a WAL of less than half."""
    store = SqliteStore(tmp_path)
    store.commit(catalogue())
    store.commit(block(1))
    world = World(1)
    for _ in range(20):
        store.commit(Commit(points=[world.standard_points(100_000, [1])]))
        for unit in store.due(now_s=0.0):
            store.seal(unit, dict.fromkeys(unit.series_nos, b""))
        store.read_env_steps(2)
    assert (tmp_path / "metrana.db-wal").stat().st_size < 25 << 20
    store.close()


def test_a_long_wal_is_cut_once_its_readers_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that stays makes the WAL grow, never fails a commit; behind it the WAL is cut."""
    monkeypatch.setattr(connections, "CHECKPOINT_BYTES", 1 << 16)
    monkeypatch.setattr(connections, "WAL_BYTES_MAX", 1 << 19)
    wal = tmp_path / "metrana.db-wal"
    store = SqliteStore(tmp_path)
    store.commit(catalogue())
    with store._readers.transaction() as reader:
        reader.execute("SELECT count(*) FROM log").fetchone()
        for seq in range(1, 41):
            changes = block(seq)
            changes.pages.append((1, f"{seq:032x}", bytes(30_000)))
            store.commit(changes)
        assert wal.stat().st_size > 1 << 19
        assert_whole(store, 40)
    for seq in range(41, 51):
        store.commit(block(seq))
    assert wal.stat().st_size < 1 << 19
    assert_whole(store, 50)
    store.close()


def test_the_biggest_tails_are_due_under_memory_pressure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the bound of all tails the biggest unit is due first, and only what brings it below."""
    store = SqliteStore(tmp_path)
    store.commit(catalogue())
    store.commit(block(1))
    store.commit(Commit(points=[World(1).standard_points(20_000, [1])]))
    assert store.due(now_s=0.0) == []
    monkeypatch.setattr(store_module, "TAIL_BYTES_MAX", 100_000)
    assert store.due(now_s=0.0) == [SealUnit(1, (1,))]
    monkeypatch.setattr(store_module, "TAIL_BYTES_MAX", 100)
    assert store.due(now_s=0.0) == [SealUnit(1, (1,)), SealUnit(1, (2,))]
    store.close()


def test_the_unit_that_holds_the_oldest_log_row_is_due_when_the_log_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow unit does not keep the log of fast ones for long."""
    store = SqliteStore(tmp_path)
    store.commit(catalogue())
    store.commit(block(1))
    slow, fast = SealUnit(1, (1,)), SealUnit(1, (2,))
    store.seal(fast, {2: b""})
    for seq in range(2, 9):
        changes = block(seq)
        changes.points.clear()
        store.commit(changes)
    assert store.due(now_s=0.0) == []
    monkeypatch.setattr(store_module, "LOG_BYTES_MAX", 1_000)
    assert store.due(now_s=0.0) == [slow]
    store.close()


def test_a_closed_store_refuses_reads(tmp_path: Path) -> None:
    """Reading after close raises UnavailableError."""
    store = SqliteStore(tmp_path)
    store.close()
    with pytest.raises(UnavailableError, match="closed"):
        store.runs()


def test_closing_gives_unused_pages_back(tmp_path: Path) -> None:
    """What the log took and no longer needs is not left in the file of a closed store."""
    store = SqliteStore(tmp_path)
    store.commit(catalogue())
    for seq in range(1, 200):
        store.commit(block(seq))
    seal_some(store)
    (free,) = store._writer.execute("PRAGMA freelist_count").fetchone()
    assert free > 20
    store.close()
    store = SqliteStore(tmp_path)
    assert store._writer.execute("PRAGMA freelist_count").fetchone() == (0,)
    assert_whole(store, 199)
    store.close()
