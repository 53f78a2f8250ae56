"""Writers come and go: open, heartbeat, leave, and what that means for the run's state.

Functions over a loaded run; they change it and put the new rows into the commit in the making.

A run is "running" while a writer is live or is being replayed. When the last of them leaves, it
says how the run ended; when the last of them falls silent, the run has crashed. Replayed writers
come out of their time: what they say of the run counts where no newer writer spoke.
"""

from __future__ import annotations

import secrets
from dataclasses import asdict

from metrana_async.errors import ProtocolError, RunAlreadyExistsError
from metrana_async.server.ingest import notices
from metrana_async.server.ingest.catalogue import Changes, RunState, WriterState
from metrana_async.server.ingest.liveness import ProcessWatch, is_live, is_replayed
from metrana_async.server.store.base import PointStore, RunRow, WriterRow
from metrana_async.wire import limits
from metrana_async.wire.messages import LeaveRequest, OpenRequest

RUNNING = "running"
CRASHED = "crashed"
SEEN_KEPT_EVERY_MS = 5_000
END_STATES = ("finished", "failed", "stopped")


def check_request(request: OpenRequest) -> None:
    """Raise ProtocolError for a request that no client of ours sends."""
    names = [("workspace", request.workspace), ("project", request.project)]
    if request.run_name is not None:
        names.append(("run_name", request.run_name))
    for what, name in names:
        if not 1 <= len(name.encode()) <= limits.RUN_NAME_BYTES or not name.isprintable():
            raise ProtocolError(
                f"{what} {name!r} is not 1..{limits.RUN_NAME_BYTES} printable bytes"
            )
    if request.resume_strategy not in ("never", "allow"):
        raise ProtocolError(f"resume_strategy {request.resume_strategy!r} is not never or allow")
    if not request.orchestration_id:
        raise ProtocolError("orchestration_id is empty")
    if not is_hex_id(request.writer_id):
        raise ProtocolError(f"writer_id {request.writer_id!r} is not 32 hex digits")
    if request.run_uid and not is_hex_id(request.run_uid):
        raise ProtocolError(f"run_uid {request.run_uid!r} is neither empty nor 32 hex digits")


def is_hex_id(text: str) -> bool:
    """Whether it is 32 lower-case hex digits, as identities are."""
    return len(text) == 32 and not set(text) - set("0123456789abcdef")


def choose_run_uid(store: PointStore, wanted: str) -> str:
    """The uid of a run that is created now: the wanted one, where nobody has or had it."""
    if wanted and store.find_run_uid(wanted) is None and store.find_deleted(wanted) is None:
        return wanted
    return secrets.token_hex(16)


def new_run_row(request: OpenRequest, run_uid: str, name: str, run_no: int, now_ms: int) -> RunRow:
    """The row of a run that is created now."""
    return RunRow(
        run_no=run_no,
        run_uid=run_uid,
        workspace=request.workspace,
        project=request.project,
        name=name,
        created_ms=now_ms,
        state=RUNNING,
        state_ms=now_ms,
        orchestration_ids=[request.orchestration_id],
    )


def join(run: RunState, request: OpenRequest) -> None:
    """Let another job in, or refuse it.

    Raises:
        RunAlreadyExistsError: the run is another job's and the strategy is "never".
    """
    ids = run.row.orchestration_ids
    if request.orchestration_id in ids:
        return
    if request.resume_strategy == "never":
        raise RunAlreadyExistsError(
            f"run {run.row.name!r} in {run.row.workspace}/{run.row.project} belongs to "
            f"orchestration_id {run.row.orchestration_id!r}, not {request.orchestration_id!r}",
            hint=(
                "choose another run_name, or pass resume_strategy='allow' to continue that run, "
                f"or pass orchestration_id={run.row.orchestration_id!r} to join the same job"
            ),
        )
    ids.append(request.orchestration_id)
    run.is_row_changed = True


def add_writer(run: RunState, request: OpenRequest, writer_no: int, now_us: int) -> WriterState:
    """Admit a new writer and give it its place in the order."""
    now_ms = now_us // 1000
    online = [w.row.order_us for w in run.writers.values() if w.row.is_online]
    order_us = max([now_us, *(given + 1 for given in online)])
    row = WriterRow(
        writer_no=writer_no,
        run_no=run.row.run_no,
        writer_id=request.writer_id,
        order_us=order_us if request.is_online else request.started_us,
        logger_id=request.logger_id,
        process=asdict(request.process),
        is_online=request.is_online,
        opened_ms=now_ms,
        seen_ms=now_ms,
    )
    writer = WriterState(row)
    run.writers[writer_no] = writer
    run.writer_nos[row.writer_id] = writer_no
    run.orders[writer_no] = (row.order_us, row.writer_id)
    return writer


