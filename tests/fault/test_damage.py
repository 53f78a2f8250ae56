"""Files of a spool are damaged, mixed up and meddled with: what can be read is delivered, once."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

import metrana_sync_shim as metrana
from metrana_async.errors import InitError
from metrana_async.spool import writer as spool_writer
from metrana_async.spool.segment import scan
from tests.fault.conftest import Site
from tests.fault.points import POINTS, log_item

pytestmark = pytest.mark.e2e

FULL = "METRANA_TEST_FAULTS" in os.environ
ITEMS = 60
TRIALS = 40 if FULL else 8


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new segment every few batches."""
    monkeypatch.setattr(spool_writer, "SEGMENT_BYTES", 4096)


def leave(site: Site, items: int = ITEMS, run_name: str = "run") -> Path:
    """An offline run's directory, of several segments."""
    before = set(site.directories())
    run = site.init(run_name=run_name, init_mode="offline")
    for k in range(items):
        log_item(run, k)
        if k % 5 == 4:
            run.flush(10)
    info = run.close(10)
    assert info.statistics.spooled == POINTS * items
    (directory,) = set(site.directories()) - before
    return directory


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.seg"))


def digest(directory: Path) -> str:
    """Names, modes and contents of everything below."""
    total = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        total.update(f"{path} {path.lstat().st_mode}".encode())
        if path.is_file() and not path.is_symlink():
            total.update(path.read_bytes())
    return total.hexdigest()


