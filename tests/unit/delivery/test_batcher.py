"""Facts about pages and batches: indexes mean the same names that the numbers meant."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from metrana_async.delivery.batcher import Batcher
from metrana_async.delivery.page_book import PageBook
from metrana_async.wire import limits
from metrana_async.wire.model import (
    Family,
    Ordering,
    PointTable,
    SegmentTable,
    SeriesDef,
    StepMode,
)
from metrana_async.wire.pages import encode_env_page

RUN, WRITER = "a" * 32, "b" * 32


@dataclass
class Load:
    points: list = field(default_factory=list)
    segments: list = field(default_factory=list)
    attributes: list = field(default_factory=list)


def series_of(n: int) -> SeriesDef:
    return SeriesDef(Family.STANDARD, f"m{n}", "ML_STEP", (), Ordering.ORDERED)


def book() -> PageBook:
    return PageBook(lambda numbers: encode_env_page([f"env{n}" for n in numbers]))


def names(pages: PageBook, choice) -> list[str]:
    return [name for digest in choice.digests for name in pages.page(digest).envs]


def test_lookup_leads_to_the_name():
    """A number's index into the concatenated pages is its own name."""
    pages = book()
    for numbers in ([5, 9], [1], [9, 1, 30], [2, 5]):
        wanted = np.unique(np.array(numbers, dtype=np.int64))
        choice = pages.choose(wanted)
        found = names(pages, choice)
        assert [found[choice.lookup[n]] for n in wanted] == [f"env{n}" for n in wanted]


def test_known_numbers_make_no_new_page():
    """The same names travel under the same digest for ever."""
    pages = book()
    wanted = np.arange(100, dtype=np.int64)
    assert pages.choose(wanted).digests == pages.choose(wanted).digests
    assert len(pages.choose(wanted).digests) == 1


def test_many_small_pages_become_one():
    """A batch that would need more pages than allowed moves their entries into one page."""
    pages = book()
    for n in range(limits.PAGES_PER_BATCH + 3):
        assert len(pages.choose(np.array([n], dtype=np.int64)).digests) == 1
    everything = np.arange(limits.PAGES_PER_BATCH + 3, dtype=np.int64)
    choice = pages.choose(everything)
    assert len(choice.digests) == 1
    found = names(pages, choice)
    assert [found[choice.lookup[n]] for n in everything] == [f"env{n}" for n in everything]


def test_more_names_than_a_page_holds():
    """Names beyond a page's entries spread over several pages of one batch."""
    pages = book()
    wanted = np.arange(limits.PAGE_ENTRIES + 10, dtype=np.int64)
    choice = pages.choose(wanted)
    assert len(choice.digests) == 2
    assert np.array_equal(choice.lookup, wanted)


def test_a_batch_indexes_its_own_pages():
    """Series and environment columns of a batch index the pages it lists."""
    batcher = Batcher(RUN, WRITER, series_of=series_of, env_of=lambda n: f"env{n}")
    points = PointTable(
        series=np.array([7, 3, 7]),
        step=np.array([-1, 4, -1]),
        time_ms=np.zeros(3, np.int64),
        value=np.ones(3, np.float32),
        env=np.array([2, 2, 0]),
        rl_step=np.zeros(3, np.int64),
    )
    one = np.array([1])
    segments = SegmentTable(9, StepMode.AUTO, np.array([4]), one, one, one, one, one,
                            np.ones(1, np.float32))  # fmt: skip
    (batch,) = batcher.batches(0, Load([points], [segments]))
    series = [s.metric for d in batch.series_pages for s in batcher.page(d).series]
    envs = [e for d in batch.env_pages for e in batcher.page(d).envs]
    assert [series[i] for i in batch.points[0].series] == ["m7", "m3", "m7"]
    assert [envs[i] for i in batch.points[0].env] == ["env2", "env2", "env0"]
    assert series[batch.segments[0].series] == "m9"
    assert envs[batch.segments[0].env[0]] == "env4"
    assert points.series.tolist() == [7, 3, 7]


def test_a_large_call_becomes_consecutive_batches():
    """A call larger than a batch is several batches, none beyond the target."""
    batcher = Batcher(RUN, WRITER, series_of=series_of, env_of=str)
    n = 400_000
    column = np.arange(n, dtype=np.int64)
    load = Load([PointTable(column % 3, column, column, np.ones(n, np.float32))])
    batches = list(batcher.batches(0, load))
    assert len(batches) > 5
    assert sum(batch.points_count for batch in batches) == n
    assert np.array_equal(np.concatenate([b.points[0].step for b in batches]), column)
