"""The filter language: text to a tree, and the tree over columns of runs. Pure.

::

    config.lr < 1e-3 and (state = 'finished' or 'best' in tags)

    filter  = all {"or" all}                all = part {"and" part}
    part    = "not" part | "(" filter ")" | test
    test    = field ("=" | "!=" | "<" | "<=" | ">" | ">=") literal | field "~" string
            | field ["not"] "in" "(" literal {"," literal} ")" | literal ["not"] "in" field
            | field ["not"] "exists"
    literal = number | 'text' | "text" | true | false | null

A field is a root and a path: ``config.lr``, ``summary.train/loss.max``, ``tags``; a part with
other characters stands in backticks (doubled inside). ``config.encoder[0]`` is an item of a list,
``config.encoder[-1].n`` what is below the last one. A field may have several values (tags, list
values, environments): a test holds when it holds for one of them. A test of a field that a run has
not is false, ``!=`` and ``not in`` as well; ``not (…)`` turns it around.

Types are kept: a number is never compared with a text, and a field that no run has is a mistake,
not an empty answer. Both are errors that say where, and which names are near. The right side of
``and`` and ``or`` is only looked at for the runs that it can still decide, so
``config.lr exists and config.lr < 1`` is never a mistake.

Regular expressions are those of `patterns`: whatever somebody asks for, the time is bounded.
"""

from __future__ import annotations

import datetime as dt
import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from metrana_async.errors import InvalidQueryError
from metrana_async.server.query.near_names import near_names
from metrana_async.server.query.patterns import Pattern, PatternError, TooMuchWorkError, Work
from metrana_async.wire import limits

BoolArray = npt.NDArray[np.bool_]
Literal = bool | int | float | str | None

FUNCTIONS: Final = ("last", "min", "max", "mean", "count", "last_step")
"""What a summary is of; `last` where a filter names none."""
PATH_ROOTS: Final = ("config", "summary", "attributes", "env")
PLAIN_ROOTS: Final = (
    *("name", "project", "uid", "state", "created", "duration", "archived", "notes"),
    *("description", "tags", "exception_type"),
)

_TOKEN: Final = re.compile(
    r"""\s*(?:
        (?P<number>[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|inf\b|nan\b))
      | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
      | (?P<word>(?:[^\W\d][\w/\-@:]*|`(?:[^`]|``)+`)
            (?:\.(?:[\w/\-@:]+|`(?:[^`]|``)+`)|\[-?\d{1,9}\])*)
      | (?P<sign><=|>=|!=|==|[=<>~(),])
    )""",
    re.VERBOSE,
)
_PART: Final = re.compile(r"`(?:[^`]|``)+`|\[-?\d+\]|[^.`\[]+")
_KEYWORDS: Final = ("and", "or", "not", "in", "exists")
_CONSTANTS: Final[dict[str, Literal]] = {"true": True, "false": False, "null": None}
_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_ORDERED: Final = ("<", "<=", ">", ">=")


class Field(NamedTuple):
    """A field as it was written.

    Attributes:
        text: as in the filter.
        position: where in the filter, from 1.
        root: one of `PLAIN_ROOTS` or `PATH_ROOTS`.
        path: what follows the root, dots kept; "" for plain roots. Of a summary: the metric.
        function: of a summary, one of `FUNCTIONS`.
        below: what is meant of the path's value: positions in lists, and keys of objects in them.
    """

    text: str
    position: int
    root: str
    path: str = ""
    function: str = ""
    below: tuple[int | str, ...] = ()


class RunColumns(Protocol):
    """Where the values of fields come from."""

    def __len__(self) -> int:
        """How many runs there are."""
        ...

    def values(self, field: Field, rows: Sequence[int]) -> list[tuple[Any, ...]]:
        """The field's values in each of these runs; () where a run has none."""
        ...

    def names(self, field: Field) -> Iterable[str]:
        """Fields of the same root that some run has, for the message about one that none has."""
        ...


@dataclass(frozen=True, slots=True)
class FieldTest:
    """`field sign wanted`, where sign is a comparison, "in", "not in", "~" or "exists"."""

    field: Field
    sign: str
    wanted: tuple[Literal, ...] = ()
    pattern: Pattern | None = None


@dataclass(frozen=True, slots=True)
class Not:
    """True where `part` is not."""

    part: Node


