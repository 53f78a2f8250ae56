"""Attributes: leaves, paths, and what has no JSON form."""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import enum
import math
import pathlib

import numpy as np
import pytest

from metrana_async.columns.attributes import (
    config_updates,
    decode_attribute,
    description_update,
    encode_attribute,
    tags_update,
)
from metrana_async.errors import InvalidNameError, InvalidTypeError, InvalidValueError
from metrana_async.wire.model import AttributeOp


class Color(enum.Enum):
    RED = 1


class Mode(enum.Enum):
    FAST = "fast"


@dataclasses.dataclass
class Optimizer:
    lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)


def leaves(value, prefix="config"):
    return {u.path: u.value for u in config_updates(prefix, value)}


def test_nested_configuration():
    """Each leaf has a path; types are kept."""
    config = {"lr": 0.1, "net": {"layers": [64, 64], "bias": True, "name": None}, "n": 3}
    assert leaves(config) == {
        "config/lr": 0.1,
        "config/net/layers": [64, 64],
        "config/net/bias": True,
        "config/net/name": None,
        "config/n": 3,
    }
    assert leaves({}) == {}
    assert leaves({"a": {}, "b": []}) == {"config/a": {}, "config/b": []}


def test_lists_of_structures_are_numbered():
    """A list that holds a mapping or a list becomes a/0, a/1."""
    assert leaves({"a": [{"x": 1}, 2]}) == {"config/a/0/x": 1, "config/a/1": 2}
    assert leaves({"a": [[1, 2], [3]]}) == {"config/a/0": [1, 2], "config/a/1": [3]}


def test_objects_that_hold_configuration():
    """Dataclasses and namespaces are read by their fields."""
    assert leaves(Optimizer()) == {"config/lr": 0.1, "config/betas": [0.9, 0.999]}
    assert leaves(argparse.Namespace(seed=3)) == {"config/seed": 3}


def test_scalars_of_libraries():
    """Numpy scalars and 0-d arrays, enums, paths and times have a plain form."""
    config = {
        "a": np.float32(0.5),
        "b": np.array(3),
        "c": np.bool_(True),
        "d": Color.RED,
        "e": Mode.FAST,
        "f": pathlib.PurePosixPath("/x/y"),
        "g": dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=dt.timezone.utc),
        "h": dt.date(2024, 1, 2),
        "i": np.array([1, 2]),
        "j": {3, 1},
        "k": np.datetime64("2024-01-02"),
    }
    assert list(leaves(config).values()) == [
        0.5, 3, True, "RED", "fast", "/x/y", "2024-01-02T03:04:05+00:00", "2024-01-02", [1, 2],
        [1, 3], "2024-01-02",
    ]  # fmt: skip


def test_nan_and_infinities_stay_readable():
    """JSON has none of them: they travel as an object that no leaf can otherwise be."""
    found = leaves({"a": math.nan, "b": [math.inf, 1.0], "c": np.float64(-math.inf)})
    assert found["config/a"] == {"float": "nan"}
    assert found["config/b"] == [{"float": "inf"}, 1.0]
    assert math.isnan(decode_attribute(found["config/a"]))
    assert decode_attribute(found["config/b"]) == [math.inf, 1.0]
    assert decode_attribute(found["config/c"]) == -math.inf
    assert decode_attribute(encode_attribute(0.5)) == 0.5
    assert decode_attribute({}) == {}


@pytest.mark.parametrize(
    ("config", "error", "says"),
    [
        ({"a": {"b": object()}}, InvalidTypeError, "config/a/b"),
        ({"a": 1j}, InvalidTypeError, "config/a"),
        ({"a": 2**63}, InvalidValueError, "config/a"),
        ({"a": [1, 2**63]}, InvalidValueError, "config/a/1"),
        ({"a": "x" * 16385}, InvalidValueError, "16385"),
        ({"a": "\ud800"}, InvalidValueError, "position 0"),
        ({None: 1}, InvalidTypeError, "None"),
        ({"a": {"b": 1}, "a/b": 2}, InvalidNameError, "config/a/b"),
        ({"x" * 600: 1}, InvalidNameError, "attribute path"),
        ({"a\n": 1}, InvalidNameError, "U+000A"),
    ],
)
def test_what_is_refused_is_named_by_path(config, error, says):
    """Nothing is turned into a repr silently."""
    with pytest.raises(error) as caught:
        leaves(config)
    assert says in str(caught.value)


def test_endless_configuration_is_refused():
    """A mapping that contains itself."""
    endless: dict = {}
    endless["x"] = endless
    with pytest.raises(InvalidValueError, match="nested deeper"):
        leaves(endless)


def test_int_keys_and_bounds():
    """Int keys become text; int64 and 16,384 bytes fit."""
    assert leaves({0: -(2**63), 1: 2**63 - 1}) == {"config/0": -(2**63), "config/1": 2**63 - 1}
    assert leaves({"a": "x" * 16384})


def test_environment_attributes():
    """An update may belong to an environment and an episode."""
    (update,) = config_updates("info", {"seed": 3}, env_id="env0", episode=2.0)
    assert (update.env_id, update.episode, update.path) == ("env0", 2, "info/seed")
    (bare,) = config_updates("note", "hello")
    assert (bare.path, bare.value, bare.env_id) == ("note", "hello", None)
    (top,) = config_updates("", {"seed": 3})
    assert top.path == "seed"


def test_tags():
    """A list of str; one tag twice is one; a str alone is not a list of letters."""
    update = tags_update(AttributeOp.TAGS_ADD, ["a", "b", "a"])
    assert (update.op, update.value) == (AttributeOp.TAGS_ADD, ["a", "b"])
    with pytest.raises(InvalidTypeError):
        tags_update(AttributeOp.TAGS_SET, "abc")
    with pytest.raises(InvalidTypeError, match=r"tags\[1\]"):
        tags_update(AttributeOp.TAGS_SET, ["a", 1])


def test_description():
    """Text, of any lines."""
    assert description_update("two\nlines").value == "two\nlines"
    with pytest.raises(InvalidTypeError):
        description_update(3)
