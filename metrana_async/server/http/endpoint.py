"""An endpoint is a coroutine from request body to answer, free of any web framework.

`app.py` mounts endpoints in aiohttp; `testing.py` calls the same ones in memory. So there is one
route table and one error mapping, and nothing is tested that is not served.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from metrana_async.errors import InternalError, MetranaError, TransportError
from metrana_async.wire.messages import JSON_TYPE, encode_error


@dataclass(frozen=True, slots=True)
class Answer:
    """What an endpoint gives back."""

    body: bytes
    content_type: str = JSON_TYPE
    status: int = 200
    retry_after_s: float | None = None


Endpoint = Callable[[bytes], Awaitable[Answer]]


async def answer(endpoint: Endpoint, body: bytes) -> Answer:
    """Call an endpoint; every error becomes an error answer, none escapes."""
    try:
        return await endpoint(body)
    except TransportError as error:
        status, content = encode_error(error)
        return Answer(content, status=status, retry_after_s=error.retry_after_s)
    except MetranaError as error:
        status, content = encode_error(error)
    except Exception as error:  # the HTTP error mapping: an unknown fault is ours, and is a 500
        status, content = encode_error(InternalError(f"{type(error).__name__}: {error}"))
    return Answer(content, status=status)
