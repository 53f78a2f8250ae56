"""`python -m metrana_async.server`: serve this machine's store until stopped.

`… stop` stops it; `… backup FOLDER` and `… restore FOLDER` copy the store and put a copy back;
`… verify` checks it.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from typing import Final

from metrana_async.errors import MetranaError, StoreFailedError


def main(arguments: list[str]) -> int:
    """Run the server, or do something about its store; returns the exit status."""
    try:
        command = _COMMANDS.get(arguments[0]) if arguments else None
        return _serve(arguments) if command is None else command(arguments[1:])
    except MetranaError as error:
        _say(str(error))
        return 1


def _serve(arguments: list[str]) -> int:
    from metrana_async.server.settings import from_arguments

    settings, is_detached = from_arguments(arguments)
    is_up = _detach() if is_detached else lambda: None
    import asyncio

    from metrana_async.server.app import serve
    from metrana_async.server.log_file import LogFile

    if settings.log_path is not None:
        from metrana_async.locations import make_private

        make_private(settings.log_path.parent)
        log = LogFile(settings.log_path)
        log.adopt()
        log.keep_bounded()

    def ready(url: str) -> None:
        _say(f"{os.getpid()} on {url}, store {settings.data_dir}", colon="")
        is_up()

    # A catalogue of 100,000 series is a million objects that live long: the default thresholds
    # would walk them again and again while they are being built, which doubles the time.
    gc.set_threshold(100_000, 20, 20)
    try:
        asyncio.run(serve(settings, ready=ready))
    except StoreFailedError as error:
        _say(str(error))
        # Without a farewell: closing the store would tell SQLite to trust its disk once more.
        os._exit(1)
    return 0


def _stop(arguments: list[str]) -> int:
    import asyncio

    from metrana_async import local, locations
    from metrana_async.server.settings import stop_parser

    parsed = stop_parser().parse_args(arguments)
    was_there = asyncio.run(local.stop(parsed.data_dir, timeout_s=parsed.timeout))
    data = locations.data_dir(parsed.data_dir)
    _say(f"stopped, store {data}" if was_there else f"none runs for {data}")
    return 0


def _backup(arguments: list[str]) -> int:
    from metrana_async import locations
    from metrana_async.server.settings import backup_parser
    from metrana_async.server.store.sqlite.backup import back_up

    parsed = backup_parser().parse_args(arguments)
    data = locations.data_dir(parsed.data_dir)
    made = back_up(data, parsed.folder)
    _say(f"backed up {data}: {made.runs_count} runs, {made.nbytes} bytes in {made.database}")
    return 0


def _restore(arguments: list[str]) -> int:
    from metrana_async import locations
    from metrana_async.server.settings import restore_parser
    from metrana_async.server.store.sqlite.backup import restore

    parsed = restore_parser().parse_args(arguments)
    data = locations.data_dir(parsed.data_dir)
    replaced = restore(parsed.folder, data)
    kept = "" if replaced is None else f"; what was there is in {replaced}"
    _say(f"restored {parsed.folder} to {data}{kept}")
    return 0


def _verify(arguments: list[str]) -> int:
    from metrana_async import locations
    from metrana_async.server.settings import verify_parser
    from metrana_async.server.store.sqlite.verify import verify

    parsed = verify_parser().parse_args(arguments)
    data = locations.data_dir(parsed.data_dir)
    found = verify(data)
    for problem in found.problems:
        _say(problem)
    _say(f"{len(found.problems)} problems in {data}, {found.rows_count} rows compared")
    return 1 if found.problems else 0


_COMMANDS: Final[dict[str, Callable[[list[str]], int]]] = {
    "stop": _stop,
    "backup": _backup,
    "restore": _restore,
    "verify": _verify,
}


def _detach() -> Callable[[], None]:
    """Go on in a child of nobody; returns what the child calls once it serves.

    The process that was started waits for that and ends with 0, or with 1 where the child ended
    before.
    """
    # Forked before anything is imported that holds threads or descriptors.
    heard, said = os.pipe()
    if os.fork():
        os.close(said)
        os._exit(0 if os.read(heard, 1) else 1)
    os.close(heard)
    os.setsid()

    def is_up() -> None:
        os.write(said, b"1")
        os.close(said)

    return is_up


def _say(text: str, colon: str = ":") -> None:
    sys.stderr.write(f"metrana server{colon} {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
