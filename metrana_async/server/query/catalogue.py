"""Names to numbers: which series, environment or writer of a run a query means.

A catalogue is a snapshot of what never changes once stored (a series' number and pins, an
environment's number, a writer's id), so a hit in an old one is right and a miss asks the store
again, for what has come since: a run of 100,000 series is read once. Nothing here reads points.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Final

import numpy as np

from metrana_async.errors import InternalError, NotFoundError
from metrana_async.server.query.near_names import nearest
from metrana_async.server.store.base import PointStore, RunContents, SeriesRow
from metrana_async.wire.model import Family, Int64Array

_RUNS_COUNT: Final = 64

Identity = tuple[Family, str, str, tuple[tuple[str, str], ...]]


class Catalogue:
    """The series, environments and writers of one run at some moment.

    Attributes:
        rows: its series, in the order they were first stored.
    """

    def __init__(self, contents: RunContents, before: Catalogue | None = None) -> None:
        """Of what a store has; with `before`, contents hold only the series that came after it."""
        self.run_name = contents.row.name
        self.rows: list[SeriesRow] = contents.series
        self.series: dict[Identity, SeriesRow] = {
            row.definition.identity: row for row in contents.series
        }
        if before is not None:
            is_new = bool(contents.series)
            self.rows = [*before.rows, *contents.series] if is_new else before.rows
            self.series = {**before.series, **self.series} if is_new else before.series
        self.env_names: list[str] = contents.env_names
        self.env_no: dict[str, int] = {name: no for no, name in enumerate(contents.env_names)}
        self.writer_ids: dict[int, str] = {w.writer_no: w.writer_id for w in contents.writers}

    @cached_property
    def by_metric(self) -> Mapping[str, Collection[SeriesRow]]:
        """Every series of a name."""
        named: dict[str, list[SeriesRow]] = {}
        for row in self.rows:
            named.setdefault(row.definition.metric, []).append(row)
        return named

    @property
    def last_series_no(self) -> int:
        """The number of the newest series, 0 without any."""
        return self.rows[-1].series_no if self.rows else 0

    def writer_ranks(self, writer_no: Int64Array) -> Int64Array | None:
        """The place of each row's writer among all writer ids in string order, int64 [n].

        None when a writer is unknown to this snapshot.
        """
        present, inverse = np.unique(writer_no, return_inverse=True)
        ids = [self.writer_ids.get(number) for number in present.tolist()]
        if None in ids:
            return None
        ranks = np.empty(len(ids), dtype=np.int64)
        ranks[sorted(range(len(ids)), key=lambda at: str(ids[at]))] = np.arange(len(ids))
        return ranks[inverse.reshape(-1)]

    def missing(self, identity: Identity) -> NotFoundError:
        """The error for a series that is not there; says what of that name is."""
        family, metric, scale, labels = identity
        wanted = f"{metric!r} ({family.value}, {scale}{_labels_text(labels)})"
        message = f"run {self.run_name!r} has no series {wanted}"
        kin = [
            f"{row.definition.family.value} {row.definition.scale}"
            f"{_labels_text(row.definition.labels)}"
            for row in self.by_metric.get(metric, ())
        ]
        if kin:
            return NotFoundError(message, hint=f"{metric!r} is there as {'; '.join(kin[:8])}")
        return NotFoundError(message, hint=nearest(metric, self.by_metric, "metrics()"))


class Catalogues:
    """The catalogues of the runs read last. Thread-safe."""

    def __init__(self, store: PointStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, Catalogue] = OrderedDict()

    def refresh(self, run_no: int) -> Catalogue:
        """The run's catalogue as it is now; NotFoundError when there is no such run."""
        with self._lock:
            before = self._kept.get(run_no)
        after = 0 if before is None else before.last_series_no
        catalogue = Catalogue(self._store.run_contents(run_no, series_after=after), before)
        with self._lock:
            self._kept[run_no] = catalogue
            self._kept.move_to_end(run_no)
            while len(self._kept) > _RUNS_COUNT:
                self._kept.popitem(last=False)
        return catalogue

    def series(
        self, run_no: int, family: Family, metric: str, scale: str, labels: Mapping[str, str]
    ) -> SeriesRow:
        """The series of exactly this identity; NotFoundError when the run has none."""
        identity = (family, metric, scale, tuple(sorted(labels.items())))
        row = self._known(run_no).series.get(identity)
        if row is None:
            catalogue = self.refresh(run_no)
            row = catalogue.series.get(identity)
            if row is None:
                raise catalogue.missing(identity)
        return row

    def has_series(
        self, run_no: int, family: Family, metric: str, scale: str, labels: Mapping[str, str]
    ) -> bool:
        """Whether the run has a series of exactly this identity."""
        identity = (family, metric, scale, tuple(sorted(labels.items())))
        is_known = identity in self._known(run_no).series
        return is_known or identity in self.refresh(run_no).series

    def env_no(self, run_no: int, env_id: str) -> int:
        """The number of an environment; NotFoundError when the run has none of this id."""
        number = self._known(run_no).env_no.get(env_id)
        if number is None:
            catalogue = self.refresh(run_no)
            number = catalogue.env_no.get(env_id)
            if number is None:
                raise NotFoundError(
                    f"run {catalogue.run_name!r} has no environment {env_id!r}",
                    hint=nearest(env_id, catalogue.env_names, "environments()"),
                )
        return number

    def env_names(self, run_no: int, rows_env_no: Int64Array) -> list[str]:
        """Environment ids by number, covering every number in `rows_env_no`."""
        names = self._known(run_no).env_names
        if len(rows_env_no) and int(rows_env_no.max()) >= len(names):
            names = self.refresh(run_no).env_names
        return names

    def writer_ranks(self, run_no: int, writer_no: Int64Array) -> Int64Array:
        """See `Catalogue.writer_ranks`; every writer of stored rows is known to the store."""
        ranks = self._known(run_no).writer_ranks(writer_no)
        if ranks is None:
            ranks = self.refresh(run_no).writer_ranks(writer_no)
        if ranks is None:
            raise InternalError(f"run {run_no} holds points of a writer it does not list")
        return ranks

    def _known(self, run_no: int) -> Catalogue:
        with self._lock:
            catalogue = self._kept.get(run_no)
        return self.refresh(run_no) if catalogue is None else catalogue


def _labels_text(labels: tuple[tuple[str, str], ...]) -> str:
    return "".join(f", {key}={value}" for key, value in labels)
