"""What was logged: every point has a value of its own, so that each can be found again.

Values are whole numbers below 2**24, which float32 holds exactly, and grow with time: within one
writer and series the order of the calls is the order of the values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

VALUES_MAX = 1 << 24


class Point(NamedTuple):
    """Where a value was logged: by which client, into which series and environment."""

    client: str
    metric: str
    env_id: str | None


@dataclass
class Book:
    """Every value of one simulation, and whose it is."""

    points: dict[int, Point] = field(default_factory=dict)
    next_value: int = 1
    logged_s: dict[int, float] = field(default_factory=dict)
    """When the call that carried a value was made."""

    def take(self, count: int) -> list[int]:
        """Values that were never used."""
        first = self.next_value
        self.next_value += count
        assert self.next_value < VALUES_MAX, "float32 would not tell the values apart"
        return list(range(first, first + count))

    def enter(self, values: list[int], point: Point, now_s: float) -> None:
        """The call that carried these values was taken."""
        for value in values:
            self.points[value] = point
            self.logged_s[value] = now_s