@dataclass(frozen=True, slots=True)
class All:
    """True where every part is."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Any_:  # noqa: N801  # typing has the other name
    """True where a part is."""

    parts: tuple[Node, ...]


Node = FieldTest | Not | All | Any_


def mistake(position: int, text: str, *, hint: str | None = None) -> InvalidQueryError:
    """The error for something wrong at a position of a filter, from 1."""
    return InvalidQueryError(f"filter, column {position}: {text}", hint=hint)


# --- reading ---------------------------------------------------------------------------------
class _Token(NamedTuple):
    kind: str
    text: str
    position: int


def _tokens(text: str) -> list[_Token]:
    found, at = [], 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if match is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            what = "a text without end" if text[at] in "'\"`" else f"{text[at]!r} means nothing"
            raise mistake(at + 1, what)
        assert match.lastgroup is not None
        kind, word = match.lastgroup, match[match.lastgroup]
        if kind == "word" and word.lower() in _KEYWORDS:
            kind, word = "keyword", word.lower()
        elif kind == "word" and word in _CONSTANTS:
            kind = "constant"
        found.append(_Token(kind, word, match.start(match.lastgroup) + 1))
        at = match.end()
    found.append(_Token("end", "", len(text) + 1))
    return found


def parse_filter(text: str) -> Node:
    """Read a filter.

    Raises:
        InvalidQueryError: it is too long, too deep, or not of the grammar above; says where.
    """
    if len(text) > limits.FILTER_CHARS:
        raise InvalidQueryError(
            f"a filter of {len(text)} characters; {limits.FILTER_CHARS} is most"
        )
    reader = _Reader(_tokens(text))
    node = reader.any_of(1)
    if reader.next.kind != "end":
        raise mistake(reader.next.position, f"{reader.next.text!r} after the end of the filter")
    return node


def parse_field(text: str) -> Field:
    """Read a field alone, as in an order; InvalidQueryError when it is none."""
    tokens = _tokens(text)
    if len(tokens) != 2 or tokens[0].kind != "word":
        raise InvalidQueryError(f"{text!r} is no field", hint=f"fields are {_roots_text()}")
    return _field(tokens[0])


class _Reader:
    """Recursive descent over the tokens."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0

    @property
    def next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        token = self.next
        self._at += 1
        return token

    def _took(self, *texts: str) -> bool:
        if self.next.kind in ("keyword", "sign") and self.next.text in texts:
            self._at += 1
            return True
        return False

    def any_of(self, depth: int) -> Node:
        parts = [self._all_of(depth)]
        while self._took("or"):
            parts.append(self._all_of(depth))
        return parts[0] if len(parts) == 1 else Any_(tuple(parts))

    def _all_of(self, depth: int) -> Node:
        parts = [self._part(depth)]
        while self._took("and"):
            parts.append(self._part(depth))
        return parts[0] if len(parts) == 1 else All(tuple(parts))

    def _part(self, depth: int) -> Node:
        if depth > limits.FILTER_DEPTH:
            raise mistake(self.next.position, f"over {limits.FILTER_DEPTH} levels deep")
        if self._took("not"):
            return Not(self._part(depth + 1))
        if self._took("("):
            node = self.any_of(depth + 1)
            if not self._took(")"):
                raise mistake(self.next.position, f"a ) is missing before {self._seen()}")
            return node
        return self._test()

    def _test(self) -> Node:
        token = self.next
        if token.kind in ("number", "text", "constant"):
            literal = _literal(self._take())
            sign = self._in_sign()
            if sign is None:
                raise mistake(self.next.position, f"after a value comes 'in', not {self._seen()}")
            field = self._field()
            return FieldTest(field, sign, _wanted(field, sign, [literal], token.position))
        field = self._field()
        sign_at = self.next.position
        if (sign := self._in_sign()) is not None:
            return FieldTest(field, sign, _wanted(field, sign, self._list(), sign_at))
        if self._took("exists"):
            return FieldTest(field, "exists")
        if self.next.text == "not" and self._tokens[self._at + 1].text == "exists":
            self._at += 2
            return Not(FieldTest(field, "exists"))
        sign_token = self._take()
        sign = "=" if sign_token.text == "==" else sign_token.text
        if sign_token.kind != "sign" or sign in "(),":
            seen = sign_token.text or "the end"
            raise mistake(
                sign_at, f"after {field.text} comes = != < <= > >= ~ in or exists, not {seen!r}"
            )
        value_token = self._take()
        literal = _literal(value_token)
        if sign == "~":
            return FieldTest(field, sign, (literal,), _pattern(literal, value_token.position))
        return FieldTest(field, sign, _wanted(field, sign, [literal], value_token.position))

    def _in_sign(self) -> str | None:
        if self._took("in"):
            return "in"
        if self.next.text == "not" and self._tokens[self._at + 1].text == "in":
            self._at += 2
            return "not in"
        return None

    def _list(self) -> list[Literal]:
        if not self._took("("):
            raise mistake(self.next.position, f"after 'in' comes a list in (), not {self._seen()}")
        values = [_literal(self._take())]
        while self._took(","):
            values.append(_literal(self._take()))
        if not self._took(")"):
            raise mistake(self.next.position, f"a ) is missing before {self._seen()}")
        return values

    def _field(self) -> Field:
        if self.next.kind != "word":
            raise mistake(self.next.position, f"a field is missing before {self._seen()}")
        return _field(self._take())

    def _seen(self) -> str:
        return repr(self.next.text) if self.next.text else "the end"


