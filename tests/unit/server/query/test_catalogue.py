"""Catalogues: a run's series are read once, then only those that came since."""

from __future__ import annotations

import pytest

from metrana_async.errors import NotFoundError
from metrana_async.server.query.catalogue import Catalogues
from metrana_async.server.query.near_names import near_names, nearest
from metrana_async.server.store.base import Commit, DeletedRun
from metrana_async.wire.model import ML_STEP, Family
from tests.unit.server.query.stored_run import StoredRun


class CountingStore:
    """A store that notes how many series each reading of a catalogue brought."""

    def __init__(self, store) -> None:
        self._store = store
        self.read_counts: list[int] = []

    def run_contents(self, run_no: int, **how):
        """See PointStore."""
        contents = self._store.run_contents(run_no, **how)
        self.read_counts.append(len(contents.series))
        return contents


@pytest.fixture
def stored():
    return StoredRun()


def find(catalogues: Catalogues, stored: StoredRun, metric: str) -> int:
    row = catalogues.series(stored.run_no, Family.STANDARD, metric, ML_STEP, {})
    return row.series_no


def test_a_refresh_reads_only_the_series_that_came_since(stored):
    """Series that are known are not read again; all are found, in the order they came."""
    store = CountingStore(stored.store)
    catalogues = Catalogues(store)
    numbers = [stored.series(f"m/{n}") for n in range(5)]
    assert find(catalogues, stored, "m/3") == numbers[3]
    numbers += [stored.series(f"m/{n}") for n in (5, 6)]
    other = StoredRun("other", store=stored.store)
    other.series("m/9")

    assert find(catalogues, stored, "m/6") == numbers[6]
    assert find(catalogues, stored, "m/0") == numbers[0]
    catalogue = catalogues.refresh(stored.run_no)

    assert store.read_counts == [5, 2, 0]
    assert [row.series_no for row in catalogue.rows] == numbers
    assert [row.series_no for row in catalogue.by_metric["m/6"]] == [numbers[6]]
    assert "m/9" not in catalogue.by_metric


def test_an_older_snapshot_stays_what_it_was(stored):
    """A reader that holds a catalogue sees no series appear in it."""
    catalogues = Catalogues(stored.store)
    stored.series("a")
    before = catalogues.refresh(stored.run_no)
    assert set(before.by_metric) == {"a"}
    stored.series("b")
    after = catalogues.refresh(stored.run_no)
    assert (len(before.rows), set(before.by_metric), len(before.series)) == (1, {"a"}, 1)
    assert (len(after.rows), set(after.by_metric), len(after.series)) == (2, {"a", "b"}, 2)


def test_a_deleted_run_is_no_longer_known(stored):
    """A catalogue that was kept does not hide that its run is gone."""
    catalogues = Catalogues(stored.store)
    stored.series("a")
    catalogues.refresh(stored.run_no)
    row = stored.row
    gone = DeletedRun(row.run_no, row.run_uid, row.workspace, row.project, row.name, 1)
    stored.store.commit(Commit(deleted=[gone]))
    with pytest.raises(NotFoundError):
        catalogues.refresh(stored.run_no)


def test_a_near_name_is_found_among_very_many():
    """A slip at the beginning, in the middle or at the end; nothing where nothing is near."""
    names = [f"layer/{n // 100}/unit/{n}/norm" for n in range(120_000)]
    for slip in ("layr/7/unit/701/norm", "layer/7/unt/701/norm", "layer/7/unit/701/nrm"):
        assert "layer/7/unit/701/norm" in near_names(slip, names)
    assert near_names("§", names) == []
    assert nearest("§", names, "metrics()") == "metrics() lists what is there"
