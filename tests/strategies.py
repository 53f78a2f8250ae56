"""The one home of Hypothesis strategies."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from metrana_async.wire.model import (
    AttributeOp,
    AttributeUpdate,
    Batch,
    Family,
    Ordering,
    PointTable,
    SegmentTable,
    SeriesDef,
    StepMode,
)

INT64 = st.integers(-(2**63), 2**63 - 1)
STEPS = st.one_of(st.integers(-1, 50), st.integers(-1, 2**63 - 1))
NATURALS = st.one_of(st.integers(0, 50), st.integers(0, 2**40))
HEX_IDS = st.binary(min_size=16, max_size=16).map(bytes.hex)
NAMES = st.text(
    st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters=" "),
    min_size=1,
    max_size=12,
)


def int_columns(n: int, elements: st.SearchStrategy[int]) -> st.SearchStrategy[np.ndarray]:
    """int64 columns of n rows: constant, counting and arbitrary ones."""
    arbitrary = st.lists(elements, min_size=n, max_size=n).map(
        lambda v: np.array(v, dtype=np.int64)
    )
    constant = elements.map(lambda v: np.full(n, v, dtype=np.int64))
    counting = st.integers(0, 1000).map(lambda v: np.arange(v, v + n, dtype=np.int64))
    return st.one_of(arbitrary, constant, counting)


def value_columns(n: int) -> st.SearchStrategy[np.ndarray]:
    """float32 or float64 columns of n rows, NaN and infinities among them."""
    return st.sampled_from([np.float32, np.float64]).flatmap(
        lambda dtype: hnp.arrays(dtype, n, elements=st.floats(width=8 * np.dtype(dtype).itemsize))
    )


@st.composite
def point_tables(draw: st.DrawFn) -> PointTable:
    """Point tables of either family."""
    n = draw(st.integers(1, 8))
    table = PointTable(
        series=draw(int_columns(n, NATURALS)),
        step=draw(int_columns(n, STEPS)),
        time_ms=draw(int_columns(n, st.integers(-(2**53), 2**53))),
        value=draw(value_columns(n)),
    )
    if draw(st.booleans()):
        table.env = draw(int_columns(n, NATURALS))
        table.rl_step = draw(int_columns(n, NATURALS))
    return table


@st.composite
def segment_tables(draw: st.DrawFn) -> SegmentTable:
    """Segment tables of every mode."""
    k = draw(st.integers(1, 5))
    count = np.array(draw(st.lists(st.integers(1, 4), min_size=k, max_size=k)), dtype=np.int64)
    n = int(count.sum())
    times = draw(st.one_of(st.none(), int_columns(n, st.integers(0, 2**53))))
    return SegmentTable(
        series=draw(st.integers(0, 100)),
        mode=draw(st.sampled_from(list(StepMode))),
        env=draw(int_columns(k, NATURALS)),
        episode=draw(int_columns(k, STEPS)),
        rl_step=draw(int_columns(k, NATURALS)),
        start=draw(int_columns(k, NATURALS)),
        count=count,
        time_ms=draw(int_columns(k, st.integers(0, 2**53))),
        value=draw(value_columns(n)),
        point_time_ms=times,
    )


_JSON = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**53), 2**53), NAMES, st.lists(NAMES, max_size=3)
)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Whole batches."""
    update = st.builds(
        AttributeUpdate,
        st.sampled_from(list(AttributeOp)),
        NAMES,
        _JSON,
        st.one_of(st.none(), NAMES),
        st.one_of(st.none(), st.integers(0, 2**63 - 1)),
    )
    return Batch(
        run_uid=draw(HEX_IDS),
        writer_id=draw(HEX_IDS),
        lane=draw(st.integers(0, 15)),
        seq=draw(st.integers(1, 2**63)),
        prev_digest=draw(st.integers(0, 2**64 - 1)),
        wall_ms=draw(st.integers(0, 2**53)),
        monotonic_ms=draw(st.integers(0, 2**53)),
        series_pages=tuple(draw(st.lists(HEX_IDS, max_size=3))),
        env_pages=tuple(draw(st.lists(HEX_IDS, max_size=3))),
        points=draw(st.lists(point_tables(), max_size=3)),
        segments=draw(st.lists(segment_tables(), max_size=3)),
        attributes=draw(st.lists(update, max_size=3)),
        lost=draw(st.dictionaries(NAMES, st.integers(1, 10**9), max_size=2)),
    )


@st.composite
def series_defs(draw: st.DrawFn) -> SeriesDef:
    """Series definitions of every family."""
    family = draw(st.sampled_from(list(Family)))
    labels = draw(
        st.dictionaries(
            NAMES, st.text(st.characters(blacklist_categories=("Cs",)), max_size=9), max_size=3
        )
    )
    return SeriesDef(
        family,
        draw(NAMES),
        draw(NAMES),
        tuple(sorted(labels.items())),
        draw(st.sampled_from(list(Ordering))),
        draw(st.booleans()) if family is Family.ENV_STEP else None,
    )
