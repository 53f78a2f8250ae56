"""The ingest service: decides, commits, then answers. Synchronous; one owner thread.

A group of requests becomes one durable commit. Runs are judged in memory first; when the commit
fails, every run it touched is forgotten and loaded again on next use, so nothing is ever
half-applied and nothing is acked that is not durable.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from metrana_async.errors import MetranaError, NotFoundError
from metrana_async.server.ingest import leases, notices, openings, run_life
from metrana_async.server.ingest.attributes import apply_attribute, attribute_from_open
from metrana_async.server.ingest.catalogue import Changes, RunState, WriterState
from metrana_async.server.ingest.cursors import OLDER_UNITS_KEPT, RunCursors
from metrana_async.server.ingest.judging import BatchJudge
from metrana_async.server.ingest.liveness import ProcessWatch, is_live
from metrana_async.server.ingest.numbers import Numbers
from metrana_async.server.ingest.requests import Request, RequestJudge, read_request
from metrana_async.server.ingest.rules.verdict import Writers
from metrana_async.server.ingest.seeds import make_seeds
from metrana_async.server.store.base import Commit, PointStore, RunContents, SealUnit
from metrana_async.wire import limits
from metrana_async.wire.acks import BatchReply, IngestReply
from metrana_async.wire.messages import (
    HeartbeatReply,
    HeartbeatRequest,
    LeaveRequest,
    OpenReply,
    OpenRequest,
    ReserveReply,
    ReserveRequest,
    Seeds,
    SeedsReply,
    SeedsRequest,
)
from metrana_async.wire.run_life import RunChange
from metrana_async.wire.run_names import generate_run_name

_RUNS_CHECK_MS: Final = 5_000
_RUN_IDLE_MS: Final = 600_000

SEEDS_PART: Final = 2_000
"""Series of one part of a run's seeds: a part delays nobody's ack."""

Clock = Callable[[], float]
"""Unix time in seconds."""


@dataclass(slots=True)
class LoadedRun:
    """A run in memory with its cursors; `used_ms` is when a writer last asked for it."""

    state: RunState
    cursors: RunCursors
    used_ms: int = 0


class IngestService:
    """Everything that changes a store.

    Args:
        store: owned by the caller, who closes it.
        clock: Unix time in seconds.
        watch: looks processes of this machine up.
        older_units_kept: episodes per ENV_STEP series kept in memory beside the newest.
        on_commit: called on the owner thread after each commit; must not raise.
    """

    def __init__(
        self,
        store: PointStore,
        *,
        clock: Clock = time.time,
        watch: ProcessWatch | None = None,
        older_units_kept: int = OLDER_UNITS_KEPT,
        on_commit: Callable[[Commit], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._on_commit = on_commit
        self._clock = clock
        self._watch = watch or ProcessWatch()
        self._older_units_kept = older_units_kept
        self._numbers = Numbers(store)
        self._runs: dict[int, LoadedRun] = {}
        self._run_nos: dict[str, int] = {}
        self._run_nos_by_alias: dict[tuple[str, str], int] = {}
        """By the run uid that a writer's batches carry, and the writer's id."""
        self._runs_checked_ms = 0
        # Runs that were dropped from memory; whether they crashed is settled.
        self._asleep: set[int] = set()

    # --- writers -----------------------------------------------------------------------------
    def open(self, request: OpenRequest) -> OpenReply:
        """Let a writer join or create a run. Opening the same writer again changes nothing.

        A writer that is known joins its run again, whatever that is called by now.

        Raises:
            RunAlreadyExistsError: another job's run, under "never".
            RunDeletedError: the run this writer was of is deleted.
            ProtocolError: the request is malformed.
            UnavailableError: the store cannot commit now.
        """
        openings.check_request(request)
        now_us = int(self._clock() * 1_000_000)
        now_ms = now_us // 1000
        changes = Changes()
        with self._commits(changes):
            run = self._find_or_create(request, changes, now_ms)
            state = run.state
            number = state.writer_nos.get(request.writer_id)
            if number is None:
                openings.join(state, request)
                number = self._numbers.take_writer()
                writer = openings.add_writer(state, request, number, now_us)
                openings.warn_same_logger(state, writer, now_ms=now_ms, watch=self._watch)
            else:
                writer = state.writers[number]
                openings.reopen_writer(writer, request, now_ms)
            openings.note_alias(state, writer, request)
            changes.writers[number] = writer
            self._remember_alias(state, writer)
            openings.note_open(state, writer, now_ms)
        row = state.row
        seeds, seeds_follow = Seeds(), 0 <= request.seeds_max < len(state.series)
        if not seeds_follow:
            seeds = self._all_seeds(run)
        return OpenReply(
            run_uid=row.run_uid,
            workspace=row.workspace,
            project=row.project,
            run_name=row.name,
            created=number == min(state.writers),
            orchestration_id=row.orchestration_id,
            orchestration_ids=list(row.orchestration_ids),
            generation=self._store.generation,
            seeds=seeds,
            acked=state.acked(number),
            notices=list(notices.take(writer)),
            seeds_follow=seeds_follow,
        )

    def _all_seeds(self, run: LoadedRun) -> Seeds:
        run.cursors.ensure_all(self._view(run.state))
        return make_seeds(run.state, run.cursors, range(len(run.state.series)))

    def seeds(self, request: SeedsRequest) -> SeedsReply:
        """A part of what a writer of the run may know from the start.

        Raises:
            NotFoundError: no such run or writer.
        """
        run, _ = self._writer(request.run_uid, request.writer_id)
        run.cursors.ensure_all(self._view(run.state))
        count = len(run.state.series)
        first = min(max(request.first, 0), count)
        last = min(first + SEEDS_PART, count)
        seeds = make_seeds(run.state, run.cursors, range(first, last))
        return SeedsReply(seeds, last if last < count else None)

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatReply:
        """Record a sign of life and hand out notices.

        Raises:
            NotFoundError: no such run or writer.
            UnavailableError: the store cannot commit now.
        """
        (answer,) = self.heartbeats([request])
        if isinstance(answer, MetranaError):
            raise answer
        return answer

    def heartbeats(
        self, requests: Sequence[HeartbeatRequest]
    ) -> list[HeartbeatReply | MetranaError]:
        """Record signs of life in one commit; a NotFoundError stands in the answer.

        Raises:
            UnavailableError: the store cannot commit now.
        """
        changes = Changes()
        heard: list[tuple[RunState, WriterState] | MetranaError] = []
        with self._commits(changes):
            for request in requests:
                try:
                    loaded, writer = self._writer(request.run_uid, request.writer_id)
                except NotFoundError as error:
                    heard.append(error)
                    continue
                run = loaded.state
                changes.runs[run.row.run_no] = run
                writer.row.counters = dict(request.counters) or writer.row.counters
                changes.writers[writer.row.writer_no] = writer
                openings.note_alive(run, writer, changes, self._now_ms())
                heard.append((run, writer))
        return [
            entry if isinstance(entry, MetranaError) else self._heartbeat_reply(*entry)
            for entry in heard
        ]

    def leave(self, request: LeaveRequest) -> HeartbeatReply:
        """Let a writer go; the run ends when its last live writer has closed.

        Raises:
            NotFoundError: no such run or writer.
            ProtocolError: a status that no run ends with.
            UnavailableError: the store cannot commit now.
        """
        changes = Changes()
        with self._commits(changes):
            loaded, writer = self._writer(request.run_uid, request.writer_id)
            run = loaded.state
            changes.runs[run.row.run_no] = run
            writer.row.counters = dict(request.counters) or writer.row.counters
            changes.writers[writer.row.writer_no] = writer
            openings.leave(run, writer, request, now_ms=self._now_ms(), watch=self._watch)
        return self._heartbeat_reply(run, writer)

    def reserve_episodes(self, request: ReserveRequest) -> ReserveReply:
        """Lease episodes of an environment to a writer; durable before it is answered.

        Raises:
            NotFoundError: no such run or writer.
            ProtocolError: the request is malformed.
            InvalidStepError: there are not so many numbers left.
            UnavailableError: the store cannot commit now.
        """
        leases.check_reserve(request)
        changes = Changes()
        with self._commits(changes):
            run, writer = self._writer(request.run_uid, request.writer_id)
            changes.runs[run.state.row.run_no] = run.state
            openings.note_alive(run.state, writer, changes, self._now_ms())
            run.cursors.ensure_all(self._view(run.state))
            first = leases.reserve(run.state, run.cursors, writer, request, changes)
        return ReserveReply(first, self._store.generation)

    # --- from outside --------------------------------------------------------------------------
    def change_run(self, run_uid: str, change: RunChange) -> None:
        """Rename, archive, annotate or tag a run; its writers go on.

        Raises:
            NotFoundError: there is no such run.
            RunAlreadyExistsError: another run of the project has the new name.
            UnavailableError: the store cannot commit now; nothing is changed.
        """
        changes = Changes()
        with self._commits(changes):
            run = self._run(run_uid).state
            changes.runs[run.row.run_no] = run
            run_life.apply_change(self._store, run, change, changes)

    def delete_run(self, run_uid: str) -> None:
        """Delete a run with all its points. Its writers, also live ones, are told as they call.

        Raises:
            NotFoundError: there is no such run.
            UnavailableError: the store cannot commit now; the run stays.
        """
        row = self._run(run_uid).state.row
        self._commit(Commit(deleted=[run_life.tombstone(row, self._now_ms())]))
        self._forget(row.run_no)
        self._asleep.discard(row.run_no)

    # --- points ------------------------------------------------------------------------------
    def ingest_many(self, bodies: Sequence[bytes]) -> list[IngestReply | MetranaError]:
        """Judge requests in order and make them durable in one commit.

        A request that is refused (ProtocolError, BatchTooLargeError, NotFoundError) stands as its
        error in the answer and changes nothing; the others go on.

        Raises:
            UnavailableError: the store cannot commit now; nothing of any request is stored.
        """
        changes = Changes()
        judged: list[tuple[RunState, WriterState, str, list[BatchReply]] | MetranaError] = []
        with self._commits(changes):
            for body in bodies:
                try:
                    request = read_request(body)
                    run, writer = self._writer(request.run_uid, request.writer_id)
                except MetranaError as error:
                    judged.append(error)
                    continue
                replies = self._judge(run, writer, request, changes)
                judged.append((run.state, writer, request.run_uid, replies))
        for run_no in changes.runs:
            self._runs[run_no].cursors.trim(self._older_units_kept)
        return [
            entry if isinstance(entry, MetranaError) else self._ingest_reply(*entry)
            for entry in judged
        ]

    def _judge(
        self, run: LoadedRun, writer: WriterState, request: Request, changes: Changes
    ) -> list[BatchReply]:
        state, now_ms = run.state, self._now_ms()
        changes.runs[state.row.run_no] = state
        openings.note_alive(state, writer, changes, now_ms)
        number = writer.row.writer_no
        judge = BatchJudge(state, run.cursors, number, self._view(state), changes, now_ms)
        lanes = RequestJudge(self._store, state, judge, changes)
        return [lanes.reply_to(sent, request.pages) for sent in request.sent]

    def _ingest_reply(
        self, run: RunState, writer: WriterState, run_uid: str, replies: list[BatchReply]
    ) -> IngestReply:
        return IngestReply(
            run_uid=run_uid,
            writer_id=writer.row.writer_id,
            replies=tuple(replies),
            acked=run.acked(writer.row.writer_no),
            generation=self._store.generation,
            notices=notices.take(writer),
            credit_bytes=limits.REQUEST_BYTES,
        )

    # --- upkeep ------------------------------------------------------------------------------
    def maintain(self, budget_s: float, *, everything: bool = False) -> bool:
        """Mark crashed runs, seal what is due and purge, for about `budget_s`; True when more is.

        With `everything`, all that has a tail is due (before a shutdown).
        """
        self._check_runs()
        ends_at = time.monotonic() + budget_s
        due = self._store.due(now_s=self._clock(), everything=everything)
        for position, unit in enumerate(due):
            self.seal(unit)
            if time.monotonic() >= ends_at:
                return position + 1 < len(due)
        while self._store.purge() or self._store.improve():
            if time.monotonic() >= ends_at:
                return True
        return False

    def seal(self, unit: SealUnit) -> None:
        """Seal one unit with the cursors of its series."""
        run = self._load(unit.run_no)
        self._store.seal(unit, run.cursors.dump(unit.series_nos, self._view(run.state)))

    def _check_runs(self) -> None:
        """Mark crashed runs; forget those that nobody has written to for long."""
        now_ms = self._now_ms()
        if now_ms < self._runs_checked_ms + min(_RUNS_CHECK_MS, int(self._watch.live_s * 250)):
            return
        self._runs_checked_ms = now_ms
        changes = Changes()
        with self._commits(changes):
            for row in self._store.runs():
                if row.state != openings.RUNNING or row.run_no in self._asleep:
                    continue
                run = self._load(row.run_no).state
                if openings.has_crashed(run, now_ms=now_ms, watch=self._watch):
                    changes.runs[row.run_no] = run
                    run.set_state(openings.CRASHED, now_ms)
        for run_no, loaded in list(self._runs.items()):
            if now_ms - loaded.used_ms > _RUN_IDLE_MS and self._may_sleep(loaded.state, now_ms):
                self._forget(run_no)
                self._asleep.add(run_no)

    def _may_sleep(self, run: RunState, now_ms: int) -> bool:
        has_notices = any(writer.pending for writer in run.writers.values())
        return not has_notices and not openings.has_active_writer(
            run, now_ms=now_ms, watch=self._watch
        )

    # --- runs in memory ----------------------------------------------------------------------
    @contextmanager
    def _commits(self, changes: Changes) -> Iterator[None]:
        """Commit what the block puts into `changes`; forget the runs it touched if that fails."""
        try:
            yield
            commit = changes.complete()
            if not commit.is_empty():
                self._commit(commit)
        except BaseException:
            for run_no in changes.runs:
                self._forget(run_no)
            raise
        for run_state in changes.runs.values():
            run_state.is_row_changed = False

    def _commit(self, commit: Commit) -> None:
        self._store.commit(commit)
        self._on_commit(commit)

    def _forget(self, run_no: int) -> None:
        """Drop a run from memory; the store has all of it that counts."""
        run = self._runs.pop(run_no, None)
        if run is not None:
            self._run_nos.pop(run.state.row.run_uid, None)
            for writer in run.state.writers.values():
                self._run_nos_by_alias.pop((writer.row.alias, writer.row.writer_id), None)

    def _find_or_create(self, request: OpenRequest, changes: Changes, now_ms: int) -> LoadedRun:
        name = request.run_name
        run_no = self._store.find_writer(request.writer_id)
        if run_no is None:
            run_life.refuse_deleted(self._store, request.writer_id)
        if run_no is None and name is not None:
            row = self._store.find_run(request.workspace, request.project, name)
            run_no = None if row is None else row.run_no
            if row is None or request.orchestration_id not in row.orchestration_ids:
                run_no = run_life.renamed_run(self._store, request) or run_no
        if run_no is not None:
            run = self._use(run_no)
            changes.runs[run_no] = run.state
            return run
        updates = [attribute_from_open(update) for update in request.attributes]
        number = self._numbers.take_run()
        if name is None:
            name = self._free_name(request)
        run_uid = openings.choose_run_uid(self._store, request.run_uid)
        new_row = openings.new_run_row(request, run_uid, name, number, now_ms)
        state = RunState(self._store, self._numbers, RunContents(new_row, [], [], [], [], []))
        state.is_row_changed = True
        changes.runs[number] = state
        for update in updates:
            apply_attribute(state, update, changes)
        return self._keep(state)

    def _free_name(self, request: OpenRequest) -> str:
        while True:
            name = generate_run_name()
            if self._store.find_run(request.workspace, request.project, name) is None:
                return name

    def _use(self, run_no: int) -> LoadedRun:
        """A run that a writer asks for."""
        run = self._load(run_no)
        run.used_ms = self._now_ms()
        self._asleep.discard(run_no)
        return run

    def _load(self, run_no: int) -> LoadedRun:
        run = self._runs.get(run_no)
        if run is None:
            contents = self._store.run_contents(run_no)
            run = self._keep(RunState(self._store, self._numbers, contents))
        return run

    def _keep(self, state: RunState) -> LoadedRun:
        run = LoadedRun(state, RunCursors(self._store, state), self._now_ms())
        self._runs[state.row.run_no] = run
        self._run_nos[state.row.run_uid] = state.row.run_no
        for writer in state.writers.values():
            self._remember_alias(state, writer)
        return run

    def _remember_alias(self, run: RunState, writer: WriterState) -> None:
        if writer.row.alias:
            self._run_nos_by_alias[writer.row.alias, writer.row.writer_id] = run.row.run_no

    def _run(self, run_uid: str) -> LoadedRun:
        run_no = self._run_nos.get(run_uid)
        if run_no is None:
            row = self._store.find_run_uid(run_uid)
            if row is None:
                run_life.refuse_deleted(self._store, run_uid)
                raise NotFoundError(f"there is no run {run_uid}")
            run_no = row.run_no
        return self._use(run_no)

    def _writer(self, run_uid: str, writer_id: str) -> tuple[LoadedRun, WriterState]:
        """A writer and its run, which goes by its uid or by this writer's alias of it."""
        known = self._run_nos_by_alias.get((run_uid, writer_id)) or self._run_nos.get(run_uid)
        if known is None or writer_id not in self._runs[known].state.writer_nos:
            known = self._find_writer(run_uid, writer_id)
        run = self._use(known)
        return run, run.state.writers[run.state.writer_nos[writer_id]]

    def _find_writer(self, run_uid: str, writer_id: str) -> int:
        """The run of a writer that memory does not know under this uid."""
        run_no = self._store.find_writer(writer_id)
        if run_no is None:
            run_life.refuse_deleted(self._store, writer_id)
        else:
            run = self._load(run_no).state
            row = run.writers[run.writer_nos[writer_id]].row
            if run_uid in (run.row.run_uid, row.alias):
                return run_no
        name = self._run(run_uid).state.row.name
        raise NotFoundError(f"run {name!r} has no writer {writer_id}: open it first")

    def _view(self, run: RunState) -> Writers:
        """The run's writers; each is asked for its life at most once per call."""
        known: dict[int, bool] = {}
        now_ms = self._now_ms()

        def live(number: int) -> bool:
            answer = known.get(number)
            if answer is None:
                row = run.writers[number].row
                answer = known[number] = is_live(row, now_ms=now_ms, watch=self._watch)
            return answer

        return Writers(run.orders, live)

    def _heartbeat_reply(self, run: RunState, writer: WriterState) -> HeartbeatReply:
        generation = self._store.generation
        return HeartbeatReply(run.row.state, generation, list(notices.take(writer)))

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)