def _field(token: _Token) -> Field:
    """Split a field into root, path and function."""
    parts = _PART.findall(token.text)
    root, *names = [p[1:-1].replace("``", "`") if p[0] == "`" else p for p in parts]
    if root in PLAIN_ROOTS:
        if names:
            raise mistake(token.position, f"{root!r} has nothing below it ({token.text})")
        return Field(token.text, token.position, root)
    if root not in PATH_ROOTS:
        near = near_names(root, (*PLAIN_ROOTS, *PATH_ROOTS), n=2)
        hint = f"did you mean {' or '.join(near)}?" if near else f"fields are {_roots_text()}"
        raise mistake(token.position, f"there is no field {root!r}", hint=hint)
    is_place = [part.startswith("[") for part in parts[1:]]
    end = is_place.index(True) if True in is_place else len(names)
    if end == 0:
        raise mistake(token.position, f"{root!r} needs a name below it, as in {root}.x")
    if root != "summary":
        below = tuple(
            int(name[1:-1]) if is_number else name
            for name, is_number in zip(names[end:], is_place[end:], strict=True)
        )
        return Field(token.text, token.position, root, ".".join(names[:end]), below=below)
    if end < len(names):
        raise mistake(token.position, f"a metric has no {names[end]}; its name stands in backticks")
    function = names.pop() if len(names) > 1 and parts[-1] in FUNCTIONS else "last"
    return Field(token.text, token.position, root, ".".join(names), function)


def _roots_text() -> str:
    return ", ".join((*PLAIN_ROOTS, *(f"{root}.…" for root in PATH_ROOTS)))


def _literal(token: _Token) -> Literal:
    if token.kind == "number":
        is_integer = token.text.lstrip("+-").isdecimal()
        return int(token.text) if is_integer else float(token.text)
    if token.kind == "text":
        return re.sub(r"\\(.)", r"\1", token.text[1:-1], flags=re.DOTALL)
    if token.kind == "constant":
        return _CONSTANTS[token.text]
    seen = repr(token.text) if token.text else "the end"
    hint = "a text stands in quotes" if token.kind == "word" else None
    raise mistake(token.position, f"a value is missing before {seen}", hint=hint)


def _pattern(literal: Literal, position: int) -> Pattern:
    if not isinstance(literal, str):
        raise mistake(position, f"~ takes a regular expression in quotes, not {literal!r}")
    try:
        return Pattern(literal)
    except PatternError as error:
        raise mistake(position, f"{literal!r:.80} is no regular expression: {error}") from error


def _wanted(
    field: Field, sign: str, literals: Iterable[Literal], position: int
) -> tuple[Literal, ...]:
    """Literals in the field's own unit; a date means `created` in Unix ms."""
    wanted = tuple(literals)
    if sign in _ORDERED and (wanted[0] is None or isinstance(wanted[0], bool)):
        raise mistake(position, f"{sign} compares numbers and texts, not {wanted[0]!r}")
    if field.root != "created":
        return wanted
    return tuple(_date_ms(w, position) if isinstance(w, str) else w for w in wanted)


