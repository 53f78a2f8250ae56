"""Filters in Python: expressions over `F` that render to the filter language.

::

    from metrana_async import F
    await client.runs(where=(F.config.lr < 1e-3) & F.tags.contains("best"))

An expression is only text in the making; whatever takes one takes the text as well.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from typing import Any, Final

_BARE: Final = re.compile(r"[^\W\d][\w/\-@:]*")
_Literal = bool | int | float | str | None


class Filter:
    """A condition on runs. Combine with ``&``, ``|`` and ``~``; `str` gives the text."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Filter({self._text!r})"

    def __and__(self, other: Filter | str) -> Filter:
        return Filter(f"({self}) and ({other})")

    def __or__(self, other: Filter | str) -> Filter:
        return Filter(f"({self}) or ({other})")

    def __invert__(self) -> Filter:
        return Filter(f"not ({self})")

    def __bool__(self) -> bool:
        raise TypeError("a filter is neither true nor false here: combine filters with & | ~")


class FilterField:
    """A field of runs: ``F.config.lr``, ``F.summary["train/loss"].max``, ``F.tags``.

    Compared with a value it gives a `Filter`. Names that are no Python identifier, or that are
    methods here, go in brackets: ``F.config["batch size"]``; so do places in a list:
    ``F.config.encoder[0]``.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str = "") -> None:
        self._text = text

    def __getattr__(self, name: str) -> FilterField:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str | int) -> FilterField:
        if not isinstance(name, str):
            return FilterField(f"{self._text}[{operator.index(name)}]")
        part = name if _BARE.fullmatch(name) else "`" + name.replace("`", "``") + "`"
        return FilterField(f"{self._text}.{part}" if self._text else part)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"FilterField({self._text!r})"

    def __neg__(self) -> FilterField:
        """The field with the highest first: ``order_by=-F.summary.loss.last``."""
        return FilterField(f"-{self._text}")

    __hash__ = None  # type: ignore[assignment]  # == builds a filter

    def __eq__(self, value: _Literal) -> Filter:  # type: ignore[override]
        return Filter(f"{self} = {_render(value)}")

    def __ne__(self, value: _Literal) -> Filter:  # type: ignore[override]
        return Filter(f"{self} != {_render(value)}")

    def __lt__(self, value: float | str) -> Filter:
        return Filter(f"{self} < {_render(value)}")

    def __le__(self, value: float | str) -> Filter:
        return Filter(f"{self} <= {_render(value)}")

    def __gt__(self, value: float | str) -> Filter:
        return Filter(f"{self} > {_render(value)}")

    def __ge__(self, value: float | str) -> Filter:
        return Filter(f"{self} >= {_render(value)}")

    def in_(self, values: Iterable[_Literal]) -> Filter:
        """The field is one of `values`."""
        return Filter(f"{self} in ({', '.join(map(_render, values))})")

    def not_in(self, values: Iterable[_Literal]) -> Filter:
        """The run has the field, and it is none of `values`."""
        return Filter(f"{self} not in ({', '.join(map(_render, values))})")

    def contains(self, value: _Literal) -> Filter:
        """One of the field's values is `value`: a tag, an item of a list."""
        return Filter(f"{_render(value)} in {self}")

    def matches(self, pattern: str) -> Filter:
        """The regular expression is found in the field's text."""
        return Filter(f"{self} ~ {_render(pattern)}")

    def exists(self) -> Filter:
        """The run has the field."""
        return Filter(f"{self} exists")


F: Final = FilterField()
"""Where fields begin: ``F.state == "finished"``."""


def _render(value: Any) -> str:
    """A literal of the filter language.

    Raises:
        TypeError: the language has no literal for it.
    """
    value = value.item() if hasattr(value, "item") else value
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    raise TypeError(f"a filter compares with numbers, texts, bools and None, not {value!r:.80}")
