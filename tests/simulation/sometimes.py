"""What a set of worlds must have shown, or it proves nothing: each kind of event at least once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SOMETIMES: Final = (
    "answer misrouted",
    "batch duplicate",
    "batch gap",
    "batch need_pages",
    "batch stored",
    "client killed",
    "clock shifted",
    "closed",
    "commit ambiguous",
    "commit refused",
    "connection refused",
    "connection swallowed",
    "cut in answer",
    "cut in request",
    "dropped",
    "flush timed out",
    "flushed",
    "network stall",
    "partition",
    "paused",
    "proxy lied",
    "queue full",
    "request replayed",
    "segment held",
    "server killed",
    "server rolled back",
)
"""Kinds of events, as `Trace.note` names them."""


def never_seen(counts: Mapping[str, int]) -> list[str]:
    """The kinds that did not happen."""
    return [kind for kind in SOMETIMES if not counts.get(kind)]
