"""Which dictionary page holds which run-level number, and where in it.

Pages are append-only and immutable: a new number goes to a new page. Runs that meet names one by
one would end with many small pages; a batch that would need more than `limits.PAGES_PER_BATCH`
of them moves their entries together into one new page. Pure: no I/O, one owner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from metrana_async.errors import InternalError
from metrana_async.wire import limits
from metrana_async.wire.model import Int64Array
from metrana_async.wire.pages import Page

_NO_PAGE: Final = -1


@dataclass(slots=True)
class PageChoice:
    """The pages of one batch: what they are called, and how its numbers become indexes.

    Attributes:
        digests: the pages, in the order the batch lists them.
        lookup: int64; `lookup[number]` is the index into the pages' concatenated entries.
    """

    digests: tuple[str, ...] = ()
    lookup: Int64Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))


class PageBook:
    """Pages of one kind (series definitions or environment ids) of one writer."""

    def __init__(self, encode: Callable[[Sequence[int]], Page]) -> None:
        """Make an empty book.

        Args:
            encode: makes the page of these run-level numbers, in this order.
        """
        self._encode = encode
        self._pages: list[Page] = []
        self._page_of = np.full(64, _NO_PAGE, dtype=np.int64)
        self._offset_of = np.zeros(64, dtype=np.int64)
        self._by_digest: dict[str, Page] = {}

    def page(self, digest: str) -> Page | None:
        """The page of this digest; None when this book never made it."""
        return self._by_digest.get(digest)

    def choose(self, numbers: Int64Array) -> PageChoice:
        """Pages that cover `numbers` (distinct run-level numbers), making what is missing."""
        if len(numbers) == 0:
            return PageChoice()
        self._grow(int(numbers.max()) + 1)
        unknown = numbers[self._page_of[numbers] == _NO_PAGE]
        if len(unknown):
            self._add_pages(unknown)
        used = np.unique(self._page_of[numbers])
        if len(used) > limits.PAGES_PER_BATCH:
            self._add_pages(self._together(numbers, used))
            used = np.unique(self._page_of[numbers])
        if len(used) > limits.PAGES_PER_BATCH:
            raise InternalError(f"{len(numbers)} names do not fit {limits.PAGES_PER_BATCH} pages")
        return self._choice(numbers, used)

    def _choice(self, numbers: Int64Array, used: Int64Array) -> PageChoice:
        sizes = np.array([len(self._pages[page]) for page in used.tolist()], dtype=np.int64)
        base = np.zeros(len(self._pages), dtype=np.int64)
        base[used] = np.cumsum(sizes) - sizes
        lookup = np.full(int(numbers.max()) + 1, _NO_PAGE, dtype=np.int64)
        lookup[numbers] = base[self._page_of[numbers]] + self._offset_of[numbers]
        return PageChoice(tuple(self._pages[page].digest for page in used.tolist()), lookup)

    def _together(self, numbers: Int64Array, used: Int64Array) -> Int64Array:
        # Neighbours on the same pages move along, so that the next batch finds them together too.
        whole = np.flatnonzero(np.isin(self._page_of, used))
        return numbers if len(whole) > limits.PAGE_ENTRIES else whole

    def _add_pages(self, numbers: Int64Array) -> None:
        for start in range(0, len(numbers), limits.PAGE_ENTRIES):
            part = numbers[start : start + limits.PAGE_ENTRIES]
            page = self._encode(part.tolist())
            self._page_of[part] = len(self._pages)
            self._offset_of[part] = np.arange(len(part))
            self._pages.append(page)
            self._by_digest[page.digest] = page

    def _grow(self, size: int) -> None:
        if size <= len(self._page_of):
            return
        more = max(size, 2 * len(self._page_of)) - len(self._page_of)
        self._page_of = np.concatenate([self._page_of, np.full(more, _NO_PAGE, dtype=np.int64)])
        self._offset_of = np.concatenate([self._offset_of, np.zeros(more, dtype=np.int64)])
