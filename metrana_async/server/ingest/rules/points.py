"""Rules of STANDARD and EPISODE rows: automatic numbers, replacing, superseding.

A *key* is one ordered axis: a series (STANDARD) or an (environment of a series) (EPISODE). Every
function works on whole columns; only keys on which an explicit step lies at or below the running
maximum — a resumed overlap, an out-of-order step — cost a look into the store, one per key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from metrana_async.server.ingest.rules.verdict import Telling, Verdict, Writers
from metrana_async.wire import limits
from metrana_async.wire.acks import Outcome
from metrana_async.wire.model import AUTOMATIC, Int64Array

BoolArray = npt.NDArray[np.bool_]

NOTHING = -1
"""No step, no writer."""

VisibleRows = Callable[[int, Int64Array], tuple[Int64Array, Int64Array]]
"""(key, steps sorted and distinct) -> (steps, writer_nos): of those steps the ones that hold a
row, ascending, and who wrote the visible one."""


@dataclass(slots=True)
class PointCursors:
    """Per key: the highest step ever stored, who stored last, and the newest who ever stored.

    `second_told` is not part of the state: whether two live writers were told of each other.
    """

    max_step: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    last_writer: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    top_writer: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    second_told: BoolArray = field(default_factory=lambda: np.empty(0, np.bool_))

    def reserve(self, keys_count: int) -> None:
        """Make room for keys 0..keys_count-1; new ones are empty."""
        have = len(self.max_step)
        if keys_count <= have:
            return
        more = max(keys_count, 2 * have) - have
        nothing = np.full(more, NOTHING, np.int64)
        self.max_step = np.concatenate([self.max_step, nothing])
        self.last_writer = np.concatenate([self.last_writer, nothing])
        self.top_writer = np.concatenate([self.top_writer, nothing])
        self.second_told = np.concatenate([self.second_told, np.zeros(more, np.bool_)])

    def absorb(self, keys: Int64Array, steps: Int64Array, writer: int, writers: Writers) -> None:
        """Take in rows that are (being) stored: the only way the state ever changes."""
        if bool((keys[1:] > keys[:-1]).all()):
            self.max_step[keys] = np.maximum(self.max_step[keys], steps)
        else:
            np.maximum.at(self.max_step, keys, steps)
        self.last_writer[keys] = writer
        # A handful of distinct writers whatever the number of keys, and mostly one.
        tops = self.top_writer[keys]
        for top in _distinct(tops):
            if top == NOTHING or writers.is_newer(writer, top):
                self.top_writer[keys[tops == top]] = writer


@dataclass(slots=True)
class RowsVerdict(Verdict):
    """What became of rows: `step` [n] numbered, `is_stored` [n].

    `is_low` [n] marks explicit rows at or below their key's running maximum, None = none are.
    """

    step: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    is_stored: BoolArray = field(default_factory=lambda: np.empty(0, np.bool_))
    is_low: BoolArray | None = None


def judge_merge(
    cursors: PointCursors, keys: Int64Array, steps: Int64Array, writer: int, writers: Writers
) -> RowsVerdict:
    """Judge rows of `log_distributed` series: every one is stored, whatever the order."""
    cursors.absorb(keys, steps, writer, writers)
    verdict = RowsVerdict(step=steps, is_stored=np.ones(len(steps), np.bool_))
    verdict.count(Outcome.STORED, len(steps))
    return verdict


def judge_ordered(
    cursors: PointCursors,
    keys: Int64Array,
    steps: Int64Array,
    writer: int,
    writers: Writers,
    *,
    visible: VisibleRows,
    warns_second_writer: bool = True,
) -> RowsVerdict:
    """Judge rows that one after the other extend, rewrite or number themselves along their key.

    `keys` int64 [n] in any order, rows of one key in lane order; `steps` int64 [n], AUTOMATIC asks
    for the key's next number. `visible` reads what the store and this commit so far show at given
    steps. The caller guarantees that no automatic number passes 2**63-1.
    """
    is_auto = steps == AUTOMATIC
    grouping = _group(keys)
    numbered, is_low = _number(cursors.max_step[keys], steps, is_auto, grouping)
    verdict = RowsVerdict(step=numbered, is_stored=np.ones(len(keys), np.bool_))
    if is_low.any():
        verdict.is_low = is_low
        for rows in _low_groups(is_low, grouping):
            low = is_low[rows]
            _place_low(
                verdict, int(keys[rows[0]]), rows, low, visible=visible, writers=(writer, writers)
            )
    if warns_second_writer:
        _tell_second_writer(cursors, keys, writer, writers, verdict)
    if is_auto.any() and not writers.is_live(writer):
        tops = cursors.top_writer[keys]
        ahead = [t for t in _distinct(tops) if t != NOTHING and writers.is_newer(t, writer)]
        verdict.count(Outcome.LATE, int(np.count_nonzero(is_auto & np.isin(tops, ahead))))
    stored = verdict.is_stored
    if stored.all():
        cursors.absorb(keys, numbered, writer, writers)
        verdict.count(Outcome.STORED, len(keys))
    else:
        cursors.absorb(keys[stored], numbered[stored], writer, writers)
        stored_count = int(np.count_nonzero(stored))
        verdict.count(Outcome.STORED, stored_count)
        verdict.count(Outcome.SUPERSEDED, len(keys) - stored_count)
    return verdict


def has_no_numbers_left(keys: Int64Array, steps: Int64Array, before: Int64Array) -> bool:
    """True when an automatic row of any key would be numbered beyond 2**63-1.

    `keys` and `steps` as for `judge_ordered`; `before` [n] is the highest stored step of the row's
    key. A number grows by one with every automatic row behind the step it counts from.
    """
    is_auto = steps == AUTOMATIC
    order = np.argsort(keys, kind="stable")
    key, auto = keys[order], is_auto[order]
    is_end = np.append(key[1:] != key[:-1], True)
    ends = np.flatnonzero(is_end)
    running = np.cumsum(auto, dtype=np.int64)
    behind = np.repeat(running[ends], np.diff(ends, prepend=-1)) - running + auto
    base = np.where(is_auto, before, steps)[order]
    return bool(((behind > 0) & (base > limits.STEP_MAX - behind)).any())


def _distinct(numbers: Int64Array) -> list[int]:
    """Distinct values; cheap where there is only one, which is the rule."""
    if len(numbers) == 0:
        return []
    first = numbers[0]
    if (numbers == first).all():
        return [int(first)]
    return [int(n) for n in np.unique(numbers)]


@dataclass(frozen=True, slots=True)
class _Grouping:
    """Rows of equal keys side by side: `order` puts them there, `heads` is where each begins."""

    order: Int64Array
    heads: Int64Array
    sizes: Int64Array


def _group(keys: Int64Array) -> _Grouping | None:
    """Group rows by key; None when all keys are distinct."""
    if len(keys) < 2 or bool((keys[1:] > keys[:-1]).all()):
        return None
    order = np.argsort(keys, kind="stable").astype(np.int64, copy=False)
    ordered = keys[order]
    is_head = np.ones(len(keys), np.bool_)
    is_head[1:] = ordered[1:] != ordered[:-1]
    heads = np.flatnonzero(is_head).astype(np.int64, copy=False)
    if len(heads) == len(keys):
        return None
    return _Grouping(order, heads, np.diff(np.append(heads, len(order))))


def _number(
    before: Int64Array, steps: Int64Array, is_auto: BoolArray, grouping: _Grouping | None
) -> tuple[Int64Array, BoolArray]:
    """Give numbers, and mark explicit rows at or below the running maximum of their key.

    With a = automatic rows so far within the key, the running maximum is
    M = cummax(step - a) + a, started at the stored maximum `before`: an automatic row adds one.
    """
    if grouping is None:
        return np.where(is_auto, before + 1, steps), ~is_auto & (steps <= before)
    order, heads, sizes = grouping.order, grouping.heads, grouping.sizes
    auto, step, before = is_auto[order], steps[order], before[order]
    autos_all: Int64Array = np.cumsum(auto, dtype=np.int64)
    autos = autos_all - np.repeat(autos_all[heads] - auto[heads], sizes)
    level = np.where(auto, before, np.maximum(step - autos, before))
    level = _grouped_cummax(level, heads, sizes)
    previous = np.empty_like(level)
    previous[1:] = level[:-1]
    previous[heads] = before[heads]
    numbered, is_low = np.empty_like(steps), np.empty(len(steps), np.bool_)
    numbered[order] = np.where(auto, level + autos, step)
    is_low[order] = ~auto & (step <= previous + autos)
    return numbered, is_low


def _grouped_cummax(values: Int64Array, heads: Int64Array, sizes: Int64Array) -> Int64Array:
    """Cumulative maximum that starts anew at every head."""
    if len(heads) == 1:
        return np.maximum.accumulate(values)
    low, high = int(values.min()), int(values.max())
    group = np.repeat(np.arange(len(heads), dtype=np.int64), sizes)
    span = high - low + 1
    if span * len(heads) < 2**62:
        lifted = (values - low) + group * span
        return np.maximum.accumulate(lifted) - group * span + low
    # Steps near 2**63 do not fit beside a group offset; their ranks do.
    levels, rank = np.unique(values, return_inverse=True)
    offset = group * len(levels)
    return levels[np.maximum.accumulate(rank.astype(np.int64) + offset) - offset]


def _low_groups(is_low: BoolArray, grouping: _Grouping | None) -> list[Int64Array]:
    """Rows, in lane order, of every key with a row at or below its running maximum."""
    if grouping is None:
        return [np.array([row], np.int64) for row in np.flatnonzero(is_low).tolist()]
    bounds = np.append(grouping.heads, len(grouping.order))
    touched = np.flatnonzero(np.logical_or.reduceat(is_low[grouping.order], grouping.heads))
    return [grouping.order[bounds[g] : bounds[g + 1]] for g in touched.tolist()]


def _place_low(
    verdict: RowsVerdict,
    key: int,
    rows: Int64Array,
    low: BoolArray,
    *,
    visible: VisibleRows,
    writers: tuple[int, Writers],
) -> None:
    """Decide the low ones among a key's rows: free, replaced, or superseded by a newer writer."""
    if len(rows) == 1:
        _place_one_low(verdict, key, rows, visible=visible, writers=writers)
        return
    writer, view = writers
    step = verdict.step[rows]
    held_steps, held_by = visible(key, np.unique(step[low]))
    holder = np.full(len(rows), NOTHING, np.int64)
    if len(held_steps):
        at = np.minimum(np.searchsorted(held_steps, step), len(held_steps) - 1)
        is_held = held_steps[at] == step
        holder[is_held] = held_by[at[is_held]]
    _, first, which = np.unique(step, return_index=True, return_inverse=True)
    is_repeat = first[which] != np.arange(len(rows))
    newer = [h for h in _distinct(holder) if h != NOTHING and view.is_newer(h, writer)]
    is_stored = ~(low & np.isin(holder, newer))
    verdict.is_stored[rows] = is_stored
    is_replacing = low & is_stored
    replaces = is_replacing & (is_repeat | (holder != NOTHING))
    replaces_own = is_replacing & (is_repeat | (holder == writer))
    verdict.count(Outcome.REPLACED, int(np.count_nonzero(replaces)))
    own_count = int(np.count_nonzero(replaces_own))
    if own_count:
        verdict.tellings.append(Telling("DuplicateStep", writer, key, points_count=own_count))


