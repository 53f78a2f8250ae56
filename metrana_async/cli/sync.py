"""``metrana-async sync``: deliver what offline runs and dead processes left on disk."""

from __future__ import annotations

import argparse
import concurrent.futures
import sys
from pathlib import Path
from typing import Any, Final

import orjson

from metrana_async.leftovers import Leftover, begin_replay, list_leftovers
from metrana_async.replay import DELIVERED, ReplayReport
from metrana_async.settings import ConnectionDefaults, connection_defaults

_SLICE_S: Final = 0.25


def add_to(commands: Any) -> None:
    """Add the command's parser."""
    command = commands.add_parser(
        "sync",
        help="deliver what offline runs and dead processes left on disk",
        description="Deliver what offline runs and dead processes left on this machine's disk "
        "(or on a copy of it) to their server. Delivering again adds nothing. One line for each "
        "writer goes to stdout.",
    )
    command.add_argument(
        "directory",
        nargs="?",
        help="a spool directory or any directory in one (default: this machine's)",
    )
    command.add_argument("--workspace", help="deliver this workspace's runs only")
    command.add_argument("--project", help="deliver this project's runs only")
    command.add_argument("--run", dest="run_name", help="deliver runs of this name only")
    command.add_argument("--rename-to", metavar="NAME", help="deliver one run under another name")
    command.add_argument(
        "--url",
        help="the server (default: the one each run was for; METRANA_INGESTION_URL where that was "
        "the local one)",
    )
    command.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="a file that holds the bearer token (default: METRANA_API_KEY)",
    )
    command.add_argument("--data-dir", help="the local server's store, where that is the server")
    command.add_argument(
        "--follow", action="store_true", help="stay with writers at work until they have ended"
    )
    command.add_argument(
        "--status", action="store_true", help="say what is there, and deliver nothing"
    )
    command.add_argument(
        "--retry-set-aside",
        action="store_true",
        help="try again what could not be delivered before",
    )
    command.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="how long a delivery may go without progress (default: 60)",
    )
    command.add_argument("--json", action="store_true", help="one JSON object a line on stdout")
    command.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Run the command."""
    key = None if given.api_key_file is None else given.api_key_file.read_text("utf-8").strip()
    server = connection_defaults(given.url, key, given.data_dir)
    names = (given.workspace, given.project, given.run_name)
    if given.status:
        for leftover in list_leftovers(given.directory, names=names, server=server):
            print(_json(leftover) if given.json else _status_line(leftover))
        return 0
    reports = _replay(given, server)
    left = [report for report in reports if report.state != DELIVERED]
    sent = sum(report.statistics.committed for report in reports)
    print(
        f"{len(reports) - len(left)} of {len(reports)} writers delivered, {sent} points sent",
        file=sys.stderr,
    )
    return 1 if left else 0


def _replay(given: argparse.Namespace, server: ConnectionDefaults) -> list[ReplayReport]:
    def tell(report: ReplayReport) -> None:
        print(_json(report) if given.json else _report_line(report), flush=True)

    future = begin_replay(
        given.directory,
        names=(given.workspace, given.project, given.run_name),
        server=server,
        timeout_s=given.timeout,
        rename_to=given.rename_to,
        poll_s=1.0 if given.follow else None,
        is_retrying=given.retry_set_aside,
        on_report=tell,
    )
    while not future.done():
        # In slices, so that Ctrl-C is prompt on every platform.
        concurrent.futures.wait([future], timeout=_SLICE_S)
    return future.result()


def _json(row: ReplayReport | Leftover) -> str:
    # orjson writes dataclasses; read-only mappings it asks about.
    return orjson.dumps(row, default=dict).decode()


def _report_line(report: ReplayReport) -> str:
    sent = report.statistics.committed
    lost = sum(report.statistics.losses.values())
    parts = [f"{report.state:<10}", report.run or report.directory, f"{sent} points sent"]
    if lost:
        parts.append(f"{lost} points lost ({', '.join(sorted(report.statistics.losses))})")
    if report.state != DELIVERED:
        parts.append(report.directory)
    if report.text:
        parts.append(report.text)
    return "  ".join(parts)


def _status_line(leftover: Leftover) -> str:
    parts = [f"{leftover.state:<10}", leftover.run or "?", f"{leftover.nbytes} bytes"]
    return "  ".join([*parts, leftover.directory, leftover.text]).rstrip()
