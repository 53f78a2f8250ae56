"""Numbers and pins: what conflicts, and that a refused call pins nothing."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from metrana_async.errors import InvalidStepError, PinConflictError
from metrana_async.wire.messages import Seeds
from metrana_async.wire.model import Family, Ordering, SeriesDef, StepMode
from metrana_async.writers.registry import SeriesRegistry

ORDERED, MERGE = Ordering.ORDERED, Ordering.MERGE


def standard(metric="x", ordering=ORDERED, labels=(), scale="ML_STEP"):
    return SeriesDef(Family.STANDARD, metric, scale, labels, ordering)


def env_steps(metric="r", *, episodic=True, labels=()):
    return SeriesDef(Family.ENV_STEP, metric, "ENVIRONMENT_STEP", labels, ORDERED, episodic)


def test_numbers_are_dense_and_stable():
    """A series keeps its number; labels make another series."""
    registry = SeriesRegistry()
    labelled = standard(labels=(("k", "1"),))
    assert [registry.series_no(d) for d in (standard(), labelled, standard())] == [0, 1, 0]
    assert registry.definition(1) == labelled
    assert registry.series_count == 2
    assert registry.find(standard(ordering=MERGE)) == 0
    assert registry.find(standard("other")) is None


def test_one_metric_has_one_ordering():
    """mrg-04: log and log_distributed cannot mix, whatever the labels; other scales are free."""
    registry = SeriesRegistry()
    registry.series_no(standard())
    with pytest.raises(PinConflictError, match="log_distributed"):
        registry.series_no(standard(ordering=MERGE, labels=(("k", "1"),)))
    assert registry.series_no(standard(ordering=MERGE, scale="EPOCH")) == 1


def test_families_are_apart():
    """log(scale="EPISODE") and log_rl_episode of one name do not conflict."""
    registry = SeriesRegistry()
    registry.series_no(standard("ret", MERGE, scale="EPISODE"))
    assert registry.series_no(SeriesDef(Family.EPISODE, "ret", "EPISODE", (), ORDERED)) == 1


def test_a_mapping_is_registered_whole_or_not():
    """One conflict refuses all series of the call, and none of them is pinned."""
    registry = SeriesRegistry()
    registry.series_no(standard("b"))
    with pytest.raises(PinConflictError, match="'b'"):
        registry.series_nos([standard("a", MERGE), standard("b", MERGE)])
    assert registry.series_count == 1
    assert registry.series_no(standard("a", ORDERED)) == 1


def test_episodic_is_pinned_per_metric():
    """es-17: with and without episodes cannot mix in one metric."""
    registry = SeriesRegistry()
    registry.claim_grid(env_steps(), ("a",), StepMode.AUTO)
    with pytest.raises(PinConflictError, match="no episodes"):
        registry.claim_grid(env_steps(episodic=False), ("b",), StepMode.AUTO)
    assert registry.envs_count == 1


def test_modes_are_pinned_per_environment():
    """ex-08: automatic then explicit on one environment is refused; another is free."""
    registry = SeriesRegistry()
    registry.claim_grid(env_steps(), ("a",), StepMode.AUTO)
    with pytest.raises(PinConflictError, match="'a' is pinned to auto, this call is explicit"):
        registry.claim_grid(env_steps(), ("b", "a"), StepMode.EXPLICIT)
    registry.claim_grid(env_steps(), ("b",), StepMode.EXPLICIT)
    registry.claim_grid(env_steps(labels=(("k", "1"),)), ("a",), StepMode.AUTO_FROM_ONE)


def test_masked_environments_claim_nothing():
    """The first stored point pins: an environment without one in the call stays free."""
    registry = SeriesRegistry()
    mask = np.array([[True, False], [False, False]])
    registry.claim_grid(env_steps(), ("a", "b"), StepMode.AUTO, mask=mask)
    registry.claim_grid(env_steps(), ("b",), StepMode.EXPLICIT)
    registry.claim_grid(env_steps(), ("a", "b"), StepMode.AUTO, mask=mask)
    with pytest.raises(PinConflictError):
        registry.claim_grid(env_steps(), ("a", "b"), StepMode.AUTO)


def test_a_repeated_claim_gives_the_same_numbers():
    """The same ids object and mode are answered at once; another mode is still refused."""
    registry = SeriesRegistry()
    ids = ("a", "b")
    number, env_nos = registry.claim_grid(env_steps(), ids, StepMode.AUTO)
    again, same = registry.claim_grid(env_steps(), ids, StepMode.AUTO)
    assert again == number
    assert same is env_nos
    assert env_nos.tolist() == [0, 1]
    assert registry.env_nos(("b", "a", "b")).tolist() == [1, 0, 1]
    assert registry.env_name(1) == "b"
    with pytest.raises(PinConflictError):
        registry.claim_grid(env_steps(), ids, StepMode.EXPLICIT)


SEEDS = Seeds(
    series=[
        ["standard", "x", "ML_STEP", [], "ordered", None, 41, {}],
        ["rl_env_step", "r", "ENVIRONMENT_STEP", [["k", "1"]], "ordered", True, None,
         {"explicit": ["a", "b"]}],
        ["rl_episode", "ret", "EPISODE", [], "ordered", None, None, {}],
        ["standard", "far", "ML_STEP", [], "ordered", None, 2**63 - 2, {}],
    ],
    environments=[["a", 7, 3], ["b", None, None]],
    episodes=[[2, "a", 3]],
)  # fmt: skip


def test_seeds_pin():
    """mrg-06: what other processes pinned refuses a call before anything is enqueued."""
    registry = SeriesRegistry()
    assert registry.seed(SEEDS) == []
    with pytest.raises(PinConflictError):
        registry.series_no(standard(ordering=MERGE))
    labelled = env_steps(labels=(("k", "1"),))
    with pytest.raises(PinConflictError, match="explicit"):
        registry.claim_grid(labelled, ("b",), StepMode.AUTO)
    registry.claim_grid(labelled, ("b", "c"), StepMode.EXPLICIT)
    assert registry.seeded_last_step[0] == 41


def test_late_seeds_tell_what_conflicts():
    """A process that started alone learns that the server knows a metric otherwise."""
    registry = SeriesRegistry()
    number = registry.series_no(standard(ordering=MERGE))
    assert registry.seed(SEEDS) == [standard(ordering=MERGE)]
    assert registry.conflicted == {number}
    with pytest.raises(PinConflictError):
        registry.series_no(standard(ordering=MERGE))
    with pytest.raises(PinConflictError):
        registry.check_conflict(number)
    assert registry.series_no(standard()) != number


def test_a_reported_conflict_refuses_the_next_call():
    """After pin_conflict the pinned kind raises and the other kind is accepted."""
    registry = SeriesRegistry()
    number = registry.series_no(standard())
    other = registry.series_no(standard("y"))
    registry.mark_conflict("x")
    with pytest.raises(PinConflictError, match="another writer"):
        registry.series_no(standard())
    with pytest.raises(PinConflictError):
        registry.check_conflict(number)
    registry.check_conflict(other)
    assert registry.series_no(standard(ordering=MERGE)) == 2


def test_a_reported_mode_conflict_is_of_one_environment():
    """The refused mode raises for that environment; the other mode and environments go on."""
    registry = SeriesRegistry()
    ids = ("a", "b")
    registry.claim_grid(env_steps(), ids, StepMode.AUTO)
    registry.mark_conflict("r", env_id="a")
    with pytest.raises(PinConflictError, match="another writer"):
        registry.claim_grid(env_steps(), ids, StepMode.AUTO)
    registry.claim_grid(env_steps(), ("b",), StepMode.AUTO)
    registry.claim_grid(env_steps(), ("a",), StepMode.EXPLICIT)


def test_automatic_steps_end_with_the_axis():
    """A next number that would pass 2**63-1 is refused; far seeds and explicit steps count."""
    registry = SeriesRegistry()
    registry.seed(SEEDS)
    assert registry.far_steps == {3: 2**63 - 2}
    registry.check_next(3, 1)
    with pytest.raises(InvalidStepError, match=r"2\*\*63-1"):
        registry.check_next(3, 1)
    registry.check_next(0, 1)
    registry.note_step(0, 2**63 - 1)
    with pytest.raises(InvalidStepError):
        registry.check_next(0, 1)


def test_threads_agree_on_numbers():
    """Many threads that register the same series at once get the same numbers."""
    registry = SeriesRegistry()
    definitions = [standard(f"m{i}") for i in range(200)]
    gate = threading.Barrier(4)
    found = []

    def register():
        gate.wait()
        found.append([registry.series_no(d) for d in definitions])

    threads = [threading.Thread(target=register) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found.count(found[0]) == 4
    assert sorted(found[0]) == list(range(200))