def _place_one_low(
    verdict: RowsVerdict,
    key: int,
    rows: Int64Array,
    *,
    visible: VisibleRows,
    writers: tuple[int, Writers],
) -> None:
    """`_place_low` of a key's only row: a resumed run rewrites its overlap in such."""
    writer, view = writers
    _, held_by = visible(key, verdict.step[rows])
    if not len(held_by):
        return
    holder = int(held_by[0])
    if view.is_newer(holder, writer):
        verdict.is_stored[rows] = False
        return
    verdict.count(Outcome.REPLACED, 1)
    if holder == writer:
        verdict.tellings.append(Telling("DuplicateStep", writer, key, points_count=1))


def _tell_second_writer(
    cursors: PointCursors, keys: Int64Array, writer: int, writers: Writers, verdict: RowsVerdict
) -> None:
    last = cursors.last_writer[keys]
    is_other = (last != NOTHING) & (last != writer)
    if not is_other.any():
        return
    is_other &= ~cursors.second_told[keys]
    if not is_other.any() or not writers.is_live(writer):
        return
    for other in _distinct(last[is_other]):
        if not writers.is_live(other):
            continue
        shared = np.unique(keys[is_other & (last == other)])
        cursors.second_told[shared] = True
        for key in shared.tolist():
            verdict.tellings.append(Telling("SecondWriter", writer, key, other=other))
            verdict.tellings.append(Telling("SecondWriter", other, key, other=writer))
