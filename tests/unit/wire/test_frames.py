"""The frame envelope: golden bytes, lies about lengths, bombs."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zstandard

from metrana_async.errors import BatchTooLargeError, ProtocolError
from metrana_async.wire import limits
from metrana_async.wire.batch import decode_batch, encode_batch
from metrana_async.wire.frames import (
    FRAME_BATCH,
    HEADER_BYTES,
    decode_frame,
    encode_frame,
    frame_digest,
    iter_frames,
)
from metrana_async.wire.model import (
    AttributeOp,
    AttributeUpdate,
    Batch,
    Family,
    Ordering,
    PointTable,
    SegmentTable,
    SeriesDef,
    StepMode,
)
from metrana_async.wire.pages import decode_page, encode_env_page, encode_series_page

GOLDEN = Path(__file__).parent.parent.parent / "golden"


def column(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


SERIES_PAGE = encode_series_page(
    [
        SeriesDef(Family.STANDARD, "loss", "ML_STEP", (("split", "train"),), Ordering.ORDERED),
        SeriesDef(
            Family.ENV_STEP, "reward", "ENVIRONMENT_STEP", (), Ordering.ORDERED, episodic=True
        ),
    ]
)
ENV_PAGE = encode_env_page(["env0", "env1"])
BATCH = Batch(
    run_uid="00112233445566778899aabbccddeeff",
    writer_id="ffeeddccbbaa99887766554433221100",
    lane=2,
    seq=7,
    prev_digest=0x0123_4567_89AB_CDEF,
    wall_ms=1_700_000_000_123,
    monotonic_ms=456,
    series_pages=(SERIES_PAGE.digest,),
    env_pages=(ENV_PAGE.digest,),
    points=[
        PointTable(
            series=column(0, 0, 0),
            step=column(-1, 10, 300),
            time_ms=column(1_700_000_000_000, 1_700_000_000_001, 1_700_000_000_005),
            value=np.array([0.5, np.nan, -np.inf], dtype=np.float32),
        )
    ],
    segments=[
        SegmentTable(
            series=1,
            mode=StepMode.AUTO,
            env=column(0, 1),
            episode=column(3, 4),
            rl_step=column(9, 9),
            start=column(0, 2),
            count=column(2, 1),
            time_ms=column(1_700_000_000_100, 1_700_000_000_100),
            value=np.array([1.0, 2.0, 3.0], dtype=np.float64),
        )
    ],
    attributes=[AttributeUpdate(AttributeOp.SET, "config/lr", 0.1)],
    lost={"pin_conflict": 2},
)


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("series-page.v1.bin", SERIES_PAGE.frame),
        ("env-page.v1.bin", ENV_PAGE.frame),
        ("batch.v1.bin", encode_batch(BATCH)),
    ],
)
def test_golden_bytes_have_not_changed(name, encoded):
    """Version 1 of the format is these bytes for ever; another needs another version number."""
    assert (GOLDEN / name).read_bytes() == encoded


def test_a_stand_in_travels_with_the_digest_it_stands_for():
    """What stands for another batch names its digest, and how much went before it."""
    stand_in = replace(BATCH, points=[], segments=[], before=7, stands_for=2**64 - 1)
    again = decode_batch(decode_frame(encode_batch(stand_in)))
    assert (again.before, again.stands_for) == (7, 2**64 - 1)
    assert decode_batch(decode_frame(encode_batch(BATCH))).stands_for == 0


@pytest.mark.parametrize("digest", [-1, 2**64, 1.5, True, "1"])
def test_a_digest_that_is_no_64_bit_number_is_refused(digest):
    """A digest is compared, never computed with: anything else is a lie or damage."""
    with pytest.raises((ProtocolError, TypeError)):
        decode_batch(decode_frame(encode_batch(replace(BATCH, stands_for=digest))))


def test_any_flipped_bit_is_noticed():
    """Of every byte, values included: what is damaged is refused, never read as other numbers."""
    frame = bytearray(encode_batch(BATCH))
    for at in range(len(frame)):
        frame[at] ^= 0x10
        with pytest.raises((ProtocolError, BatchTooLargeError)):
            decode_frame(bytes(frame))
        frame[at] ^= 0x10
    decode_frame(bytes(frame))


def test_golden_batch_still_decodes():
    """What an older release wrote is read with every value."""
    batch = decode_batch(decode_frame((GOLDEN / "batch.v1.bin").read_bytes()))
    assert batch.points[0].step.tolist() == [-1, 10, 300]
    assert np.isnan(batch.points[0].value[1])
    assert batch.segments[0].value.dtype == np.float64
    assert batch.lost == {"pin_conflict": 2}
    page = decode_page(decode_frame((GOLDEN / "series-page.v1.bin").read_bytes()).body)
    assert page.series[0].labels == (("split", "train"),)


def test_a_frame_names_its_digest_in_its_header():
    """The digest of a frame is read off its header and equals what decoding says."""
    encoded = encode_batch(BATCH)
    assert frame_digest(encoded) == decode_frame(encoded).digest


def test_frames_follow_each_other():
    """Several frames in one body come out in order."""
    data = SERIES_PAGE.frame + ENV_PAGE.frame + encode_batch(BATCH)
    assert [frame.seq for frame in iter_frames(data)] == [0, 0, 7]


def _with_header(encoded: bytes, offset: int, value: int) -> bytes:
    return encoded[:offset] + struct.pack("<I", value) + encoded[offset + 4 :]


@pytest.mark.fault_row("H3")
@pytest.mark.parametrize("offset", [8, 12])
def test_a_claimed_length_beyond_the_limit_is_refused_before_anything_is_allocated(offset):
    """A header that claims gigabytes is refused by its number alone."""
    with pytest.raises(BatchTooLargeError, match="4294967295"):
        decode_frame(_with_header(encode_batch(BATCH), offset, 0xFFFF_FFFF))


@pytest.mark.fault_row("H3")
def test_a_compression_bomb_is_refused():
    """A small body that unpacks to more than its header says is a ProtocolError."""
    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(8 << 20))
    honest = encode_frame(FRAME_BATCH, bytes(4096), seq=1, compress=True)
    assert len(bomb) < limits.FRAME_BODY_BYTES
    import crc32c

    header = bytearray(honest[:HEADER_BYTES])
    header[8:12] = struct.pack("<I", len(bomb))
    header[32:36] = bytes(4)
    header[32:36] = struct.pack("<I", crc32c.crc32c(bomb, crc32c.crc32c(bytes(header))))
    with pytest.raises(ProtocolError, match="8388608"):
        decode_frame(bytes(header) + bomb)


def test_a_body_beyond_the_limit_is_not_encoded():
    """The encoder refuses what the decoder would."""
    with pytest.raises(BatchTooLargeError):
        encode_frame(FRAME_BATCH, bytes(limits.FRAME_RAW_BYTES + 1), seq=1)


@pytest.mark.parametrize(
    ("offset", "byte", "word"),
    [(0, 0x00, "magic"), (4, 9, "version"), (5, 9, "type"), (7, 1, "reserved")],
)
def test_a_foreign_header_is_named(offset, byte, word):
    """Each wrong header field is named by the error."""
    encoded = bytearray(encode_batch(BATCH))
    encoded[offset] = byte
    with pytest.raises(ProtocolError, match=word):
        decode_frame(bytes(encoded))


def test_compression_is_kept_only_where_it_pays():
    """Noise travels plain, repetition compressed; both decode to the same body."""
    noise = np.random.default_rng(0).bytes(4096)
    assert len(encode_frame(FRAME_BATCH, noise, seq=1, compress=True)) == HEADER_BYTES + 4096
    packed = encode_frame(FRAME_BATCH, bytes(4096), seq=1, compress=True)
    assert len(packed) < 200
    assert bytes(decode_frame(packed).body) == bytes(4096)
