"""What the user is told: each cause is warned once, then counted.

Notices come from the server, from the columns (a value stored wider) and from the client itself
(points lost, trouble with the server). Warnings leave through `warnings.warn`; a filter that turns
them into errors must not kill the engine thread, so there they are logged instead.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import warnings
from collections import Counter, deque
from typing import Final

from metrana_async.errors import WARNING_BY_KIND, MetranaWarning
from metrana_async.wire.acks import Notice

NOTICES_KEPT: Final = 1000
_KEYS_KEPT: Final = 10_000

logger = logging.getLogger("metrana_async")

_LEVELS: Final = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "success": logging.INFO,
    "off": logging.CRITICAL + 1,
}


def set_log_level(level: str) -> None:
    """Set the level of the logger ``metrana_async``, in the spellings of `Settings.log_level`."""
    logger.setLevel(_LEVELS.get(level) or level.upper())


def say(text: str) -> None:
    """Write a line to stderr as it is now; a stream that takes nothing is left alone."""
    stream = sys.stderr
    if stream is None:
        return  # a program without a console has none
    line = f"metrana: {text}\n"
    # Closed, read-only, a broken pipe: what cannot be said must not end the training.
    with contextlib.suppress(OSError, ValueError):
        try:
            stream.write(line)
        except UnicodeEncodeError:
            stream.write(line.encode("ascii", "backslashreplace").decode("ascii"))
        stream.flush()


class NoticeBoard:
    """Notices of one writer. Any thread."""

    def __init__(self) -> None:
        # Reentrant: a warning may run code of others, and a signal handler may log.
        self._lock = threading.RLock()
        self._kept: deque[Notice] = deque(maxlen=NOTICES_KEPT)
        self._counts: Counter[str] = Counter()
        self._told: set[tuple[object, ...]] = set()

    @property
    def kept(self) -> list[Notice]:
        """The most recent notices, oldest first."""
        with self._lock:
            return list(self._kept)

    @property
    def counts(self) -> dict[str, int]:
        """Notices so far, by kind."""
        with self._lock:
            return dict(self._counts)

    def add(self, notice: Notice, *, stacklevel: int = 2) -> None:
        """Keep a notice and warn about it, unless the same was said about this series before."""
        series = (notice.metric, *sorted(notice.labels.items()))
        if self.tell(WARNING_BY_KIND.get(notice.kind, MetranaWarning), notice.text,
                     key=(notice.kind, *series), stacklevel=stacklevel + 1):  # fmt: skip
            logger.info("%s: %s", notice.kind, notice.text)
        with self._lock:
            self._kept.append(notice)
            self._counts[notice.kind] += 1

    def tell(
        self,
        category: type[MetranaWarning],
        text: str,
        *,
        key: tuple[object, ...],
        stacklevel: int = 2,
    ) -> bool:
        """Warn once per `key`; whether it was the first time.

        With `stacklevel` 0 no line of anybody's code is shown: it is the engine that speaks.
        """
        with self._lock:
            if key in self._told:
                return False
            if len(self._told) >= _KEYS_KEPT:
                # Better to say something a second time than to remember for ever.
                self._told.clear()
            self._told.add(key)
        try:
            if stacklevel:
                warnings.warn(text, category, stacklevel=stacklevel + 1)
            else:
                warnings.warn_explicit(text, category, "metrana", 0, module="metrana_async")
        except MetranaWarning:
            logger.warning("%s: %s", category.__name__, text)
        return True
