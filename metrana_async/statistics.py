"""Counters and the loss ledger, as frozen snapshots.

The ledger balances at every quiescent moment::

    accepted = in_flight + spooled + committed + rejected(reason) + lost(reason)

`Ledger` belongs to the engine thread; `Statistics` may be read anywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from metrana_async.errors import DataLossError

_PIN_CONFLICT: Final = "pin_conflict"


@dataclass(frozen=True, slots=True)
class Statistics:
    """Points of one writer, by what became of them, and what sending them took.

    Attributes:
        accepted: points of every call that was not refused.
        in_flight: points in this process's memory, not yet acknowledged.
        spooled: points on this machine's disk, not yet acknowledged.
        committed: points the server acknowledged as durable.
        rejected, lost: points that will never arrive, by reason.
        outcomes: what the server made of committed points (`stored`, `duplicate`, `replaced`, …).
        batches_sealed, requests_sent: what was made and sent, repeats included in the second.
        send_errors: requests that got no usable answer and were sent again.
        notices_count: notices from server and client.
        usage_errors: calls refused under ``on_error="warn"``.
    """

    accepted: int = 0
    in_flight: int = 0
    spooled: int = 0
    committed: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)
    outcomes: Mapping[str, int] = field(default_factory=dict)
    batches_sealed: int = 0
    requests_sent: int = 0
    send_errors: int = 0
    notices_count: int = 0
    usage_errors: int = 0

    @property
    def losses(self) -> dict[str, int]:
        """Every point that will not arrive, by reason."""
        return dict(Counter(self.rejected) + Counter(self.lost))

    @property
    def is_balanced(self) -> bool:
        """True when every accepted point is accounted for exactly once."""
        known = self.in_flight + self.spooled + self.committed
        return self.accepted == known + sum(self.rejected.values()) + sum(self.lost.values())


@dataclass(frozen=True, slots=True)
class CloseInfo:
    """What `close()` and `shutdown_logger()` found: where every point of this writer is.

    Attributes:
        run_name: name of the run.
        status: how this handle ended: ``finished``, ``failed`` or ``stopped``; ``running`` where
            other handles of this process go on. The run's own state is in `QueryClient.run`.
        statistics: the final ledger; nothing is in flight any more.
        is_complete: True when every accepted point is stored by the server.
        notices: notices by kind.
    """

    run_name: str
    status: str
    statistics: Statistics
    notices: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """True when nothing was lost, rejected or left behind."""
        return self.statistics.committed == self.statistics.accepted


def raise_losses(statistics: Statistics, run_name: str) -> None:
    """Raise DataLossError where a point will not arrive."""
    losses = statistics.losses
    if losses:
        points = sum(losses.values())
        raise DataLossError(f"run {run_name!r} lost {points} points: {losses}", lost_points=losses)


@dataclass(slots=True)
class Ledger:
    """The mutable counts behind `Statistics`; one owner, the engine thread."""

    accepted: int = 0
    spooled: int = 0
    committed: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    batches_sealed: int = 0
    requests_sent: int = 0
    send_errors: int = 0

    @property
    def refused_points(self) -> int:
        """Points the server will never take."""
        return self.lost[_PIN_CONFLICT] + self.rejected.total()

    @property
    def dropped_points(self) -> int:
        """Points the server took and then dropped by its rules, as far as it has answered."""
        outcomes = self.outcomes
        return outcomes["duplicate"] + outcomes["superseded"] + self.lost[_PIN_CONFLICT]

    def snapshot(self, *, in_flight: int) -> Statistics:
        """Freeze the counts; `in_flight` is measured by the caller, not derived."""
        return Statistics(
            accepted=self.accepted,
            in_flight=in_flight,
            spooled=self.spooled,
            committed=self.committed,
            rejected=_frozen(self.rejected),
            lost=_frozen(self.lost),
            outcomes=_frozen(self.outcomes),
            batches_sealed=self.batches_sealed,
            requests_sent=self.requests_sent,
            send_errors=self.send_errors,
        )


def _frozen(counts: Counter[str]) -> Mapping[str, int]:
    return MappingProxyType({reason: n for reason, n in counts.items() if n})


def wire_counters(statistics: Statistics, notices: Mapping[str, int]) -> dict[str, int]:
    """The ledger and the notices by kind as flat counters for heartbeats.

    For example ``lost/drop_new`` and ``warned/DuplicateStep``.
    """
    counters: dict[str, Any] = {
        "accepted": statistics.accepted,
        "in_flight": statistics.in_flight,
        "spooled": statistics.spooled,
        "committed": statistics.committed,
    }
    counters |= {f"rejected/{reason}": n for reason, n in statistics.rejected.items()}
    counters |= {f"lost/{reason}": n for reason, n in statistics.lost.items()}
    counters |= {f"warned/{kind}": n for kind, n in notices.items()}
    return counters
