"""The command line, ``metrana-async``: stdout is data, stderr is talk, the exit status tells.

Exit status: 0 all went well, 1 something is left to do or was refused, 2 the command was wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from metrana_async.cli import sync, ui
from metrana_async.errors import MetranaError


def parser() -> argparse.ArgumentParser:
    """The parser of every command."""
    top = argparse.ArgumentParser(
        prog="metrana-async", description="Metrics of reinforcement and machine learning."
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    sync.add_to(commands)
    ui.add_to(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit status."""
    given = parser().parse_args(arguments)
    try:
        status: int = given.run(given)
    except (MetranaError, OSError) as error:
        print(f"metrana-async: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("metrana-async: interrupted; what was not delivered is kept", file=sys.stderr)
        return 130
    return status
