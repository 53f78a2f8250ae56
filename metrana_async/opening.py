"""Joining a run: find the server, shake hands, and share one writer per process, server and run."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata
from typing import Final

from metrana_async import local, locations
from metrana_async.collector import BIG_ANSWER_BYTES, collector_resting
from metrana_async.columns.attributes import config_updates, description_update, tags_update
from metrana_async.columns.names import check_name
from metrana_async.columns.redaction import redact_updates, redaction_text
from metrana_async.engine import lifecycle
from metrana_async.engine.clock import SystemClock
from metrana_async.engine.loop_thread import engine, on_fork, running_engine, submit_nowhere
from metrana_async.errors import InitError, MetranaError, MetranaWarning, TransportError
from metrana_async.notices import say, set_log_level
from metrana_async.orchestration import process_identity, resolve_orchestration_id, spans_hosts
from metrana_async.settings import Settings
from metrana_async.transport.addresses import without_user
from metrana_async.transport.base import ServerAddress, Transport
from metrana_async.wire.messages import (
    OpenReply,
    OpenRequest,
    Seeds,
    decode_message,
    encode_message,
)
from metrana_async.wire.model import AttributeOp, AttributeUpdate
from metrana_async.writer import Writer, retried

_ATTEMPT_TIMEOUT_S: Final = 30.0

_RunKey = tuple[str, str, str, str]

_writers: dict[_RunKey, Writer] = {}
# Also those that take nothing any more but have not left: the end of the process waits for them.
_present: list[Writer] = []
_opening: asyncio.Lock | None = None


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
    lifecycle.install(_farewell)
    return engine().submit(lambda: _open(settings, transport))


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
    server = _server_key(settings, transport)
    place = (server, settings.workspace_name, settings.project_name)
    if settings.run_name is not None:
        shared = _writers.get((*place, settings.run_name))
        if shared is not None and shared.is_open:
            return shared
    clock = SystemClock()
    started_s = clock.monotonic_s()
    where = server
    if transport is None:
        transport, where = await _connect(settings)
    create_only, redacted = _create_only(settings)
    request = _request(settings, create_only)
    body = encode_message(request)
    left_s = max(0.1, settings.init_timeout_secs - (clock.monotonic_s() - started_s))
    chosen = transport

    async def attempt(timeout_s: float) -> OpenReply:
        limit_s = min(timeout_s, _ATTEMPT_TIMEOUT_S)
        answer = await chosen.post("/writers/open", body, timeout_s=limit_s)
        with collector_resting(rests=len(answer) >= BIG_ANSWER_BYTES):  # a seed for every series
            return decode_message(OpenReply, answer)

    try:
        reply = await retried(attempt, left_s, clock)
    except TransportError as error:
        await chosen.close()
        raise InitError(
            f"no server answered at {where} within {settings.init_timeout_secs:g} s: {error}",
            hint=None
            if settings.ingestion_url is None
            else "check ingestion_url= (METRANA_INGESTION_URL) and that a server runs there; "
            "without it init() starts one on this machine",
        ) from error
    except MetranaError:
        await chosen.close()
        raise
    settings = settings.for_reconnect(
        run_name=reply.run_name, orchestration_id=settings.orchestration_id or ""
    )
    writer = Writer(
        settings,
        # A retried introduction must not ask for a generated name again.
        request=replace(request, run_name=reply.run_name),
        reply=reply,
        transport=chosen,
        call_soon=engine().call_soon,
        clock=clock,
    )
    writer.where = where
    if redacted and reply.created:
        writer.notices.tell(MetranaWarning, redaction_text(redacted), key=("redacted",))
    writer.start()
    _writers[(*place, reply.run_name)] = writer
    _present.append(writer)
    return writer


def _server_key(settings: Settings, transport: Transport | None) -> str:
    """What tells the servers of this process apart."""
    if transport is not None:
        return f"transport {id(transport)}"
    return settings.ingestion_url or f"local {locations.data_dir(settings.data_dir)}"


async def _connect(settings: Settings) -> tuple[Transport, str]:
    """A transport to the server that the settings name, and where that is."""
    # Imported on use: aiohttp is most of what an import of this package would cost.
    from metrana_async.local_transport import LocalServerTransport
    from metrana_async.transport.http import HttpTransport

    if settings.ingestion_url is not None:
        address = ServerAddress(settings.ingestion_url, token=settings.api_key)
        return HttpTransport(address), without_user(address.url)
    spread = spans_hosts()
    if spread is not None:
        raise InitError(
            f"this job runs on several hosts ({spread}); a local server cannot serve them all",
            hint="start one on a host that all reach, `python -m metrana_async.server --host "
            "ADDRESS --port PORT --allow-remote --token-file FILE`, and give every process its "
            "ingestion_url= (METRANA_INGESTION_URL) and api_key= (METRANA_API_KEY)",
        )
    address = await local.find_or_start(settings.data_dir, timeout_s=settings.init_timeout_secs)
    return LocalServerTransport(address, settings.data_dir), without_user(address.url)


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
    """The transport of a disabled run: it has nothing to send."""

    async def post(
        self, path: str, body: bytes, *, timeout_s: float, content_type: str = ""
    ) -> bytes:
        """See Transport; never called."""
        del content_type
        raise InitError(f"{path} was called on a disabled run ({len(body)} bytes, {timeout_s} s)")

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
    verb = "started" if writer.is_creator else "joined"
    place = f"{settings.workspace_name}/{settings.project_name}/{writer.run_name}"
    say(f"{verb} run {place} at {writer.where}")


# --- the end of the process -----------------------------------------------------------------------


def _farewell(
    budget_s: float, status: str, exception_type: str | None
) -> concurrent.futures.Future[None] | None:
    """Start to flush with intake still open, then to leave, within the exit budget."""
    thread = running_engine()
    if thread is None or thread.is_own_thread or not _present:
        return None
    return thread.submit(lambda: _leave_all(budget_s, status, exception_type))


async def _leave_all(budget_s: float, status: str, exception_type: str | None) -> None:
    writers = [writer for writer in _present if not writer.has_left]
    ends = await asyncio.gather(
        *(_leave_one(writer, budget_s, status, exception_type) for writer in writers),
        return_exceptions=True,
    )
    for end in ends:
        if isinstance(end, BaseException):
            raise end


async def _leave_one(
    writer: Writer, budget_s: float, status: str, exception_type: str | None
) -> None:
    started_s = time.monotonic()
    with contextlib.suppress(MetranaError):  # close() below counts and tells what is left
        await writer.flush(writer.inbox.appended_count, budget_s * 0.9)
    left_s = max(0.1, budget_s - (time.monotonic() - started_s))
    await writer.close(left_s, is_run_over=True, status=status, exception_type=exception_type)


def _forget_in_child() -> None:
    global _opening
    _writers.clear()
    _present.clear()
    _opening = None


on_fork(_forget_in_child)
