"""The codec and the tiles of the embedded store lose and reorder nothing."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from metrana_async.server.store.sqlite.codec import (
    IntegerReader,
    decode_floats,
    encode_floats,
    encode_integers,
)
from metrana_async.server.store.sqlite.rows import Filter, Rows, concat_rows
from metrana_async.server.store.sqlite.tiles import (
    choose_group_size,
    decode_tile,
    encode_tiles,
    split_by_group,
)

INT64 = st.integers(-(2**63), 2**63 - 1)


@given(
    st.integers(0, 60).flatmap(
        lambda n: st.lists(
            arrays.arrays(np.int64, n, elements=st.one_of(INT64, st.integers(-3, 300))),
            min_size=1,
            max_size=4,
        )
    )
)
def test_integer_columns_round_trip(columns: list[np.ndarray]) -> None:
    """Columns of any int64 values come back, each by itself and in any order."""
    reader = IntegerReader(encode_integers(columns), len(columns[0]))
    for index in reversed(range(len(columns))):
        found = reader.column(index)
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found, columns[index])


@given(
    first=INT64,
    stride=st.one_of(st.just(0), st.just(2**62), st.integers(-(2**40), 2**40)),
    n=st.integers(1, 50),
)
def test_regular_columns_cost_a_header(first: int, stride: int, n: int) -> None:
    """A constant or arithmetic column is 21 bytes, and wraps as int64 does."""
    with np.errstate(over="ignore"):
        column = np.int64(first) + np.int64(stride) * np.arange(n, dtype=np.int64)
    data = encode_integers([column])
    assert len(data) == 21
    np.testing.assert_array_equal(IntegerReader(data, n).column(0), column)


@given(
    arrays.arrays(
        st.sampled_from([np.float32, np.float64]),
        st.integers(0, 200),
        elements=st.one_of(
            st.floats(width=32), st.sampled_from([0.0, -0.0, 1.0, float("nan"), float("-inf")])
        ),
    )
)
def test_values_round_trip_bit_for_bit(values: np.ndarray) -> None:
    """float32 values come back bit for bit, as float32 whatever they were held in."""
    found = decode_floats(encode_floats(values), len(values))
    assert found.dtype == np.float32
    with np.errstate(invalid="ignore"):
        expected = values.astype(np.float32)
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@given(arrays.arrays(np.float64, st.integers(1, 50), elements=st.floats()))
def test_doubles_round_trip(values: np.ndarray) -> None:
    """float64 values come back exactly, sign of zero included."""
    found = decode_floats(encode_floats(values), len(values)).astype(np.float64)
    np.testing.assert_array_equal(found, values)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(values))


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.sampled_from([1, 2, 70, 3_000, 40_000, 120_000]),
    keys_count=st.sampled_from([1, 3, 40, 5_000]),
)
def test_cutting_into_tiles_keeps_every_row_in_order(seed: int, n: int, keys_count: int) -> None:
    """The tiles of sorted rows, decoded in order, are those rows; filters choose among them."""
    random = np.random.default_rng(seed)
    columns = [np.sort(random.integers(0, keys_count, n))]
    columns += [random.integers(0, high, n) for high in (50, 9, 2**62, 2, 10**12, 3)]
    rows = Rows(*columns, random.standard_normal(n).astype(np.float32))
    size = choose_group_size(n, keys_count)
    assert 16 <= size <= 1_024
    tiles = [
        t
        for group_no, part in split_by_group(rows, size)
        for t in encode_tiles(group_no, part, is_standard=False)
    ]
    assert sum(t.points_count for t in tiles) == n
    assert max(t.points_count for t in tiles) <= 49_152
    keys = np.unique(random.integers(0, keys_count, 3))
    for wanted in (
        Filter(),
        Filter(keys=keys),
        Filter(keys=keys[:1], rl_steps=(10, 30)),
        Filter(episodes=(2, 5), steps=(2**50, 2**61)),
    ):
        parts = [decode_tile(t.points_count, t.integers, t.value, wanted) for t in tiles]
        found = concat_rows([part for part in parts if part is not None])
        keep = wanted.has_key(rows.key)
        for name, (low, high) in wanted.ranges():
            keep &= (getattr(rows, name) >= low) & (getattr(rows, name) <= high)
        expected = rows.take(keep)
        for name in Rows.__dataclass_fields__:
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


@given(
    arrays.arrays(np.int64, st.integers(1, 60), elements=st.one_of(INT64, st.integers(0, 9))),
    st.data(),
)
def test_part_of_a_column_is_that_part(column: np.ndarray, data: st.DataObject) -> None:
    """Decoding rows low..high-1 gives what a slice of the whole gives, integers and values."""
    n = len(column)
    low = data.draw(st.integers(0, n))
    high = data.draw(st.integers(low, n))
    reader = IntegerReader(encode_integers([column]), n)
    np.testing.assert_array_equal(reader.column(0, low, high), column[low:high])
    values = column.astype(np.float64)
    found = decode_floats(encode_floats(values), n, low, high)
    np.testing.assert_array_equal(found, values[low:high])
