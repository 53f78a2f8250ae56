"""The error tree, keyed by whose fault it is. Imports nothing of ours.

::

    MetranaError                  .code  .retryable  .hint
    ├─ UsageError                 the caller's mistake; never retried; no partial effect
    │  ├─ ValidationError         (also ValueError)
    │  │  ├─ InvalidNameError  InvalidStepError  InvalidValueError  InvalidShapeError
    │  │  ├─ PinConflictError
    │  │  └─ InvalidTypeError     a type that has no meaning here (also TypeError)
    │  ├─ NotInitializedError     (also RuntimeError)
    │  └─ RunClosedError          (also RuntimeError)
    ├─ InitError                  init() could not do its job
    ├─ QueueFullError             no room in the inbox under the policy in force
    ├─ WaitTimeoutError           a deadline passed; nothing is lost (also TimeoutError)
    ├─ TransportError             retryable
    │  ├─ ConnectError  RateLimitedError
    │  └─ UnavailableError  DiskFullError  StoreDamagedError  StoreFailedError
    ├─ RejectedError              the server refused
    │  ├─ AuthError  RunAlreadyExistsError  BatchTooLargeError
    │  └─ UnsupportedAggregationError  InvalidQueryError  NotFoundError  RunDeletedError
    ├─ ProtocolError              bytes that are not what they claim to be
    ├─ DataLossError              carries lost points by reason; only where asked for
    └─ InternalError              an invariant broke: our bug, please report

    MetranaWarning: DuplicateStep EpisodeRestarted EpisodeTakenOver SecondWriter PinConflict
                    PointsLost SpoolWarning ValueWidened RlStepDecreased

Retry policy reads ``retryable``; it never lists classes. Every error has one wire code and every
wire code one class (``ERROR_BY_CODE``).
"""

from __future__ import annotations

from typing import Any, ClassVar


class MetranaError(Exception):
    """Base of every error this package raises.

    Attributes:
        code: stable machine name, the same on the wire.
        retryable: True when the same bytes may be sent again.
        hint: what to do about it, or None.
    """

    code: ClassVar[str] = "error"
    retryable: bool = False

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message} — {hint}")
        self.message = message
        self.hint = hint


class UsageError(MetranaError):
    """The caller's mistake. Nothing of the call has taken effect."""

    code = "usage"


class ValidationError(UsageError, ValueError):
    """An argument is not acceptable; the message names the offending element."""

    code = "validation"

    def about(self, what: str) -> ValidationError:
        """The same error, its message beginning with what it is about."""
        return type(self)(f"{what}: {self.message}", hint=self.hint)


class InvalidNameError(ValidationError):
    """A name is empty, too long or holds a character that is not allowed there."""

    code = "invalid_name"


class InvalidStepError(ValidationError):
    """A step, rl_step, episode, env_step or timestamp is not an integer in range."""

    code = "invalid_step"


class InvalidValueError(ValidationError):
    """A value cannot be stored as a number without inventing or losing something."""

    code = "invalid_value"


class InvalidShapeError(ValidationError):
    """Arguments do not fit each other's shape; the message gives both."""

    code = "invalid_shape"


class PinConflictError(ValidationError):
    """The metric is pinned to another ordering, episode use or env-step mode."""

    code = "pin_conflict"


class InvalidTypeError(ValidationError, TypeError):
    """A value of a type that means nothing here (str, None, bytes, complex, bool as a step)."""

    code = "invalid_type"


class NotInitializedError(UsageError, RuntimeError):
    """There is no current run: call init() first."""

    code = "not_initialized"


class RunClosedError(UsageError, RuntimeError):
    """The run (or this handle's writer) was closed."""

    code = "run_closed"


class InitError(MetranaError):
    """init() could not do its job; nothing was started."""

    code = "init"


class QueueFullError(MetranaError):
    """The inbox has no room under the policy in force; the block was not taken."""

    code = "queue_full"


class WaitTimeoutError(MetranaError, TimeoutError):
    """A deadline passed. The data is still in flight; nothing is lost by this."""

    code = "wait_timeout"


