"""The form of a worked case: calls by lettered processes, then what a reader must see.

A file holds one JSON object a line: `{"id", "about", "calls": [...], "expect": [...]}`.

`MORE_FILE` says a few things more than the standard one: `columns` names what `points` holds,
`"given": false` says that a warning was not given, `ledger` compares counts of the server's, and
points of `merged` may name fewer fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

STANDARD_FILE = Path(__file__).parent.parent / "cases" / "semantics.jsonl"
MORE_FILE = STANDARD_FILE.with_name("more.jsonl")
_FLOAT_WORDS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
_ARRAY_ARGUMENTS = ("value", "step", "episode", "env_step", "mask", "rl_step")


@dataclass(frozen=True)
class Case:
    """One worked case."""

    id: str
    about: str
    calls: list[dict[str, Any]]
    expect: list[dict[str, Any]]

    def processes(self) -> list[str]:
        """Letters in order of appearance."""
        return list(dict.fromkeys(call["process"] for call in self.calls))

    def killed(self) -> set[str]:
        """Letters that are killed."""
        return {call["process"] for call in self.calls if call["fn"] == "kill"}


def read_cases(path: Path) -> Iterator[Case]:
    """Read a file of cases."""
    for line in path.read_text("utf-8").splitlines():
        if line.strip():
            row = json.loads(line)
            yield Case(row["id"], row.get("about", ""), row["calls"], row["expect"])


def words_to_floats(value: Any) -> Any:
    """Replace "nan", "inf" and "-inf" by the floats they stand for, at any depth."""
    if isinstance(value, str):
        return _FLOAT_WORDS.get(value, value)
    if isinstance(value, list):
        return [words_to_floats(item) for item in value]
    return value


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def as_array(value: Any) -> Any:
    """A numpy array of a list, where that keeps the values' types; else the list as it is."""
    if not isinstance(value, list) or len({type(leaf) for leaf in _leaves(value)}) != 1:
        return value
    if type(next(_leaves(value))) not in (int, float, bool):
        return value
    try:
        return np.array(value)
    except (ValueError, OverflowError):
        return value


def arguments(call: dict[str, Any], *, arrays: bool) -> dict[str, Any]:
    """The keyword arguments of a call, with words replaced and lists made arrays if asked for."""
    result = dict(call["args"])
    if "value" in result:
        result["value"] = words_to_floats(result["value"])
    if arrays:
        for name in _ARRAY_ARGUMENTS:
            if name in result:
                result[name] = as_array(result[name])
    return result
