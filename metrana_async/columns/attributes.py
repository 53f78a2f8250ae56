"""Attributes of a run or an environment: configuration, tags, description.

Pure. A nested configuration becomes one update per leaf, under ``outer/inner`` paths. Leaves are
JSON and keep their type. JSON has no NaN and no infinities, so these floats travel as an object
that no leaf can otherwise be: ``{"float": "nan"}``, ``{"float": "inf"}``, ``{"float": "-inf"}``
(`encode_attribute`, `decode_attribute`).
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import enum
import math
import os
import types
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from metrana_async.columns.arrays import to_numpy
from metrana_async.columns.integers import coerce_integer
from metrana_async.columns.names import check_attribute_path, check_env_id, check_name
from metrana_async.errors import (
    InvalidNameError,
    InvalidTypeError,
    InvalidValueError,
    ValidationError,
)
from metrana_async.wire.limits import ATTRIBUTE_STRING_BYTES
from metrana_async.wire.model import AttributeOp, AttributeUpdate

CONFIG_PREFIX: Final = "config"
TAGS_PATH: Final = "sys/tags"
DESCRIPTION_PATH: Final = "sys/description"

_DEPTH_MAX: Final = 100
_NOT_A_LEAF: Final = object()


def config_updates(
    prefix: str, value: Any, *, env_id: str | None = None, episode: Any = None
) -> list[AttributeUpdate]:
    """List the SET updates of a value: one per leaf of a mapping, dataclass or namespace.

    A list or tuple of scalars stays one JSON list; one that holds mappings or lists becomes
    ``a/0``, ``a/1``, …. Numpy scalars and 0-d tensors become numbers, an enum member its value
    where that is a str and its name otherwise, a path its text, a date or time its ISO form.

    Args:
        prefix: path of the whole value; "" puts a mapping's keys at the top.
        value: what to log.
        env_id: the environment the attributes belong to, or None for the run.
        episode: the episode of that environment they belong to, or None.

    Raises:
        InvalidTypeError: a leaf is of a type that has no JSON form here; the message has its path.
        InvalidValueError: an int beyond int64 or a str over 16,384 bytes; the message has its path.
        InvalidNameError: a path is not allowed, or two leaves have the same.
    """
    if env_id is not None:
        env_id = check_env_id(env_id)
    if episode is not None:
        episode = coerce_integer(episode, "episode")
    leaves: dict[str, Any] = {}
    _collect(leaves, prefix, value, 0)
    return [
        AttributeUpdate(AttributeOp.SET, check_attribute_path(path), leaf, env_id, episode)
        for path, leaf in leaves.items()
    ]


def tags_update(op: AttributeOp, tags: Any) -> AttributeUpdate:
    """The update that sets, adds or removes tags; duplicates among them are one.

    Raises:
        InvalidTypeError: `tags` is a str or not iterable, or an element is not a str.
        InvalidNameError: a tag is empty or too long; the message has its position.
    """
    if isinstance(tags, str | bytes | Mapping) or not isinstance(tags, Iterable):
        raise InvalidTypeError(f"tags is {tags!r:.60}, not a list of str")
    checked = [check_name(f"tags[{position}]", tag) for position, tag in enumerate(tags)]
    return AttributeUpdate(op, TAGS_PATH, list(dict.fromkeys(checked)))


def description_update(description: Any) -> AttributeUpdate:
    """The update that sets the run's description.

    Raises:
        InvalidTypeError: it is not a str.
        InvalidValueError: it is over 16,384 bytes.
    """
    if not isinstance(description, str):
        raise InvalidTypeError(f"description is {description!r:.60}, not a str")
    return AttributeUpdate(AttributeOp.SET, DESCRIPTION_PATH, _text(description, "description"))


def encode_attribute(value: float) -> float | dict[str, str]:
    """A float as JSON: itself, or ``{"float": "nan" | "inf" | "-inf"}``."""
    return value if math.isfinite(value) else {"float": str(value)}


def decode_attribute(value: Any) -> Any:
    """Undo `encode_attribute`, also inside a list; any other value is returned as it is."""
    if isinstance(value, list):
        return [decode_attribute(element) for element in value]
    if isinstance(value, dict) and value.keys() == {"float"}:
        return float(value["float"])
    return value


def _collect(leaves: dict[str, Any], path: str, value: Any, depth: int) -> None:
    if depth > _DEPTH_MAX:
        raise InvalidValueError(f"attribute {path[:60]!r}… is nested deeper than {_DEPTH_MAX}")
    fields = _fields(value)
    if fields is None and isinstance(value, list | tuple | set | frozenset | np.ndarray):
        fields = _elements(leaves, path, value)
        if fields is None:
            return
    if fields is None:
        leaf = _leaf(value, path)
        if leaf is _NOT_A_LEAF:
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            raise InvalidTypeError(f"attribute {path!r} is a {kind}, which has no JSON form here")
        _put(leaves, path, leaf)
        return
    if not fields and path and depth:
        _put(leaves, path, {})  # an empty mapping inside a configuration is said, not dropped
    for key, inner in fields.items():
        name = _key(key, path)
        _collect(leaves, f"{path}/{name}" if path else name, inner, depth + 1)


def _put(leaves: dict[str, Any], path: str, leaf: Any) -> None:
    if path in leaves:
        raise InvalidNameError(f"attribute path {path!r} is given twice")
    leaves[path] = leaf


def _key(key: Any, path: str) -> str:
    if isinstance(key, enum.Enum) and not isinstance(key, str):
        return key.name
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, int) and not isinstance(key, bool):
        return str(int(key))
    raise InvalidTypeError(f"attribute {path!r} has the key {key!r:.60}, which is no str or int")


def _fields(value: Any) -> Mapping[Any, Any] | None:
    """The named parts of a value, or None where it has none."""
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, argparse.Namespace | types.SimpleNamespace):
        return vars(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=True))
    return None


def _elements(leaves: dict[str, Any], path: str, value: Any) -> Mapping[Any, Any] | None:
    """Put a list of scalars as one leaf and return None, or return its parts by position."""
    if isinstance(value, np.ndarray):
        if value.ndim == 0:
            _collect(leaves, path, value[()], 0)
            return None
        value = value.tolist() if value.ndim == 1 else list(value)
    elif isinstance(value, set | frozenset):
        value = sorted(value, key=repr)  # a set has no order; the same set gives the same list
    elements = []
    for position, element in enumerate(value):
        is_nested = _fields(element) is not None or isinstance(element, list | tuple | set)
        leaf = _NOT_A_LEAF if is_nested else _leaf(element, f"{path}/{position}")
        if leaf is _NOT_A_LEAF:
            return dict(enumerate(value))
        elements.append(leaf)
    _put(leaves, path, elements)
    return None


def _leaf(value: Any, path: str) -> Any:
    """The JSON form of a scalar, or _NOT_A_LEAF."""
    if isinstance(value, enum.Enum):
        return _text(value.value if isinstance(value.value, str) else value.name, path)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, path)
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise InvalidValueError(f"attribute {path!r} is {value!r:.60}, beyond int64")
        return int(value)
    if isinstance(value, float):
        return encode_attribute(float(value))
    if isinstance(value, os.PathLike):
        return _text(os.fsdecode(value), path)
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    return _array_leaf(value, path)


def _array_leaf(value: Any, path: str) -> Any:
    """A numpy scalar, or a 0-d array or tensor, as the Python number it is."""
    if not isinstance(value, np.generic) and tuple(getattr(value, "shape", (0,))) != ():
        return _NOT_A_LEAF
    try:
        array = to_numpy(value, f"attribute {path!r}")
    except ValidationError:
        return _NOT_A_LEAF
    if array.dtype.kind == "M":
        return str(np.datetime_as_string(array))
    if array.dtype.kind in "iufbU":
        return _leaf(array.item(), path)
    return _NOT_A_LEAF


def _text(value: str, path: str) -> str:
    text = str.__str__(value)
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidValueError(
            f"attribute {path!r} has a lone surrogate at position {error.start}"
        ) from error
    if size > ATTRIBUTE_STRING_BYTES:
        raise InvalidValueError(
            f"attribute {path!r} has {size} bytes, more than {ATTRIBUTE_STRING_BYTES}"
        )
    return text
