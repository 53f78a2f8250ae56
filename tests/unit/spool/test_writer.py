"""Facts about the spool's writer: what `sync` returned for is there, whatever the disk refused."""

from __future__ import annotations

import contextlib
import errno
import sys
import threading

import pytest

from metrana_async.spool import layout
from metrana_async.spool import writer as writer_module
from metrana_async.spool.disk import RealDisk
from metrana_async.spool.writer import SpoolFrame, SpoolFullError, SpoolWriter
from metrana_async.wire.messages import LeaveRequest
from tests.unit.spool.disks import META, RUN, WRITER, FailingDisk, frame, frames, sequences

BATCHES = 12


@pytest.fixture(autouse=True)
def small_segments(monkeypatch):
    """Room for about two batches."""
    monkeypatch.setattr(writer_module, "SEGMENT_BYTES", 500)


@pytest.fixture
def directory(tmp_path):
    return str(tmp_path / RUN / WRITER)


def persist(spool: SpoolWriter, batches: list[SpoolFrame], tries: int) -> int:
    """Append and sync as its caller does: all that is not synced again after every refusal.

    Returns the last sequence that is durable.
    """
    durable = 0
    for _ in range(tries):
        try:
            while durable < len(batches):
                step = batches[durable : durable + 3]
                count = spool.append(step)
                spool.sync()
                durable += count
            return durable
        except OSError:
            continue
    return durable


def test_what_is_synced_is_read_back_in_order(directory):
    """Over several segments, and nothing else is there."""
    spool = SpoolWriter(RealDisk(), directory, META)
    assert not spool.is_made
    assert persist(spool, frames(1, 30), 1) == 29
    assert not spool.has_unsynced
    assert len(spool.readable()) > 5
    assert sequences(directory) == list(range(1, 30))
    assert layout.read_meta(RealDisk(), directory) == META
    spool.close(is_delivered=False)


@pytest.mark.parametrize(("code", "length"), [(errno.EIO, 1), (errno.ENOSPC, 4)])
def test_every_call_fails_for_a_while(tmp_path, code, length):
    """From the nth call on `length` calls fail, for every n: all of it gets there, none altered."""
    nth = 0
    while True:
        nth += 1
        directory = str(tmp_path / str(nth) / RUN / WRITER)
        disk = FailingDisk(lambda at, _, nth=nth: code if nth <= at < nth + length else None)
        spool = SpoolWriter(disk, directory, META)
        assert persist(spool, frames(1, BATCHES + 1), length + 1) == BATCHES, disk.calls[nth - 1]
        assert list(dict.fromkeys(sequences(directory))) == list(range(1, BATCHES + 1))
        with contextlib.suppress(OSError):
            spool.put_end(LeaveRequest(RUN, WRITER))
        with contextlib.suppress(OSError):
            spool.close(is_delivered=False)
        if len(disk.calls) < nth:
            break
    assert nth > 50


def test_every_call_is_the_last_that_works(tmp_path):
    """From the nth on all fail: what `sync` had returned for is there, and META with it."""
    nth = 0
    while True:
        nth += 1
        directory = str(tmp_path / str(nth) / RUN / WRITER)
        disk = FailingDisk(lambda at, _, nth=nth: errno.EIO if at >= nth else None)
        spool = SpoolWriter(disk, directory, META)
        durable = persist(spool, frames(1, BATCHES + 1), 3)
        found = sequences(directory)
        assert found[:durable] == list(range(1, durable + 1))
        assert set(found) <= set(range(1, BATCHES + 1))
        if durable:
            assert layout.read_meta(RealDisk(), directory) == META
        if durable == BATCHES:
            break
    assert nth > 30


def test_a_file_whose_sync_failed_is_not_synced_again(directory):
    """The kernel may call lost pages clean: what was in it is written again, elsewhere."""
    synced = []
    disk = FailingDisk()
    real = RealDisk.sync

    class Watched(RealDisk):
        def sync(self, handle):
            synced.append(handle)
            real(self, handle)

    disk._disk = Watched()
    spool = SpoolWriter(disk, directory, META)
    spool.append(frames(1, 2))
    spool.sync()
    spool.append(frames(2, 3))
    disk.fails = lambda _, name: errno.EIO if name == "sync" else None
    with pytest.raises(OSError):
        spool.sync()
    disk.fails = lambda _, name: None
    before = len(synced)
    assert not spool.has_unsynced
    spool.sync()
    assert len(synced) == before
    spool.append(frames(2, 3))
    spool.sync()
    assert [number for number, nbytes in spool.readable() if nbytes] == [1, 2]
    assert sequences(directory) == [1, 2, 2]


