"""The one way in for a call, from any thread: validate, copy, claim, append.

`Front` is what handles (`run.Run` here, the blocking twin elsewhere) share. It knows how a call
becomes items of the inbox, and what the overflow policy says; it never waits for network or disk.
Order within a call: every check passes before anything is claimed, every claim before anything is
appended, and everything of a call is appended together. So a refused call has no effect at all.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import copy
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from metrana_async.columns.blocks import GridBlock, PointBlock, ScalarItem
from metrana_async.columns.episodes import episode_columns
from metrana_async.columns.points import StandardColumns, flatten_mapping, standard_columns
from metrana_async.columns.redaction import redact_updates, redaction_text
from metrana_async.columns.rl_grid import EnvIdCache, grid_columns
from metrana_async.columns.values import NOTE_TEXTS
from metrana_async.definitions import DefinitionCache
from metrana_async.engine.clock import SystemClock
from metrana_async.engine.inbox import Inbox
from metrana_async.engine.loop_thread import engine, on_fork, running_engine
from metrana_async.errors import (
    InitError,
    InvalidTypeError,
    MetranaError,
    MetranaWarning,
    RunClosedError,
    UsageError,
    ValidationError,
)
from metrana_async.gate import Gate
from metrana_async.settings import Settings
from metrana_async.statistics import Statistics
from metrana_async.transport.addresses import is_this_machine
from metrana_async.waiting import READY, Pending
from metrana_async.wire.acks import Notice
from metrana_async.wire.model import (
    AUTOMATIC,
    ENVIRONMENT_STEP_SCALE,
    EPISODE_SCALE,
    ML_STEP,
    AttributeUpdate,
    Family,
    Ordering,
    SeriesDef,
)

if TYPE_CHECKING:
    from metrana_async.writer import Writer

_FAR_STEP: Final = 2**62
_EXACT_INT_MAX: Final = 2**53
_FLOAT32_SAFE: Final = 3.4e38
_ATTRIBUTE_BYTES: Final = 256
_JOIN_GRACE_S: Final = 5.0
_CLOCK: Final = SystemClock()


@dataclass(frozen=True, slots=True)
class Reconnect:
    """What a pickled or forked handle needs to join its run again: no secret, no socket."""

    settings: Settings
    host: str


def joining() -> ModuleType:
    """The room that joins runs, imported on use: it is half of what an import would cost."""
    from metrana_async import opening

    return opening


class Front:
    """Calls of one handle. Thread-safe."""

    def __init__(self, writer: Writer, *, is_blocking: bool = False) -> None:
        """Make the front of a writer.

        Args:
            writer: where the calls go.
            is_blocking: True where callers wait in their thread: a call that finds twice the
                bounds taken waits for room instead of raising.
        """
        self._prepare(is_blocking=is_blocking)
        self._attach(writer)
        _fronts.add(self)

    def _prepare(self, *, is_blocking: bool) -> None:
        self._is_blocking = is_blocking
        self._definitions = DefinitionCache()
        self._env_ids = EnvIdCache()
        self._is_closed = False
        self._usage_errors = 0
        self._counting = threading.RLock()
        self._joining = threading.RLock()
        self._catching_up = threading.RLock()
        self._aside: deque[tuple[Callable[..., Pending], dict[str, Any]]] = deque()

    def _attach(self, writer: Writer) -> None:
        self.settings = writer.settings
        strategy, dtype = writer.settings.backpressure_strategy, writer.settings.default_dtype
        self._gate = Gate(strategy, is_blocking=self._is_blocking, can_spool=writer.can_spool)
        self._default_dtype = None if dtype == "float32" else dtype
        self.inbox = writer.inbox
        # Last: whoever sees the numbers of this writer must also see its inbox.
        self._writer: Writer | None = writer
        self.plain = writer.plain

    # --- handles that outlive their process ----------------------------------------------------
    def detach(self) -> None:
        """Forget a writer that belongs to another process; the next call joins anew."""
        self._counting, self._joining = threading.RLock(), threading.RLock()
        self._catching_up = threading.RLock()
        self._aside.clear()
        self._writer = None
        self.plain = {}

    def reconnect_info(self) -> Reconnect:
        """What another process needs to make this handle again."""
        return Reconnect(self.settings.without_secrets(), socket.gethostname())

    @classmethod
    def from_reconnect(cls, info: Reconnect, *, is_blocking: bool) -> Front:
        """Make a front that joins its run on first use.

        Raises:
            InitError: the run lies on a server that only its own host can reach.
        """
        url = info.settings.ingestion_url
        is_bound = url is None or is_this_machine(url)
        if is_bound and info.host != socket.gethostname():
            raise InitError(
                f"this handle's server is local to host {info.host!r}, this is "
                f"{socket.gethostname()!r}",
                hint="log through a server that both can reach (ingestion_url=)",
            )
        settings = info.settings
        front = cls.__new__(cls)
        front.settings = settings.for_reconnect(
            run_name=settings.run_name or "", orchestration_id=settings.orchestration_id or ""
        )
        front._prepare(is_blocking=is_blocking)
        front._writer = None
        front.plain = {}
        front.inbox = Inbox(1, 1, lambda: None, discards=True)
        _fronts.add(front)
        return front

    @property
    def writer(self) -> Writer:
        """The writer; joins the run where this process has none yet (fork, unpickling).

        Raises:
            RunClosedError: the handle was closed.
            MetranaError: why the writer takes nothing any more, or cannot join.
        """
        if self._is_closed:
            raise RunClosedError("this handle's run was closed")
        writer = self._writer
        if writer is None:
            # Two threads must not join twice: each join is a share of the writer to give back.
            with self._joining:
                writer = self._writer or self._join()
        writer.check()
        return writer

    def _join(self) -> Writer:
        future: concurrent.futures.Future[Writer] = joining().submit_open(self.settings)
        writer = future.result(self.settings.init_timeout_secs + _JOIN_GRACE_S)
        joined = self._writer
        if joined is not None:
            # A signal handler interrupted this wait and joined: one share is enough.
            engine().call_soon(writer.give_back)
            return joined
        self._attach(writer)
        return writer

    @property
    def joined_writer(self) -> Writer | None:
        """The writer this process has, open or not; None where it never joined."""
        return self._writer

    @property
    def is_open(self) -> bool:
        """Whether calls are taken."""
        writer = self._writer
        return not self._is_closed and (writer is None or writer.is_open)

    @property
    def is_closed(self) -> bool:
        """Whether this handle was closed."""
        return self._is_closed

    def mark_closed(self) -> bool:
        """Refuse further calls; False when that was so already."""
        with self._counting:
            was_closed, self._is_closed = self._is_closed, True
        self.plain = {}
        return not was_closed

    def statistics(self) -> Statistics:
        """The writer's ledger as it is now."""
        writer = self._writer
        return self.completed(Statistics() if writer is None else writer.statistics())

    def completed(self, found: Statistics) -> Statistics:
        """A writer's ledger with what this handle alone counts."""
        return replace(found, usage_errors=self._usage_errors)

    # --- errors of the caller, calls within calls ----------------------------------------------
    def guarded(self, call: Callable[..., Pending], **arguments: Any) -> Pending:
        """Run a call; under ``on_error="warn"`` its usage error is warned once and counted.

        A signal handler, a finalizer or a callback of the garbage collector may log in the middle
        of another call. Where it interrupted its thread between two of our instructions that
        belong together, the call is set aside and made as soon as these are through.
        """
        writer = self._writer
        if writer is not None and writer.is_held_here:
            return self._set_aside(call, arguments)
        try:
            return call(**arguments)
        except UsageError as error:
            writer = self._writer
            if self.settings.on_error != "warn" or self._is_closed or writer is None:
                raise
            self._tell_usage_error(writer, error)
            return READY
        finally:
            if self._aside:
                self.catch_up()

    def _tell_usage_error(self, writer: Writer, error: MetranaError) -> None:
        with self._counting:
            self._usage_errors += 1
        writer.notices.tell(MetranaWarning, str(error), key=("usage", error.code))

    def _set_aside(self, call: Callable[..., Pending], arguments: dict[str, Any]) -> Pending:
        with contextlib.suppress(Exception):  # what cannot be copied is taken as it is
            arguments = copy.deepcopy(arguments)
        self._aside.append((call, arguments))
        # The interrupted call catches up itself; where it is the engine's work, the engine does.
        thread = running_engine()  # takes no lock: this very line may be interrupted, too
        if thread is not None:
            thread.call_soon(self.catch_up)
        return READY

    def catch_up(self) -> None:
        """Make the calls that were set aside. Their usage errors can only be told."""
        writer = self._writer
        if writer is None or writer.is_held_here:
            return
        # Under a lock: who flushes or closes next must not overtake a call that is being made.
        with self._catching_up:
            while self._aside:
                try:
                    call, arguments = self._aside.popleft()
                except IndexError:
                    return  # a signal handler that interrupted this very line was faster
                try:
                    call(**arguments)
                except MetranaError as error:
                    self._tell_usage_error(writer, error)

    # --- standard metrics ----------------------------------------------------------------------
    def log_scalars(self, metrics: Mapping[str, Any], step: int | None) -> Pending | None:
        """The short way for a flat mapping of known metrics to numbers; None = not this way."""
        number = AUTOMATIC if step is None else step
        if type(number) is not int or not AUTOMATIC <= number < _FAR_STEP:
            return None
        if step is not None and step < 0:
            return None
        known = self.plain
        now_ms = _CLOCK.time_ms()
        scalars: list[ScalarItem] = []
        for name, value in metrics.items():
            series_no = known.get(name)
            if series_no is None:
                return None
            if type(value) is float:
                if not -_FLOAT32_SAFE < value < _FLOAT32_SAFE:
                    return None
            elif type(value) is not int or not -_EXACT_INT_MAX <= value <= _EXACT_INT_MAX:
                return None
            scalars.append((series_no, number, now_ms, value))
        inbox = self.inbox
        if len(inbox.items) + len(scalars) > inbox.scalars_max:
            return None
        inbox.append_scalars(scalars)
        return READY

    def log_ordered(self, **arguments: Any) -> Pending:
        """One call of `log`."""
        return self._log_standard(**arguments, ordering=Ordering.ORDERED)

    def log_merge(self, **arguments: Any) -> Pending:
        """One call of `log_distributed`."""
        return self._log_standard(**arguments, ordering=Ordering.MERGE)

    def _log_standard(
        self,
        *,
        metric_name: Any,
        value: Any,
        step: Any,
        timestamp: Any,
        scale: Any,
        labels: Any,
        evaluation: Any,
        dtype: Any,
        ordering: Ordering,
    ) -> Pending:
        writer = self.writer
        metrics = _metrics(metric_name, value)
        dtype = self._default_dtype if dtype is None else dtype
        now_ms = _CLOCK.time_ms()
        is_merge = ordering is Ordering.MERGE
        called: list[tuple[SeriesDef, StandardColumns]] = []
        for name, content in metrics:
            definition = self._definitions.resolve(
                Family.STANDARD,
                name,
                scale=scale,
                labels=labels,
                evaluation=evaluation,
                ordering=ordering,
            )
            try:
                columns = standard_columns(
                    content,
                    step,
                    timestamp=timestamp,
                    dtype=dtype,
                    now_ms=now_ms,
                    step_required=is_merge,
                )
            except ValidationError as error:
                raise error.about(f"metric {name!r}") from None
            if len(columns.value):
                called.append((definition, columns))
        numbers = writer.registry.series_nos([definition for definition, _ in called])
        blocks = [
            PointBlock(number, columns.value, columns.step, columns.time_ms)
            for number, (_, columns) in zip(numbers, called, strict=True)
        ]
        self._watch_far_steps(writer, blocks)
        for definition, columns in called:
            self._note(writer, definition, columns.notes)
        pending = self._append(writer, blocks)
        if not is_merge and self._default_dtype is None:
            self._remember_plain(writer, called, numbers)
        return pending

    def _remember_plain(
        self,
        writer: Writer,
        called: list[tuple[SeriesDef, StandardColumns]],
        numbers: list[int],
    ) -> None:
        for number, (definition, _) in zip(numbers, called, strict=True):
            is_plain = not definition.labels and definition.scale == ML_STEP
            if is_plain and number not in writer.registry.far_steps:
                writer.plain[definition.metric] = number
        # The engine says what it found, THEN clears; we add, THEN look: nothing stale stays.
        if writer.must_look or writer.registry.conflicted:
            writer.plain.clear()

    def _watch_far_steps(self, writer: Writer, blocks: Sequence[PointBlock]) -> None:
        registry = writer.registry
        for block in blocks:
            if isinstance(block.step, np.ndarray):
                registry.note_step(block.series_no, int(block.step.max()))
            elif block.step != AUTOMATIC:
                registry.note_step(block.series_no, block.step + block.points_count - 1)
            elif registry.far_steps:
                registry.check_next(block.series_no, block.points_count)
            if block.series_no in registry.far_steps:
                writer.plain.pop(registry.definition(block.series_no).metric, None)

    # --- RL metrics ----------------------------------------------------------------------------
    def log_episode(
        self,
        *,
        metric_name: Any,
        value: Any,
        rl_step: Any,
        episode: Any,
        env_id: Any,
        labels: Any,
        evaluation: Any,
        dtype: Any,
        timestamp: Any,
    ) -> Pending:
        """One call of `log_rl_episode`."""
        writer = self.writer
        ordering = Ordering.ORDERED if episode is None else Ordering.MERGE
        definition = self._definitions.resolve(
            Family.EPISODE,
            metric_name,
            scale=EPISODE_SCALE,
            labels=labels,
            evaluation=evaluation,
            ordering=ordering,
        )
        dtype = self._default_dtype if dtype is None else dtype
        try:
            columns = episode_columns(
                value,
                rl_step,
                episode,
                env_id,
                now_ms=_CLOCK.time_ms(),
                timestamp=timestamp,
                dtype=dtype,
            )
        except ValidationError as error:
            raise error.about(f"metric {metric_name!r}") from None
        if not len(columns.value):
            return READY
        number = writer.registry.series_no(definition)
        env_nos = writer.registry.env_nos(columns.env_ids)
        self._note(writer, definition, columns.notes)
        block = PointBlock(
            number, columns.value, columns.episode, columns.time_ms, env_nos, columns.rl_step
        )
        return self._append(writer, [block])

    def log_grid(
        self,
        *,
        metric_name: Any,
        value: Any,
        rl_step: Any,
        env_id: Any,
        episode: Any,
        env_step: Any,
        auto_start_from_one: Any,
        labels: Any,
        evaluation: Any,
        dtype: Any,
        mask: Any,
        layout: Any,
        timestamp: Any,
    ) -> Pending:
        """One call of `log_rl_environment_step`."""
        writer = self.writer
        definition = self._definitions.resolve(
            Family.ENV_STEP,
            metric_name,
            scale=ENVIRONMENT_STEP_SCALE,
            labels=labels,
            evaluation=evaluation,
            ordering=Ordering.ORDERED,
            episodic=episode is not None,
        )
        try:
            grid = grid_columns(
                value,
                rl_step,
                self._env_ids.resolve(env_id),
                episode,
                env_step,
                now_ms=_CLOCK.time_ms(),
                auto_start_from_one=auto_start_from_one,
                timestamp=timestamp,
                mask=mask,
                layout=layout,
                dtype=self._default_dtype if dtype is None else dtype,
            )
        except ValidationError as error:
            raise error.about(f"metric {metric_name!r}") from None
        if not grid.points_count:
            return READY
        number, env_nos = writer.registry.claim_grid(
            definition, grid.env_ids, grid.mode, mask=grid.mask
        )
        self._note(writer, definition, grid.notes)
        block = GridBlock(
            number,
            grid.mode,
            env_nos,
            grid.value,
            grid.rl_step,
            grid.episode,
            grid.env_step,
            grid.mask,
            grid.time_ms,
        )
        return self._append(writer, [block], points=grid.points_count)

    # --- attributes ----------------------------------------------------------------------------
    def log_updates(self, updates: Sequence[AttributeUpdate]) -> Pending:
        """Queue attribute updates behind what was logged before, less their secrets."""
        writer = self.writer
        inbox = writer.inbox
        if self.settings.redact:
            updates, redacted = redact_updates(updates, own_key=self.settings.api_key)
            if redacted:
                text = redaction_text(redacted)
                writer.notices.tell(MetranaWarning, text, key=("redacted",), stacklevel=5)
        nbytes = sum(_ATTRIBUTE_BYTES + len(str(update.value)) for update in updates)
        if updates:
            # Attributes are few and never dropped: no policy applies to them.
            inbox.append_blocks(updates, 0, nbytes)
        return self._gate.wait(inbox)

    # --- in common -----------------------------------------------------------------------------
    def _note(self, writer: Writer, definition: SeriesDef, notes: tuple[str, ...]) -> None:
        for note in notes:
            text = f"metric {definition.metric!r}: {NOTE_TEXTS[note]}"
            notice = Notice("ValueWidened", text, definition.metric, dict(definition.labels))
            writer.notices.add(notice, stacklevel=5)

    def _append(
        self, writer: Writer, blocks: Sequence[PointBlock | GridBlock], points: int | None = None
    ) -> Pending:
        if not blocks:
            return READY
        count = sum(block.points_count for block in blocks) if points is None else points
        nbytes = sum(block.nbytes for block in blocks)
        inbox = writer.inbox
        if not self._gate.admits(inbox, count, nbytes):
            return READY
        inbox.append_blocks(blocks, count, nbytes)
        return self._gate.wait(inbox)


def _metrics(metric_name: Any, value: Any) -> Sequence[tuple[Any, Any]]:
    if isinstance(metric_name, Mapping):
        if value is not None:
            raise InvalidTypeError("a mapping of metrics brings its own values: value must be None")
        return flatten_mapping(metric_name)
    return [(metric_name, value)]


_fronts: weakref.WeakSet[Front] = weakref.WeakSet()


def _detach_in_child() -> None:
    for front in list(_fronts):
        front.detach()


on_fork(_detach_in_child)
