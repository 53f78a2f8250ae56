"""The model disk is a disk: the same contract as the real one, and worse when the power goes."""

from __future__ import annotations

import errno
import os
import random

import pytest

from metrana_async.spool.disk import Disk, RealDisk
from tests.simulation.model_disk import File, Killed, ModelDisk

SEEDS = range(200)


@pytest.fixture(params=["real", "model"])
def disk(request, tmp_path) -> Disk:
    """A real disk and a model of one; both are used below `root`."""
    if request.param == "real":
        return RealDisk()
    view = ModelDisk(random.Random(1)).view()
    view.make_directory(str(tmp_path))
    return view


@pytest.fixture
def root(tmp_path) -> str:
    return str(tmp_path)


# --- the contract: what a process sees ---------------------------------------------------------
def test_what_is_appended_is_read(disk, root):
    """Appends lie one behind the other; a read ends with the file."""
    handle = disk.create(f"{root}/a")
    disk.append(handle, b"one")
    disk.append(handle, b"two")
    disk.sync(handle)
    disk.close(handle)
    assert disk.read(f"{root}/a", 0, 100) == b"onetwo"
    assert disk.read(f"{root}/a", 2, 2) == b"et"
    assert disk.read(f"{root}/a", 6, 2) == b""


def test_a_name_is_taken_once(disk, root):
    """Creating what exists is refused."""
    disk.create(f"{root}/a")
    with pytest.raises(FileExistsError):
        disk.create(f"{root}/a")


def test_directories_are_made_with_their_parents(disk, root):
    """Making one again changes nothing; a file in the way is an error."""
    disk.make_directory(f"{root}/a/b/c")
    disk.make_directory(f"{root}/a/b")
    disk.sync_directory(f"{root}/a/b")
    assert [(e.name, e.kind) for e in disk.entries(f"{root}/a/b")] == [("c", "directory")]
    disk.close(disk.create(f"{root}/a/b/file"))
    with pytest.raises(OSError):
        disk.make_directory(f"{root}/a/b/file/d")


def test_entries_are_sorted_and_sized(disk, root):
    """Names in order, files with their size; nothing where there is no directory."""
    for name, size in (("b", 3), ("a", 5)):
        handle = disk.create(f"{root}/{name}")
        disk.append(handle, bytes(size))
        disk.close(handle)
    found = disk.entries(root)
    assert [(e.name, e.size) for e in found if e.is_file] == [("a", 5), ("b", 3)]
    assert disk.entries(f"{root}/nowhere") == []
    assert disk.entries(f"{root}/a") == []


def test_a_rename_replaces(disk, root):
    """The target is the source afterwards; a missing source is an error."""
    for name in ("old", "new"):
        handle = disk.create(f"{root}/{name}")
        disk.append(handle, name.encode())
        disk.close(handle)
    disk.make_directory(f"{root}/sub")
    disk.rename(f"{root}/new", f"{root}/old")
    disk.rename(f"{root}/old", f"{root}/sub/there")
    assert disk.read(f"{root}/sub/there", 0, 9) == b"new"
    assert [e.name for e in disk.entries(root)] == ["sub"]
    with pytest.raises(FileNotFoundError):
        disk.rename(f"{root}/new", f"{root}/old")


def test_removing_what_is_not_there_is_nothing(disk, root):
    """Files and empty directories go; a full directory stays."""
    disk.remove(f"{root}/nothing")
    disk.remove_directory(f"{root}/nothing")
    disk.make_directory(f"{root}/d")
    disk.close(disk.create(f"{root}/d/f"))
    with pytest.raises(OSError) as caught:
        disk.remove_directory(f"{root}/d")
    assert caught.value.errno in (errno.ENOTEMPTY, errno.EEXIST)
    disk.remove(f"{root}/d/f")
    disk.remove_directory(f"{root}/d")
    assert disk.entries(root) == []


def test_a_removed_file_is_written_to_the_end(disk, root):
    """A handle outlives the name."""
    handle = disk.create(f"{root}/a")
    disk.remove(f"{root}/a")
    disk.append(handle, b"still")
    disk.sync(handle)
    disk.close(handle)
    with pytest.raises(FileNotFoundError):
        disk.read(f"{root}/a", 0, 1)


