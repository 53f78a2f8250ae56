"""What does a point cost client and server up to the acknowledgement, and how many bytes is it?

Expected orders: a few microseconds a scalar point and hundredths a block point; about four bytes
where float32 values do not compress.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import metrana_sync_shim as metrana
from benchmarks.macro.callers import Workloads
from benchmarks.processes import cpu_of, disk_bytes
from benchmarks.rows import APPEND, COPY, Row
from tests.conformance.runner import ServerProcess


def to_the_ack(server: ServerProcess) -> list[Row]:
    """CPU of client and server from the call to the acknowledgement; the current run is used."""
    work = Workloads()
    rows = []
    for what, call, calls, points, aims, yardstick in (
        ("scalars", work.scalar, 200_000, 1, (3, 1.5), APPEND),
        ("dicts of 20", work.mapping, 10_000, 20, (3, 1.5), APPEND),
        ("64x128 blocks", work.grid, 500, 8192, (0.02, 0.2), COPY),
        ("1,024x1 blocks", work.wide_row, 2_000, 1024, (0.02, 0.8), COPY),
    ):
        metrana.flush()
        client_s, server_s = time.process_time(), cpu_of(server.pid)
        for number in range(calls):
            call(number)
        metrana.flush()
        total = calls * points
        client_us = (time.process_time() - client_s) / total * 1e6
        server_us = (cpu_of(server.pid) - server_s) / total * 1e6
        for who, figure, aim in (("client", client_us, aims[0]), ("server", server_us, aims[1])):
            rows.append(Row(f"{who} CPU to the ack: {what}", figure, "us/point", aim, yardstick))
    return rows


def bytes_a_point() -> Sequence[Row]:
    """Size of the store after dense float32 blocks, the server stopped (all sealed)."""
    rows = []
    for what, name, calls, points in (
        ("64x128 blocks", "grid", 500, 8192),
        ("1,024x1 blocks", "wide_row", 3_000, 1024),
    ):
        with tempfile.TemporaryDirectory(prefix="metrana-bench-") as folder:
            server = ServerProcess(Path(folder) / "data")
            call = getattr(Workloads(), name)
            with metrana.init(project_name="bytes", data_dir=str(server.data_dir), quiet=True):
                for number in range(calls):
                    call(number)
            server.stop()
            size = disk_bytes(Path(folder) / "data") / (calls * points)
            rows.append(Row(f"store on disk: {what}", size, "bytes/point", 3.8, "", 1.1))
    return rows
