"""Batches and pages survive the wire exactly, and no bytes can make the decoder misbehave."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metrana_async.errors import BatchTooLargeError, ProtocolError
from metrana_async.wire.batch import decode_batch, encode_batch
from metrana_async.wire.frames import (
    FRAME_BATCH,
    FRAME_PAGE,
    decode_frame,
    encode_frame,
    iter_frames,
)
from metrana_async.wire.model import Batch
from metrana_async.wire.packing import pack_integers, packed_bytes, unpack_integers
from metrana_async.wire.pages import decode_page, encode_env_page, encode_series_page
from tests.strategies import INT64, NAMES, batches, series_defs


def same_column(a, b) -> bool:
    if a is None or b is None:
        return a is b
    if a.dtype.kind == "f":
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    return np.array_equal(a, b)


def assert_same_batch(a: Batch, b: Batch) -> None:
    for name in Batch.__dataclass_fields__:
        if name not in ("points", "segments"):
            assert getattr(a, name) == getattr(b, name), name
    for kind in ("points", "segments"):
        ours, theirs = getattr(a, kind), getattr(b, kind)
        assert len(ours) == len(theirs)
        for x, y in zip(ours, theirs, strict=True):
            for name in type(x).__dataclass_fields__:
                p, q = getattr(x, name), getattr(y, name)
                is_column = isinstance(p, np.ndarray) or p is None
                assert same_column(p, q) if is_column else p == q, name


@given(st.lists(INT64, max_size=40))
def test_integer_columns_round_trip(values):
    """Every int64 column comes back exactly, in the number of bytes its descriptor claims."""
    column = np.array(values, dtype=np.int64)
    descriptor, data = pack_integers(column)
    assert packed_bytes(descriptor) == len(data)
    assert np.array_equal(unpack_integers(descriptor, memoryview(data)), column)


@given(batches(), st.booleans())
def test_batches_round_trip_bit_for_bit(batch, compress):
    """A decoded batch equals the sealed one, NaN payloads included, compressed or not."""
    encoded = encode_batch(batch, compress=compress)
    frame = decode_frame(encoded)
    assert_same_batch(decode_batch(frame), batch)
    assert frame.encoded == encoded
    assert encode_batch(batch, compress=compress) == encoded


@given(st.lists(series_defs(), min_size=1, max_size=5), st.lists(NAMES, min_size=1, max_size=5))
def test_pages_round_trip_and_are_named_by_content(series, envs):
    """A page decodes to the same entries under the same digest."""
    for page in (encode_series_page(series), encode_env_page(envs)):
        frame = decode_frame(page.frame)
        assert frame.type == FRAME_PAGE
        assert decode_page(frame.body, frame.encoded) == page


@given(batches(), st.data())
def test_one_flipped_bit_is_always_noticed(batch, data):
    """No single damaged bit in a frame gets past the checksum and length checks."""
    encoded = bytearray(encode_batch(batch))
    at = data.draw(st.integers(0, len(encoded) * 8 - 1))
    encoded[at // 8] ^= 1 << at % 8
    with pytest.raises((ProtocolError, BatchTooLargeError)):
        list(iter_frames(bytes(encoded)))


@pytest.mark.fault_row("H1")
@given(batches(), st.integers(1, 10_000))
def test_a_cut_frame_is_a_protocol_error(batch, cut):
    """A frame cut anywhere is refused."""
    encoded = encode_batch(batch)
    with pytest.raises(ProtocolError):
        decode_frame(encoded[: max(0, len(encoded) - cut)])


@pytest.mark.fault_row("H1")
@settings(max_examples=300)
@given(st.binary(max_size=400))
def test_bodies_with_a_right_checksum_but_wrong_content_raise_typed_errors(body):
    """A body that lies behind a valid checksum is a ProtocolError, whatever it says."""
    frame = decode_frame(encode_frame(FRAME_BATCH, body, seq=1))
    with pytest.raises(ProtocolError):
        decode_batch(frame)
    page = decode_frame(encode_frame(FRAME_PAGE, body))
    with pytest.raises(ProtocolError):
        decode_page(page.body)


@pytest.mark.fault_row("H1")
@settings(max_examples=300)
@given(batches(), st.data())
def test_mutated_descriptions_never_escape_as_other_errors(batch, data):
    """Changing any byte of the description under a fresh checksum decodes or is a ProtocolError."""
    body = bytearray(decode_frame(encode_batch(batch)).body)
    head_len = int.from_bytes(body[:4], "little")
    at = data.draw(st.integers(0, 3 + head_len))
    body[at] = data.draw(st.integers(0, 255))
    frame = decode_frame(
        encode_frame(FRAME_BATCH, bytes(body), seq=1, points_count=batch.points_count)
    )
    try:
        decode_batch(frame)
    except ProtocolError:
        pass
