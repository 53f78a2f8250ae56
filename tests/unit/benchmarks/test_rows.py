"""What `make bench` says about figures, the baseline and the page that shows them."""

from __future__ import annotations

import pytest

from benchmarks.record import put_into
from benchmarks.rows import APPEND, Row, beside_yardsticks, compared, read_baseline, table


def row(what: str, relative: float, **more: object) -> Row:
    return Row(what, 10.0, "us", None, APPEND, relative=relative, **more)


def test_only_what_moved_by_more_than_its_factor_is_said():
    """Beyond the factor in either direction: named, with both figures; within it: not a word."""
    rows = [row("slow", 3.1), row("quick", 0.9), row("same", 2.9), row("new", 1.0)]
    said = compared(rows, {"slow": 2.0, "quick": 2.0, "same": 2.0, "gone": 1.0})
    assert said == [
        "worse than the baseline:",
        f"  slow: 3.1 x {APPEND}, was 2 (1.55 times; said beyond 1.5)",
        "better than the baseline:",
        f"  quick: 0.9 x {APPEND}, was 2 (0.45 times; said beyond 1.5)",
        "not in the baseline:",
        "  new",
    ]


def test_a_row_has_its_own_factor_and_may_have_none():
    """A row of factor 3 bears twice the baseline; one of factor 0 is not compared at all."""
    rows = [row("wide", 4.0, factor=3.0), row("never", 99.0, factor=0)]
    assert compared(rows, {"wide": 2.0}) == [
        "nothing moved against the baseline by more than its factor"
    ]


def test_a_figure_is_held_against_the_yardstick_of_the_same_run():
    """A row with a yardstick is divided by it, one without stays what it is."""
    timed, sized = beside_yardsticks(
        lambda: [Row("timed", 5.0, "us", None, APPEND), Row("sized", 5.0, "MB")]
    )
    assert sized.relative == 5.0
    assert timed.relative != 5.0
    assert timed.relative > 0


def test_the_committed_baseline_has_the_rows_that_are_compared():
    """Every figure in it is a number above zero, or one that may be zero."""
    from benchmarks.__main__ import BASELINE

    baseline = read_baseline(BASELINE)
    assert "caller CPU, tight: scalar" in baseline
    assert not [what for what, relative in baseline.items() if relative != relative]


def test_a_table_is_markdown_with_one_line_a_row():
    """A head, a rule, and the rows with the yardstick's name."""
    lines = table([row("what", 2.5)])
    assert len(lines) == 3
    assert {line.count("|") for line in lines} == {6}
    assert f"2.5 x {APPEND}" in lines[2]


def test_figures_replace_those_between_the_marks_of_their_name(tmp_path):
    """The rest of the page stays, byte for byte; a page without the marks is left alone."""
    page = tmp_path / "page.md"
    text = "a\n<!-- figures of x -->\n{}\n<!-- end of x -->\nb\n<!-- figures of y -->\n"
    page.write_text(text.format("\nold\n"))
    put_into(page, "x", ["new"])
    put_into(page, "x", ["newer"])
    assert page.read_text() == text.format("\nnewer\n")
    with pytest.raises(ValueError, match="figures of y"):
        put_into(page, "y", ["new"])
    assert page.read_text() == text.format("\nnewer\n")
