"""Reads a whole store and says what in it is not as it was written."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from metrana_async.errors import MetranaError, NotFoundError
from metrana_async.server.store.sqlite import catalogue, pyramid, pyramid_table, tile_table
from metrana_async.server.store.sqlite.checksums import blob_sum, check
from metrana_async.server.store.sqlite.connections import disk_errors
from metrana_async.server.store.sqlite.files import DATABASE_NAME
from metrana_async.server.store.sqlite.schema import STEPS, connect


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found.

    Attributes:
        rows_count: rows with points whose sums were compared.
        problems: one sentence each; empty when all is well.
    """

    rows_count: int
    problems: list[str]


def verify(data_dir: Path) -> Verification:
    """Check the structure of a store and the sums of its points; a server may be using it.

    Raises:
        NotFoundError: there is no store.
        UnavailableError: it cannot be read at all.
    """
    database = data_dir / DATABASE_NAME
    if not database.is_file():
        raise NotFoundError(f"there is no store in {data_dir}")
    with (
        disk_errors(f"verifying {data_dir}"),
        closing(connect(str(database), read_only=True)) as connection,
    ):
        connection.execute("BEGIN")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        problems = [text for (text,) in connection.execute("PRAGMA integrity_check")]
        if problems == ["ok"]:
            problems = []
        if version != len(STEPS):
            problems.append(f"the store has format {version}: its sums are not compared")
            return Verification(0, problems)
        rows_count = 0
        try:
            for run in catalogue.read_runs(connection):
                catalogue.read_contents(connection, run.run_no, with_series=True, series_after=0)
            for problem in compare_sums(connection):
                rows_count += 1
                problems += [problem] if problem else []
            problems += compare_pyramids(connection)
        except (sqlite3.Error, ValueError, KeyError) as error:
            problems.append(f"reading stopped: {error!r}")
    return Verification(rows_count, problems)


def compare_sums(connection: sqlite3.Connection) -> Iterator[str | None]:
    """For each row that holds points, None or what is wrong with it.

    Raises:
        sqlite3.DatabaseError: the database's own structure is damaged.
    """
    for what, sql in (
        ("log row", "SELECT log_no, tables, sum FROM log"),
        ("head of series", "SELECT series_no, cursors, sum FROM head"),
    ):
        for key, blob, kept in connection.execute(sql):
            yield _problem(f"{what} {key}", kept, blob_sum(key, blob))
    tiles = connection.execute("SELECT tile_no, unit_no FROM tile").fetchall()
    for tile_no, unit_no in tiles:
        try:
            tile_table.fetch(connection, tile_no)
            pyramid_table.fetch(connection, unit_no, tile_no)
        except MetranaError as error:
            yield error.message
        else:
            yield None


def compare_pyramids(connection: sqlite3.Connection) -> Iterator[str]:
    """What is wrong with summaries that are as they were written: they are not of their points."""
    tiles = connection.execute(
        "SELECT tile_no, unit_no, points_count FROM pyramid JOIN tile USING(tile_no, unit_no)"
        " WHERE depth=0"
    ).fetchall()
    for tile_no, unit_no, points_count in tiles:
        try:
            kept = pyramid_table.fetch(connection, unit_no, tile_no)
            built = tile_table.build_pyramid(connection, tile_no, points_count)
        except MetranaError:
            continue  # said where sums are compared
        if not pyramid.agree(kept, built):
            yield f"the pyramid of tile {tile_no} does not agree with its points"
    for (tile_no,) in connection.execute(
        "SELECT DISTINCT tile_no FROM pyramid WHERE tile_no NOT IN (SELECT tile_no FROM tile)"
    ):
        yield f"the pyramid of tile {tile_no} has no tile"


def _problem(what: str, kept: int | None, found: int) -> str | None:
    try:
        check(what, kept, found)
    except MetranaError as error:
        return error.message
    return None
