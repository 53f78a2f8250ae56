"""Pages: dictionaries of series definitions or environment ids, named by their digest.

Names travel once, not once a batch. A page is immutable; a batch lists the digests of the pages
it uses, and a server that does not know one answers ``need_pages``, so a batch stays the same
bytes whoever reads it and in whatever order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from metrana_async.errors import ProtocolError
from metrana_async.wire import limits
from metrana_async.wire.frames import FRAME_PAGE, encode_frame
from metrana_async.wire.model import Family, Ordering, SeriesDef


@dataclass(frozen=True, slots=True)
class Page:
    """A dictionary page: either series definitions or environment ids, never both.

    Attributes:
        digest: 32 hex digits of BLAKE2b over the body.
        frame: the encoded frame that carries it.
    """

    digest: str
    frame: bytes
    series: tuple[SeriesDef, ...] = ()
    envs: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.series) + len(self.envs)


def _digest(body: bytes | memoryview) -> str:
    return hashlib.blake2b(body, digest_size=16).hexdigest()


def encode_series_page(series: Sequence[SeriesDef]) -> Page:
    """Make the page of these definitions, in this order."""
    rows = [
        [s.family.value, s.metric, s.scale, list(map(list, s.labels)), s.ordering.value, s.episodic]
        for s in series
    ]
    body = orjson.dumps({"series": rows})
    return Page(_digest(body), encode_frame(FRAME_PAGE, body, compress=True), series=tuple(series))


def encode_env_page(envs: Sequence[str]) -> Page:
    """Make the page of these environment ids, in this order."""
    body = orjson.dumps({"envs": list(envs)})
    return Page(_digest(body), encode_frame(FRAME_PAGE, body, compress=True), envs=tuple(envs))


def decode_page(body: bytes | memoryview, encoded: bytes | memoryview = b"") -> Page:
    """Decode the body of a page frame.

    Raises:
        ProtocolError: it is not a page, is empty or has more than `limits.PAGE_ENTRIES` entries.
    """
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ProtocolError(f"page is not JSON: {error}") from error
    if not isinstance(content, dict) or len(content) != 1:
        raise ProtocolError("page is not an object with one list")
    ((kind, rows),) = content.items()
    if not isinstance(rows, list) or not 1 <= len(rows) <= limits.PAGE_ENTRIES:
        raise ProtocolError(f"page holds no list of 1..{limits.PAGE_ENTRIES} entries")
    digest = _digest(body)
    if kind == "envs":
        if not all(isinstance(name, str) and name for name in rows):
            raise ProtocolError("environment page holds something that is not an id")
        return Page(digest, bytes(encoded), envs=tuple(rows))
    if kind == "series":
        return Page(digest, bytes(encoded), series=tuple(_series_def(row) for row in rows))
    raise ProtocolError(f"page kind {kind!r} is unknown")


def _series_def(row: Any) -> SeriesDef:
    try:
        family, metric, scale, labels, ordering, episodic = row
        if not (isinstance(metric, str) and metric and isinstance(scale, str) and scale):
            raise ValueError("metric and scale are non-empty strings")
        pairs = tuple((key, value) for key, value in labels)
        if not all(isinstance(k, str) and isinstance(v, str) for k, v in pairs):
            raise ValueError("labels are strings")
        if list(pairs) != sorted(dict(pairs).items()):
            raise ValueError("labels are sorted and unique")
        if episodic not in (True, False, None):
            raise ValueError("episodic is true, false or null")
        return SeriesDef(Family(family), metric, scale, pairs, Ordering(ordering), episodic)
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"series page row {row!r} is not a definition: {error}") from error
