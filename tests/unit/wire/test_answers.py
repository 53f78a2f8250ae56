"""Columns that answer a query: round trips, and bytes that lie."""

from __future__ import annotations

import math

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrana_async.errors import ProtocolError
from metrana_async.wire import limits
from metrana_async.wire.answers import (
    decode_columns,
    decode_number,
    encode_columns,
    encode_number,
)


@given(
    st.lists(
        st.tuples(st.integers(-(2**63), 2**63 - 1), st.floats(width=32), st.floats()), max_size=20
    )
)
def test_columns_survive_the_way(rows):
    """Every integer and float comes back as the same number, NaN and infinities among them."""
    columns = {
        "step": np.array([r[0] for r in rows], dtype=np.int64),
        "value": np.array([r[1] for r in rows], dtype=np.float32),
        "wide": np.array([r[2] for r in rows], dtype=np.float64),
    }
    found = decode_columns(encode_columns(columns, {"names": ["a"]}))
    assert found.scalars == {"names": ["a"]}
    for name, column in columns.items():
        assert found.columns[name].dtype in {column.dtype, np.dtype(np.float32)}
        assert np.array_equal(
            found.columns[name].astype(column.dtype), column, equal_nan=name != "step"
        )


@given(st.binary(max_size=60))
def test_random_bytes_are_a_protocol_error(data):
    """Nothing but ProtocolError comes out of bytes that are no answer."""
    with pytest.raises(ProtocolError):
        decode_columns(data)


GOOD = encode_columns({"a": np.array([1, 5, 3]), "b": np.array([1, 2, 3], dtype=np.float32)})


def test_every_cut_and_every_extra_byte_is_noticed():
    """A body that is shorter or longer than it says is refused."""
    for end in range(len(GOOD)):
        with pytest.raises(ProtocolError):
            decode_columns(GOOD[:end])
    with pytest.raises(ProtocolError):
        decode_columns(GOOD + b"\0")


def claim(*columns):
    header = orjson.dumps({"columns": columns, "scalars": {}})
    return len(header).to_bytes(4, "little") + header + bytes(-(4 + len(header)) % 8)


@pytest.mark.parametrize(
    "columns",
    [
        [["a", ["c", limits.ANSWER_ROWS + 1, 0]]],
        [["a", ["c", 3, 0]], ["b", ["c", 4, 0]]],
        [["a", ["c", 3, 0]], ["a", ["c", 3, 0]]],
        [["a", ["f8", 1 << 40]]],
        [["a", ["x", 3]]],
        [["a", "c"]],
        [["a"]],
        [[str(at), ["c", 1, 0]] for at in range(33)],
        [["a", ["c", 3, 2**63]]],
    ],
)
def test_a_claim_is_checked_before_memory_is_taken(columns):
    """Too many rows, unequal columns, unknown kinds and missing bytes are refused."""
    with pytest.raises(ProtocolError):
        decode_columns(claim(*columns))


def test_a_missing_or_mistyped_column_is_a_protocol_error():
    """Reading a column as what it is not says which."""
    found = decode_columns(GOOD)
    for read in (
        lambda: found.integers("c"),
        lambda: found.integers("b"),
        lambda: found.floats("a"),
    ):
        with pytest.raises(ProtocolError, match="'[abc]'"):
            read()


def test_numbers_that_json_lacks_are_words():
    """nan, inf and -inf go and come back; other words are refused."""
    assert [encode_number(x) for x in (1.5, math.inf, -math.inf)] == [1.5, "inf", "-inf"]
    assert encode_number(math.nan) == "nan"
    assert math.isnan(decode_number("nan"))
    assert decode_number("-inf") == -math.inf
    assert decode_number(3) == 3.0
    for bad in (None, True, "NaN", [], "1"):
        with pytest.raises(ProtocolError):
            decode_number(bad)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([0.5, np.nan, np.inf, -np.inf], np.float32),
        ([0.1], np.float64),
        ([1e300, 1.0], np.float64),
        ([float(2**24 + 1)], np.float64),
        ([float(np.float32(0.1)), 3.0], np.float32),
        ([], np.float32),
    ],
)
def test_the_dtype_of_an_answer_depends_on_its_values_alone(values, dtype):
    """float64 travels as float32 exactly where no value changes by it."""
    column = np.array(values, dtype=np.float64)
    found = decode_columns(encode_columns({"value": column})).floats("value")
    assert found.dtype == dtype
    assert np.array_equal(found.astype(np.float64), column, equal_nan=True)
