"""Facts about segments: whole frames are found, whatever lies before, between and behind them."""

from __future__ import annotations

import random

import pytest

from metrana_async.spool.segment import scan
from metrana_async.wire.frames import HEADER_BYTES
from tests.unit.spool.disks import frame

FRAMES = [frame(seq, nbytes=10 * seq).frame for seq in range(1, 6)]
WHOLE = b"".join(FRAMES)


def found(data: bytes, *, is_end: bool = True) -> list[bytes]:
    return [bytes(one.encoded) for one in scan(data, is_end=is_end).frames]


def test_frames_follow_each_other():
    """All of them, where each begins, and no damage."""
    result = scan(WHOLE, is_end=True)
    assert [bytes(one.encoded) for one in result.frames] == FRAMES
    assert result.starts == [len(b"".join(FRAMES[:n])) for n in range(5)]
    assert (result.used_bytes, result.damaged_bytes, result.torn_bytes) == (len(WHOLE), 0, 0)


def test_a_flipped_bit_costs_one_frame():
    """At every byte: the frame it lies in is damaged, its neighbours are not."""
    for at in range(len(WHOLE)):
        data = bytearray(WHOLE)
        data[at] ^= 0x10
        result = scan(bytes(data), is_end=True)
        expected = [one for one in FRAMES if one in bytes(data)]
        assert [bytes(one.encoded) for one in result.frames] == expected, at
        assert len(expected) == 4
        assert result.used_bytes == len(WHOLE)
        lost = len(WHOLE) - sum(map(len, expected))
        assert result.damaged_bytes + result.torn_bytes == lost, at


def test_what_is_cut_at_the_end_is_torn_and_no_damage():
    """Every length: the whole frames are found, the rest is what a crash leaves."""
    for length in range(len(WHOLE) + 1):
        result = scan(WHOLE[:length], is_end=True)
        whole = [n for n in range(6) if len(b"".join(FRAMES[:n])) <= length][-1]
        assert len(result.frames) == whole
        assert result.damaged_bytes == 0
        assert result.torn_bytes == length - len(b"".join(FRAMES[:whole]))


@pytest.mark.parametrize("kept", [0, 4, HEADER_BYTES - 1])
def test_a_size_without_its_data_is_torn(kept):
    """Zeros at the end, also behind the beginning of a header, were never written."""
    result = scan(WHOLE + FRAMES[0][:kept] + bytes(5000), is_end=True)
    assert len(result.frames) == 5
    assert (result.damaged_bytes, result.torn_bytes) == (0, kept + 5000)


def test_a_frame_of_a_newer_version_is_no_torn_tail():
    """It is kept for who can read it: damage, as far as we know."""
    newer = bytearray(FRAMES[0])
    newer[4] = 99
    result = scan(WHOLE + bytes(newer), is_end=True)
    assert len(result.frames) == 5
    assert (result.damaged_bytes, result.torn_bytes) == (len(newer), 0)


def test_more_may_come():
    """Without the end a cut frame is left, and pieces of any size give the same frames."""
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    junk = b"junk MTR" * 20
    data = junk + FRAMES[0] + junk + b"".join(FRAMES[1:]) + junk
    for _ in range(100):
        left, collected, start = b"", [], 0
        while start < len(data):
            stop = min(len(data), start + rng.randrange(1, 400))
            left += data[start:stop]
            start = stop
            result = scan(left, is_end=start == len(data))
            collected += [bytes(one.encoded) for one in result.frames]
            left = left[result.used_bytes :]
        assert collected == FRAMES


def test_nothing_is_nothing():
    """An empty segment, and one of zeros only."""
    assert scan(b"", is_end=True).used_bytes == 0
    result = scan(bytes(1000), is_end=True)
    assert (result.frames, result.damaged_bytes, result.torn_bytes) == ([], 0, 1000)


def test_random_bytes_are_no_frames():
    """Whatever they are: everything is used up, nothing is found, nothing raised."""
    rng = random.Random(1)
    for _ in range(300):
        data = rng.randbytes(rng.randrange(500)) + FRAMES[0][: rng.randrange(30)]
        result = scan(data, is_end=True)
        assert result.frames == []
        assert result.used_bytes == len(data) == result.damaged_bytes + result.torn_bytes
