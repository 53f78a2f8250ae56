"""The store contract: every `PointStore` answers as the protocol says, and all of them alike."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metrana_async.errors import NotFoundError
from metrana_async.server.store.base import (
    SEQS_KEPT,
    AcceptedPoints,
    AnswerRow,
    AttributeRow,
    Commit,
    DeletedRun,
    LaneRow,
    LeaseRow,
    PointStore,
    SealUnit,
    SeriesRow,
)
from metrana_async.server.store.memory import MemoryStore
from metrana_async.server.store.sqlite.store import SqliteStore
from metrana_async.wire.model import Family
from tests.unit.server.store.samples import (
    World,
    assert_same_answers,
    definition,
    run_row,
    same_points,
    writer_row,
)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PointStore]:
    """Each kind of store, empty."""
    made = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "store")
    yield made
    made.close()


def seal(store: PointStore, unit: SealUnit, oracle: PointStore | None = None) -> None:
    """Seal a unit under made-up heads; of the oracle, series by series."""
    heads = {n: f"head of {n}".encode() for n in unit.series_nos}
    store.seal(unit, heads)
    for series_no in unit.series_nos if oracle else ():
        oracle.seal(SealUnit(unit.run_no, (series_no,)), heads)


def seal_everything(store: PointStore) -> None:
    """Seal all that has a tail."""
    for unit in store.due(now_s=0.0, everything=True):
        seal(store, unit)


def test_an_empty_store_answers(store: PointStore) -> None:
    """A store without runs gives first numbers, no rows and no heads."""
    assert store.runs() == []
    assert store.next_numbers() == (1, 1, 1)
    assert store.find_run("default", "proj", "run") is None
    assert store.find_run_uid("0" * 32) is None
    assert store.page(1, "d" * 32) is None
    assert store.heads(1) == {}
    assert store.due(now_s=0.0, everything=True) == []
    assert len(store.read_points(1)) == 0
    assert len(store.read_env_steps(1)) == 0
    with pytest.raises(NotFoundError):
        store.run_contents(1)


def test_generations_differ() -> None:
    """Each opening draws another generation of 32 hex digits."""
    first, second = MemoryStore().generation, MemoryStore().generation
    assert first != second
    assert len(bytes.fromhex(first)) == 16


def test_rows_replace_rows_of_the_same_key(store: PointStore) -> None:
    """A run, writer or attribute row committed again replaces the older one."""
    store.commit(World(1).catalogue())
    store.commit(Commit(attributes=[AttributeRow(1, None, None, "a", 1)]))
    store.commit(
        Commit(
            runs=[run_row(1, state="failed", exception_type="ValueError")],
            writers=[writer_row(1, 1, left="closed")],
            attributes=[AttributeRow(1, None, None, "a", None), AttributeRow(1, 0, 2, "a", 3)],
        )
    )
    contents = store.run_contents(1)
    assert (contents.row.state, contents.row.exception_type) == ("failed", "ValueError")
    assert contents.writers[0].left == "closed"
    assert [(a.env_no, a.episode, a.value) for a in contents.attributes] == [
        (None, None, None),
        (0, 2, 3),
    ]
    store.commit(Commit(attributes_removed=[(1, None, None, "a")]))
    assert [a.env_no for a in store.run_contents(1).attributes] == [0]


def test_writers_come_back_as_they_were_given(store: PointStore) -> None:
    """Every field of a writer row is kept."""
    world = World(1)
    store.commit(world.catalogue())
    assert store.run_contents(1).writers == world.catalogue().writers[:2]


def test_answers_are_kept_for_the_newest_sequences_of_a_lane(store: PointStore) -> None:
    """Later ones push the oldest out, lane by lane; they go with their run."""
    world = World(1)
    store.commit(world.catalogue())
    first = AnswerRow(1, 0, 1, "malformed", {})
    other = AnswerRow(2, 3, 1, None, {"stored": 1, "pin_conflict": 2})
    store.commit(Commit(answers=[first, other]))
    assert store.run_contents(1).answers == [first, other]
    assert store.run_contents(1, with_series=False).answers == []
    near, far = AnswerRow(1, 0, SEQS_KEPT, None, {}), AnswerRow(1, 0, SEQS_KEPT + 1, None, {})
    store.commit(Commit(answers=[near]))
    assert store.run_contents(1).answers == [first, near, other]
    store.commit(Commit(answers=[far]))
    assert store.run_contents(1).answers == [near, far, other]
    assert store.run_contents(2).answers == []
    deleted = DeletedRun(1, f"{1:032x}", "default", "proj", "run-1", 5)
    store.commit(Commit(lanes=[LaneRow(1, 0, 129, 1), LaneRow(2, 3, 1, 1)]))
    store.commit(Commit(deleted=[deleted]))
    store.commit(Commit(runs=[run_row(3)], writers=[writer_row(1, 3)]))
    assert store.run_contents(3).answers == []


def test_the_last_lease_of_each_writer_is_kept(store: PointStore) -> None:
    """A writer's next lease of an environment takes the place of its last; they go with the run."""
    world = World(1)
    store.commit(world.catalogue())
    leases = [LeaseRow(1, env, writer, "ab" * 16, 0, 5) for env in (0, 1) for writer in (1, 2)]
    elsewhere = LeaseRow(2, 0, 3, "ef" * 16, 7, 2**32)
    store.commit(Commit(leases=[*leases, elsewhere]))
    leases[1] = LeaseRow(1, 0, 2, "cd" * 16, 2**63 - 9, 8)
    store.commit(Commit(leases=[leases[1]]))
    assert store.run_contents(1).leases == leases
    assert store.run_contents(1, with_series=False).leases == []
    assert store.run_contents(2).leases == [elsewhere]
    store.commit(Commit(deleted=[DeletedRun(1, f"{1:032x}", "default", "proj", "run-1", 5)]))
    store.commit(Commit(runs=[run_row(3)], writers=[writer_row(1, 3)]))
    assert store.run_contents(3).leases == []
    assert store.run_contents(2).leases == [elsewhere]