def test_a_closed_handle_is_bad(disk, root):
    """EBADF, as everywhere."""
    handle = disk.create(f"{root}/a")
    disk.close(handle)
    with pytest.raises(OSError) as caught:
        disk.append(handle, b"x")
    assert caught.value.errno == errno.EBADF


def test_only_regular_files_are_read(disk, root):
    """A directory is not read, and nothing under a file is found."""
    with pytest.raises(OSError):
        disk.read(root, 0, 1)
    disk.close(disk.create(f"{root}/a"))
    with pytest.raises(OSError):
        disk.create(f"{root}/a/b")


def test_a_lock_is_held_once(disk, root):
    """Taken, busy, given up, taken; the lock file is made where it is missing."""
    held = disk.lock(f"{root}/lock")
    assert held is not None
    assert disk.lock(f"{root}/lock") is None
    disk.unlock(held)
    again = disk.lock(f"{root}/lock")
    assert again is not None
    disk.unlock(again)
    assert [e.name for e in disk.entries(root)] == ["lock"]


def test_there_is_some_room(disk, root):
    """Free bytes are not more than all bytes."""
    free, size = disk.free_bytes(root)
    assert 0 < free <= size


# --- a killed process --------------------------------------------------------------------------
def test_a_killed_process_loses_its_handles_and_locks_and_no_data():
    """The page cache is the kernel's: the next process finds everything, and the lock free."""
    medium = ModelDisk(random.Random(1))
    dying = medium.view()
    handle = dying.create("/a")
    dying.append(handle, b"unsynced")
    assert dying.lock("/lock") is not None
    other = medium.view()
    assert other.lock("/lock") is None
    dying.die()
    assert other.lock("/lock") is not None
    assert other.read("/a", 0, 99) == b"unsynced"
    with pytest.raises(OSError):
        dying.read("/a", 0, 1)


def test_a_process_is_killed_in_the_call_it_is_asked_to():
    """Counted in calls; a write may be cut short, at any length over the seeds."""
    lengths = set()
    for seed in SEEDS:
        medium = ModelDisk(random.Random(seed))
        view = medium.view()
        view.kill_in = 2
        handle = view.create("/a")
        with pytest.raises(Killed):
            view.append(handle, b"0123456789")
        view.die()
        lengths.add(len(medium.view().read("/a", 0, 99)))
    assert lengths == set(range(11))


# --- the power goes ----------------------------------------------------------------------------
def after_power_cut(seed: int, act) -> ModelDisk:
    medium = ModelDisk(random.Random(seed))
    act(medium.view())
    medium.lose_power()
    return medium


def test_what_was_synced_with_its_name_survives():
    """File synced, then its directory: there in every crash."""

    def act(view):
        handle = view.create("/a")
        view.append(handle, b"kept" * 1000)
        view.sync(handle)
        view.sync_directory("/")
        view.append(handle, b"lost" * 1000)

    ends = set()
    for seed in SEEDS:
        data = after_power_cut(seed, act).view().read("/a", 0, 9999)
        assert data.startswith(b"kept" * 1000)
        ends.add(len(data))
    assert min(ends) == 4000
    assert max(ends) == 8000


def test_an_unsynced_tail_is_lost_in_every_way():
    """Whole, prefix, holes between sectors, and size without any data."""

    def act(view):
        handle = view.create("/a")
        view.sync_directory("/")
        view.append(handle, b"x" * 4096)

    seen = set()
    for seed in SEEDS:
        data = after_power_cut(seed, act).view().read("/a", 0, 9999)
        if data == b"x" * 4096:
            seen.add("all")
        elif not data:
            seen.add("none")
        elif data == bytes(len(data)):
            seen.add("size only")
        elif data == b"x" * len(data):
            seen.add("prefix")
        else:
            assert set(data) == {0, ord("x")}
            seen.add("holes")
    assert seen == {"all", "none", "size only", "prefix", "holes"}


