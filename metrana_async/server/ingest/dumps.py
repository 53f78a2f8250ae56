"""Cursors of one series as bytes, for `store.seal`, and back.

A STANDARD series is a JSON list of three integers (64 of them are dumped at once); the RL families
are a JSON header and their columns, compressed. Only what `absorb` builds is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import zstandard

from metrana_async.errors import InternalError
from metrana_async.server.ingest.rules.points import PointCursors
from metrana_async.server.ingest.rules.unit_table import UnitTable
from metrana_async.server.ingest.rules.units import (
    UNIT_COLUMNS,
    UNIT_ENV,
    UNIT_EPISODE,
    Others,
    Span,
)

_VERSION = 1


def dump_standard(cursors: PointCursors, key: int) -> bytes:
    """The cursor of one STANDARD series."""
    columns = (cursors.max_step, cursors.last_writer, cursors.top_writer)
    return orjson.dumps([int(column[key]) for column in columns])


def load_standard(cursors: PointCursors, key: int, blob: bytes) -> None:
    """Set the cursor of one STANDARD series."""
    cursors.max_step[key], cursors.last_writer[key], cursors.top_writer[key] = orjson.loads(blob)


def standard_columns(blobs: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """The cursors of many STANDARD series: int64 [3, n], max_step, last_writer and top_writer."""
    rows = orjson.loads(b"[" + b",".join(blobs) + b"]")
    return np.array(rows, dtype=np.int64).reshape(-1, 3).T


def dump_episodes(cursors: PointCursors, max_rl: npt.NDArray[np.int64]) -> bytes:
    """The cursors of one EPISODE series, a key per environment, and its greatest rl_steps."""
    used = int(np.flatnonzero(cursors.max_step >= 0).max(initial=-1)) + 1
    columns = [cursors.max_step, cursors.last_writer, cursors.top_writer, max_rl]
    return _pack({}, [column[:used] for column in columns])


def load_episodes(blob: bytes) -> tuple[PointCursors, npt.NDArray[np.int64]]:
    """What `dump_episodes` kept."""
    _, (max_step, last_writer, top_writer, max_rl) = _unpack(blob)
    second_told = np.zeros(len(max_step), np.bool_)
    return PointCursors(max_step, last_writer, top_writer, second_told), max_rl


def dump_units(table: UnitTable) -> bytes:
    """The state of one ENV_STEP series, without the rows that are free."""
    older = table.older_rows
    used = int(np.flatnonzero(table.mode).max(initial=-1)) + 1
    latest = table.latest_row[:used]
    latest_envs = np.flatnonzero(latest >= 0)
    rows = np.concatenate([latest[latest_envs], np.array(list(older.values()), np.int64)])
    place = {row: position for position, row in enumerate(rows.tolist())}
    others = [
        [place[row], [(w, list(s)) for w, s in o.spans.items()], list(o.past.items())]
        for row, o in table.others.items()
        if row in place
    ]
    header = {"latest": len(latest_envs), "others": others}
    per_env = [table.max_episode, table.max_rl, table.cold_episode, table.mode.astype(np.int64)]
    units = np.ascontiguousarray(table.units[:, rows]).reshape(-1)
    return _pack(header, [*(column[:used] for column in per_env), units])


def load_units(blob: bytes) -> UnitTable:
    """What `dump_units` kept."""
    header, (max_episode, max_rl, cold_episode, mode, units) = _unpack(blob)
    columns = units.reshape(UNIT_COLUMNS, -1)
    count, latest = columns.shape[1], int(header["latest"])
    latest_row = np.full(len(mode), -1, np.int64)
    latest_row[columns[UNIT_ENV, :latest]] = np.arange(latest)
    keys = zip(
        columns[UNIT_ENV, latest:].tolist(), columns[UNIT_EPISODE, latest:].tolist(), strict=True
    )
    return UnitTable(
        mode=mode.astype(np.int8),
        max_episode=max_episode,
        max_rl=max_rl,
        cold_episode=cold_episode,
        latest_row=latest_row,
        units=columns,
        rows_used=count,
        older_rows=dict(zip(keys, range(latest, count), strict=True)),
        others={
            row: Others({w: Span(*span) for w, span in spans}, dict(past))
            for row, spans, past in header["others"]
        },
    )


def _pack(header: dict[str, Any], columns: list[npt.NDArray[np.int64]]) -> bytes:
    head = orjson.dumps({"v": _VERSION, "n": [len(c) for c in columns], **header})
    body = b"".join(np.ascontiguousarray(column, "<i8").tobytes() for column in columns)
    return len(head).to_bytes(4, "little") + head + zstandard.ZstdCompressor(level=1).compress(body)


def _unpack(blob: bytes) -> tuple[dict[str, Any], list[npt.NDArray[np.int64]]]:
    head_len = int.from_bytes(blob[:4], "little")
    header: dict[str, Any] = orjson.loads(blob[4 : 4 + head_len])
    if header["v"] != _VERSION:
        raise InternalError(f"cursor version {header['v']} is not {_VERSION}")
    body = zstandard.ZstdDecompressor().decompress(blob[4 + head_len :])
    values = np.frombuffer(body, "<i8").astype(np.int64)
    bounds = np.cumsum(header["n"])[:-1]
    return header, [column.copy() for column in np.split(values, bounds)]
