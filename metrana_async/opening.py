"""Joining a run: find the server, shake hands, and share one writer per process, server and run."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from importlib import metadata
from typing import Any, Final

from metrana_async.columns.attributes import config_updates, description_update, tags_update
from metrana_async.columns.names import check_name
from metrana_async.columns.redaction import redact_updates, redaction_text
from metrana_async.destinations import connect, server_key
from metrana_async.engine import lifecycle
from metrana_async.engine.clock import SystemClock
from metrana_async.engine.loop_thread import (
    engine,
    on_death,
    on_fork,
    on_loss,
    running_engine,
    submit_nowhere,
)
from metrana_async.errors import (
    InitError,
    MetranaError,
    MetranaWarning,
    TransportError,
    UnavailableError,
)
from metrana_async.leftovers import Adoption
from metrana_async.membership import SEEDS_WITH_ADMISSION, retried
from metrana_async.notices import say, set_log_level
from metrana_async.orchestration import process_identity, resolve_orchestration_id
from metrana_async.settings import Settings
from metrana_async.spool.disk import RealDisk
from metrana_async.spool.lock import abandon
from metrana_async.spool_place import place_for, spool_root
from metrana_async.transport.base import Transport
from metrana_async.wire.messages import (
    OpenReply,
    OpenRequest,
    Seeds,
    decode_answer,
    encode_message,
)
from metrana_async.wire.model import AttributeOp, AttributeUpdate
from metrana_async.wire.run_names import generate_run_name
from metrana_async.writer import Writer

_ATTEMPT_TIMEOUT_S: Final = 30.0
_AUTO_WAIT_S: Final = 0.5
"""How long init_mode="auto" waits for a server before it starts without."""

_RunKey = tuple[str, str, str, str]

_writers: dict[_RunKey, Writer] = {}
# Also those that take nothing any more but have not left: the end of the process waits for them.
_present: list[Writer] = []
_opening: asyncio.Lock | None = None
_adoptions: dict[str, tuple[Adoption, asyncio.Task[None]]] = {}
# The loop itself holds tasks weakly.
_ending: set[asyncio.Task[None]] = set()


def prepare(settings: Settings) -> Settings:
    """Check names and settle which job this is, before anything is started.

    Raises:
        InitError, ValidationError: what is wrong, naming it.
    """
    check_name("workspace name", settings.workspace_name)
    check_name("project name", settings.project_name)
    if settings.run_name is not None:
        check_name("run name", settings.run_name)
    _create_only(settings)  # refuses at the call what it could not send
    set_log_level(settings.log_level)
    identity = resolve_orchestration_id(settings.orchestration_id)
    return replace(settings, orchestration_id=identity)


def submit_open(
    settings: Settings, transport: Transport | None = None
) -> concurrent.futures.Future[Writer]:
    """Open (or share) the writer of the run that prepared `settings` name, on the engine."""
    if settings.is_disabled:
        return submit_nowhere(lambda: _open_disabled(settings))
    thread = engine()
    lifecycle.install(_RUNS, thread)
    return thread.submit(lambda: _open(settings, transport))


async def _open(settings: Settings, transport: Transport | None) -> Writer:
    global _opening
    if _opening is None:
        _opening = asyncio.Lock()
    # One handshake at a time, so that two threads that open one run share its writer.
    async with _opening:
        for key in [key for key, writer in _writers.items() if not writer.is_open]:
            del _writers[key]
        _present[:] = [writer for writer in _present if not writer.has_left]
        writer = await _join(settings, transport)
        writer.handles_count += 1
        return writer


async def _join(settings: Settings, transport: Transport | None) -> Writer:
    server = server_key(settings.ingestion_url, settings.data_dir, transport)
    place = (server, settings.workspace_name, settings.project_name)
    if settings.run_name is not None:
        shared = _writers.get((*place, settings.run_name))
        if shared is not None and shared.is_open:
            return shared
    create_only, redacted = _create_only(settings)
    request = _request(settings, create_only)
    reply: OpenReply | None = None
    chosen: Transport
    if settings.is_offline:
        chosen, where = _Nowhere(), ""
    else:
        chosen, where, reply = await _shake_hands(settings, transport, request)
    if reply is None:
        request = replace(request, run_name=request.run_name or _unseen_name())
    else:
        # A retried introduction must not ask for a generated name again.
        request = replace(request, run_name=reply.run_name)
    assert request.run_name is not None
    is_quiet = settings.quiet
    settings = settings.for_reconnect(
        run_name=request.run_name, orchestration_id=settings.orchestration_id or ""
    )
    writer = Writer(
        settings,
        request=request,
        reply=reply,
        transport=chosen,
        call_soon=engine().call_soon,
        clock=SystemClock(),
        spool_place=place_for(settings, server, engine().io.hop, is_anywhere=transport is not None),
    )
    if reply is None and writer.spool_directory is None:
        await chosen.close()
        raise InitError("no server answers, and there is no disk spool to start on")
    writer.where, writer.telling.is_quiet = where, is_quiet
    if redacted and (reply is None or reply.created):
        writer.notices.tell(MetranaWarning, redaction_text(redacted), key=("redacted",))
    writer.start()
    _writers[(*place, request.run_name)] = writer
    _present.append(writer)
    if transport is None and not settings.is_offline:
        _start_adoption(settings, server)
    return writer


def _start_adoption(settings: Settings, server: str) -> None:
    """Have the leftovers of this host's dead writers delivered; one task a server, looking now."""
    if settings.disk is None:
        return
    if server in _adoptions:
        _adoptions[server][0].hurry()
        return
    root = str(spool_root(settings.disk.path, settings.data_dir))
    adoption = Adoption(root, server, disk=RealDisk(), hop=engine().io.hop, clock=SystemClock())

    async def adopt() -> None:
        transport, _ = await connect(
            settings.ingestion_url,
            settings.api_key,
            settings.data_dir,
            timeout_s=settings.init_timeout_secs,
            may_be_missing=True,
        )
        try:
            await adoption.run(transport)
        finally:
            await transport.close()

    task = asyncio.get_running_loop().create_task(adopt(), name="adoption")
    _adoptions[server] = (adoption, task)
    task.add_done_callback(lambda _: _adoptions.pop(server, None))


