"""The page of the fault matrix says what the tests carry, and leaves no row out."""

from __future__ import annotations

import pytest

from tests.fault import matrix


@pytest.mark.timeout(120)
def test_the_page_names_exactly_the_rows_that_tests_carry():
    """Regenerated, it is the same page; 60 rows or more run in `make test`."""
    wanted = matrix.table()
    assert matrix.PAGE.read_text("utf-8") == matrix.page_with(wanted), (
        "docs/reference/fault-matrix.md is out of date: python -m tests.fault.matrix"
    )
    assert int(wanted.split()[0]) >= 60
