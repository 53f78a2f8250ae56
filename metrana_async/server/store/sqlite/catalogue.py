"""Catalogue rows to SQL and back: everything a commit holds but its points.

Functions over a connection; the caller owns the transaction.
"""

# ruff: noqa: S608 — statements are put together from our own column names only

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from metrana_async.errors import NotFoundError
from metrana_async.server.store.base import (
    SEQS_KEPT,
    AnswerRow,
    AttributeRow,
    Commit,
    CutRow,
    DeletedRun,
    LaneRow,
    LeaseRow,
    RunContents,
    RunRow,
    SeriesRow,
    WriterRow,
)
from metrana_async.server.store.sqlite.checksums import blob_sum, damaged
from metrana_async.wire.model import Family, Ordering, SeriesDef

_NONE: Final = -1
_INT64_SPAN: Final = 1 << 64
_INT64_MAX: Final = (1 << 63) - 1
_IN_MAX: Final = 500
_FAMILIES: Final = {family.value: family for family in Family}
_ORDERINGS: Final = {ordering.value: ordering for ordering in Ordering}

_RUN: Final = (
    "run_no, run_uid, workspace, project, name, created_ms, state, state_ms, orchestration_ids,"
    " exception_type, counters"
)
_WRITER: Final = (
    "writer_no, run_no, writer_id, order_us, logger_id, process, is_online, opened_ms, seen_ms,"
    " left_how, counters, alias"
)


def write_catalogue(
    connection: sqlite3.Connection, changes: Commit, unit_of: Mapping[int, int]
) -> None:
    """Write every row of a commit but its points; `unit_of` places each of its series."""
    many = connection.executemany
    if changes.runs:
        many(
            f"INSERT OR REPLACE INTO run({_RUN}) VALUES({_marks(_RUN)})",
            map(_run_values, changes.runs),
        )
    if changes.writers:
        many(
            f"INSERT OR REPLACE INTO writer({_WRITER}) VALUES({_marks(_WRITER)})",
            map(_writer_values, changes.writers),
        )
    if changes.series:
        many(
            "INSERT OR REPLACE INTO series VALUES(?,?,?,?)",
            [
                (s.series_no, s.run_no, unit_of[s.series_no], _definition_text(s.definition))
                for s in changes.series
            ],
        )
    if changes.envs:
        many("INSERT OR REPLACE INTO env VALUES(?,?,?)", changes.envs)
    if changes.lanes:
        many(
            "INSERT OR REPLACE INTO lane VALUES(?,?,?,?,?)",
            [(x.writer_no, x.lane, x.seq, _signed(x.digest), x.recent) for x in changes.lanes],
        )
    if changes.answers:
        many(
            "INSERT OR REPLACE INTO answer VALUES(?,?,?,?,?)",
            [(a.writer_no, a.lane, a.seq, a.reason, _text(a.counts)) for a in changes.answers],
        )
        many(
            "DELETE FROM answer WHERE writer_no=? AND lane=? AND seq<=?",
            [(a.writer_no, a.lane, a.seq - SEQS_KEPT) for a in changes.answers],
        )
    if changes.pages:
        many("INSERT OR REPLACE INTO page VALUES(?,?,?)", changes.pages)
    if changes.attributes_removed:
        many(
            "DELETE FROM attribute WHERE run_no=? AND env_no=? AND episode=? AND path=?",
            [(r, _or_none(e), _or_none(k), p) for r, e, k, p in changes.attributes_removed],
        )
    if changes.attributes:
        many(
            "INSERT OR REPLACE INTO attribute VALUES(?,?,?,?,?)",
            [
                (a.run_no, _or_none(a.env_no), _or_none(a.episode), a.path, _text(a.value))
                for a in changes.attributes
            ],
        )
    if changes.leases:
        many(
            "INSERT OR REPLACE INTO lease VALUES(?,?,?,?,?,?)",
            [(x.run_no, x.env_no, x.writer_no, x.nonce, x.first, x.count) for x in changes.leases],
        )
    if changes.cuts:
        many(
            "INSERT INTO cut(series_no, env_no, episode, generation, time_ms, discarded_points)"
            " VALUES(?,?,?,?,?,?)",
            [
                (c.series_no, c.env_no, c.episode, c.generation, c.time_ms, c.discarded_points)
                for c in changes.cuts
            ],
        )


def _marks(columns: str) -> str:
    return ",".join("?" * len(columns.split(",")))


