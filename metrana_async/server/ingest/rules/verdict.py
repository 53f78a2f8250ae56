"""The words in which the rules answer: outcome counts, and who has to be told what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from metrana_async.wire.acks import Outcome


@dataclass(frozen=True, slots=True)
class Writers:
    """The writers of a run as the rules see them.

    Attributes:
        orders: (order_us, writer_id) by writer_no; the greater one is the newer incarnation.
        is_live: whether a writer is online, has not left and is not known to be dead.
    """

    orders: Mapping[int, tuple[int, str]]
    is_live: Callable[[int], bool]

    def is_newer(self, one: int, other: int) -> bool:
        """True when `one` comes after `other` in writer order."""
        return self.orders[one] > self.orders[other]


class Telling(NamedTuple):
    """Something `recipient` is told; numbers only, the service finds the names.

    `key` is the row key of `points` (STANDARD, EPISODE) or the environment number (ENV_STEP).
    """

    kind: str
    recipient: int
    key: int
    episode: int | None = None
    points_count: int = 0
    other: int | None = None


@dataclass(slots=True)
class Verdict:
    """Outcome counts and tellings, collected while a table is judged."""

    counts: dict[Outcome, int] = field(default_factory=dict)
    tellings: list[Telling] = field(default_factory=list)

    def count(self, outcome: Outcome, points_count: int) -> None:
        """Add points to an outcome; zero adds no entry."""
        if points_count:
            self.counts[outcome] = self.counts.get(outcome, 0) + points_count
