"""What readers have already: versions of curves, and where two versions begin to differ.

A version is a digest of what it stands for, so it holds over restarts and needs no memory to say
that nothing changed. To send only what changed, the rows of versions that somebody means to come
back with are kept, the latest used up to a bound; without them an answer is complete.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping
from hashlib import blake2b
from typing import Final

import numpy as np

from metrana_async.wire.model import FloatArray, Int64Array

KEPT_BYTES: Final = 64 << 20
_DIGEST_BYTES: Final = 12
_VERSIONS_EACH: Final = 4
_ENTRY_BYTES: Final = 1024

Rows = Mapping[str, Int64Array | FloatArray]


def version_of(question: bytes, rows: Rows) -> str:
    """The version of an answer: another one for other rows, and for another question."""
    digest = blake2b(len(question).to_bytes(8, "little") + question, digest_size=_DIGEST_BYTES)
    for name in sorted(rows):
        digest.update(np.ascontiguousarray(rows[name]).data)
    return digest.hexdigest()


def first_difference(old: Rows, new: Rows) -> int:
    """The first row in which two tables of the same columns differ, bit by bit.

    Where one is the other's beginning, its length.
    """
    length = min(len(next(iter(table.values()))) for table in (old, new))
    is_other = np.zeros(length, dtype=np.bool_)
    for name, column in new.items():
        is_other |= old[name][:length].view(np.int64) != column[:length].view(np.int64)
    return int(np.argmax(is_other)) if is_other.any() else length


class KeptVersions:
    """The rows of versions by question, a few of each. Thread-safe; bounded in bytes."""

    def __init__(self, bytes_max: int = KEPT_BYTES) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, dict[str, Rows]] = OrderedDict()

    def keep(self, question: bytes, version: str, rows: Rows) -> None:
        """Remember the rows of a version, and forget the questions not asked for longest."""
        with self._lock:
            versions = self._kept.setdefault(question, {})
            self._kept.move_to_end(question)
            self._drop(versions, version)
            while len(versions) >= _VERSIONS_EACH:
                self._drop(versions, next(iter(versions)))
            versions[version] = rows
            self._bytes += _size(rows)
            while self._bytes > self._bytes_max:
                _, forgotten = self._kept.popitem(last=False)
                self._bytes -= sum(map(_size, forgotten.values()))

    def find(self, question: bytes, versions: Collection[str]) -> Rows | None:
        """The rows of the newest of these versions of the question that is kept, or None."""
        with self._lock:
            for version, rows in reversed(self._kept.get(question, {}).items()):
                if version in versions:
                    return rows
        return None

    def _drop(self, versions: dict[str, Rows], version: str) -> None:
        if version in versions:
            self._bytes -= _size(versions.pop(version))


def _size(rows: Rows) -> int:
    return _ENTRY_BYTES + sum(column.nbytes for column in rows.values())
