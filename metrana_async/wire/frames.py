"""Frames: the checksummed envelope of everything that is sent or spooled.

Header, 40 bytes, little-endian::

    0  magic     4s   b"MTRN"
    4  version   u8   1
    5  type      u8   1 batch, 2 page
    6  codec     u8   0 plain, 1 zstd
    7  reserved  u8   0
    8  body_len  u32  bytes that follow the header
    12 raw_len   u32  bytes of the body after decompression
    16 seq       u64  the batch's sequence in its lane; 0 for a page
    24 points    u32  points the batch carries; 0 for a page
    28 lane      u32  the batch's lane; 0 for a page
    32 crc32c    u32  over the header with this field zero, then the body
    36 reserved  u32  0

A frame's *digest* is ``crc32c << 32 | body_len``: enough to notice a cloned or forked writer
that seals different bytes under one sequence, and free, since the checksum exists anyway.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import crc32c
import zstandard

from metrana_async.errors import BatchTooLargeError, ProtocolError
from metrana_async.wire import limits

MAGIC: Final = b"MTRN"
VERSION: Final = 1
FRAME_BATCH: Final = 1
FRAME_PAGE: Final = 2
CODEC_PLAIN: Final = 0
CODEC_ZSTD: Final = 1

_HEADER: Final = struct.Struct("<4sBBBBIIQIIII")
HEADER_BYTES: Final = _HEADER.size
assert HEADER_BYTES == 40

# Below this size compression cannot pay for its own frame.
_COMPRESS_FROM_BYTES: Final = 512
_FRAMES_LOOKED_AT: Final = 64


@dataclass(frozen=True, slots=True)
class Frame:
    """One decoded envelope. `body` is decompressed; `encoded` is the frame as it travelled."""

    type: int
    seq: int
    lane: int
    points_count: int
    digest: int
    body: memoryview
    encoded: memoryview


def encode_frame(
    frame_type: int,
    *parts: bytes | memoryview,
    seq: int = 0,
    lane: int = 0,
    points_count: int = 0,
    compress: bool = False,
) -> bytes:
    """Wrap a body, given in parts; zstd level 1 is kept only where it saves at least an eighth."""
    raw_len = sum(map(len, parts))
    if raw_len > limits.FRAME_RAW_BYTES:
        raise BatchTooLargeError(f"a body of {raw_len} bytes is over {limits.FRAME_RAW_BYTES}")
    codec = CODEC_PLAIN
    if compress and raw_len >= _COMPRESS_FROM_BYTES:
        packed = zstandard.ZstdCompressor(level=1).compress(b"".join(parts))
        if len(packed) < raw_len - raw_len // 8:
            parts, codec = (packed,), CODEC_ZSTD
    body_len = sum(map(len, parts))
    if body_len > limits.FRAME_BODY_BYTES:
        raise BatchTooLargeError(f"a frame of {body_len} bytes is over {limits.FRAME_BODY_BYTES}")
    fields = (MAGIC, VERSION, frame_type, codec, 0, body_len, raw_len, seq, points_count, lane)
    checksum = crc32c.crc32c(_HEADER.pack(*fields, 0, 0))
    for part in parts:
        checksum = crc32c.crc32c(part, checksum)
    return b"".join([_HEADER.pack(*fields, checksum, 0), *parts])


def frame_digest(encoded: bytes | memoryview) -> int:
    """Digest of an encoded frame, read off its header."""
    header = _HEADER.unpack_from(encoded)
    return int(header[10]) << 32 | int(header[5])


def claimed_bytes(data: bytes | memoryview, offset: int) -> int | None:
    """Bytes that the frame at `offset` claims to have, header included.

    None where no header of a frame stands or it is cut; nothing else is checked.
    """
    if len(data) - offset < HEADER_BYTES:
        return None
    magic, version, _, _, _, body_len, *_ = _HEADER.unpack_from(data, offset)
    if magic != MAGIC or version != VERSION or body_len > limits.FRAME_BODY_BYTES:
        return None
    return HEADER_BYTES + int(body_len)


def first_batch_start(data: bytes | memoryview, n_bytes: int) -> bytes:
    """The first so many bytes of the body of the first batch frame; b"" where none is found soon.

    Cheap, and checks nothing but what it has to.
    """
    offset = 0
    for _ in range(_FRAMES_LOOKED_AT):
        claimed = claimed_bytes(data, offset)
        if claimed is None:
            break
        _, _, frame_type, codec, *_ = _HEADER.unpack_from(data, offset)
        if frame_type == FRAME_BATCH:
            body = memoryview(data)[offset + HEADER_BYTES : offset + claimed]
            if codec == CODEC_PLAIN:
                return bytes(body[:n_bytes])
            try:
                return zstandard.ZstdDecompressor().stream_reader(body).read(n_bytes)
            except zstandard.ZstdError:
                break
        offset += claimed
    return b""


def decode_frame(data: bytes | memoryview, offset: int = 0) -> Frame:
    """Decode the frame at `offset`.

    Raises:
        ProtocolError: not a whole, undamaged frame of a known version.
        BatchTooLargeError: a length beyond the limits; nothing was allocated for it.
    """
    view = memoryview(data)
    if len(view) - offset < HEADER_BYTES:
        raise ProtocolError(f"{len(view) - offset} bytes are no frame header ({HEADER_BYTES})")
    (magic, version, frame_type, codec, zero1, body_len, raw_len, seq, points, lane, crc, zero2) = (
        _HEADER.unpack_from(view, offset)
    )
    if magic != MAGIC:
        raise ProtocolError(f"frame magic is {bytes(magic)!r}, not {MAGIC!r}")
    if version != VERSION:
        raise ProtocolError(f"frame version {version} is not {VERSION}")
    if frame_type not in (FRAME_BATCH, FRAME_PAGE) or codec not in (CODEC_PLAIN, CODEC_ZSTD):
        raise ProtocolError(f"frame type {frame_type} / codec {codec} is unknown")
    if zero1 or zero2:
        raise ProtocolError("reserved header bits are set")
    if body_len > limits.FRAME_BODY_BYTES or raw_len > limits.FRAME_RAW_BYTES:
        raise BatchTooLargeError(f"frame claims {body_len} bytes, {raw_len} unpacked")
    end = offset + HEADER_BYTES + body_len
    if end > len(view):
        raise ProtocolError(f"frame of {body_len} bytes is cut at {len(view) - offset}")
    body = view[offset + HEADER_BYTES : end]
    cleared = _HEADER.pack(
        magic, version, frame_type, codec, 0, body_len, raw_len, seq, points, lane, 0, 0
    )
    if crc32c.crc32c(body, crc32c.crc32c(cleared)) != crc:
        raise ProtocolError(f"frame checksum does not match (lane {lane}, seq {seq})")
    encoded = view[offset:end]
    digest = crc << 32 | body_len
    if codec == CODEC_ZSTD:
        body = _decompress(body, raw_len)
    elif raw_len != body_len:
        raise ProtocolError(f"plain frame of {body_len} bytes claims {raw_len}")
    return Frame(frame_type, seq, lane, points, digest, body, encoded)


def _decompress(body: memoryview, raw_len: int) -> memoryview:
    # The frame's own content size must agree before anything of that size is allocated.
    try:
        claimed = zstandard.frame_content_size(body)
        if claimed != raw_len:
            raise ProtocolError(f"compressed body claims {claimed} bytes, header says {raw_len}")
        raw = zstandard.ZstdDecompressor().decompress(body, max_output_size=raw_len)
    except zstandard.ZstdError as error:
        raise ProtocolError(f"body does not decompress: {error}") from error
    if len(raw) != raw_len:
        raise ProtocolError(f"body decompressed to {len(raw)} bytes, header says {raw_len}")
    return memoryview(raw)


def iter_frames(data: bytes | memoryview) -> Iterator[Frame]:
    """Decode frame after frame; raises as `decode_frame` at the first that is damaged."""
    view = memoryview(data)
    offset = 0
    while offset < len(view):
        frame = decode_frame(view, offset)
        offset += len(frame.encoded)
        yield frame
