"""The catalogue of seeded bugs keeps up with the code it breaks."""

from __future__ import annotations

import ast

import pytest

from tests.meta.test_imports import ROOT
from tests.mutants.__main__ import broken
from tests.mutants.catalogue import MUTANTS


def test_there_are_enough_and_each_is_one():
    """Names are unique; lanes, rules, spool and dedupe are all broken somewhere."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 25
    broken_rooms = {"/".join(mutant.path.split("/")[:2]) for mutant in MUTANTS}
    assert {"metrana_async/delivery", "metrana_async/spool", "metrana_async/server"} <= broken_rooms


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_mutant_still_applies(mutant):
    """Its text stands in the code exactly once, and what replaces it is valid Python."""
    text = broken((ROOT / mutant.path).read_text("utf-8"), mutant)
    ast.parse(text)
    assert all((ROOT / test).exists() for test in mutant.tests)
