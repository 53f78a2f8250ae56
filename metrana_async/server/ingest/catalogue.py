"""One run in memory: its row, writers, series, environments, lanes, pages and attributes.

`RunState` is loaded from the store when the run is first touched and dropped as a whole when a
commit fails, so that what is in memory never runs ahead of what is durable. New rows go into the
`Changes` of the commit in the making.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from metrana_async.server.ingest.numbers import Numbers
from metrana_async.server.ingest.validation import family_codes
from metrana_async.server.store.base import (
    SEQS_KEPT,
    AnswerRow,
    AttributeRow,
    Commit,
    LaneRow,
    LeaseRow,
    PointStore,
    RunContents,
    SeriesRow,
    WriterRow,
)
from metrana_async.wire import limits
from metrana_async.wire.acks import Notice
from metrana_async.wire.frames import decode_frame
from metrana_async.wire.model import Family, Int64Array, Ordering, SeriesDef
from metrana_async.wire.pages import Page, decode_page

UNRESOLVED: Final = -1
CONFLICTING: Final = -2
_DICTIONARIES_KEPT: Final = 256

AttributeKey = tuple[int | None, int | None, str]
PinKey = tuple[Family, str, str]
Pin = tuple[Ordering, "bool | None"]


@dataclass(slots=True)
class WriterState:
    """A writer, the notices that wait for it, and what it was told already."""

    row: WriterRow
    saved_seen_ms: int = 0
    """`row.seen_ms` as last put into a commit; it moves with every request, and is kept seldom."""
    pending: list[Notice] = field(default_factory=list)
    pending_at: dict[tuple[str, str | None], int] = field(default_factory=dict)
    """Where in `pending` the first notice of a (kind, metric) is."""
    told: set[tuple[object, ...]] = field(default_factory=set)


@dataclass(slots=True)
class SeriesDictionary:
    """Definitions of a batch's series pages, and the run's index of each (or a marker above)."""

    definitions: tuple[SeriesDef, ...]
    families: npt.NDArray[np.int8]
    index: Int64Array


@dataclass(slots=True)
class Changes:
    """A commit in the making. Run and writer rows are copied when it is complete."""

    commit: Commit = field(default_factory=Commit)
    runs: dict[int, RunState] = field(default_factory=dict)
    writers: dict[int, WriterState] = field(default_factory=dict)
    lanes: dict[tuple[int, int], LaneRow] = field(default_factory=dict)
    attributes: dict[tuple[int, AttributeKey], AttributeRow] = field(default_factory=dict)

    def complete(self) -> Commit:
        """The commit, with the rows as they are now."""
        commit = self.commit
        commit.runs = [
            replace(
                run.row,
                counters=dict(run.row.counters),
                orchestration_ids=list(run.row.orchestration_ids),
            )
            for run in self.runs.values()
            if run.is_row_changed
        ]
        commit.writers = [
            replace(w.row, counters=dict(w.row.counters)) for w in self.writers.values()
        ]
        commit.lanes = list(self.lanes.values())
        commit.attributes = list(self.attributes.values())
        return commit


class RunState:
    """Everything about one run that the ingest side knows, except its cursors."""

    def __init__(self, store: PointStore, numbers: Numbers, contents: RunContents) -> None:
        self._store = store
        self._numbers = numbers
        self.row = replace(contents.row, counters=dict(contents.row.counters))
        self.row.orchestration_ids = list(contents.row.orchestration_ids)
        self.is_row_changed = False
        self.writers = {
            w.writer_no: WriterState(replace(w, counters=dict(w.counters)))
            for w in sorted(contents.writers, key=lambda w: w.writer_no)
        }
        self.writer_nos = {w.row.writer_id: no for no, w in self.writers.items()}
        self.orders = {no: (w.row.order_us, w.row.writer_id) for no, w in self.writers.items()}
        self.series: list[SeriesRow] = []
        self.index_by_identity: dict[tuple[object, ...], int] = {}
        self.index_by_no: dict[int, int] = {}
        self.pins: dict[PinKey, Pin] = {}
        self.series_no = np.empty(0, np.int64)
        self.is_merge: npt.NDArray[np.bool_] = np.empty(0, np.bool_)
        for row in sorted(contents.series, key=lambda s: s.series_no):
            self._register(row)
        self.env_names = list(contents.env_names)
        self.env_nos = {name: no for no, name in enumerate(self.env_names)}
        self.lanes = {(x.writer_no, x.lane): x for x in contents.lanes}
        self._answers: dict[tuple[int, int], dict[int, AnswerRow]] = {}
        for answer in contents.answers:
            self._keep_answer(answer)
        self.attributes: dict[AttributeKey, AttributeRow] = {
            (a.env_no, a.episode, a.path): a for a in contents.attributes
        }
        self._leases: dict[tuple[int, int], LeaseRow] = {}
        self._lease_ends: dict[int, int] = {}
        for lease in contents.leases:
            self._keep_lease(lease)
        self._series_dictionaries: OrderedDict[tuple[str, ...], SeriesDictionary] = OrderedDict()
        self._env_dictionaries: OrderedDict[tuple[str, ...], Int64Array] = OrderedDict()

    # --- series ----------------------------------------------------------------------------
    def _register(self, row: SeriesRow) -> int:
        index, definition = len(self.series), row.definition
        self.series.append(row)
        self.index_by_identity[definition.identity] = index
        self.index_by_no[row.series_no] = index
        self.pins[definition.family, definition.metric, definition.scale] = (
            definition.ordering,
            definition.episodic,
        )
        if index >= len(self.series_no):
            room = max(64, index)
            self.series_no = np.concatenate([self.series_no, np.zeros(room, np.int64)])
            self.is_merge = np.concatenate([self.is_merge, np.zeros(room, np.bool_)])
        self.series_no[index] = row.series_no
        self.is_merge[index] = definition.ordering is Ordering.MERGE
        return index

    def resolve(self, dictionary: SeriesDictionary, entries: Int64Array, changes: Changes) -> None:
        """Find or create the series of dictionary entries; called when a point of each comes."""
        for entry in entries.tolist():
            definition = dictionary.definitions[entry]
            pin = self.pins.get((definition.family, definition.metric, definition.scale))
            if pin is not None and pin != (definition.ordering, definition.episodic):
                dictionary.index[entry] = CONFLICTING
                continue
            index = self.index_by_identity.get(definition.identity)
            if index is None:
                row = SeriesRow(self._numbers.take_series(), self.row.run_no, definition)
                changes.commit.series.append(row)
                index = self._register(row)
            dictionary.index[entry] = index

    # --- dictionaries ----------------------------------------------------------------------
    def series_dictionary(
        self, digests: tuple[str, ...], fresh: dict[str, Page]
    ) -> SeriesDictionary | list[str]:
        """The definitions that these pages name, or the digests that nobody has."""
        known = self._series_dictionaries.get(digests)
        if known is not None:
            return known
        pages = self._pages(digests, fresh)
        missing = [d for d, page in zip(digests, pages, strict=True) if page is None]
        if missing:
            return missing
        definitions = tuple(d for page in pages if page is not None for d in page.series)
        unresolved = np.full(len(definitions), UNRESOLVED, np.int64)
        dictionary = SeriesDictionary(definitions, family_codes(definitions), unresolved)
        _remember(self._series_dictionaries, digests, dictionary)
        return dictionary

    def env_dictionary(
        self, digests: tuple[str, ...], fresh: dict[str, Page], changes: Changes
    ) -> Int64Array | list[str]:
        """The env_no of each name on these pages, or the digests that nobody has."""
        known = self._env_dictionaries.get(digests)
        if known is not None:
            return known
        pages = self._pages(digests, fresh)
        missing = [d for d, page in zip(digests, pages, strict=True) if page is None]
        if missing:
            return missing
        names = [name for page in pages if page is not None for name in page.envs]
        numbers = np.array([self.env_no(name, changes) for name in names], np.int64)
        _remember(self._env_dictionaries, digests, numbers)
        return numbers

    def env_no(self, name: str, changes: Changes) -> int:
        """Number of an environment, given on first sight."""
        number = self.env_nos.get(name)
        if number is None:
            number = self.env_nos[name] = len(self.env_names)
            self.env_names.append(name)
            changes.commit.envs.append((self.row.run_no, number, name))
        return number

    def _pages(self, digests: tuple[str, ...], fresh: dict[str, Page]) -> list[Page | None]:
        return [fresh.get(digest) or self._stored_page(digest) for digest in digests]

    def _stored_page(self, digest: str) -> Page | None:
        encoded = self._store.page(self.row.run_no, digest)
        return None if encoded is None else decode_page(decode_frame(encoded).body, encoded)

    # --- small things ----------------------------------------------------------------------
    def count(self, counts: dict[str, int]) -> None:
        """Add to the run's counters, which stop at the largest integer a store can keep."""
        self.is_row_changed |= bool(counts)
        kept = self.row.counters
        for name, points_count in counts.items():
            # A client declares its losses as it likes; no claim may make the run unstorable.
            kept[name] = min(kept.get(name, 0) + points_count, limits.STEP_MAX)

    def set_state(self, state: str, now_ms: int) -> None:
        """Change the run's state, if it is another one."""
        if self.row.state != state:
            self.row.state, self.row.state_ms = state, now_ms
            self.is_row_changed = True

    def acked(self, writer_no: int) -> dict[int, int]:
        """High-water marks of a writer's lanes."""
        return {lane: x.seq for (no, lane), x in self.lanes.items() if no == writer_no}

    def note_answer(self, answer: AnswerRow, changes: Changes) -> None:
        """Keep what a batch was answered, for when it comes again."""
        self._keep_answer(answer)
        changes.commit.answers.append(answer)

    def _keep_answer(self, answer: AnswerRow) -> None:
        kept = self._answers.setdefault((answer.writer_no, answer.lane), {})
        kept[answer.seq] = answer
        for seq in [seq for seq in kept if seq <= answer.seq - SEQS_KEPT]:
            del kept[seq]

    def note_lease(self, lease: LeaseRow, changes: Changes) -> None:
        """Keep a lease, in place of its writer's one before."""
        self._keep_lease(lease)
        changes.commit.leases.append(lease)

    def _keep_lease(self, lease: LeaseRow) -> None:
        self._leases[lease.env_no, lease.writer_no] = lease
        end = lease.first + lease.count
        self._lease_ends[lease.env_no] = max(end, self.leases_end(lease.env_no))

    def last_lease(self, env_no: int, writer_no: int) -> LeaseRow | None:
        """The last lease of an environment that a writer was given."""
        return self._leases.get((env_no, writer_no))

    def leases_end(self, env_no: int) -> int:
        """First episode of an environment beyond every lease."""
        return self._lease_ends.get(env_no, 0)

    def kept_answer(self, key: tuple[int, int], seq: int) -> AnswerRow | None:
        """What the batch of a (writer, lane) was answered, unless it was simply stored."""
        return self._answers.get(key, {}).get(seq)


def _remember(kept: OrderedDict, key: tuple[str, ...], value: object) -> None:  # type: ignore[type-arg]  # both dictionaries
    kept[key] = value
    if len(kept) > _DICTIONARIES_KEPT:
        kept.popitem(last=False)