class TransportError(MetranaError):
    """The server could not be reached or did not answer; the same bytes are sent again.

    Attributes:
        retry_after_s: seconds the server asked us to wait, or None.
    """

    code = "transport"
    retryable = True

    def __init__(
        self, message: str, *, retry_after_s: float | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class ConnectError(TransportError):
    """No connection could be made."""

    code = "connect"


class UnavailableError(TransportError):
    """The server answered that it cannot serve now (5xx) or answered nonsense."""

    code = "unavailable"


class DiskFullError(UnavailableError):
    """The server's disk is full: nothing of the request is stored; it recovers with space."""

    code = "disk_full"


class StoreDamagedError(UnavailableError):
    """Stored bytes are not what was written (a flipped bit): they are not given out."""

    code = "store_damaged"


class StoreFailedError(UnavailableError):
    """The server's disk failed to sync: nothing more is stored until the server starts anew."""

    code = "store_failed"


class RateLimitedError(TransportError):
    """The server asked for a pause."""

    code = "rate_limited"


class RejectedError(MetranaError):
    """The server understood and refused."""

    code = "rejected"


class AuthError(RejectedError):
    """Missing or wrong credentials."""

    code = "auth"


class RunAlreadyExistsError(RejectedError):
    """Another job owns this run name under ``resume_strategy="never"``."""

    code = "run_already_exists"


class UnsupportedAggregationError(RejectedError, ValueError):
    """The series does not offer this aggregation; the message names those it does."""

    code = "unsupported_aggregation"


class BatchTooLargeError(RejectedError):
    """A batch or request is beyond the published limit."""

    code = "batch_too_large"


class NotFoundError(RejectedError, LookupError):
    """There is no such run, project or series."""

    code = "not_found"


class RunDeletedError(NotFoundError):
    """The run was deleted; what its writers still send is lost."""

    code = "run_deleted"


class InvalidQueryError(RejectedError, ValueError):
    """A query asks for something that has no meaning."""

    code = "invalid_query"


class ProtocolError(MetranaError):
    """Bytes are not what they claim to be: bad magic, length, checksum, version or shape."""

    code = "protocol"


class DataLossError(MetranaError):
    """Points will not arrive, and the caller asked to be told by an exception.

    Attributes:
        lost_points: count of lost points by reason.
    """

    code = "data_loss"

    def __init__(
        self, message: str, *, lost_points: dict[str, int], hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.lost_points = lost_points


class InternalError(MetranaError):
    """An invariant broke: this is our bug, please report it."""

    code = "internal"


class MetranaWarning(UserWarning):
    """Base of every warning; each cause is warned once, then counted."""


class DuplicateStep(MetranaWarning):
    """Points at a step that was already taken were dropped or replaced an older value."""


class EpisodeRestarted(MetranaWarning):
    """An episode began again; its earlier points are discarded."""


class EpisodeTakenOver(MetranaWarning):
    """Two live writers logged one episode."""


class SecondWriter(MetranaWarning):
    """Two live writers log one ordered series."""


class PinConflict(MetranaWarning):
    """Points of a metric that another writer pinned differently were lost."""


class PointsLost(MetranaWarning):
    """Points will not arrive; the ledger says how many and why."""


class SpoolWarning(MetranaWarning):
    """Trouble with the disk spool."""


class ValueWidened(MetranaWarning):
    """A value was stored wider, or rounded, because its dtype could not hold it exactly."""


class RlStepDecreased(MetranaWarning):
    """An rl_step fell where it should not decrease; the point was handled by the rules."""


def _all_subclasses(cls: type[MetranaError]) -> list[type[MetranaError]]:
    found = [cls]
    for child in cls.__subclasses__():
        found += _all_subclasses(child)
    return found


ERROR_BY_CODE: dict[str, type[MetranaError]] = {
    cls.code: cls for cls in _all_subclasses(MetranaError)
}

WARNING_BY_KIND: dict[str, type[MetranaWarning]] = {
    cls.__name__: cls for cls in MetranaWarning.__subclasses__()
}


def error_from_code(code: str, message: str, **extra: Any) -> MetranaError:
    """Build the error that a wire code stands for; an unknown code is a RejectedError."""
    cls = ERROR_BY_CODE.get(code, RejectedError)
    if cls is DataLossError:
        return DataLossError(message, lost_points=dict(extra.get("lost_points", {})))
    if issubclass(cls, TransportError):
        return cls(message, retry_after_s=extra.get("retry_after_s"))
    return cls(message)
