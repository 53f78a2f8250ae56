"""The upkeep of pyramids: older stores get them, `verify` reads them, deleted runs lose them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np

from metrana_async.server.store.base import Commit, DeletedRun
from metrana_async.server.store.sqlite.checksums import storey_sum
from metrana_async.server.store.sqlite.files import DATABASE_NAME
from metrana_async.server.store.sqlite.store import SqliteStore
from metrana_async.server.store.sqlite.verify import verify
from tests.property.test_sketches import commit, seal
from tests.unit.server.query.stored_run import StoredRun

STEPS = np.arange(100_000, dtype=np.int64)
_ROWS = "SELECT unit_no, depth, tile_no, level, records, sum FROM pyramid ORDER BY 1, 2, 3"


def filled(folder: Path) -> StoredRun:
    """A run with one long sealed series, and a short one beside it."""
    run = StoredRun("run", store=SqliteStore(folder))
    writer = run.writer("a" * 32)
    long, short = run.series("x"), run.series("y")
    commit(run, long, writer, STEPS, np.random.default_rng(0).random(len(STEPS), np.float32))
    commit(run, short, writer, STEPS[:10], STEPS[:10].astype(np.float32))
    seal(run.store)
    return run


def edit(folder: Path, change: Callable[[sqlite3.Connection], object]) -> object:
    """Change the database of a store that is closed."""
    with sqlite3.connect(folder / DATABASE_NAME) as connection:
        result = change(connection)
    connection.close()
    return result


def rows(connection: sqlite3.Connection) -> list[tuple]:
    return connection.execute(_ROWS).fetchall()


def test_an_older_store_gets_its_pyramids_step_by_step(tmp_path: Path) -> None:
    """Tiles written without pyramids get the same that sealing gives them, once."""
    filled(tmp_path).store.close()
    written = edit(tmp_path, rows)
    assert written
    edit(tmp_path, lambda connection: connection.execute("DELETE FROM pyramid"))
    store = SqliteStore(tmp_path)
    calls = 1
    while store.improve():
        calls += 1
        assert calls < 100
    assert not store.improve()
    store.close()
    assert edit(tmp_path, rows) == written
    assert verify(tmp_path).problems == []


def test_a_pyramid_of_other_points_is_found(tmp_path: Path) -> None:
    """Also where its checksum is right: it is compared with what its tile says."""
    filled(tmp_path).store.close()
    assert verify(tmp_path).problems == []

    def swap(connection: sqlite3.Connection) -> None:
        of_tiles = [row for row in rows(connection) if row[1] == 0]
        (unit_no, depth, first, level, _, _), other = of_tiles[0], of_tiles[-1]
        assert other[2] != first
        connection.execute(
            "UPDATE pyramid SET records=?, sum=? WHERE unit_no=? AND depth=? AND tile_no=?",
            (other[4], storey_sum((unit_no, depth, first, level), other[4]), unit_no, depth, first),
        )

    edit(tmp_path, swap)
    (problem,) = verify(tmp_path).problems
    assert "does not agree with its points" in problem


def test_a_flipped_bit_of_a_pyramid_is_found(tmp_path: Path) -> None:
    """Its checksum says so, once."""
    filled(tmp_path).store.close()

    def flip(connection: sqlite3.Connection) -> None:
        unit_no, depth, tile_no, _, records, _ = rows(connection)[0]
        broken = bytes([*records[:-1], records[-1] ^ 1])
        connection.execute(
            "UPDATE pyramid SET records=? WHERE unit_no=? AND depth=? AND tile_no=?",
            (broken, unit_no, depth, tile_no),
        )

    edit(tmp_path, flip)
    (problem,) = verify(tmp_path).problems
    assert "pyramid" in problem


def test_a_deleted_run_leaves_no_pyramid(tmp_path: Path) -> None:
    """What is purged is purged with its summaries."""
    run = filled(tmp_path)
    row = run.store.runs()[0]
    gone = DeletedRun(row.run_no, row.run_uid, row.workspace, row.project, row.name, 0)
    run.store.commit(Commit(deleted=[gone]))
    while run.store.purge():
        pass
    run.store.close()
    assert edit(tmp_path, rows) == []
    assert verify(tmp_path).problems == []
