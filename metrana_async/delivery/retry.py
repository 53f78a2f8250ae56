"""How long to wait before the same bytes are sent again. The only layer that retries.

Full jitter: uniform in [0, min(0.25 s * 2^n, 30 s)], so that many writers behind one outage do not
come back together. The server's own wish (Retry-After) beats our schedule, capped. A connection
that was cut right after a success is most likely a kept-alive one the server had closed: the
first such failure is retried at once.
"""

from __future__ import annotations

import random
from typing import Final

from metrana_async.errors import MetranaError, TransportError

BASE_S: Final = 0.25
DELAY_MAX_S: Final = 30.0
RETRY_AFTER_MAX_S: Final = 300.0


class Backoff:
    """The retry schedule of one writer. Pure: it waits for nothing itself."""

    def __init__(self, rng: random.Random | None = None) -> None:
        # Jitter, not secrecy; each writer has its own generator so that tests can seed it.
        self._rng = rng or random.Random()  # noqa: S311
        self.failures_count = 0

    def succeeded(self) -> None:
        """Start over: the server answered."""
        self.failures_count = 0

    def delay_s(self, error: MetranaError) -> float:
        """Seconds to wait after `error`; counts the failure."""
        self.failures_count += 1
        asked = getattr(error, "retry_after_s", None)
        if asked is not None:
            return min(max(float(asked), 0.0), RETRY_AFTER_MAX_S)
        if self.failures_count == 1 and error.code == TransportError.code:
            # The plain code means cut while waiting for the answer, not refused nor unreachable.
            return 0.0
        # The exponent is bounded before it is raised: a week of outage must not overflow.
        ceiling = min(DELAY_MAX_S, BASE_S * 2.0 ** min(self.failures_count - 1, 10))
        return self._rng.uniform(0.0, ceiling)
