"""The filter language: what it accepts, what it finds, and where it says a mistake is."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrana_async.errors import InvalidQueryError
from metrana_async.query.filters import F
from metrana_async.server.query.filters import FieldTest, parse_field, parse_filter, select_runs
from metrana_async.wire import limits

RUNS = [
    {"name": ("a",), "state": ("finished",), "tags": ("best", "x"), "config.lr": (1e-4,)},
    {"name": ("b",), "state": ("failed",), "config.lr": (0.1,), "config.opt/name": ("adam",)},
    {"name": ("c",), "state": ("running",), "config.lr": (None,), "config.flag": (True,)},
    {"name": ("d",), "state": ("running",), "summary.train/loss.v2.max": (math.nan,)},
    {"name": ("e",), "state": ("crashed",), "config.layers": (64, 128), "config.lr": ("auto",)},
]


class Columns:
    """Runs as mappings of field text to values."""

    def __init__(self, runs=RUNS):
        self.runs = runs

    def __len__(self):
        return len(self.runs)

    def values(self, field, rows):
        key = ".".join(filter(None, (field.root, field.path, field.function)))
        return [self.runs[row].get(key, ()) for row in rows]

    def names(self, field):
        return {k for run in self.runs for k in run if k.startswith(f"{field.root}.")}


def found(text):
    held = select_runs(parse_filter(str(text)), Columns())
    return "".join(run["name"][0] for run, is_held in zip(RUNS, held, strict=True) if is_held)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("config.lr < 1e-3", "a"),
        ("config.lr<=0.1", "ab"),
        ("config.lr >= .1 or state = 'running'", "bcd"),
        ("state = 'finished' or 'best' in tags and name != 'a'", "a"),
        ("(state = 'finished' or 'best' in tags) and name != 'a'", ""),
        ("state in ('failed', \"crashed\")", "be"),
        ("state not in ('failed','crashed')", "acd"),
        ("'best' not in tags", ""),
        ("not 'best' in tags", "bcde"),
        ("not (config.lr exists)", "d"),
        ("config.lr not exists", "d"),
        ("config.lr = null", "c"),
        ("config.lr != 0.1", "ace"),
        ("config.lr = 'auto'", "e"),
        ("config.flag = true", "c"),
        ("config.`opt/name` ~ '^ad'", "b"),
        ("config.opt/name == 'adam'", "b"),
        ("128 in config.layers", "e"),
        ("summary.train/loss.v2.max != 1", "d"),
        ("summary.`train/loss.v2`.max = nan", ""),
        ("config.flag exists and config.flag = true", "c"),
        ("NOT state = 'running' AND NOT name = 'a'", "be"),
    ],
)
def test_a_filter_finds_its_runs(text, names):
    """Each operator, precedence, quoting and the missing value, worked by hand."""
    assert found(text) == names


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("config.lrr < 1", 1, "no run has config.lrr.*did you mean config.lr?"),
        ("name = 3", 1, "name is a text, 3 is a number"),
        ("state = 'x' or config.flag > 2", 16, "truth value"),
        ("confg.lr = 1", 1, "no field 'confg'.*did you mean config"),
        ("config.lr <", 12, "value is missing before the end"),
        ("config.lr < lr", 13, "quotes"),
        ("(name = 'a'", 12, r"a \) is missing"),
        ("name = 'a' name", 12, "after the end"),
        ("name = 'a", 8, "without end"),
        ("name ~ '('", 8, "regular expression"),
        ("name ! 'a'", 6, "means nothing"),
        ("created > 'soon'", 11, "no date"),
        ("config = 1", 1, "needs a name below"),
        ("tags.x = 1", 1, "nothing below"),
        ("config[0] = 1", 1, "needs a name below"),
        ("config.a[x] = 1", 9, "means nothing"),
        ("summary.loss[0] > 1", 1, "backticks"),
        ("name ~ '(a)\\\\1'", 8, "back reference"),
        ("name ~ '(?=a)'", 8, "not offered"),
        ("name ~ 3", 8, "in quotes"),
        ("config.lr < true", 13, "compares numbers"),
        ("3 = config.lr", 3, "'in'"),
    ],
)
def test_a_mistake_says_where_and_what_is_near(text, column, says):
    """The column of the mistake and the nearest name are in the message."""
    with pytest.raises(InvalidQueryError, match=says) as caught:
        found(text)
    assert f"column {column}:" in str(caught.value)


def test_a_filter_is_bounded():
    """Beyond the limits of length and depth a filter is refused, not run out of stack."""
    with pytest.raises(InvalidQueryError, match="characters"):
        parse_filter("name = 'a' " + " " * limits.FILTER_CHARS)
    with pytest.raises(InvalidQueryError, match="levels"):
        parse_filter("(" * 5000 + "name = 'a'")
    assert parse_filter("(" * 90 + "name = 'a'" + ")" * 90)


def test_a_field_says_what_is_below_its_path():
    """Positions and keys behind a path, negative ones too; before them the path as it was."""
    field = parse_field("config.net.`a[0]`[-1].x.y[12]")
    assert (field.path, field.below) == ("net.a[0]", (-1, "x", "y", 12))
    assert parse_field("config.a.b").below == ()
    assert parse_field("summary.`a[0]`.max").path == "a[0]"


def test_hostile_regular_expressions_do_not_hold_up_the_server():
    """Those that take `re` for ever are answered; too much work over all runs is refused."""
    rows = [{"name": ("a" * 5_000 + "!",)} for _ in range(20)]
    node = parse_filter("name ~ '^(a|a)*$' or name ~ '(a+)+$' or name ~ '(a*a*)*b'")
    assert not select_runs(node, Columns(rows)).any()
    many = Columns(rows * (limits.PATTERN_WORK // (20 * 5_000) + 1))
    with pytest.raises(InvalidQueryError, match="column 1.*too long"):
        select_runs(parse_filter("name ~ 'b'"), many)


def test_without_runs_nothing_is_a_mistake():
    """A field is unknown only where there are runs that could have it."""
    assert len(select_runs(parse_filter("config.lr < 1"), Columns([]))) == 0


def test_the_builders_say_the_same():
    """`F` renders what a person would write, quoting where it must."""
    assert found((F.config.lr < 1e-3) | F.tags.contains("best")) == "a"
    assert found(~(F.state == "running") & (F.name != "a")) == "be"
    assert found(F.state.in_(["failed", "crashed"])) == "be"
    assert found(F.state.not_in(["running"])) == "abe"
    assert found(F.config["opt/name"].matches("^ad")) == "b"
    assert found(F.config.flag.exists() & (F.config.flag == True)) == "c"  # noqa: E712
    assert found(F.summary["train/loss.v2"].max != 1) == "d"
    with pytest.raises(TypeError, match="combine"):
        bool(F.name == "a")
    with pytest.raises(TypeError, match="numbers"):
        _ = F.name == object()


@given(st.text(min_size=1).filter(lambda t: "\x00" not in t), st.text(max_size=40))
def test_every_name_and_text_survives_the_builders(name, value):
    """Whatever is logged can be filtered by: names in backticks, texts in quotes."""
    field = parse_field(str(F.config[name]))
    assert field.path == name
    test = parse_filter(str(F.config[name] == value))
    assert isinstance(test, FieldTest)
    assert (test.field.path, test.wanted) == (name, (value,))


@given(st.floats() | st.integers(-(2**60), 2**60))
def test_every_number_survives_the_builders(number):
    """Numbers come back bit for bit, also tiny, huge and not finite ones."""
    test = parse_filter(str(F.config.x == number))
    assert isinstance(test, FieldTest)
    (wanted,) = test.wanted
    assert wanted == number or (math.isnan(wanted) and math.isnan(number))
    assert type(wanted) is type(number)