def delete_run(connection: sqlite3.Connection, deleted: DeletedRun) -> None:
    """Take a run's catalogue away and leave what `deleted` says; units and tiles stay.

    Raises:
        NotFoundError: there is no such run.
    """
    run_no = deleted.run_no
    (series_no_max,) = connection.execute(
        "SELECT coalesce(max(series_no), 0) FROM series WHERE run_no=?", (run_no,)
    ).fetchone()
    fields = (deleted.run_uid, deleted.workspace, deleted.project, deleted.name)
    connection.execute(
        "INSERT INTO deleted_run VALUES(?,?,?,?,?,?,?)",
        (run_no, *fields, deleted.deleted_ms, series_no_max),
    )
    connection.execute(
        "INSERT INTO deleted_writer SELECT writer_no, writer_id, run_no FROM writer WHERE run_no=?",
        (run_no,),
    )
    for table, key, owner in (("head", "series_no", "series"), ("cut", "series_no", "series"),
                              ("lane", "writer_no", "writer"),
                              ("answer", "writer_no", "writer")):  # fmt: skip
        connection.execute(
            f"DELETE FROM {table} WHERE {key} IN (SELECT {key} FROM {owner} WHERE run_no=?)",
            (run_no,),
        )
    for table in ("series", "env", "page", "attribute", "lease", "writer", "run"):
        done = connection.execute(f"DELETE FROM {table} WHERE run_no=?", (run_no,))
    if done.rowcount != 1:
        raise NotFoundError(f"there is no run {run_no}")


def read_writer_run(connection: sqlite3.Connection, writer_id: str) -> int | None:
    """See PointStore.find_writer."""
    found = connection.execute(
        "SELECT run_no FROM writer WHERE writer_id=?", (writer_id,)
    ).fetchone()
    return None if found is None else int(found[0])


def read_deleted(connection: sqlite3.Connection, identity: str) -> DeletedRun | None:
    """See PointStore.find_deleted."""
    found = connection.execute(
        "SELECT run_no, run_uid, workspace, project, name, deleted_ms FROM deleted_run"
        " WHERE run_uid=? OR run_no=(SELECT run_no FROM deleted_writer WHERE writer_id=?)",
        (identity, identity),
    ).fetchone()
    return None if found is None else DeletedRun(*found)


def _text(value: Any) -> str:
    return orjson.dumps(value).decode()


def _or_none(number: int | None) -> int:
    return _NONE if number is None else number


def _none_or(number: int) -> int | None:
    return None if number == _NONE else number


def _signed(digest: int) -> int:
    return digest - _INT64_SPAN if digest > _INT64_MAX else digest


def _run_values(run: RunRow) -> tuple[Any, ...]:
    return (
        *(run.run_no, run.run_uid, run.workspace, run.project, run.name, run.created_ms),
        *(run.state, run.state_ms, _text(run.orchestration_ids), run.exception_type),
        _text(run.counters),
    )


def _run_row(values: tuple[Any, ...]) -> RunRow:
    *plain, ids, exception_type, counters = values
    fields: list[Any] = [*plain, orjson.loads(ids), exception_type, orjson.loads(counters)]
    return RunRow(*fields)


def _writer_values(writer: WriterRow) -> tuple[Any, ...]:
    return (
        *(writer.writer_no, writer.run_no, writer.writer_id, writer.order_us, writer.logger_id),
        *(_text(writer.process), writer.is_online, writer.opened_ms, writer.seen_ms, writer.left),
        *(_text(writer.counters), writer.alias),
    )


def _writer_row(values: tuple[Any, ...]) -> WriterRow:
    *plain, process, is_online, opened_ms, seen_ms, left, counters, alias = values
    state = [orjson.loads(process), bool(is_online), opened_ms, seen_ms, left]
    fields: list[Any] = [*plain, *state, orjson.loads(counters), alias]
    return WriterRow(*fields)


def _definition_text(definition: SeriesDef) -> str:
    family, metric, scale, labels, ordering, episodic = definition
    return _text([family.value, metric, scale, labels, ordering.value, episodic])


def definition_from_text(text: str) -> SeriesDef:
    """The definition of a stored series."""
    return _definition(*orjson.loads(text))


def _definition(
    family: str, metric: str, scale: str, labels: list[list[str]], *pins: Any
) -> SeriesDef:
    ordering, episodic = pins
    pairs = tuple((key, value) for key, value in labels) if labels else ()
    return SeriesDef(_FAMILIES[family], metric, scale, pairs, _ORDERINGS[ordering], episodic)


def _series_rows(run_no: int, found: list[tuple[int, str]]) -> list[SeriesRow]:
    """Series of a run; their texts are read as one, for a run may have 100,000."""
    definitions = orjson.loads("[" + ",".join(text for _, text in found) + "]")
    return [
        SeriesRow(series_no, run_no, _definition(*fields))
        for (series_no, _), fields in zip(found, definitions, strict=True)
    ]


def read_runs(connection: sqlite3.Connection, where: str = "", *values: str) -> list[RunRow]:
    """Runs, oldest first; `where` is a condition on the run table."""
    found = connection.execute(
        f"SELECT {_RUN} FROM run {where and 'WHERE ' + where} ORDER BY created_ms, run_no", values
    )
    return [_run_row(row) for row in found]


