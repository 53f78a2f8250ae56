"""Where a run spools, as its settings say it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from metrana_async import locations
from metrana_async.delivery.outbox import Outbox, Pages
from metrana_async.delivery.spooling import WRITE_AFTER_S, Spooler
from metrana_async.engine.clock import Clock
from metrana_async.engine.io_thread import Hop
from metrana_async.errors import InitError, SpoolWarning
from metrana_async.orchestration import process_identity
from metrana_async.settings import Settings
from metrana_async.spool.disk import Disk, RealDisk
from metrana_async.spool.layout import Meta, writer_directory
from metrana_async.spool.writer import SpoolWriter
from metrana_async.wire.messages import OpenRequest

WRITE_AFTER_FAR_S: Final = 5.0
"""Age of unacknowledged batches from which a spool on a network file system takes them."""


@dataclass(frozen=True, slots=True)
class SpoolPlace:
    """Where a writer may keep what it cannot deliver.

    Attributes:
        disk: the file system.
        hop: carries the blocking calls there.
        make: the spool of a writer, given its introduction and the run uid of its batches.
        write_after_s: age from which an unacknowledged batch is written.
    """

    disk: Disk
    hop: Hop
    make: Callable[[OpenRequest, str], SpoolWriter]
    write_after_s: float = WRITE_AFTER_S

    def spooler(
        self,
        outbox: Outbox,
        pages: Pages,
        request: OpenRequest,
        run_uid: str,
        *,
        clock: Clock,
        on_change: Callable[[], None],
        on_failure: Callable[[OSError], None],
    ) -> Spooler:
        """The spooler of a writer; nothing is touched on the disk yet."""
        return Spooler(
            outbox,
            self.make(request, run_uid),
            self.disk,
            pages,
            hop=self.hop,
            clock=clock,
            on_change=on_change,
            on_failure=on_failure,
            write_after_s=self.write_after_s,
        )


def spool_root(path: str | os.PathLike[str] | None, data_dir: str | None) -> Path:
    """The spool directory: `path`, else ``spool`` beside the local server's store."""
    root = Path(path) if path is not None else locations.data_dir(data_dir) / "spool"
    return root.expanduser().absolute()


def place_for(settings: Settings, server: str, hop: Hop, *, is_anywhere: bool) -> SpoolPlace | None:
    """Where a run with these settings spools; None = memory only.

    Through a transport of the caller's own nobody else could deliver what is left: there the
    default is memory only.

    Raises:
        InitError: the place was asked for and cannot be used.
    """
    config = settings.disk
    is_wanted = config is not None and (config.is_required or settings.starts_without_server)
    if config is None or (is_anywhere and not is_wanted):
        return None
    root = spool_root(config.path, settings.data_dir)
    try:
        if is_wanted or root.exists():
            locations.make_private(root)
    except InitError as error:
        if is_wanted:
            raise
        text = f"no disk spool: {error.message}; what cannot be delivered is kept in memory only"
        warnings.warn(text, SpoolWarning, stacklevel=2)
        return None
    disk = RealDisk()
    host = process_identity().host

    def make(request: OpenRequest, run_uid: str) -> SpoolWriter:
        directory = writer_directory(
            str(root), host=host, server=server, run_uid=run_uid, writer_id=request.writer_id
        )
        meta = Meta(server, settings.init_mode, run_uid, request)
        return SpoolWriter(disk, directory, meta, quota_bytes=config.quota_bytes)

    is_far = locations.network_file_system(root) is not None
    return SpoolPlace(disk, hop, make, WRITE_AFTER_FAR_S if is_far else WRITE_AFTER_S)
