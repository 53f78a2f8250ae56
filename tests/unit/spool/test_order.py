"""Lanes come back in order whatever lies where; what a crash leaves is told from damage."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from metrana_async.spool import layout
from metrana_async.spool.disk import RealDisk
from metrana_async.spool.reader import SpoolReader
from metrana_async.spool.segment import scan
from metrana_async.wire.batch import encode_batch
from metrana_async.wire.model import Batch

RUN, WRITER = "a" * 32, "b" * 32


def frame(seq: int, lane: int = 0) -> bytes:
    return encode_batch(Batch(RUN, WRITER, lane, seq, lost={"x": seq}))


def put(directory: Path, *segments: bytes) -> None:
    for number, data in enumerate(segments, start=1):
        (directory / layout.segment_name(number)).write_bytes(data)


def read_all(reader: SpoolReader) -> list[tuple[int, int]]:
    found = []
    while batches := reader.read():
        found += [(f.lane, f.seq) for f, _ in batches]
    return found


def test_a_plan_of_ordered_segments_changes_nothing(tmp_path):
    """Where the disk's order is every lane's order, reading streams."""
    put(tmp_path, frame(1) + frame(1, lane=3), frame(2) + frame(2, lane=3))
    reader = SpoolReader(RealDisk(), str(tmp_path))
    reader.plan()
    assert read_all(reader) == [(0, 1), (3, 1), (0, 2), (3, 2)]
    assert reader.damage.damaged_bytes == 0


@pytest.mark.parametrize("seed", range(10))
def test_lanes_are_in_order_whatever_was_written_again_or_swapped(tmp_path, seed):
    """Batches that were written again later, and segments under each other's names."""
    print("seed", seed)
    chance = random.Random(seed)
    frames = [(lane, seq) for lane in (0, 2) for seq in range(1, 30)]
    again = chance.sample(frames, 12)
    pieces = [frames[at : at + 10] for at in range(0, len(frames), 10)] + [again]
    chance.shuffle(pieces)
    put(tmp_path, *(b"".join(frame(seq, lane) for lane, seq in piece) for piece in pieces))
    reader = SpoolReader(RealDisk(), str(tmp_path))
    reader.plan()
    found = read_all(reader)
    assert found == sorted(found)
    assert set(found) == set(frames)


@pytest.mark.parametrize("cut", [1, 39, 41, 60])
def test_what_a_crash_leaves_is_torn_and_not_damaged(cut):
    """A frame that was never finished, or a tail of zeros, is no damage; a flipped bit is."""
    whole, last = frame(1), frame(2)
    torn = scan(whole + last[:cut], is_end=True)
    assert (len(torn.frames), torn.torn_bytes, torn.damaged_bytes) == (1, cut, 0)
    zeros = scan(whole + bytes(cut), is_end=True)
    assert (len(zeros.frames), zeros.torn_bytes, zeros.damaged_bytes) == (1, cut, 0)
    flipped = bytearray(whole + last)
    flipped[-1] ^= 1
    damaged = scan(bytes(flipped), is_end=True)
    assert (len(damaged.frames), damaged.torn_bytes) == (1, 0)
    assert damaged.damaged_bytes == len(last)


@pytest.mark.parametrize("seed", range(10))
def test_damage_costs_the_frames_that_it_touches(tmp_path, seed):
    """One flipped bit, or a blank sector: everything else is read, before and behind it."""
    print("seed", seed)
    chance = random.Random(seed)
    frames = [frame(seq) for seq in range(1, 40)]
    data = bytearray(b"".join(frames))
    starts = [sum(map(len, frames[:n])) for n in range(len(frames))]
    at = chance.randrange(len(data))
    size = chance.choice([1, 512])
    if size == 1:
        data[at] ^= 1 << chance.randrange(8)
    else:
        data[at : at + size] = bytes(len(data[at : at + size]))
    put(tmp_path, bytes(data))
    reader = SpoolReader(RealDisk(), str(tmp_path))
    reader.plan()
    touched = {
        n + 1 for n, start in enumerate(starts) if start < at + size and at < start + len(frames[n])
    }
    assert {seq for _, seq in read_all(reader)} == set(range(1, 40)) - touched
