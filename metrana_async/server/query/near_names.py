"""Which of the names that are there somebody may have meant. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

_COMPARED: Final = 2_000
"""More names than these are not all compared letter by letter."""


def near_names(name: str, names: Iterable[str], *, n: int = 3) -> list[str]:
    """At most `n` names like this one, the nearest first."""
    return difflib.get_close_matches(name, _likely(name, list(names)), n=n)


def nearest(name: str, names: Iterable[str], list_call: str) -> str:
    """What to tell somebody who asked for a name that is not there: those like it, or the list."""
    near = near_names(name, names)
    if near:
        return f"did you mean {', '.join(map(repr, near))}?"
    return f"{list_call} lists what is there"


def _likely(name: str, names: list[str]) -> list[str]:
    """Of very many names those worth comparing: one slip leaves a half of the name as it was."""
    if len(names) <= _COMPARED:
        return names
    head, tail = name[: len(name) // 2], name[len(name) // 2 :]
    halves = [other for other in names if other.startswith(head) or other.endswith(tail)]
    if len(halves) > _COMPARED:
        halves.sort(key=lambda other: abs(len(other) - len(name)))
    return halves[:_COMPARED]
