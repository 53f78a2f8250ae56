"""Leases of episode numbers: each number of an environment is given to one writer at most.

Beyond every lease before and every episode that is stored, so that a number that somebody counted
himself is not given either, once his point has arrived.
"""

from __future__ import annotations

from metrana_async.errors import InvalidStepError, ProtocolError
from metrana_async.server.ingest.catalogue import Changes, RunState, WriterState
from metrana_async.server.ingest.cursors import RunCursors
from metrana_async.server.ingest.openings import is_hex_id
from metrana_async.server.store.base import LeaseRow
from metrana_async.wire import limits
from metrana_async.wire.messages import ReserveRequest
from metrana_async.wire.model import Family


def check_reserve(request: ReserveRequest) -> None:
    """Raise ProtocolError unless the request says what it has to."""
    if not is_hex_id(request.nonce):
        raise ProtocolError(f"ReserveRequest.nonce is {request.nonce!r:.80}, not 32 hex digits")
    if not 1 <= request.count <= limits.LEASE_EPISODES:
        raise ProtocolError(
            f"ReserveRequest.count is {request.count}; it is in 1..{limits.LEASE_EPISODES}"
        )
    if not 0 < len(request.env_id.encode()) <= limits.ENV_ID_BYTES:
        raise ProtocolError(f"ReserveRequest.env_id is {request.env_id!r:.80}")


def reserve(
    run: RunState,
    cursors: RunCursors,
    writer: WriterState,
    request: ReserveRequest,
    changes: Changes,
) -> int:
    """Give a writer the next episodes of an environment; returns the first.

    The same request again (a lost answer) is given the same, as long as the writer has asked for
    no other lease of the environment since. The cursors of all RL series are loaded.

    Raises:
        InvalidStepError: the numbers would pass 2**63-1.
    """
    env_no = run.env_no(request.env_id, changes)
    writer_no = writer.row.writer_no
    last = run.last_lease(env_no, writer_no)
    if last is not None and (last.nonce, last.count) == (request.nonce, request.count):
        return last.first
    first = max(run.leases_end(env_no), _episodes_end(run, cursors, env_no))
    if first + request.count - 1 > limits.STEP_MAX:
        raise InvalidStepError(f"episodes of {request.env_id!r} would pass 2**63-1")
    lease = LeaseRow(run.row.run_no, env_no, writer_no, request.nonce, first, request.count)
    run.note_lease(lease, changes)
    return first


def _episodes_end(run: RunState, cursors: RunCursors, env_no: int) -> int:
    """First episode of an environment beyond every one that is stored."""
    highest = -1
    for index, row in enumerate(run.series):
        family = row.definition.family
        if family is Family.STANDARD:
            continue
        column = (
            cursors.episodes[index].points.max_step
            if family is Family.EPISODE
            else cursors.env_steps[index].table.max_episode
        )
        if env_no < len(column):
            highest = max(highest, int(column[env_no]))
    return highest + 1
