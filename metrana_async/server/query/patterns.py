r"""Regular expressions in time linear in the text, for readers nobody knows. Pure.

Python's `re` tries one way after the other: ``(a|a)*$`` over forty letters takes it hours, and no
other thread runs meanwhile. Here all ways are followed at once, so a text is walked through once,
whatever the pattern; what is left to bound is the size of the pattern and the work as a whole.

What is found is what `re.search` finds, of the syntax that this can do: literals, ``.``, classes,
escapes, groups, ``|``, ``* + ? {m,n}``, ``^ $ \A \Z \b \B``, and the flags i and s at the
beginning. Look-around, back references and the like are refused.

The pattern becomes a graph of states; a set of them is where one can be in the text. Sets and the
steps between them are remembered as they are met, which makes a lookup of most characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from metrana_async.wire import limits

_STATES_MAX: Final = 2_000
_COPIES_MAX: Final = 20_000
_SETS_KEPT: Final = 2_000
_VISIT_WORK: Final = 10

_ESCAPE: Final = re.compile(
    r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^}]*\}|0[0-7]?[0-7]?|[0-3][0-7]{2}"
    r"|(?P<reference>[1-9]\d?)|(?P<assertion>[AZbB])|.)",
    re.DOTALL,
)
_CLASS: Final = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_REPEAT: Final = re.compile(
    r"(?:(?P<sign>[*+?])|\{(?!\})(?P<low>\d*)(?P<comma>,)?(?P<high>\d*)\})(?P<how>[?+]?)"
)
_FLAGS: Final = re.compile(r"\(\?([is]+)\)")
_GROUP: Final = re.compile(r"\((?:\?:|\?P<\w+>)?(?!\?)")


class PatternError(ValueError):
    """The pattern is none, too big, or of a kind that is not offered."""


class TooMuchWorkError(Exception):
    """The texts are too long for this pattern."""


class Work:
    """How much may still be done; one for all texts of a question."""

    def __init__(self, left: int = limits.PATTERN_WORK) -> None:
        self.left = left

    def take(self, amount: int) -> None:
        """Do some; TooMuchWorkError where there is not so much left."""
        self.left -= amount
        if self.left < 0:
            raise TooMuchWorkError


# --- the pattern as a tree -----------------------------------------------------------------------
class _One(NamedTuple):
    """One character that `holds` is true for."""

    holds: Callable[[str], object]


class _Place(NamedTuple):
    """A place between characters: ``^ $ A Z b B``."""

    sign: str


class _Row(NamedTuple):
    parts: tuple[_Node, ...]


class _Choice(NamedTuple):
    parts: tuple[_Node, ...]


class _Times(NamedTuple):
    part: _Node
    low: int
    high: int | None


_Node = _One | _Place | _Row | _Choice | _Times


class _Reader:
    """Recursive descent over a pattern that `re` has accepted."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._flags = text, 0, 0
        if match := _FLAGS.match(text):
            self._at = match.end()
            self._flags = re.IGNORECASE * ("i" in match[1]) | re.DOTALL * ("s" in match[1])

    def read(self) -> _Node:
        node = self._choice()
        assert self._at == len(self._text), (self._text, self._at)
        return node

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _choice(self) -> _Node:
        parts = [self._row()]
        while self._next() == "|":
            self._at += 1
            parts.append(self._row())
        return parts[0] if len(parts) == 1 else _Choice(tuple(parts))

    def _row(self) -> _Node:
        parts = []
        while self._next() not in ("", "|", ")"):
            node = self._item()
            while match := _REPEAT.match(self._text, self._at):
                self._at = match.end()
                node = self._times(node, match)
            parts.append(node)
        return _Row(tuple(parts))

    def _times(self, node: _Node, match: re.Match[str]) -> _Node:
        if match["how"] == "+":
            raise PatternError("possessive repetition is not offered")
        if match["sign"]:
            low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[match["sign"]]
            return _Times(node, low, high)
        low = int(match["low"] or 0)
        if match["comma"]:
            return _Times(node, low, int(match["high"]) if match["high"] else None)
        return _Times(node, low, low)

    def _item(self) -> _Node:
        sign = self._next()
        if sign == "(":
            return self._group()
        if sign in ("^", "$"):
            self._at += 1
            return _Place(sign)
        if sign == "[":
            return self._one(_CLASS)
        if sign == "\\":
            match = _ESCAPE.match(self._text, self._at)
            assert match is not None
            if match["reference"]:
                raise PatternError(f"a back reference ({match[0]}) is not offered")
            if match["assertion"]:
                self._at = match.end()
                return _Place(match["assertion"])
            return self._one(_ESCAPE)
        self._at += 1
        if sign == "." or self._flags & re.IGNORECASE:
            return _One(re.compile("." if sign == "." else re.escape(sign), self._flags).match)
        return _One(sign.__eq__)

    def _one(self, extent: re.Pattern[str]) -> _Node:
        """One character of a class or an escape, as `re` understands it."""
        match = extent.match(self._text, self._at)
        assert match is not None, (self._text, self._at)
        self._at = match.end()
        return _One(re.compile(match[0], self._flags).match)

    def _group(self) -> _Node:
        match = _GROUP.match(self._text, self._at)
        if match is None:
            raise PatternError(
                f"{self._text[self._at : self._at + 4]!r} is not offered; of (?…) there are (?:…), "
                "(?P<name>…), and (?i) and (?s) at the beginning"
            )
        self._at = match.end()
        node = self._choice()
        self._at += 1  # the closing one
        return node


