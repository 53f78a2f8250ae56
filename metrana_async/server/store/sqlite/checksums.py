"""What rows that hold points are checked by when they are read: a CRC32C of the row. Pure.

SQLite notices a damaged page only where the damage breaks its structure; a flipped bit inside a
value would come out as a number. Rows of before these sums were kept have none and are not checked.
"""

from __future__ import annotations

import struct
from typing import Final

import crc32c

from metrana_async.errors import StoreDamagedError
from metrana_async.server.store.sqlite.connections import RESTORE

_NO_SUM: Final = -1
"""Of what is not even of the right types, which a flipped bit can change as well."""
_UINT32: Final = 0xFFFF_FFFF
_TILE: Final = struct.Struct("<11q")
_STOREY: Final = struct.Struct("<4q")


def blob_sum(key: int, blob: bytes) -> int:
    """The sum of a row that is one blob under a key: another row's blob does not pass either."""
    try:
        sum_of_blob: int = crc32c.crc32c(blob, key & _UINT32)
    except TypeError:
        return _NO_SUM
    return sum_of_blob


def tile_sum(numbers: tuple[int, ...], integers: bytes, value: bytes) -> int:
    """The sum of a tile: unit_no, group_no, points_count and the eight bounds, then its bytes."""
    try:
        head = crc32c.crc32c(integers, crc32c.crc32c(_TILE.pack(*numbers)))
        return int(crc32c.crc32c(value, head))
    except (TypeError, struct.error):
        return _NO_SUM


def storey_sum(numbers: tuple[int, ...], records: bytes) -> int:
    """The sum of a storey of a pyramid: unit_no, depth, tile_no and level, then its rows."""
    try:
        return int(crc32c.crc32c(records, crc32c.crc32c(_STOREY.pack(*numbers))))
    except (TypeError, struct.error):
        return _NO_SUM


def check(what: str, kept: int | None, found: int) -> None:
    """Compare the sum that was kept with the row's.

    Raises:
        StoreDamagedError: they differ.
    """
    if kept is not None and kept != found:
        raise damaged(what)


def damaged(what: str) -> StoreDamagedError:
    """The error that says so."""
    return StoreDamagedError(
        f"{what} of the store is damaged: it is not what was written", hint=RESTORE
    )
