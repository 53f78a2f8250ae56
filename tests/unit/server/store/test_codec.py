"""How small the codec makes what training runs log."""

from __future__ import annotations

import numpy as np
import pytest

from metrana_async.errors import InternalError
from metrana_async.server.store.sqlite.codec import (
    IntegerReader,
    decode_floats,
    encode_floats,
    encode_integers,
)

N = 32_768


def test_white_noise_packs_below_a_shuffle() -> None:
    """32k float32 normals take at most 3.4 bytes each: every byte plane has its own table."""
    values = np.random.default_rng(1).standard_normal(N).astype(np.float32)
    assert len(encode_floats(values)) / N < 3.4


def test_repetitive_values_take_the_smaller_coding() -> None:
    """0/1 rewards take less than half a byte, through plain zstd."""
    values = np.random.default_rng(1).integers(0, 2, N).astype(np.float32)
    data = encode_floats(values)
    assert data[1] == 1
    assert len(data) / N < 0.4
    np.testing.assert_array_equal(decode_floats(data, N), values)


def test_counters_in_doubles_are_stored_as_float32() -> None:
    """float64 columns whose values are exact in float32 are stored in half the bytes."""
    values = np.arange(N, dtype=np.float64)
    assert encode_floats(values)[0] == 4
    assert encode_floats(values + 0.1)[0] == 8
    assert encode_floats(np.array([2.0**24 + 1]))[0] == 8
    assert encode_floats(np.array([1e300, np.nan]))[0] == 8


def test_steps_of_many_environments_pack_to_hundredths() -> None:
    """rl_step and step of 64 environments x 512 rl_steps take under 0.1 byte a point together."""
    rl_step = np.tile(np.arange(512), 64)
    ends = np.random.default_rng(1).random(N) < 0.01
    step = np.arange(N) - np.maximum.accumulate(np.where(ends, np.arange(N), 0))
    data = encode_integers([rl_step, step])
    assert len(data) / N < 0.1
    np.testing.assert_array_equal(IntegerReader(data, N).column(1), step)


def test_a_column_of_another_length_is_refused() -> None:
    """Decoding with a wrong count raises instead of giving rows that were never there."""
    data = encode_floats(np.arange(10, dtype=np.float32))
    with pytest.raises(InternalError, match="40 bytes where 36"):
        decode_floats(data, 9)
