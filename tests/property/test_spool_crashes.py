"""What the spool promised survives whatever the disk does, in every state a crash may leave.

The disk is a model that loses what was not synced, in part or in whole, names apart from data, and
whose failed syncs lie afterwards. Programs are drawn; seeds are printed.
"""

from __future__ import annotations

import random

import pytest

from metrana_async.errors import MetranaError
from metrana_async.spool import layout, writer
from metrana_async.spool.reader import SpoolReader
from metrana_async.spool.writer import SpoolFrame, SpoolFullError, SpoolWriter
from metrana_async.wire.batch import encode_batch
from metrana_async.wire.frames import decode_frame, frame_digest
from metrana_async.wire.messages import LeaveRequest, OpenRequest
from metrana_async.wire.model import Batch
from metrana_async.wire.pages import encode_env_page
from tests.simulation.model_disk import ModelDisk

RUN, WRITER = "a" * 32, "b" * 32
DIRECTORY = f"/spool/v1/{'1' * 16}/{'2' * 16}/{RUN}/{WRITER}"
META = layout.Meta("http://s", "online", RUN, OpenRequest("w", "p", "r", "o", "never", WRITER))
PAGES = [encode_env_page([f"env{n}"]) for n in range(5)]


class Owner:
    """A process that spools as `delivery.spooling` does, and knows what it was promised."""

    def __init__(self, medium: ModelDisk, rng: random.Random, *, quota_bytes: int = 1 << 30):
        self.disk = medium.view()
        self.spool = SpoolWriter(self.disk, DIRECTORY, META, quota_bytes=quota_bytes)
        self.rng = rng
        self.sealed: list[SpoolFrame] = []
        self.written = self.durable = self.acked = 0
        self.refusals = 0

    def seal(self) -> None:
        seq = len(self.sealed) + 1
        page = self.rng.choice(PAGES)
        lost = {"x" * self.rng.randint(1, 1500): seq}
        frame = encode_batch(Batch(RUN, WRITER, 0, seq, env_pages=(page.digest,), lost=lost))
        self.sealed.append(SpoolFrame(0, seq, frame, {page.digest: page.frame}))

    def write(self) -> None:
        try:
            self.written += self.spool.append(self.sealed[self.written :])
        except OSError:
            self.refuse()

    def sync(self) -> None:
        try:
            self.spool.sync()
        except OSError:
            self.refuse()
        else:
            self.durable = self.written

    def refuse(self) -> None:
        self.refusals += 1
        self.written = self.durable

    def forget(self) -> None:
        """The server has everything up to a point."""
        self.acked = self.rng.randint(self.acked, len(self.sealed))
        self.written, self.durable = max(self.written, self.acked), max(self.durable, self.acked)
        try:
            self.spool.forget({0: self.acked})
        except OSError:
            self.refusals += 1


def read_back(medium: ModelDisk) -> tuple[dict[int, bytes], SpoolReader]:
    """Frames by sequence, and the reader with the pages, as an heir finds them."""
    reader = SpoolReader(medium.view(), DIRECTORY)
    reader.read_names()
    reader.plan()
    found: dict[int, bytes] = {}
    while batches := reader.read():
        for frame, _ in batches:
            found[frame.seq] = bytes(frame.encoded)
    return found, reader


def check(owner: Owner, medium: ModelDisk) -> None:
    found, reader = read_back(medium)
    for frame in owner.sealed[owner.acked : owner.durable]:
        assert found.get(frame.seq) == frame.frame, f"seq {frame.seq} was promised"
        assert all(reader.page(digest) is not None for digest in frame.pages)
    for seq, encoded in found.items():
        assert owner.sealed[seq - 1].frame == encoded
    if owner.durable > owner.acked:
        meta = layout.read_meta(medium.view(), DIRECTORY)
        assert meta == META


@pytest.mark.parametrize("first_seed", range(0, 400, 50))
@pytest.mark.parametrize("is_power", [True, False], ids=["power", "kill"])
def test_what_was_synced_survives_every_crash(monkeypatch, first_seed, is_power):
    """Power loss or kill at any moment: durable batches are whole, and nothing is altered."""
    monkeypatch.setattr(writer, "SEGMENT_BYTES", 6_000)
    refusals = 0
    for seed in range(first_seed, first_seed + 50):
        print("seed", seed)
        rng = random.Random(seed)
        medium = ModelDisk(random.Random(seed + 1))
        medium.troubles.write_eio = rng.choice([0.0, 0.05])
        medium.troubles.sync_eio = rng.choice([0.0, 0.1])
        owner = Owner(medium, rng)
        for _ in range(rng.randint(1, 60)):
            weights = [5, 4, 3, 1]
            step = rng.choices([owner.seal, owner.write, owner.sync, owner.forget], weights)[0]
            step()
        medium.troubles.write_eio = medium.troubles.sync_eio = 0.0
        owner.disk.die()
        if is_power:
            medium.lose_power()
        check(owner, medium)
        refusals += owner.refusals
    assert refusals, "the disk never refused anything"