def _date_ms(text: str, position: int) -> int:
    try:
        moment = dt.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as error:
        raise mistake(
            position, f"{text!r} is no date", hint="write '2024-05-31' or '2024-05-31T12:00:00Z'"
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.timezone.utc)
    return round(moment.timestamp() * 1000)


# --- evaluating --------------------------------------------------------------------------------
def select_runs(node: Node, columns: RunColumns) -> BoolArray:
    """Which runs the filter holds for: bool [runs].

    Raises:
        InvalidQueryError: a field is of another type than it is compared with, or in no run; or
            the regular expressions are too much work.
    """
    return _select(node, columns, np.arange(len(columns), dtype=np.int64), Work())


def _select(node: Node, columns: RunColumns, rows: npt.NDArray[np.int64], work: Work) -> BoolArray:
    """Which of `rows` the node holds for; bool [len(columns)], False elsewhere."""
    held = np.zeros(len(columns), dtype=np.bool_)
    if isinstance(node, Not):
        held[rows] = True
        return held & ~_select(node.part, columns, rows, work)
    if isinstance(node, All):
        held[rows] = True
        for part in node.parts:
            held = _select(part, columns, np.flatnonzero(held), work)
        return held
    if isinstance(node, Any_):
        for part in node.parts:
            held |= _select(part, columns, rows[~held[rows]], work)
        return held
    held[rows] = _hold(node, columns, rows.tolist(), work)
    return held


def _hold(test: FieldTest, columns: RunColumns, rows: list[int], work: Work) -> list[bool]:
    """Whether the test holds, for each of `rows`."""
    found = columns.values(test.field, rows)
    if test.sign == "exists":
        return [bool(values) for values in found]
    _check_kinds(test, columns, found)
    if test.pattern is not None:
        return _found(test, test.pattern, found, work)
    if test.sign == "in":
        return [any(_equal(v, w) for v in values for w in test.wanted) for values in found]
    if test.sign in ("not in", "!="):
        return [
            bool(values) and not any(_equal(v, w) for v in values for w in test.wanted)
            for values in found
        ]
    (wanted,) = test.wanted
    if test.sign == "=":
        return [any(_equal(v, wanted) for v in values) for values in found]
    compare, kind = _COMPARE[test.sign], _kind(wanted)
    return [any(_kind(v) == kind and compare(v, wanted) for v in values) for values in found]


def _found(
    test: FieldTest, pattern: Pattern, found: list[tuple[Any, ...]], work: Work
) -> list[bool]:
    try:
        return [
            any(isinstance(v, str) and pattern.search(v, work) for v in values) for values in found
        ]
    except TooMuchWorkError as error:
        raise mistake(
            test.field.position,
            f"the texts of {test.field.text} are too many or too long for this regular expression",
            hint="put another condition before it with 'and', or look for less",
        ) from error


def _equal(value: Any, wanted: Literal) -> bool:
    return _kind(value) == _kind(wanted) and bool(value == wanted)


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "truth value"
    if isinstance(value, (int, float)):
        return "number"
    return "text" if isinstance(value, str) else "object"


def _check_kinds(test: FieldTest, columns: RunColumns, found: list[tuple[Any, ...]]) -> None:
    """Refuse a comparison that no value of the field could ever satisfy."""
    field = test.field
    if not found:
        return
    kinds = {_kind(value) for values in found for value in values}
    if not kinds:
        if field.root in PATH_ROOTS:
            near = near_names(field.text.replace("`", ""), sorted(set(columns.names(field))))
            raise mistake(
                field.position,
                f"no run has {field.text}",
                hint=f"did you mean {', '.join(near)}?" if near else None,
            )
        return
    wanted = {_kind(w) for w in test.wanted}
    if kinds & wanted or "null" in wanted or kinds == {"null"}:
        return
    literal = test.wanted[0]
    shown = "nan" if isinstance(literal, float) and math.isnan(literal) else repr(literal)
    raise mistake(
        field.position,
        f"{field.text} is a {' or '.join(sorted(kinds))}, "
        f"{shown} is a {' or '.join(sorted(wanted))}",
        hint="a number stands without quotes" if kinds == {"number"} else None,
    )
