"""What a writer tells its user, in words: each cause once, through `NoticeBoard`."""

from __future__ import annotations

from collections.abc import Callable

from metrana_async.errors import (
    MetranaError,
    MetranaWarning,
    PointsLost,
    SecondWriter,
    SpoolWarning,
)
from metrana_async.notices import NoticeBoard, say

SPOOL_FULL = "spool_full"


class Telling:
    """The texts of one run. Any thread.

    Attributes:
        is_quiet: whether nothing is said that is not a warning.
    """

    def __init__(
        self, board: NoticeBoard, run_name: Callable[[], str], *, is_offline: bool
    ) -> None:
        self.is_quiet = True
        self._board = board
        self._run_name = run_name
        self._is_offline = is_offline

    @property
    def _run(self) -> str:
        return f"run {self._run_name()!r}"

    def _tell(self, category: type[MetranaWarning], text: str, *, key: tuple[object, ...]) -> None:
        self._board.tell(category, text, key=key, stacklevel=0)

    def trouble(self, error: MetranaError) -> None:
        """A request failed and is made again."""
        text = f"{self._run}: {error}; it is tried again, logging goes on"
        self._tell(MetranaWarning, text, key=("trouble", error.code))

    def refused_points(self, points: int) -> None:
        """The server will never take some points."""
        text = f"{points} points of {self._run} were refused by the server"
        self._tell(PointsLost, text, key=("refused",))

    def not_stored(self, points: int, how: str) -> None:
        """The run was `how` and points stay behind that nobody has."""
        text = f"{self._run} was {how} with {points} points not stored"
        self._tell(PointsLost, text, key=(how,))

    def shedding(self) -> None:
        """Disk and memory are full, and new points are lost."""
        text = (
            f"{self._run}: no server answers, and disk and memory are full; new points are lost "
            "(and counted) until that changes"
        )
        self._tell(PointsLost, text, key=(SPOOL_FULL,))

    def refused_run(self, error: MetranaError, directory: str | None) -> None:
        """A run that started without a server may not join it."""
        text = (
            f"{self._run}: {error.message}. What it logs stays on this machine; to send it under "
            f"another name: metrana-async sync --rename-to NEW {directory}"
        )
        self._tell(SpoolWarning, text, key=("refused_run",))

    def spool_failed(self, error: OSError, directory: str | None) -> None:
        """The disk refuses."""
        text = (
            f"{self._run}: the disk spool in {directory} takes nothing "
            f"({error.strerror or error}); what waits is kept in memory, and the disk tried again"
        )
        self._tell(SpoolWarning, text, key=("spool", error.errno))

    def kept(self, points: int, directory: str | None) -> None:
        """The run ends with points on the disk; of an offline run that is what was asked for."""
        text = f"{self._run}: {points} points are kept on this machine. To deliver them: "
        if self._is_offline:
            if not self.is_quiet:
                say(f"{text}metrana-async sync {directory}")
            return
        text += f"the next run against this server does so, or: metrana-async sync {directory}"
        self._tell(SpoolWarning, text, key=("kept",))

    def renewed(self) -> None:
        """Another process uses our identity."""
        text = f"{self._run}: another process wrote as this writer; it takes a new name"
        self._tell(SecondWriter, text, key=("renewed",))