def test_a_synced_file_is_lost_with_its_name():
    """Without `sync_directory` the name may go, and each name on its own."""

    def act(view):
        for name in ("a", "b"):
            handle = view.create(f"/{name}")
            view.append(handle, b"data")
            view.sync(handle)

    outcomes = set()
    for seed in SEEDS:
        found = after_power_cut(seed, act).view().entries("/")
        outcomes.add("".join(e.name for e in found))
    assert outcomes == {"", "a", "b", "ab"}


def test_a_removed_file_may_come_back():
    """A removal is durable only with its directory."""

    def act(view):
        handle = view.create("/a")
        view.sync(handle)
        view.sync_directory("/")
        view.remove("/a")

    outcomes = {len(after_power_cut(seed, act).view().entries("/")) for seed in SEEDS}
    assert outcomes == {0, 1}


def test_a_rename_happened_or_it_did_not():
    """Across directories, too: never both names, never none."""

    def act(view):
        view.make_directory("/d")
        handle = view.create("/a")
        view.append(handle, b"data")
        view.sync(handle)
        view.sync_directory("/")
        view.rename("/a", "/d/b")

    outcomes = set()
    for seed in SEEDS:
        view = after_power_cut(seed, act).view()
        names = [e.name for e in (*view.entries("/"), *view.entries("/d")) if e.is_file]
        outcomes.add(tuple(names))
    assert outcomes == {("a",), ("b",)}


def test_made_directories_survive():
    """`make_directory` is durable when it returns."""
    for seed in SEEDS:
        medium = after_power_cut(seed, lambda view: view.make_directory("/a/b/c"))
        assert medium.find("/a/b/c") is not None


def test_a_failed_sync_is_never_made_good():
    """The second sync says OK, the data is read until the crash, and gone after it."""
    for seed in SEEDS:
        medium = ModelDisk(random.Random(seed))
        view = medium.view()
        handle = view.create("/a")
        view.sync_directory("/")
        view.append(handle, b"x" * 2000)
        medium.troubles.sync_eio = 1.0
        with pytest.raises(OSError) as caught:
            view.sync(handle)
        assert caught.value.errno == errno.EIO
        medium.troubles.sync_eio = 0.0
        view.append(handle, b"y" * 2000)
        view.sync(handle)
        assert view.read("/a", 0, 9999) == b"x" * 2000 + b"y" * 2000
        medium.lose_power()
        assert medium.view().read("/a", 0, 9999) == bytes(2000) + b"y" * 2000


def test_a_full_disk_takes_what_fits():
    """A short write, then ENOSPC; room again after a removal."""
    medium = ModelDisk(random.Random(1), capacity_bytes=1000)
    view = medium.view()
    handle = view.create("/a")
    with pytest.raises(OSError) as caught:
        view.append(handle, b"x" * 1500)
    assert caught.value.errno == errno.ENOSPC
    assert view.free_bytes("/") == (0, 1000)
    with pytest.raises(OSError):
        view.create("/b")
    view.remove("/a")
    view.append(view.create("/b"), b"y" * 1000)


def test_a_tree_can_be_pulled_away():
    """`rm -rf` under a running writer: its handle works, its names do not."""
    medium = ModelDisk(random.Random(1))
    view = medium.view()
    view.make_directory("/spool/w")
    handle = view.create("/spool/w/a")
    medium.remove_tree("/spool")
    view.append(handle, b"x")
    with pytest.raises(FileNotFoundError):
        view.create("/spool/w/b")


def test_strangers_things_are_neither_files_nor_directories():
    """A FIFO or a link has kind "" and cannot be read."""
    medium = ModelDisk(random.Random(1))
    medium.plant("/fifo", File(kind=""))
    view = medium.view()
    assert [(e.name, e.kind) for e in view.entries("/")] == [("fifo", "")]
    with pytest.raises(OSError):
        view.read("/fifo", 0, 1)


def test_the_fixture_speaks_the_protocol(disk):
    """Both are a `Disk`: every method of the protocol is there."""
    for name in vars(Disk):
        if not name.startswith("_"):
            assert callable(getattr(disk, name)), name
    assert os.path.isabs("/")