def read_contents(
    connection: sqlite3.Connection, run_no: int, *, with_series: bool, series_after: int
) -> RunContents:
    """See PointStore.run_contents."""

    def select(sql: str, *more: int, if_: bool = True) -> list[Any]:
        return connection.execute(sql, (run_no, *more)).fetchall() if if_ else []

    run = select(f"SELECT {_RUN} FROM run WHERE run_no=?")
    if not run:
        raise NotFoundError(f"there is no run {run_no}")
    lanes = select(
        "SELECT lane.* FROM writer JOIN lane USING(writer_no) WHERE run_no=?"
        " ORDER BY writer_no, lane",
        if_=with_series,
    )
    answers = select(
        "SELECT answer.* FROM writer JOIN answer USING(writer_no) WHERE run_no=?"
        " ORDER BY writer_no, lane, seq",
        if_=with_series,
    )
    return RunContents(
        row=_run_row(run[0]),
        writers=[
            _writer_row(row)
            for row in select(f"SELECT {_WRITER} FROM writer WHERE run_no=? ORDER BY writer_no")
        ],
        series=_series_rows(
            run_no,
            select(
                "SELECT series_no, definition FROM series WHERE run_no=? AND series_no>?"
                " ORDER BY series_no",
                series_after,
                if_=with_series,
            ),
        ),
        env_names=[
            name
            for (name,) in select(
                "SELECT name FROM env WHERE run_no=? ORDER BY env_no", if_=with_series
            )
        ],
        lanes=[
            LaneRow(writer_no, lane, seq, digest % _INT64_SPAN, recent)
            for writer_no, lane, seq, digest, recent in lanes
        ],
        attributes=[
            AttributeRow(number, _none_or(env), _none_or(episode), path, orjson.loads(value))
            for number, env, episode, path, value in select(
                "SELECT * FROM attribute WHERE run_no=? ORDER BY rowid"
            )
        ],
        answers=[
            AnswerRow(writer_no, lane, seq, reason, orjson.loads(counts))
            for writer_no, lane, seq, reason, counts in answers
        ],
        leases=[
            LeaseRow(*row)
            for row in select(
                "SELECT * FROM lease WHERE run_no=? ORDER BY env_no, writer_no", if_=with_series
            )
        ],
    )


def read_page(connection: sqlite3.Connection, run_no: int, digest: str) -> bytes | None:
    """The frame of a page, or None."""
    found = connection.execute(
        "SELECT frame FROM page WHERE run_no=? AND digest=?", (run_no, digest)
    ).fetchone()
    return None if found is None else bytes(found[0])


def read_next_numbers(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """First unused run_no, writer_no, series_no."""
    run_no, writer_no, series_no = connection.execute(
        "SELECT"
        " max((SELECT coalesce(max(run_no), 0) FROM run),"
        "     (SELECT coalesce(max(run_no), 0) FROM deleted_run)),"
        " max((SELECT coalesce(max(writer_no), 0) FROM writer),"
        "     (SELECT coalesce(max(writer_no), 0) FROM deleted_writer)),"
        " max((SELECT coalesce(max(series_no), 0) FROM series),"
        "     (SELECT coalesce(max(series_no_max), 0) FROM deleted_run))"
    ).fetchone()
    return run_no + 1, writer_no + 1, series_no + 1


def read_cuts(connection: sqlite3.Connection, series_no: int) -> list[CutRow]:
    """Restarts of a series, oldest first."""
    found = connection.execute(
        "SELECT series_no, env_no, episode, generation, time_ms, discarded_points"
        " FROM cut WHERE series_no=? ORDER BY cut_no",
        (series_no,),
    )
    return [CutRow(*row) for row in found]


def write_heads(connection: sqlite3.Connection, heads: Mapping[int, bytes]) -> None:
    """Keep cursor blobs by series."""
    connection.executemany(
        "INSERT OR REPLACE INTO head VALUES(?,?,?)",
        ((series_no, blob, blob_sum(series_no, blob)) for series_no, blob in heads.items()),
    )


def read_heads(
    connection: sqlite3.Connection, run_no: int, series_nos: Iterable[int] | None
) -> dict[int, bytes]:
    """Cursor blobs by series; of the whole run where `series_nos` is None.

    Raises:
        StoreDamagedError: one is not what was written.
    """
    if series_nos is None:
        return _checked_heads(
            connection.execute(
                "SELECT head.* FROM series JOIN head USING(series_no) WHERE run_no=?", (run_no,)
            )
        )
    wanted = list(series_nos)
    found: dict[int, bytes] = {}
    for at in range(0, len(wanted), _IN_MAX):
        some = wanted[at : at + _IN_MAX]
        marks = ",".join("?" * len(some))
        rows = connection.execute(f"SELECT * FROM head WHERE series_no IN ({marks})", some)
        found.update(_checked_heads(rows))
    return found


def _checked_heads(rows: Iterable[tuple[int, bytes, int | None]]) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for series_no, blob, kept in rows:
        if kept is not None and kept != blob_sum(series_no, blob):
            raise damaged(f"head of series {series_no}")
        found[series_no] = blob
    return found
