"""Facts about the layout: what is ours is found at every level, what is not is left alone."""

from __future__ import annotations

import errno
import os

import pytest

from metrana_async.spool import layout
from metrana_async.spool.disk import RealDisk
from metrana_async.spool.lock import release, try_lock
from tests.unit.spool.disks import META, RUN, WRITER

DISK = RealDisk()


@pytest.fixture
def directory(tmp_path):
    """A writer's directory with META and a segment."""
    made = layout.writer_directory(
        str(tmp_path), host="host", server="server", run_uid=RUN, writer_id=WRITER
    )
    DISK.make_directory(made)
    layout.put_file(DISK, made, layout.META, layout.encode_meta(META))
    DISK.close(DISK.create(f"{made}/{layout.segment_name(1)}"))
    return made


def test_writers_are_found_from_every_level_and_as_a_copy(tmp_path, directory):
    """Root, version, host, server, run, the directory itself, and a copy under any name."""
    top = directory
    for _ in range(6):
        assert layout.writer_directories(DISK, top) == [directory]
        top = os.path.dirname(top)
    os.rename(directory, tmp_path / "copy")
    assert layout.writer_directories(DISK, str(tmp_path / "copy")) == [str(tmp_path / "copy")]


def test_a_stray_file_does_not_hide_a_spool(tmp_path, directory):
    """A segment or META at the root belongs to nobody; the writers below are found."""
    for name in ("00000001.seg", layout.META, layout.LOCK):
        (tmp_path / name).write_bytes(b"stray")
    assert layout.writer_directories(DISK, str(tmp_path)) == [directory]


def test_links_are_not_followed(tmp_path, directory):
    """A link with a writer's name is none."""
    link = os.path.join(os.path.dirname(directory), "c" * 32)
    os.symlink(directory, link)
    assert layout.writer_directories(DISK, str(tmp_path)) == [directory]


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("00000001.seg", 1),
        ("123456789.seg", 123456789),
        ("000000001.seg", None),
        ("1.seg", None),
        ("-0000001.seg", None),
        ("0000001x.seg", None),
        ("٠٠٠٠٠٠٠١.seg", None),
        ("00000001", None),
        (".seg", None),
        ("00000001.seg.new", None),
    ],
)
def test_names_of_segments(name, number):
    """Exactly those that are written; anything else is somebody else's file."""
    assert layout.segment_number(name) == number


def test_a_file_is_put_whole_or_not_at_all(directory):
    """What an interrupted put left beside it is in nobody's way."""
    beside = f"{directory}/{layout.END}.new"
    DISK.close(DISK.create(beside))
    layout.put_file(DISK, directory, layout.END, b"{}")
    assert DISK.read(f"{directory}/{layout.END}", 0, 99) == b"{}"
    assert not os.path.exists(beside)


@pytest.mark.parametrize(
    "content", [b"", b"null", b"[]", b'{"server": 1}', b"\xff\x00", layout.encode_meta(META)[:-1]]
)
def test_a_meta_that_is_none(directory, content):
    """Nothing is made of it, and nothing raised."""
    with open(f"{directory}/{layout.META}", "wb") as file:
        file.write(content)
    assert layout.read_meta(DISK, directory) is None
    with open(f"{directory}/{layout.END}", "wb") as file:
        file.write(content)
    assert layout.read_end(DISK, directory) is None


def test_a_flipped_bit_names_no_other_run(directory):
    """Whatever bit of META flips, nothing is made of it."""
    path = f"{directory}/{layout.META}"
    whole = layout.encode_meta(META)
    for place in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        with open(path, "wb") as file:
            file.write(flipped)
        assert layout.read_meta(DISK, directory) is None
    with open(path, "wb") as file:
        file.write(whole)
    assert layout.read_meta(DISK, directory) == META


def test_a_lock_whose_file_was_replaced_locks_nothing(tmp_path):
    """Who finds another file in its place has not got it; who locks the new one has."""
    path = str(tmp_path / "LOCK")
    held = try_lock(path)
    assert held is not None
    os.unlink(path)
    other = try_lock(path)
    assert other is not None
    assert try_lock(path) is None
    release(held)
    assert try_lock(path) is None
    release(other)
    again = try_lock(path)
    assert again is not None
    release(again)


def test_a_link_in_the_place_of_a_lock_is_refused(tmp_path):
    """It would lock, and later delete, somebody else's file."""
    os.symlink(tmp_path / "elsewhere", tmp_path / "LOCK")
    with pytest.raises(OSError):
        try_lock(str(tmp_path / "LOCK"))
    assert not (tmp_path / "elsewhere").exists()


def test_numbers_that_are_somebody_elses_by_now_are_left_alone(tmp_path):
    """The program closed our files and has its own there: nothing is written, synced or closed."""
    disk = RealDisk()
    handle, lock = disk.create(str(tmp_path / "a")), disk.lock(str(tmp_path / "LOCK"))
    disk.append(handle, b"ours")
    own = []
    for number in (handle, lock):
        os.close(number)
        own.append(os.open(tmp_path / f"own-{number}", os.O_RDWR | os.O_CREAT))
    assert own == [handle, lock]
    for call in (lambda: disk.append(handle, b"x"), lambda: disk.sync(handle)):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.EBADF
    with pytest.raises(OSError):
        disk.close(handle)
    disk.unlock(lock)
    assert [os.fstat(number).st_size for number in own] == [0, 0]
    again = disk.create(str(tmp_path / "b"))
    disk.append(again, b"ours")
    disk.close(again)
    for number in own:
        os.close(number)
