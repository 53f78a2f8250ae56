"""Facts about reading back: refusals of the moment are no damage, damage is counted and passed."""

from __future__ import annotations

import errno
import itertools

import pytest

from metrana_async.spool import writer as writer_module
from metrana_async.spool.disk import RealDisk
from metrana_async.spool.reader import SpoolReader
from metrana_async.spool.writer import SpoolWriter
from tests.unit.spool.disks import META, RUN, WRITER, FailingDisk, frames, sequences


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """Ten batches in five segments."""
    monkeypatch.setattr(writer_module, "SEGMENT_BYTES", 500)
    made = str(tmp_path / RUN / WRITER)
    spool = SpoolWriter(RealDisk(), made, META)
    spool.append(frames(1, 11))
    spool.sync()
    spool.close(is_delivered=False)
    return made


def read_all(reader: SpoolReader) -> list[int]:
    found: list[int] = []
    while batches := reader.read():
        found += [one.seq for one, _ in batches]
    return found


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EACCES, errno.ENOMEM])
def test_a_refusal_of_the_moment_is_raised_and_tried_again(directory, code):
    """No descriptor, no permission, no memory: nothing is lost and nothing skipped."""
    reads = itertools.count()
    disk = FailingDisk(lambda _, name: code if name == "read" and next(reads) % 2 else None)
    reader = SpoolReader(disk, directory)
    found: list[int] = []
    raised = 0
    for _ in range(100):
        try:
            found += [one.seq for one, _ in reader.read()]
        except OSError:
            raised += 1
    assert found == list(range(1, 11))
    assert raised
    assert (reader.damage.damaged_bytes, reader.damage.errors) == (0, [])


def test_a_read_that_fails_twice_is_made_a_third_time(directory):
    """A bad sector may be read at last."""
    failed = []

    def fails(nth, name):
        if name == "read" and len(failed) < 2:
            failed.append(nth)
            return errno.EIO
        return None

    reader = SpoolReader(FailingDisk(fails), directory)
    assert read_all(reader) == list(range(1, 11))
    assert len(failed) == 2
    assert reader.damage.errors == []


def test_a_segment_that_cannot_be_read_costs_itself(directory):
    """It is told, its bytes are counted, and the others are read."""
    disk = RealDisk()
    real = disk.read

    class Bad(RealDisk):
        def read(self, path, offset, size):
            if path.endswith("00000002.seg"):
                raise OSError(errno.EIO, "bad sector")
            return real(path, offset, size)

    reader = SpoolReader(Bad(), directory)
    found = read_all(reader)
    missing = sorted(set(range(1, 11)) - set(found))
    assert missing
    assert missing == list(range(missing[0], missing[-1] + 1))
    assert len(reader.damage.errors) == 1
    assert reader.damage.damaged_bytes > 0


def test_reading_changes_nothing_and_can_be_repeated(directory):
    """Twice the same."""
    assert sequences(directory) == sequences(directory) == list(range(1, 11))


def test_a_segment_that_grows_is_read_to_where_it_is_whole(directory):
    """What is cut at the end is left for later, and read once when it is there."""
    disk = RealDisk()
    (one,) = frames(11, 12)
    path = f"{directory}/00000099.seg"
    reader = SpoolReader(disk, directory)
    handle = disk.create(path)
    disk.append(handle, one.frame[:50])
    found = []
    while batches := reader.read(is_growing=True):
        found += [batch.seq for batch, _ in batches]
    assert found == list(range(1, 11))
    disk.append(handle, one.frame[50:])
    disk.close(handle)
    assert [batch.seq for batch, _ in reader.read(is_growing=True)] == [11]
    assert reader.read() == []
    assert reader.damage.damaged_bytes == 0
