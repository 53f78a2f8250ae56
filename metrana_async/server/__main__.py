"""`python -m metrana_async.server`: serve this machine's store until stopped."""

from __future__ import annotations

import os
import sys


def _detach() -> None:
    """Go on in a child of nobody; the process that was started ends at once with status 0."""
    # Forked before anything is imported that holds threads or descriptors.
    if os.fork():
        os._exit(0)
    os.setsid()


def main(arguments: list[str]) -> int:
    """Run the server; returns the exit status."""
    from metrana_async.server.settings import from_arguments

    settings, detach = from_arguments(arguments)
    if detach:
        _detach()
    import asyncio

    from metrana_async.errors import InitError
    from metrana_async.server.app import serve

    def ready(url: str) -> None:
        sys.stderr.write(f"metrana server {os.getpid()} on {url}, store {settings.data_dir}\n")
        sys.stderr.flush()

    try:
        asyncio.run(serve(settings, ready=ready))
    except InitError as error:
        sys.stderr.write(f"metrana server: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