def test_a_run_is_found_by_name_and_uid(store: PointStore) -> None:
    """Runs are listed oldest first and found by their name or uid."""
    store.commit(World(1).catalogue())
    assert [run.run_no for run in store.runs()] == [2, 1]
    assert store.find_run("default", "proj", "run-2").run_no == 2
    assert store.find_run_uid(f"{1:032x}").name == "run-1"
    assert store.page(1, "d" * 32) == b"frame"


def test_heads_and_tail_change_places_at_a_seal(store: PointStore) -> None:
    """After a seal the tail of its series is empty and the head is the one given."""
    world = World(2)
    store.commit(world.catalogue())
    store.commit(Commit(points=[world.standard_points(30, [5])]))
    assert sum(len(t.value) for t in store.tail(5)) == 30
    seal_everything(store)
    assert store.tail(5) == []
    assert store.heads(1) == {5: b"head of 5"}
    assert store.heads(1, [5, 6]) == {5: b"head of 5"}
    store.commit(Commit(points=[world.standard_points(3, [5])]))
    assert sum(len(t.value) for t in store.tail(5)) == 3


def test_sealing_changes_no_answer(store: PointStore) -> None:
    """What is read after a seal is what was read before it, value for value."""
    world = World(3)
    store.commit(world.catalogue())
    table = world.standard_points(200, [7])
    segments = world.segments(50)
    store.commit(Commit(points=[table], segments=[segments]))
    before = store.read_points(7), store.read_env_steps(segments.series_no)
    seal_everything(store)
    same_points(store.read_points(7), before[0])
    same_points(store.read_env_steps(segments.series_no), before[1])


def test_arrival_order_of_one_step_survives(store: PointStore) -> None:
    """Rows of one series at one step come back in the order they were committed."""
    store.commit(World(4).catalogue())
    zeros = np.zeros(4, dtype=np.int64)
    for round_no in range(3):
        values = np.arange(4, dtype=np.float32) + 4 * round_no
        series = np.array([2, 1, 2, 1])
        store.commit(
            Commit(points=[AcceptedPoints(1, 1, series, zeros, zeros, zeros, zeros, values)])
        )
        seal_everything(store)
    assert store.read_points(1).value.tolist() == [1, 3, 5, 7, 9, 11]
    assert store.read_points(2).value.tolist() == [0, 2, 4, 6, 8, 10]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    actions=st.lists(
        st.sampled_from(["commit", "commit", "big", "seal one", "seal all", "reopen"]),
        min_size=1,
        max_size=12,
    ),
)
def test_sqlite_answers_as_the_oracle(seed: int, actions: list[str]) -> None:
    """Sealed, unsealed and reopened, SQLite gives the oracle's answers to every question."""
    world, oracle = World(seed), MemoryStore()
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(folder)
        changes = world.catalogue()
        store.commit(changes)
        oracle.commit(changes)
        for action in actions:
            if action in ("commit", "big"):
                changes = world.commit(scale=1 if action == "commit" else 300)
                store.commit(changes)
                oracle.commit(changes)
            elif action == "reopen":
                store.close()
                store = SqliteStore(folder)
            else:
                units = store.due(now_s=0.0, everything=True)
                for unit in units[:1] if action == "seal one" else units:
                    seal(store, unit, oracle)
        assert_same_answers(store, oracle, world)
        store.close()
        store = SqliteStore(folder)
        assert_same_answers(store, oracle, world)
        store.close()


def test_many_tiles_answer_as_the_oracle(tmp_path: Path) -> None:
    """A family that fills tiles, is merged and cut, reads as the oracle in every range."""
    world, oracle, store = World(5), MemoryStore(), SqliteStore(tmp_path)
    changes = world.catalogue()
    changes.series.append(SeriesRow(76, 1, definition(Family.ENV_STEP, "late")))
    world.env_step.append(76)
    for _ in range(6):
        store.commit(changes)
        oracle.commit(changes)
        for unit in store.due(now_s=0.0, everything=True):
            seal(store, unit, oracle)
        changes = Commit(
            points=[world.standard_points(45_000), world.episode_points(20_000)],
            segments=[world.segments(300, longest=200), world.segments(9)],
        )
    assert_same_answers(store, oracle, world)
    store.close()