# --- the pattern as a graph ----------------------------------------------------------------------
class _State(NamedTuple):
    """A state: over one character to `after`, past a place to `after`, or freely to several."""

    holds: Callable[[str], object] | None
    place: str
    after: tuple[int, ...]


class _Graph:
    """States of a pattern, built from its end; state 0 is where a match is complete."""

    def __init__(self, node: _Node) -> None:
        self.states: list[_State] = [_State(None, "", ())]
        self._copies = 0
        self.start = self._add(node, 0)

    def _new(self, state: _State) -> int:
        if len(self.states) >= _STATES_MAX:
            raise PatternError("it is too big")
        self.states.append(state)
        return len(self.states) - 1

    def _add(self, node: _Node, after: int) -> int:
        """States that go through `node` and then on at `after`; the first of them."""
        self._copies += 1
        if self._copies > _COPIES_MAX:
            raise PatternError("it is too big")
        if isinstance(node, _One):
            return self._new(_State(node.holds, "", (after,)))
        if isinstance(node, _Place):
            return self._new(_State(None, node.sign, (after,)))
        if isinstance(node, _Row):
            for part in reversed(node.parts):
                after = self._add(part, after)
            return after
        if isinstance(node, _Choice):
            return self._new(_State(None, "", tuple(self._add(p, after) for p in node.parts)))
        return self._add_times(node, after)

    def _add_times(self, node: _Times, after: int) -> int:
        if node.high is None:
            loop = self._new(_State(None, "", ()))
            self.states[loop] = _State(None, "", (self._add(node.part, loop), after))
            after = loop
        else:
            end = after
            for _ in range(node.high - node.low):
                after = self._new(_State(None, "", (self._add(node.part, after), end)))
        for _ in range(node.low):
            after = self._add(node.part, after)
        return after


# --- walking -------------------------------------------------------------------------------------
_END: Final = "end"
_LAST_NEWLINE: Final = "\n, last"
_WORD: Final = re.compile(r"\w")


@dataclass(slots=True, eq=False)
class _Set:
    """Where one can be between two characters: states, and what kind of character is behind.

    Attributes:
        behind: "" at the beginning, "w" behind a word character, "o" behind another.
        steps: what each next character leads to; None where the match is complete before it.
    """

    states: frozenset[int]
    behind: str
    steps: dict[str, _Set | None] = field(default_factory=dict)


class Pattern:
    """A regular expression. Not for several threads at once."""

    def __init__(self, text: str) -> None:
        """Read a pattern.

        Raises:
            PatternError: `re` does not accept it, or it is not of the syntax above; says why.
        """
        if len(text) > limits.PATTERN_CHARS:
            raise PatternError(f"it has {len(text)} characters, {limits.PATTERN_CHARS} is most")
        try:
            re.compile(text)
            node = _Reader(text).read()
            self._graph = _Graph(node)
        except re.error as error:
            raise PatternError(str(error)) from error
        except (RecursionError, OverflowError) as error:
            raise PatternError("it is too deep") from error
        self._sets: dict[tuple[frozenset[int], str], _Set] = {}

    def search(self, text: str, work: Work) -> bool:
        """Whether the pattern is found anywhere in a text.

        Raises:
            TooMuchWorkError: not within the work that was left.
        """
        work.take(len(text))
        here = self._set(frozenset((self._graph.start,)), "")
        last = len(text) - 1
        for at, character in enumerate(text):
            key = _LAST_NEWLINE if character == "\n" and at == last else character
            after = here.steps[key] if key in here.steps else self._step(here, key, work)
            if after is None:
                return True
            here = after
        return (here.steps[_END] if _END in here.steps else self._step(here, _END, work)) is None

    def _set(self, states: frozenset[int], behind: str) -> _Set:
        found = self._sets.get((states, behind))
        if found is None:
            if len(self._sets) >= _SETS_KEPT:
                self._sets.clear()
            found = self._sets[states, behind] = _Set(states, behind)
        return found

    def _step(self, here: _Set, key: str, work: Work) -> _Set | None:
        """Where `key` leads to; None where the match is complete before it."""
        reached = self._reach(here, key, work)
        after: _Set | None = None
        if 0 not in reached:
            character = "\n" if key == _LAST_NEWLINE else key
            states = {self._graph.start}  # a match may begin anywhere
            for number in reached:
                state = self._graph.states[number]
                if key != _END and state.holds is not None and _is_true(state.holds(character)):
                    states.add(state.after[0])
            after = self._set(frozenset(states), "w" if _WORD.match(character) else "o")
        here.steps[key] = after
        return after

    def _reach(self, here: _Set, key: str, work: Work) -> set[int]:
        """Every state that can be reached without a character, with `key` coming next."""
        waiting, reached = list(here.states), set(here.states)
        while waiting:
            work.take(_VISIT_WORK)
            state = self._graph.states[waiting.pop()]
            if state.holds is not None or (state.place and not _is_at(state.place, here, key)):
                continue
            for number in state.after:
                if number not in reached:
                    reached.add(number)
                    waiting.append(number)
        return reached


def _is_true(found: object) -> bool:
    """A match, or True; `str.__eq__` says True or False."""
    return found is not None and found is not False


def _is_at(place: str, here: _Set, key: str) -> bool:
    """Whether this is the place: between the character behind and `key`."""
    if place in ("^", "A"):
        return here.behind == ""
    if place == "$":
        return key in (_END, _LAST_NEWLINE)
    if place == "Z":
        return key == _END
    is_word = key not in (_END, _LAST_NEWLINE) and _WORD.match(key) is not None
    return (is_word != (here.behind == "w")) == (place == "b")
