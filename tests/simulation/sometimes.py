"""What a set of worlds must have shown, or it proves nothing: each kind of event at least once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SOMETIMES: Final = (
    "adoption delivered",
    "answer misrouted",
    "batch duplicate",
    "batch gap",
    "batch need_pages",
    "batch rejected",
    "batch stored",
    "bits flipped",
    "client killed",
    "clock shifted",
    "cloned",
    "closed",
    "closed with leftovers",
    "commit ambiguous",
    "commit refused",
    "connection refused",
    "connection swallowed",
    "cut in answer",
    "cut in request",
    "disk full",
    "disk trouble slow",
    "disk: client killed in a disk call",
    "disk: data lost",
    "disk: name lost",
    "disk: power cut",
    "disk: sync EIO",
    "disk: torn",
    "disk: write EIO",
    "dropped",
    "flush timed out",
    "flushed",
    "keep-alive race",
    "lost closed",
    "lost drop_new",
    "lost spool_full",
    "network stall",
    "overflowed to the disk only",
    "partition",
    "paused",
    "proxy lied",
    "queue full",
    "request replayed",
    "segment held",
    "server killed",
    "server rolled back",
    "spool refused",
    "started without a server",
    "sync delivered",
    "sync set_aside",
)
"""Kinds of events, as `Trace.note` names them."""


def never_seen(counts: Mapping[str, int]) -> list[str]:
    """The kinds that did not happen."""
    return [kind for kind in SOMETIMES if not counts.get(kind)]