def deleted(run_no: int) -> DeletedRun:
    return DeletedRun(run_no, f"{run_no:032x}", "default", "proj", f"run-{run_no}", 77)


def filled(store: PointStore, *, is_sealed: bool) -> World:
    """Two runs with points, the first of them half sealed or not at all."""
    world = World(3)
    store.commit(world.catalogue())
    store.commit(Commit(points=[world.standard_points(30, [5])]))
    if is_sealed:
        seal_everything(store)
        store.commit(Commit(points=[world.standard_points(7, [5])]))
    return world


@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_deleted_run_leaves_its_names_only(store: PointStore, is_sealed: bool) -> None:
    """Rows, pages, heads and points of the run go at once, the other run stays, numbers too."""
    filled(store, is_sealed=is_sealed)
    before, other = store.next_numbers(), store.run_contents(2)
    store.commit(Commit(deleted=[deleted(1)]))
    assert [run.run_no for run in store.runs()] == [2]
    assert store.run_contents(2) == other
    assert store.find_run("default", "proj", "run-1") is None
    assert store.find_run_uid(f"{1:032x}") is None
    assert store.page(1, "d" * 32) is None
    assert store.heads(1) == {}
    assert store.tails(1) == []
    assert store.next_numbers() == before
    for read in (lambda: store.run_contents(1), lambda: store.read_points(5)):
        with pytest.raises(NotFoundError):
            read()
    assert store.find_deleted(f"{1:032x}") == deleted(1)
    assert store.find_deleted("e" * 32) is None
    while store.purge():
        pass
    assert store.due(now_s=0.0, everything=True) == []


def test_a_writer_is_found_by_its_id_also_after_its_run_is_gone(store: PointStore) -> None:
    """`find_writer` gives the run, `find_deleted` the run that was."""
    store.commit(Commit(runs=[run_row(1)], writers=[writer_row(1, 1, writer_id="w" * 32)]))
    assert store.find_writer("w" * 32) == 1
    assert store.find_writer("v" * 32) is None
    assert store.find_deleted("w" * 32) is None
    store.commit(Commit(deleted=[deleted(1)]))
    assert store.find_writer("w" * 32) is None
    assert store.find_deleted("w" * 32) == deleted(1)


def test_numbers_and_points_of_a_deleted_run_do_not_come_back(tmp_path: Path) -> None:
    """After a restart the log still names the run's series: nobody inherits them."""
    store = SqliteStore(tmp_path / "store")
    filled(store, is_sealed=True)
    numbers = store.next_numbers()
    store.commit(Commit(deleted=[deleted(1)]))
    store.close()
    again = SqliteStore(tmp_path / "store")
    assert again.next_numbers() == numbers
    series_no = numbers[2]
    row = SeriesRow(series_no, 2, definition(Family.STANDARD, "new"))
    again.commit(Commit(series=[row]))
    assert len(again.read_points(series_no)) == 0
    assert again.find_deleted(f"{1:032x}") == deleted(1)
    while again.purge():
        pass
    (left,) = again._writer.execute("SELECT count(*) FROM tile").fetchone()
    assert left == 0
    again.close()


def test_the_tails_of_a_run_are_those_of_its_series(store: PointStore) -> None:
    """`tails` holds what `tail` gives series by series, and nothing of another run."""
    world = filled(store, is_sealed=True)
    store.commit(Commit(points=[world.standard_points(9, [6])]))
    for series in store.run_contents(1).series:
        number = series.series_no
        one, every = store.tail(number), store.tails(1)
        steps = [t.step[t.series_no == number].tolist() for t in one]
        every_steps = [t.step[t.series_no == number].tolist() for t in every]
        assert sum(steps, []) == sum(every_steps, [])  # noqa: RUF017
    assert all(table.run_no == 1 for table in store.tails(1))
    assert store.tails(3) == []


def test_a_catalogue_without_series_has_the_rest(store: PointStore) -> None:
    """`with_series=False` leaves out what a list of runs does not need."""
    store.commit(World(4).catalogue())
    short, full = store.run_contents(1, with_series=False), store.run_contents(1)
    assert (short.row, short.writers, short.attributes) == (
        full.row,
        full.writers,
        full.attributes,
    )
    assert (short.series, short.env_names, short.lanes) == ([], [], [])


def test_a_catalogue_from_a_number_on_has_the_series_behind_it(store: PointStore) -> None:
    """`series_after` leaves out what the reader has already, and nothing of what came since."""
    world = World(5)
    store.commit(world.catalogue())
    full = store.run_contents(1)
    assert [row.series_no for row in full.series] == world.series_nos[:-1]
    for after in (0, 1, 40, 73, 74, 75):
        found = store.run_contents(1, series_after=after)
        assert found.series == [row for row in full.series if row.series_no > after]
        assert (found.row, found.env_names, found.lanes) == (full.row, full.env_names, full.lanes)