def reopen_writer(writer: WriterState, request: OpenRequest, now_ms: int) -> None:
    """Open a known writer again: a retried request, or someone who adopts what it left behind."""
    row = writer.row
    if row.is_online and not request.is_online:
        # The adopter holds the dead process's lock, so it knows.
        row.left = row.left or "dead"
    elif row.is_online and row.left in (None, "dead"):
        row.left, row.seen_ms = None, now_ms


def note_alias(run: RunState, writer: WriterState, request: OpenRequest) -> None:
    """Remember the run uid that this writer's batches carry, where it is not the run's own.

    Raises:
        ProtocolError: they carried another one before; sealed batches do not change.
    """
    row = writer.row
    if request.run_uid in ("", run.row.run_uid, row.alias):
        return
    if row.alias:
        raise ProtocolError(
            f"the batches of writer {row.writer_id} carry run_uid {row.alias}, "
            f"not {request.run_uid}"
        )
    row.alias = request.run_uid


def warn_same_logger(
    run: RunState, writer: WriterState, *, now_ms: int, watch: ProcessWatch
) -> None:
    """Tell live writers of one logger_id about each other."""
    if writer.row.logger_id is None or not writer.row.is_online:
        return
    for other in run.writers.values():
        if other is writer or other.row.logger_id != writer.row.logger_id:
            continue
        if is_live(other.row, now_ms=now_ms, watch=watch):
            notices.tell_same_logger(writer, other)


def note_open(run: RunState, writer: WriterState, now_ms: int) -> None:
    """Let a run go on that somebody has joined."""
    if writer.row.left is None and (writer.row.is_online or _is_newest(run, writer)):
        run.set_state(RUNNING, now_ms)


def note_alive(run: RunState, writer: WriterState, changes: Changes, now_ms: int) -> None:
    """Record a sign of life; a run that was thought crashed recovers by itself."""
    row = writer.row
    if row.left in ("closed", "shutdown"):
        return
    row.seen_ms = now_ms
    if now_ms - writer.saved_seen_ms >= SEEN_KEPT_EVERY_MS:
        writer.saved_seen_ms = now_ms
        changes.writers[row.writer_no] = writer
    if run.row.state == CRASHED:
        note_open(run, writer, now_ms)


def leave(
    run: RunState,
    writer: WriterState,
    request: LeaveRequest,
    *,
    now_ms: int,
    watch: ProcessWatch,
) -> None:
    """Record that a writer goes; the run ends when its last live writer has closed.

    Raises:
        ProtocolError: a status that no run ends with.
    """
    if request.status not in END_STATES:
        raise ProtocolError(f"status {request.status!r} is not one of {', '.join(END_STATES)}")
    row = writer.row
    comes_late = not row.is_online or row.left == "dead"
    if request.is_dead:
        row.left = row.left or "dead"
        if has_crashed(run, now_ms=now_ms, watch=watch):
            run.set_state(CRASHED, now_ms)
        return
    row.left = "closed" if request.is_run_over else "shutdown"
    if not request.is_run_over or has_active_writer(run, now_ms=now_ms, watch=watch):
        return
    if comes_late and _is_settled(run, writer):
        return
    if run.row.exception_type != request.exception_type:
        run.row.exception_type = request.exception_type
        run.is_row_changed = True
    run.set_state(request.status, now_ms)


def _is_newest(run: RunState, writer: WriterState) -> bool:
    return run.orders[writer.row.writer_no] == max(run.orders.values())


def _is_settled(run: RunState, writer: WriterState) -> bool:
    """Whether a newer writer has said what becomes of the run: its end, or that it stays open."""
    if _is_newest(run, writer):
        return False
    newest = run.writers[max(run.orders, key=run.orders.__getitem__)]
    return run.row.state != RUNNING or newest.row.left == "shutdown"


def has_active_writer(run: RunState, *, now_ms: int, watch: ProcessWatch) -> bool:
    """True while anyone may still be logging to the run, or is being replayed."""
    return any(
        is_live(w.row, now_ms=now_ms, watch=watch) or is_replayed(w.row, now_ms=now_ms, watch=watch)
        for w in run.writers.values()
    )


def has_crashed(run: RunState, *, now_ms: int, watch: ProcessWatch) -> bool:
    """True when the run is thought running, yet nobody is left and somebody never said goodbye."""
    if run.row.state != RUNNING:
        return False
    silent = any(w.row.left in (None, "dead") for w in run.writers.values())
    return silent and not has_active_writer(run, now_ms=now_ms, watch=watch)