def test_segments_go_as_they_are_acknowledged(directory):
    """Only whole ones, oldest first; of several lanes each must be."""
    disk = RealDisk()
    spool = SpoolWriter(disk, directory, META)
    batches = [frame(seq, lane) for seq in range(1, 7) for lane in (0, 1)]
    persist(spool, batches, 1)
    spool.forget({0: 6})
    assert sequences(directory) == [one.seq for one in batches]
    spool.forget({0: 6, 1: 3})
    left = sequences(directory)
    assert left
    assert 4 in left
    assert min(left) >= 3
    spool.forget({0: 6, 1: 6})
    assert sequences(directory) == []
    assert spool.nbytes == 0
    spool.append(frames(7, 8))
    spool.sync()
    assert sequences(directory) == [7]


def test_a_quota_keeps_what_fits(directory):
    """The first ones, never more bytes than allowed; with room again it goes on."""
    spool = SpoolWriter(RealDisk(), directory, META, quota_bytes=1000)
    batches = frames(1, 30)
    kept = 0
    while spool.nbytes < 700:
        kept += spool.append(batches[kept:])
        spool.sync()
    with pytest.raises(SpoolFullError) as caught:
        spool.append(batches[kept:])
    assert caught.value.errno == errno.EDQUOT
    assert 0 < spool.nbytes <= 1000
    assert sequences(directory) == list(range(1, kept + 1))
    spool.forget({0: kept})
    assert spool.append(batches[kept:]) > 0
    spool.sync()
    assert spool.nbytes <= 1000


def test_a_full_file_system_keeps_its_last_bytes(directory):
    """A twentieth, at most a GiB, is for others."""

    class Full(RealDisk):
        def free_bytes(self, path):
            return 50, 1000

    spool = SpoolWriter(Full(), directory, META)
    with pytest.raises(SpoolFullError) as caught:
        spool.append(frames(1, 2))
    assert caught.value.errno == errno.ENOSPC


def test_a_directory_has_one_writer(directory):
    """The second is refused until the first has left."""
    first, second = (SpoolWriter(RealDisk(), directory, META) for _ in range(2))
    first.make()
    with pytest.raises(OSError) as caught:
        second.make()
    assert caught.value.errno == errno.EBUSY
    first.close(is_delivered=False)
    second.make()
    second.close(is_delivered=True)


def test_what_was_delivered_is_removed_and_nothing_else(directory, tmp_path):
    """The writer's files and the run's directory; not what somebody else put there."""
    spool = SpoolWriter(RealDisk(), directory, META)
    persist(spool, frames(1, 5), 1)
    spool.put_end(LeaveRequest(RUN, WRITER))
    foreign = tmp_path / RUN / WRITER / "notes.txt"
    foreign.write_text("mine")
    spool.close(is_delivered=True)
    assert [path.name for path in (tmp_path / RUN / WRITER).iterdir()] == ["notes.txt"]
    foreign.unlink()
    again = SpoolWriter(RealDisk(), directory, META)
    again.make()
    again.close(is_delivered=True)
    assert list(tmp_path.iterdir()) == []


def test_a_rotation_shows_readers_nothing_that_the_caller_does_not_know(directory):
    """A full segment is synced within `append`; it is readable when `sync` says so, not before."""
    spool = SpoolWriter(RealDisk(), directory, META)
    batches = frames(1, 8)
    spool.append(batches)
    assert len(spool.readable()) > 1
    assert [nbytes for _, nbytes in spool.readable() if nbytes] == []
    spool.sync()
    assert sum(nbytes for _, nbytes in spool.readable()) == spool.nbytes


def test_a_segment_that_cannot_be_removed_ends_nothing(directory, monkeypatch):
    """What was appended since is not synced yet; the next append goes on in another segment."""
    disk = RealDisk()
    spool = SpoolWriter(disk, directory, META)
    spool.append(frames(1, 2))
    with monkeypatch.context() as patched:
        patched.setattr(disk, "remove", refuse)
        with pytest.raises(OSError, match="refused"):
            spool.forget({0: 1})
    spool.append(frames(2, 3))
    spool.sync()
    spool.forget({0: 1})
    assert sequences(directory) == [2]


def test_bytes_are_counted_while_segments_come_and_go(directory):
    """The engine asks how much there is while the disk's thread is at work."""
    spool = SpoolWriter(RealDisk(), directory, META)
    spool.append(frames(1, 200))
    is_over = threading.Event()
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            while not is_over.is_set():
                assert spool.nbytes >= 0
        except BaseException as error:
            failures.append(error)

    asking = threading.Thread(target=ask)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        asking.start()
        for seq in range(200, 400):
            spool.append(frames(seq, seq + 1))
        spool.sync()
        spool.forget({0: 400})
    finally:
        is_over.set()
        asking.join()
        sys.setswitchinterval(interval_s)
    assert not failures


def refuse(path: str) -> None:
    raise OSError(errno.EIO, "refused", path)
