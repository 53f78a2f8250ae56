"""Which server a run is for, and the way there."""

from __future__ import annotations

from typing import Final

from metrana_async import local, locations
from metrana_async.errors import InitError
from metrana_async.orchestration import spans_hosts
from metrana_async.transport.addresses import without_user
from metrana_async.transport.base import ServerAddress, Transport

_LOCAL: Final = "local "


def server_key(url: str | None, data_dir: str | None, transport: Transport | None = None) -> str:
    """What tells servers apart: a URL without its user part, or the local server's store."""
    if transport is not None:
        return f"transport {id(transport)}"
    return f"{_LOCAL}{locations.data_dir(data_dir)}" if url is None else without_user(url)


def place_of(key: str) -> tuple[str | None, str | None]:
    """(URL, data directory) of a `server_key`; one of them is None, or both."""
    if key.startswith(_LOCAL):
        return None, key.removeprefix(_LOCAL)
    return (key, None) if key.startswith(("http://", "https://")) else (None, None)


async def connect(
    url: str | None,
    api_key: str | None,
    data_dir: str | None,
    *,
    timeout_s: float,
    may_be_missing: bool = False,
) -> tuple[Transport, str]:
    """A transport to a server, and where that is for people.

    Args:
        url: the server; None = this user's local one, found or started.
        api_key: bearer token for a URL.
        data_dir: the local server's store; None = `locations` decides.
        timeout_s: how long finding or starting the local server may take.
        may_be_missing: whether a local server that does not start is looked for later.

    Raises:
        InitError: there is no local server to be had, or it cannot serve this job.
    """
    # Imported on use: aiohttp is most of what an import of this package would cost.
    from metrana_async.local_transport import LocalServerTransport
    from metrana_async.transport.http import HttpTransport

    if url is not None:
        address = ServerAddress(url, token=api_key)
        return HttpTransport(address), without_user(address.url)
    spread = spans_hosts()
    if spread is not None:
        raise InitError(
            f"this job runs on several hosts ({spread}); a local server cannot serve them all",
            hint="start one on a host that all reach, `python -m metrana_async.server --host "
            "ADDRESS --port PORT --allow-remote --token-file FILE`, and give every process its "
            "ingestion_url= (METRANA_INGESTION_URL) and api_key= (METRANA_API_KEY)",
        )
    try:
        address = await local.find_or_start(data_dir, timeout_s=timeout_s)
    except InitError:
        if not may_be_missing:
            raise
        return LocalServerTransport(None, data_dir), "this machine's local server"
    return LocalServerTransport(address, data_dir), without_user(address.url)
