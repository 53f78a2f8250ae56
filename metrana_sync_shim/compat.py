"""Stand in for the hosted client under its own module name, for scripts that cannot change."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Final

from metrana_async import errors
from metrana_async.errors import UsageError

EXCEPTION_NAMES: Final[dict[str, type[Exception]]] = {
    "CustomException": errors.MetranaError,
    "MetranaNotInitializedError": errors.NotInitializedError,
    "MetranaProcessForkError": errors.InternalError,
    "MetranaValidationError": errors.ValidationError,
    "MetranaSenderError": errors.DataLossError,
    "MetranaClosingError": errors.DataLossError,
    "MetranaTimeoutError": errors.WaitTimeoutError,
    "MetranaLoggerClosedError": errors.RunClosedError,
    "MetranaEventQueueFullError": errors.QueueFullError,
    "NoMetranaApiKeyError": errors.AuthError,
    "MetranaLoggerInitError": errors.InitError,
    "MetranaSpoolUnavailableError": errors.InitError,
    "MetranaRunAlreadyExistsError": errors.RunAlreadyExistsError,
    "MetranaOrchestrationIdMismatchError": errors.RunAlreadyExistsError,
    "MetranaQueryError": errors.RejectedError,
    "MetranaQueryValueError": errors.InvalidQueryError,
    "MetranaQueryTransportError": errors.TransportError,
}
"""The hosted client's exception names and what is raised in their place."""


def install_as_metrana() -> None:
    """Register the shim as module ``metrana`` with the submodules that scripts import.

    Call it before anything imports ``metrana``. Idempotent.

    Raises:
        UsageError: another ``metrana`` is imported already.
    """
    shim = importlib.import_module("metrana_sync_shim")
    present = sys.modules.get("metrana")
    if present is not None and present is not shim:
        raise UsageError(f"another module 'metrana' is imported already: {present!r}")
    query = ModuleType("metrana.query", "The blocking query client.")
    found = importlib.import_module("metrana_async.query")
    vars(query).update({name: getattr(found, name) for name in found.__all__})
    query.__dict__["QueryClient"] = found.BlockingQueryClient
    exceptions = ModuleType("metrana.utils.exceptions", "The hosted client's exception names.")
    vars(exceptions).update(EXCEPTION_NAMES)
    utils = ModuleType("metrana.utils", "Home of the exception names.")
    utils.__dict__["exceptions"] = exceptions
    sys.modules["metrana"] = shim
    sys.modules["metrana.query"] = query
    sys.modules["metrana.utils"] = utils
    sys.modules["metrana.utils.exceptions"] = exceptions