def test_a_quota_is_kept_to_the_byte_and_gives_room_again(monkeypatch):
    """Nothing is written beyond it; what the server has makes room."""
    monkeypatch.setattr(writer, "SEGMENT_BYTES", 6_000)
    medium = ModelDisk(random.Random(1))
    owner = Owner(medium, random.Random(2), quota_bytes=30_000)

    def fill() -> None:
        for _ in range(100):
            owner.seal()
            owner.spool.append(owner.sealed[owner.written :])
            owner.written += 1

    with pytest.raises(SpoolFullError):
        fill()
    assert 20_000 < owner.spool.nbytes <= 30_000
    owner.spool.sync()
    owner.spool.forget({0: owner.written})
    assert owner.spool.nbytes == 0
    owner.spool.append(owner.sealed[owner.written :])
    owner.spool.sync()
    assert list(read_back(medium)[0]) == [owner.written + 1]


def test_a_quota_takes_what_fits_and_that_stands():
    """Of frames that do not all fit the first are kept; being full takes nothing back."""
    medium = ModelDisk(random.Random(1))
    owner = Owner(medium, random.Random(2), quota_bytes=30_000)
    for _ in range(100):
        owner.seal()
    count = owner.spool.append(owner.sealed)
    assert 20 < count < 100
    rest = owner.sealed[count:]
    assert owner.spool.nbytes + len(rest[0].frame) > 30_000
    with pytest.raises(SpoolFullError):
        owner.spool.append(rest)
    owner.spool.sync()
    assert list(read_back(medium)[0]) == list(range(1, count + 1))


def test_segments_stay_until_everything_in_them_is_acknowledged():
    """Of several lanes the slowest counts."""
    medium = ModelDisk(random.Random(1))
    owner = Owner(medium, random.Random(2))

    def frame(lane: int, seq: int) -> SpoolFrame:
        return SpoolFrame(lane, seq, encode_batch(Batch(RUN, WRITER, lane, seq)), {})

    owner.spool.append([frame(0, 1), frame(1, 1), frame(0, 2), frame(1, 2)])
    owner.spool.sync()
    owner.spool.forget({0: 2, 1: 0})
    assert {(f.lane, f.seq) for f in map(decode_frame, read_lanes(medium))} >= {(1, 1), (1, 2)}
    owner.spool.forget({0: 2, 1: 2})
    assert read_lanes(medium) == []


def read_lanes(medium: ModelDisk) -> list[bytes]:
    reader = SpoolReader(medium.view(), DIRECTORY)
    found = []
    while batches := reader.read():
        found += [bytes(frame.encoded) for frame, _ in batches]
    return found


def test_names_survive_the_loss_of_any_one_segment(monkeypatch):
    """Each segment brings its names, and a second copy of all of them lies beside."""
    monkeypatch.setattr(writer, "SEGMENT_BYTES", 4_000)
    medium = ModelDisk(random.Random(1))
    owner = Owner(medium, random.Random(5))
    for _ in range(30):
        owner.seal()
    owner.write()
    owner.sync()
    numbers = [number for number, _ in owner.spool.readable()]
    assert len(numbers) > 3
    medium.view().remove(f"{DIRECTORY}/{layout.segment_name(numbers[0])}")
    for name in [e.name for e in medium.view().entries(DIRECTORY) if layout.is_names(e.name)]:
        medium.view().remove(f"{DIRECTORY}/{name}")
    found, reader = read_back(medium)
    assert found
    for seq in found:
        assert all(reader.page(digest) is not None for digest in owner.sealed[seq - 1].pages)


def test_how_a_writer_left_survives_a_crash_or_is_not_there():
    """END is whole or missing, never half."""
    for seed in range(60):
        medium = ModelDisk(random.Random(seed))
        owner = Owner(medium, random.Random(seed))
        owner.seal()
        owner.write()
        owner.sync()
        leave = LeaveRequest(RUN, WRITER, status="failed", counters={"spooled": 1})
        medium.troubles.sync_eio = 0.3
        try:
            owner.spool.put_end(leave)
            is_promised = True
        except OSError:
            is_promised = False
        owner.disk.die()
        medium.lose_power()
        found = layout.read_end(medium.view(), DIRECTORY)
        assert found == leave if is_promised else found in (None, leave)


def test_a_second_owner_is_refused():
    """One process at a time; the lock ends with it."""
    medium = ModelDisk(random.Random(0))
    first, second = Owner(medium, random.Random(0)), Owner(medium, random.Random(0))
    first.spool.make()
    with pytest.raises(OSError, match="another process"):
        second.spool.make()
    first.disk.die()
    second.spool.make()
    assert second.spool.is_made


def test_frames_are_what_was_sealed():
    """The frames of this file's own programs are well formed: else nothing above means anything."""
    owner = Owner(ModelDisk(random.Random(0)), random.Random(0))
    owner.seal()
    (only,) = owner.sealed
    assert frame_digest(only.frame)
    assert decode_frame(only.frame).seq == 1
    with pytest.raises(MetranaError):
        decode_frame(only.frame[:-1])