# --- the bytes --------------------------------------------------------------------------------
def flip_a_bit(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def zero_a_page(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    start = rng.randrange(len(data))
    data[start : start + 4096] = bytes(len(data[start : start + 4096]))
    path.write_bytes(data)


def truncate(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size))


def extend(path: Path, rng: random.Random) -> None:
    with path.open("ab") as file:
        file.write(rng.randbytes(rng.randrange(1, 5000)))


def remove(path: Path, rng: random.Random) -> None:
    path.unlink()


def destroy_the_beginning(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[:64] = rng.randbytes(64)
    path.write_bytes(data)


def batches_in(path: Path) -> int:
    return len(scan(path.read_bytes(), is_end=True).frames) if path.exists() else 0


@pytest.mark.parametrize(
    ("harm", "frames_lost_max"),
    [
        pytest.param(flip_a_bit, 1, marks=pytest.mark.fault_row("E10")),
        pytest.param(zero_a_page, None, marks=pytest.mark.fault_row("E10")),
        pytest.param(truncate, None, marks=pytest.mark.fault_row("E10")),
        pytest.param(extend, 0, marks=pytest.mark.fault_row("E10")),
        pytest.param(remove, None, marks=pytest.mark.fault_row("E10")),
        pytest.param(destroy_the_beginning, 1, marks=pytest.mark.fault_row("E12")),
    ],
)
@pytest.mark.parametrize("seed", [None])
def test_damage_costs_the_frames_it_touches(
    site: Site, small_segments: None, harm: Callable, frames_lost_max: int | None, seed: int | None
) -> None:
    """The rest is delivered in order; what is missing is declared where anything lies behind it."""
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    print("seed", seed)
    rng = random.Random(seed)
    set_aside = 0
    for trial in range(TRIALS):
        name = f"run-{trial}"
        directory = leave(site, run_name=name)
        chosen = rng.choice(segments(directory))
        before = batches_in(chosen)
        harm(chosen, rng)
        touched = before - batches_in(chosen)
        if frames_lost_max is not None:
            assert touched <= frames_lost_max
        harmed = digest(directory)
        (report,) = site.replay()
        found = site.find(name)
        found.check_part(ITEMS)
        statistics = report.statistics
        assert statistics.is_balanced
        assert statistics.committed == found.points
        missing = POINTS * ITEMS - found.points
        # Behind the last good batch of a lane nobody can know of more.
        assert sum(statistics.losses.values()) <= missing
        if touched == 0:
            assert missing == 0
        if report.state == "set_aside":
            set_aside += 1
            (directory / "ASIDE").unlink()
            assert digest(directory) == harmed, "what cannot be read was changed"
            shutil.rmtree(directory)
        else:
            assert report.state == "delivered", report
            assert not directory.exists()
            # Only what was cut off at an end looks like nothing was there.
            assert missing == 0 or harm in (truncate, zero_a_page, remove, flip_a_bit), report
    print(harm.__name__, "set aside", set_aside, "of", TRIALS)


@pytest.mark.fault_row("E10")
@pytest.mark.parametrize("seed", [None])
def test_segments_under_each_others_names_lose_nothing(
    site: Site, small_segments: None, seed: int | None
) -> None:
    """Shuffled and renumbered: the frames say where they belong."""
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    print("seed", seed)
    rng = random.Random(seed)
    for trial in range(4):
        name = f"run-{trial}"
        directory = leave(site, run_name=name)
        found = segments(directory)
        assert len(found) >= 3
        targets = [path.with_name(f"{rng.randrange(10**6):08d}.seg") for path in found]
        for number, path in enumerate(found):
            path.rename(path.with_name(f"x{number}"))
        for number, target in enumerate(targets):
            (directory / f"x{number}").rename(target)
        (report,) = site.replay()
        assert report.state == "delivered", report
        site.find(name).check_whole(ITEMS)
    site.check_empty()


@pytest.mark.fault_row("E11")
def test_frames_of_another_writer_are_not_taken_for_ones_own(
    site: Site, small_segments: None
) -> None:
    """A reused block, a botched copy: good frames of somebody else in the middle and at the end."""
    own, other = leave(site, run_name="own"), leave(site, run_name="other")
    foreign = segments(other)
    for path in segments(own):
        with path.open("ab") as file:
            file.write(foreign[0].read_bytes())
    shutil.copy(foreign[-1], own / "00009999.seg")
    reports = {report.run.rpartition("/")[2]: report for report in site.replay()}
    assert reports["own"].statistics.committed == POINTS * ITEMS
    site.find("own").check_whole(ITEMS)
    site.find("other").check_whole(ITEMS)


# --- the other files ----------------------------------------------------------------------------
@pytest.mark.fault_row("E13")
@pytest.mark.parametrize("content", [None, b"", b"{}", b"\0" * 300, b'{"server": 1}'])
def test_without_meta_nothing_is_delivered_and_nothing_deleted(
    site: Site, content: bytes | None
) -> None:
    """Nobody knows whose it is; once META is back, all of it arrives."""
    directory = leave(site)
    meta = (directory / "META").read_bytes()
    if content is None:
        (directory / "META").unlink()
    else:
        (directory / "META").write_bytes(content)
    (report,) = site.replay()
    assert (report.state, "META" in report.text) == ("kept", True)
    assert segments(directory)
    (directory / "META").write_bytes(meta)
    (report,) = site.replay()
    assert report.state == "delivered", report
    site.find().check_whole(ITEMS)
    site.check_empty()


@pytest.mark.fault_row("E13")
@pytest.mark.parametrize("name", ["LOCK", "END", "names-00000001.frames"])
@pytest.mark.parametrize("content", [None, b"garbage", b"\0" * 5000])
def test_the_other_files_are_not_needed(site: Site, name: str, content: bytes | None) -> None:
    """LOCK, END and the second copies of names: missing or garbage, everything is delivered."""
    directory = leave(site)
    path = directory / name
    assert path.exists()
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    (report,) = site.replay()
    assert report.state == "delivered", report
    site.find().check_whole(ITEMS)
    site.check_empty()


@pytest.mark.fault_row("E14")
def test_foreign_things_are_left_alone(site: Site, tmp_path: Path) -> None:
    """Files, directories, links, FIFOs, devices: not followed, not waited for, not deleted."""
    directory = leave(site)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious.seg").write_bytes(b"keep me")
    levels = [site.spool, *directory.parents[:3], directory]
    made = []
    for number, level in enumerate(dict.fromkeys(levels)):
        (level / "notes.txt").write_text("mine")
        (level / ("b" * 32)).symlink_to(outside)
        os.mkfifo(level / f"{90 + number:08d}.seg")
        (level / "00000080.seg").symlink_to(outside / "precious.seg")
        (level / "00000070.seg").mkdir()
        made += [level / n for n in ("notes.txt", "b" * 32, f"{90 + number:08d}.seg")]
        made += [level / "00000080.seg", level / "00000070.seg"]
    if os.geteuid() == 0:
        os.mknod(directory / "00000060.seg", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    (report,) = site.replay()
    assert report.state == "delivered", report
    site.find().check_whole(ITEMS)
    assert all(os.path.lexists(path) for path in made), "something foreign was deleted"
    assert (outside / "precious.seg").read_bytes() == b"keep me"
    assert not (directory / "META").exists()


@pytest.mark.fault_row("E16")
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_masses_of_segments_and_a_giant_one(site: Site) -> None:
    """Tens of thousands of empty segments and a sparse one of 100 GiB are looked through."""
    directory = leave(site)
    for number in range(1000, 1000 + (1_000_000 if FULL else 20_000)):
        (directory / f"{number:08d}.seg").touch()
    with (directory / "00000999.seg").open("wb") as file:
        file.truncate(100 << 30)
    (report,) = site.replay(timeout_secs=300)
    assert report.statistics.committed == POINTS * ITEMS
    site.find().check_whole(ITEMS)


@pytest.mark.fault_row("E18")
def test_what_other_versions_left_is_not_touched(site: Site) -> None:
    """Directories of other layouts stay as they are; so do frames of a newer version."""
    directory = leave(site)
    for version in ("v0", "v2"):
        shutil.copytree(site.spool / "v1", site.spool / version)
    before = [digest(site.spool / version) for version in ("v0", "v2")]
    last = segments(directory)[-1]
    newer = bytearray(scan(last.read_bytes(), is_end=True).frames[-1].encoded)
    newer[4] = 99
    (directory / "00009999.seg").write_bytes(newer)
    (report,) = site.replay()
    assert report.state == "set_aside", report
    assert (directory / "00009999.seg").read_bytes() == newer
    site.find().check_whole(ITEMS)
    assert [digest(site.spool / version) for version in ("v0", "v2")] == before


@pytest.mark.fault_row("E19")
def test_nobody_else_can_read_what_is_spooled(site: Site) -> None:
    """Under umask 000 as under any: directories 0700, files 0600."""
    before = os.umask(0)
    try:
        leave(site)
    finally:
        os.umask(before)
    for path in [site.spool, *site.spool.rglob("*")]:
        wanted = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path
    (report,) = site.replay()
    assert report.state == "delivered"


@pytest.mark.fault_row("E19")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_spool_of_another_user_is_refused(site: Site) -> None:
    """Whoever owns the directory could read and change everything: `init` says no."""
    site.spool.mkdir()
    os.chown(site.spool, 12345, 12345)
    with pytest.raises(InitError):
        site.init(init_mode="offline")
    assert not metrana.is_initialized()
    assert list(site.spool.iterdir()) == []
