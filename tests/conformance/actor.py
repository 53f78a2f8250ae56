"""One lettered process: reads calls as JSON lines, makes them through the public shim, answers.

Run as `python -m tests.conformance.actor`. The answer to a call is
`{"returned": ...}` or `{"raised": [class names of the MRO], "text": ...}`.

With `"hold": true` in the `start` message, what would be ingested is kept and answered as if it
had been stored, until `flush` (which lets everything through) — so that the runner can deliver a
killed process's last batches after its successor's.

With `"spool": DIRECTORY` there, runs are offline: they keep everything in that directory.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import metrana_sync_shim as metrana
from metrana_async.errors import MetranaWarning
from metrana_async.transport.base import Transport
from tests.conformance.cases import arguments, words_to_floats
from tests.conformance.holding import HoldingTransport

JOB_VARIABLES = (
    "METRANA_ORCHESTRATION_ID",
    "TORCHELASTIC_RUN_ID",
    "SLURM_JOB_ID",
    "RAY_JOB_ID",
    "SLURM_NNODES",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
)


class Actor:
    """What one letter does in one case.

    Args:
        connect: makes the transport of a run; None = the local server of the case's data
            directory, as users get it.
    """

    def __init__(self, connect: Callable[[], Transport] | None = None) -> None:
        self.run: Any = None
        self.opened: list[Any] = []
        self.start: dict[str, Any] = {}
        self.holding: HoldingTransport | None = None
        self._connect = connect
        self._transport: Transport | None = None

    def do_start(self, message: dict[str, Any]) -> None:
        """A new case: forget the last one's environment and run."""
        self.start = message
        self.run, self.opened = None, []
        self._transport = None
        for name in JOB_VARIABLES:
            os.environ.pop(name, None)

    def do_call(self, call: dict[str, Any]) -> Any:
        """Make one call and return what it returned, as JSON."""
        function = getattr(self, f"_{call['fn']}", None)
        keywords = arguments(call, arrays=bool(self.start.get("arrays")))
        if function is not None:
            return function(**keywords)
        method = getattr(self.run, call["fn"])
        result = method(**keywords)
        return list(result) if isinstance(result, tuple) else result

    def _init(self, **keywords: Any) -> None:
        if self._transport is None and self._connect is not None:
            # Once a case: a writer is one per process, server and run, and this is its server.
            self._transport = self._connect()
        transport = self._transport
        if self.start.get("hold"):
            transport = self.holding = HoldingTransport(self.start["data_dir"])
        self.run = metrana.init(
            workspace_name="conformance",
            project_name=self.start["project"],
            data_dir=self.start["data_dir"],
            quiet=True,
            **({"transport": transport} if transport is not None else {}),
            **self._offline(),
            **keywords,
        )
        self.opened.append(self.run)

    def _offline(self) -> dict[str, Any]:
        spool = self.start.get("spool")
        return {} if spool is None else {"init_mode": "offline", "disk": spool}

    def do_leave(self) -> None:
        """The case is over: what is open is left as it is."""
        for run in self.opened:
            run.shutdown_logger()

    def _close(self) -> None:
        info = self.run.close()
        assert info.statistics.is_balanced, f"the client's ledger does not balance: {info}"
        assert info.statistics.in_flight == 0, f"points were left behind: {info}"

    def _shutdown(self) -> None:
        self.run.shutdown_logger()

    def _flush(self) -> None:
        if self.holding is not None:
            self.run.flush()
            self.holding.release()
            return
        self.run.flush()

    def _kill(self) -> dict[str, Any]:
        """Everything logged so far is flushed; the runner kills this process on the answer."""
        self.run.flush()
        held = [] if self.holding is None else self.holding.held
        writer = self.run._run.front.writer
        return {
            "held": [base64.b64encode(body).decode() for body in held],
            "run_uid": writer.membership.run_uid,
            "writer_id": writer.writer_id,
        }

    def _environ(self, **variables: str) -> None:
        os.environ.update(variables)

    def _read_environ(self, **variables: str) -> None:
        found = {name: os.environ.get(name) for name in variables}
        assert found == variables, f"environment is {found}, not {variables}"

    def _log_then_mutate(
        self, *, metric_name: str, value: Any, mutate_to: Any, **rest: Any
    ) -> None:
        import numpy as np

        array = np.array(words_to_floats(value))
        self.run.log(metric_name, array, **rest)
        array[...] = np.array(words_to_floats(mutate_to))

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Do what a message asks for; every refusal is an answer."""
        try:
            if message["do"] == "start":
                return {"returned": self.do_start(message)}
            if message["do"] == "leave":
                return {"returned": self.do_leave()}
            if message["do"] == "notices":
                return {"returned": self.notices()}
            return {"returned": self.do_call(message["call"])}
        except Exception as error:
            names = [cls.__name__ for cls in type(error).__mro__]
            return {"raised": names, "text": str(error)}

    def notices(self) -> list[str]:
        """Kinds of every notice and warning this process was given for its run."""
        return [] if self.run is None else [notice.kind for notice in self.run.notices]


def main() -> None:
    """Serve calls until the input ends."""
    warnings.simplefilter("ignore", MetranaWarning)
    actor = Actor()
    for line in sys.stdin:
        answer = actor.answer(json.loads(line))
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