async def _shake_hands(
    settings: Settings, transport: Transport | None, request: OpenRequest
) -> tuple[Transport, str, OpenReply | None]:
    """Reach the server and be admitted; no reply = it does not answer, and need not yet.

    Raises:
        InitError: no server answered in time, where one must.
        MetranaError: it refuses.
    """
    clock = SystemClock()
    started_s = clock.monotonic_s()
    where = server_key(settings.ingestion_url, settings.data_dir, transport)
    if transport is None:
        transport, where = await connect(
            settings.ingestion_url,
            settings.api_key,
            settings.data_dir,
            timeout_s=settings.init_timeout_secs,
            may_be_missing=settings.starts_without_server,
        )
    chosen, body = transport, encode_message(request)

    async def attempt(timeout_s: float) -> OpenReply:
        limit_s = min(timeout_s, _ATTEMPT_TIMEOUT_S)
        return decode_answer(OpenReply, await chosen.post("/writers/open", body, timeout_s=limit_s))

    left_s = max(0.1, settings.init_timeout_secs - (clock.monotonic_s() - started_s))
    if settings.starts_without_server:
        left_s = min(left_s, _AUTO_WAIT_S)
    try:
        return chosen, where, await retried(attempt, left_s, clock)
    except TransportError as error:
        if settings.starts_without_server:
            return chosen, where, None
        await chosen.close()
        raise InitError(
            f"no server answered at {where} within {settings.init_timeout_secs:g} s: {error}",
            hint=None
            if settings.ingestion_url is None
            else "check ingestion_url= (METRANA_INGESTION_URL) and that a server runs there; "
            "without it init() starts one on this machine, and init_mode='auto' does not wait",
        ) from error
    except MetranaError:
        await chosen.close()
        raise


def _unseen_name() -> str:
    """A readable name for a run that no server can name: one that no other process has chosen."""
    return f"{generate_run_name()}-{secrets.token_hex(3)}"


def _request(settings: Settings, create_only: Sequence[AttributeUpdate] = ()) -> OpenRequest:
    return OpenRequest(
        workspace=settings.workspace_name,
        project=settings.project_name,
        run_name=settings.run_name,
        orchestration_id=settings.orchestration_id or "",
        resume_strategy=settings.resume_strategy,
        writer_id=secrets.token_hex(16),
        logger_id=settings.logger_id,
        started_us=time.time_ns() // 1000,
        process=process_identity(),
        attributes=[[u.op.value, u.path, u.value] for u in create_only],
        sdk_version=_version(),
        # Sealed batches carry it from the first call on, whenever a server is reached.
        run_uid=secrets.token_hex(16) if settings.starts_without_server else "",
        seeds_max=SEEDS_WITH_ADMISSION,
    )


def _create_only(settings: Settings) -> tuple[list[AttributeUpdate], list[str]]:
    """What the creator of the run sets, and the paths where secrets were replaced."""
    updates = [] if settings.config is None else config_updates("config", settings.config)
    if settings.tags:
        updates.append(tags_update(AttributeOp.TAGS_SET, list(settings.tags)))
    if settings.description is not None:
        updates.append(description_update(settings.description))
    return redact_updates(updates, own_key=settings.api_key) if settings.redact else (updates, [])


def _version() -> str:
    try:
        return metadata.version("metrana-async")
    except metadata.PackageNotFoundError:
        return ""


class _Nowhere:
    """The transport of a disabled or offline run: it asks nobody."""

    async def post(
        self, path: str, body: bytes, *, timeout_s: float, content_type: str = ""
    ) -> bytes:
        """See Transport; never called."""
        del content_type
        raise UnavailableError(f"{path}: no server is asked ({len(body)} bytes, {timeout_s} s)")

    async def close(self) -> None:
        """See Transport."""


