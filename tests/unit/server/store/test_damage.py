"""Flipped bits in a store: nothing wrong is given out as a value, and `verify` names the damage."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from metrana_async.errors import InitError, MetranaError, NotFoundError, StoreDamagedError
from metrana_async.server.store.base import Commit
from metrana_async.server.store.sqlite.backup import back_up
from metrana_async.server.store.sqlite.files import DATABASE_NAME
from metrana_async.server.store.sqlite.store import SqliteStore
from metrana_async.server.store.sqlite.verify import verify
from tests.unit.server.store.samples import World
from tests.unit.server.store.test_backup import filled

pytestmark = pytest.mark.fault_row("D15")
FLIPS = 40


def answers(store: SqliteStore, world: World) -> Counter:
    """How often each point is there, with everything that is known of it, to the bit."""
    found: Counter = Counter()
    for series_no in world.series_nos:
        for rows in (store.read_points(series_no), store.read_env_steps(series_no)):
            columns = [getattr(rows, name) for name in rows.__dataclass_fields__ if name != "value"]
            lines = zip(*(column.tolist() for column in columns), strict=True)
            values = [value.hex() for value in rows.value.astype(np.float64).tolist()]
            found.update((series_no, *line, v) for line, v in zip(lines, values, strict=True))
    return found


def flip(folder: Path, whole: bytes, bit: int) -> None:
    """Make the folder's database `whole` with one bit changed."""
    for ending in ("-wal", "-shm"):
        (folder / (DATABASE_NAME + ending)).unlink(missing_ok=True)
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << bit % 8
    (folder / DATABASE_NAME).write_bytes(damaged)


def flip_in(folder: Path, sql: str) -> None:
    """Flip a bit in the middle of the blob that a query of one row gives."""
    with sqlite3.connect(folder / DATABASE_NAME) as connection:
        (blob,) = connection.execute(sql).fetchone()
    connection.close()
    start = blob[:200]
    whole = (folder / DATABASE_NAME).read_bytes()
    assert start in whole
    middle = len(start) // 2
    changed = start[:middle] + bytes([start[middle] ^ 4]) + start[middle + 1 :]
    # Everywhere: a page that is free now may hold an older copy.
    (folder / DATABASE_NAME).write_bytes(whole.replace(start, changed))


def closed(folder: Path, *, is_sealed: bool = True) -> World:
    """A store of every family in one file."""
    store, world = filled(folder, 1, is_sealed=is_sealed)
    store.close()
    return world


def test_a_flipped_bit_anywhere_never_becomes_a_value(tmp_path: Path) -> None:
    """The store answers as before or refuses; where it refuses, `verify` says why.

    A flip in an index can hide points; what is there is right even then, and `verify` says so too.
    """
    store, world = filled(tmp_path, 1)
    expected = answers(store, world)
    store.close()
    assert verify(tmp_path).problems == []
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    whole = (tmp_path / DATABASE_NAME).read_bytes()
    for _ in range(FLIPS):
        bit = rng.randrange(8 * len(whole))
        print("bit", bit)
        flip(tmp_path, whole, bit)
        found: Counter | None = None
        with contextlib.suppress(MetranaError):
            store = SqliteStore(tmp_path)
            try:
                found = answers(store, world)
            finally:
                store.close()
        assert found is None or found <= expected
        if found != expected:
            flip(tmp_path, whole, bit)
            assert has_problems(tmp_path)


def has_problems(folder: Path) -> bool:
    """Whether `verify` finds anything, or cannot even read."""
    try:
        return bool(verify(folder).problems)
    except MetranaError:
        return True


@pytest.mark.parametrize("column", ["integers", "value"])
def test_a_damaged_tile_is_named_and_the_others_are_read(tmp_path: Path, column: str) -> None:
    """Its series cannot be read, every other one can; new points of it are stored and sealed."""
    world = closed(tmp_path)
    flip_in(tmp_path, f"SELECT {column} FROM tile ORDER BY tile_no DESC LIMIT 1")
    found = verify(tmp_path)
    assert len(found.problems) == 1
    assert "tile" in found.problems[0]
    assert found.rows_count > 1
    store = SqliteStore(tmp_path)
    errors = []
    for series_no in world.series_nos:
        for read in (store.read_points, store.read_env_steps):
            try:
                read(series_no)
            except StoreDamagedError as error:
                errors.append(error)
    assert 1 <= len(errors) < len(world.series_nos)
    assert all("verify" in error.hint for error in errors)
    store.commit(Commit(points=[world.standard_points(50), world.episode_points(50)]))
    store.commit(Commit(segments=[world.segments(20)]))
    for unit in store.due(now_s=0.0, everything=True):
        store.seal(unit, dict.fromkeys(unit.series_nos, b"head"))
    assert store.due(now_s=0.0, everything=True) == []
    store.close()
    assert len(verify(tmp_path).problems) == 1
    with pytest.raises(StoreDamagedError):
        back_up(tmp_path, tmp_path / "backup")


def test_a_damaged_log_row_keeps_the_store_closed(tmp_path: Path) -> None:
    """It holds acknowledged points that lie nowhere else: nobody goes on as if it did not."""
    closed(tmp_path, is_sealed=False)
    flip_in(tmp_path, "SELECT tables FROM log LIMIT 1")
    assert "log row" in verify(tmp_path).problems[0]
    with pytest.raises(InitError, match=r"log row \d+ of the store is damaged.*verify"):
        SqliteStore(tmp_path)


def test_a_damaged_cursor_is_not_gone_on_from(tmp_path: Path) -> None:
    """Numbers are not given out by a head that is not what was written."""
    closed(tmp_path)
    with sqlite3.connect(tmp_path / DATABASE_NAME) as connection:
        connection.execute("UPDATE head SET cursors='hEad' WHERE series_no=3")
    connection.close()
    store = SqliteStore(tmp_path)
    with pytest.raises(StoreDamagedError, match="head of series 3"):
        store.heads(1)
    assert store.heads(1, [4]) == {4: b"head"}
    store.close()


def test_what_is_older_than_the_sums_is_read_unchecked(tmp_path: Path) -> None:
    """Rows without a sum are as good as they were."""
    store, world = filled(tmp_path, 1)
    expected = answers(store, world)
    store.close()
    with sqlite3.connect(tmp_path / DATABASE_NAME) as connection:
        for table in ("log", "tile", "head"):
            connection.execute(f"UPDATE {table} SET sum=NULL")
    connection.close()
    store = SqliteStore(tmp_path)
    assert answers(store, world) == expected
    store.close()
    assert verify(tmp_path).problems == []


def test_there_must_be_something_to_verify(tmp_path: Path) -> None:
    """A folder without a store is not found to be well."""
    with pytest.raises(NotFoundError):
        verify(tmp_path)
