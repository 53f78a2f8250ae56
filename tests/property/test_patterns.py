"""Linear regular expressions against Python's own, and against patterns that make those explode."""

from __future__ import annotations

import random
import re
import sys

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from metrana_async.server.query.patterns import Pattern, PatternError, TooMuchWorkError, Work

LETTERS = "ab_ B1\né"
ATOMS = st.sampled_from(
    ["a", "b", "B", "_", " ", "1", "é", ".", r"\d", r"\w", r"\W", r"\s", r"\S", r"\D", r"\n", r"\."]
    + ["[ab]", "[^a]", "[]a]", "[^]a]", r"[\]b]", "[a-b1]", r"[\d_]", r"\x61", r"\u00e9", r"\141"]
    + ["^", "$", r"\A", r"\Z", r"\b", r"\B", "", "{", "{}", "{a}"]
)
REPEATS = st.sampled_from(
    ["", "", "", "*", "+", "?", "*?", "{2}", "{1,3}", "{,2}", "{2,}", "{0}", "{,}"]
)

POSSESSIVE = re.compile(r"[*+?}]\+")


@st.composite
def patterns(draw, depth=3):
    parts = []
    for _ in range(draw(st.integers(0, 4))):
        if depth and draw(st.booleans()):
            inside = draw(patterns(depth=depth - 1))
            part = draw(st.sampled_from(["({})", "(?:{})", f"(?P<n{depth}>{{}})"])).replace(
                "{}", inside, 1
            )
        else:
            part = draw(ATOMS)
        parts.append(part + draw(REPEATS))
        if draw(st.integers(0, 4)) == 0:
            parts.append("|")
    return "".join(parts)


@given(
    st.sampled_from(["", "(?i)", "(?s)", "(?is)", "(?si)"]),
    patterns(),
    st.lists(st.text(LETTERS, max_size=8), min_size=1, max_size=8),
)
@settings(max_examples=1500, deadline=None)
def test_what_is_found_is_what_re_finds(flags, text, haystacks):
    """Every pattern that `re` accepts, over texts of every kind of character."""
    try:
        expected = re.compile(flags + text)
    except re.error:
        with pytest.raises(PatternError):
            Pattern(flags + text)
        return
    assume(not POSSESSIVE.search(text))
    pattern = Pattern(flags + text)
    for haystack in haystacks:
        if not haystack and r"\B" in text:
            continue  # before 3.14 `re` finds no place at all in an empty text
        found = pattern.search(haystack, Work())
        assert found == (expected.search(haystack) is not None), (flags + text, haystack)


@pytest.mark.parametrize(
    ("text", "haystack", "found"),
    [
        (r"(a|a)*$", "a" * 40 + "b", True),
        (r"^(a|a)*$", "a" * 40 + "b", False),
        (r"^(a+)+$", "a" * 16_000 + "b", False),
        (r"a*a*a*a*a*b", "a" * 16_000, False),
        (r"^(.*?,){30}P", ",".join("1" * 50), False),
        (r"(x+x+)+y", "x" * 16_000, False),
        (r"(a?){60}a{60}", "a" * 60, True),
        (r"((a*)*)*b", "a" * 16_000, False),
    ],
)
def test_what_explodes_elsewhere_is_walked_through_once(text, haystack, found):
    """The hostile and the clumsy ones are answered within the work that any filter may do."""
    work = Work(1_000_000)
    assert Pattern(text).search(haystack, work) is found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (r"(((a?){1000}){1000}){1000}b", "too big"),
        (r"((){1000}){1000}", "too big"),
        (r"a{5000}", "too big"),
        (r"a{99999999999999999999}", "too deep"),
        ("a" * 1001, "1001 characters"),
        ("(" * 450 + ")" * 450, None),
        (r"(a)\1", "back reference"),
        (r"(?=a)", "not offered"),
        (r"(?<!a)b", "not offered"),
        (r"(?m)^a", "not offered"),
        (r"(?x) a", "not offered"),
        (r"(?i:a)", "not offered"),
        (r"(?P<n>a)(?P=n)", "not offered"),
        (r"(?#no)a", "not offered"),
        (r"a(", None),
        (r"[a", None),
        (r"*", None),
    ],
)
def test_what_is_not_offered_is_refused(text, why):
    """Too big, of a kind that cannot be walked through once, or no pattern at all."""
    with pytest.raises(PatternError, match=why):
        Pattern(text)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="`re` has none before 3.11")
@pytest.mark.parametrize("text", ["a*+b", "a{1,2}+", "(?>a)"])
def test_possessive_ones_are_refused(text):
    """They forget ways that were open, which following all at once cannot."""
    with pytest.raises(PatternError, match="not offered"):
        Pattern(text)


def test_work_is_bounded_over_all_texts():
    """A pattern whose sets are ever new ones costs much per letter, and is stopped."""
    pattern = Pattern("(a|b)*a(a|b){150}c")
    chance = random.Random(7)
    texts = ["".join(chance.choices("ab", k=3000)) for _ in range(50)]
    work = Work(3_000_000)
    with pytest.raises(TooMuchWorkError):
        [pattern.search(text, work) for text in texts]
    assert work.left > -1000 * 150


def test_long_texts_count_as_work():
    """Also where every step is known already."""
    pattern, work = Pattern("z"), Work(10_000)
    with pytest.raises(TooMuchWorkError):
        [pattern.search("a" * 1_000, work) for _ in range(20)]