async def _open_disabled(settings: Settings) -> Writer:
    name = settings.run_name or "disabled"
    request = _request(settings)
    reply = OpenReply(
        run_uid=secrets.token_hex(16),
        workspace=settings.workspace_name,
        project=settings.project_name,
        run_name=name,
        created=True,
        orchestration_id=request.orchestration_id,
        orchestration_ids=[request.orchestration_id],
        generation="",
        seeds=Seeds(),
    )
    writer = Writer(
        settings,
        request=request,
        reply=reply,
        transport=_Nowhere(),
        call_soon=lambda callback: None,  # noqa: ARG005 - nothing is kept: nobody is woken
        clock=SystemClock(),
    )
    writer.handles_count = 1
    return writer


def announce(writer: Writer) -> None:
    """Say on stderr where the run is, unless asked to be quiet."""
    settings = writer.settings
    if settings.is_disabled:
        return
    place = f"{settings.workspace_name}/{settings.project_name}/{writer.run_name}"
    if settings.is_offline:
        say(f"run {place} is kept on this machine, in {writer.spool_directory}")
    elif not writer.membership.is_admitted:
        say(
            f"run {place}: no server answers at {writer.where} yet; until then it is kept on this "
            f"machine, in {writer.spool_directory}"
        )
    else:
        verb = "started" if writer.membership.is_creator else "joined"
        say(f"{verb} run {place} at {writer.where}")


# --- the end of the process -----------------------------------------------------------------------


def after_close() -> None:
    """To be called by whoever closed a run, in his own thread."""
    if all(writer.has_left for writer in list(_present)):
        lifecycle.give_back_signals()


def _submit_end(
    work: Callable[[], Coroutine[Any, Any, None]],
) -> concurrent.futures.Future[None] | None:
    thread = running_engine()
    if thread is None or not _present:
        return None
    if thread.is_own_thread:
        _ending.add(task := thread.loop.create_task(work()))
        task.add_done_callback(_ending.discard)
        return None
    return thread.submit(work)


def _still_here() -> list[Writer]:
    return [writer for writer in _present if not writer.has_left]


async def _flush_all(budget_s: float) -> None:
    await asyncio.gather(
        # One that is being closed is flushed already.
        *(
            writer.flush(writer.inbox.appended_count, budget_s)
            for writer in _still_here()
            if writer.is_open
        ),
        return_exceptions=True,
    )


async def _spill_all(budget_s: float) -> None:
    await asyncio.gather(
        *(
            writer.failover_to_spool(writer.inbox.appended_count, budget_s)
            for writer in _still_here()
            if writer.spool_directory is not None
        ),
        return_exceptions=True,
    )


async def _hurry_all() -> None:
    for writer in _still_here():
        writer.settling.hurry()


async def _leave_all(
    budget_s: float, flush_s: float, status: str, exception_type: str | None
) -> None:
    ends = await asyncio.gather(
        *(
            _leave_one(writer, budget_s, flush_s, status, exception_type)
            for writer in _still_here()
        ),
        return_exceptions=True,
    )
    for _, task in list(_adoptions.values()):
        task.cancel()
    for end in ends:
        if isinstance(end, BaseException):
            raise end


async def _leave_one(
    writer: Writer, budget_s: float, flush_s: float, status: str, exception_type: str | None
) -> None:
    started_s = time.monotonic()
    if flush_s > 0 and writer.is_open:
        with contextlib.suppress(MetranaError):  # close() below counts and tells what is left
            await writer.flush(writer.inbox.appended_count, flush_s)
    left_s = max(0.1, budget_s - (time.monotonic() - started_s))
    await writer.close(left_s, is_run_over=True, status=status, exception_type=exception_type)


_RUNS: Final = lifecycle.Runs(
    flush=lambda budget_s: _submit_end(lambda: _flush_all(budget_s)),
    farewell=lambda budget_s, flush_s, status, kind: _submit_end(
        lambda: _leave_all(budget_s, flush_s, status, kind)
    ),
    spill=lambda budget_s: _submit_end(lambda: _spill_all(budget_s)),
    hurry=lambda: _submit_end(_hurry_all),
)


def _forget_in_child() -> None:
    global _opening
    _writers.clear()
    _present.clear()
    _adoptions.clear()
    _ending.clear()
    _opening = None


def _refuse_all(failure: MetranaError) -> None:
    """Nobody is there to send: the next call says so."""
    for writer in tuple(_present):  # the engine may be at it
        writer.refuse(failure)


def _end_with_engine(failure: MetranaError) -> None:
    """Nobody sends any more: what is in memory is counted."""
    for writer in _present:
        writer.fail(failure)
    _forget_in_child()


on_loss(_refuse_all)
on_death(_end_with_engine)
on_fork(_forget_in_child)
on_fork(abandon)
