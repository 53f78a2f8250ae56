"""Does a long run grow (US-36): memory behind 500,000 and behind 2,000,000 points, objects kept?

Expected: a few megabytes of difference, and nothing of the caller's alive.
"""

from __future__ import annotations

import gc
import os
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import metrana_sync_shim as metrana
from benchmarks.processes import memory_mb
from benchmarks.rows import Row
from tests.conformance.runner import ServerProcess

_VIEWS, _ARRAY_FLOATS = 2_000, 250_000


def _log(points: int) -> float:
    """Log so many more; the memory then, MB."""
    for number in range(points):
        metrana.log("loss", number * 0.5)
    metrana.flush()
    gc.collect()
    return memory_mb(os.getpid())


def _views_alive(count: int) -> int:
    """Of so many logged 0-d views of arrays of 1 MB: how many arrays are still alive."""
    arrays = []
    for _ in range(count):
        array = np.zeros(_ARRAY_FLOATS, np.float32)
        arrays.append(weakref.ref(array))
        metrana.log("view", array[0:1].reshape(()))
    del array
    gc.collect()
    return sum(ref() is not None for ref in arrays)


def measure(scale: float = 1.0) -> Sequence[Row]:
    """All of it, against a server of its own."""
    few, many = int(500_000 * scale), int(1_500_000 * scale)
    with tempfile.TemporaryDirectory(prefix="metrana-bench-") as folder:
        server = ServerProcess(Path(folder) / "data")
        try:
            with metrana.init(project_name="bench", data_dir=str(server.data_dir), quiet=True):
                before_mb = _log(few)
                objects = len(gc.get_objects())
                grown_mb = _log(many) - before_mb
                gained = len(gc.get_objects()) - objects
                served_mb = memory_mb(server.pid)
                alive = _views_alive(max(20, int(_VIEWS * scale)))
        finally:
            server.stop()
    return [
        Row("US-36: client memory, 2M points over 500k", grown_mb, "MB", 20, "", 0),
        Row("US-36: client objects, 2M points over 500k", gained, "objects", 1_000, "", 0),
        Row("US-36: server memory behind 2M points", served_mb, "MB", None, "", 1.5),
        Row("US-36: arrays kept alive by their logged views", alive, "arrays", 0, "", 0),
    ]
