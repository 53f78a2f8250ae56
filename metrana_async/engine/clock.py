"""Time, injectable: nothing in the client reads a clock any other way."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for stamps, monotonic time for deadlines. Callable from any thread."""

    def time_ms(self) -> int:
        """Unix time in milliseconds."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never go back."""
        ...


class SystemClock:
    """The machine's clocks."""

    def time_ms(self) -> int:
        """Unix time in milliseconds."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()
