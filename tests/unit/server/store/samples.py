"""A small made-up store content: runs, series of every family, and random commits from a seed."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from metrana_async.server.store.base import (
    SEQS_KEPT,
    AcceptedPoints,
    AcceptedSegments,
    AttributeRow,
    Commit,
    CutRow,
    LaneRow,
    PointStore,
    RunRow,
    SeriesRow,
    StoredEnvSteps,
    StoredPoints,
    WriterRow,
)
from metrana_async.wire.model import Family, Ordering, SeriesDef, StepMode

STEP_MAX = 2**63 - 1


def definition(family: Family, metric: str) -> SeriesDef:
    """A definition of this family."""
    scale = {"standard": "ML_STEP", "rl_episode": "EPISODE"}.get(family.value, "ENVIRONMENT_STEP")
    episodic = True if family is Family.ENV_STEP else None
    return SeriesDef(family, metric, scale, (("seed", "1"),), Ordering.ORDERED, episodic)


def run_row(run_no: int, **changes) -> RunRow:
    """A running run."""
    fields = {
        "run_uid": f"{run_no:032x}",
        "workspace": "default",
        "project": "proj",
        "name": f"run-{run_no}",
        "created_ms": 1_000 - run_no,
        "state": "running",
        "state_ms": 1_000,
        "orchestration_ids": ["job"],
    }
    return RunRow(run_no, **{**fields, **changes})


def writer_row(writer_no: int, run_no: int, **changes) -> WriterRow:
    """An online writer."""
    fields = {
        "writer_id": f"{writer_no:032x}",
        "order_us": writer_no,
        "logger_id": None,
        "process": {"pid": writer_no, "host": "h"},
        "is_online": True,
        "opened_ms": 1,
        "seen_ms": 2,
    }
    return WriterRow(writer_no, run_no, **{**fields, **changes})


@dataclass
class World:
    """Two runs and their series; `standard` and so on list the series numbers of run 1."""

    seed: int
    standard: list[int] = field(default_factory=lambda: [*range(1, 71)])
    episode: list[int] = field(default_factory=lambda: [71, 72])
    env_step: list[int] = field(default_factory=lambda: [73, 74])
    other_run: list[int] = field(default_factory=lambda: [75])

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    @property
    def series_nos(self) -> list[int]:
        """Every series."""
        return [*self.standard, *self.episode, *self.env_step, *self.other_run]

    def catalogue(self) -> Commit:
        """Everything but points."""
        families = (
            (1, self.standard, Family.STANDARD),
            (1, self.episode, Family.EPISODE),
            (1, self.env_step, Family.ENV_STEP),
            (2, self.other_run, Family.STANDARD),
        )
        return Commit(
            runs=[run_row(1), run_row(2, orchestration_ids=["a", "b"], counters={"stored": 3})],
            writers=[
                writer_row(1, 1),
                writer_row(2, 1, logger_id="x", alias="a" * 32),
                writer_row(3, 2),
            ],
            series=[
                SeriesRow(series_no, run_no, definition(family, f"m/{series_no}"))
                for run_no, numbers, family in families
                for series_no in numbers
            ],
            envs=[(1, env_no, f"env-{env_no}") for env_no in range(40)],
            pages=[(1, "d" * 32, b"frame")],
        )

    def values(self, n: int) -> np.ndarray:
        """Values of a random kind: float32 noise, counters, doubles, or the odd ones."""
        kind = self.random.integers(4)
        if kind == 0:
            return self.random.standard_normal(n).astype(np.float32)
        if kind == 1:
            return self.random.integers(0, 500, n).astype(np.float64)
        if kind == 2:
            return self.random.standard_normal(n)
        odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 3.4e38], dtype=np.float32)
        return self.random.choice(odd, n)

    def integers(self, n: int, high: int) -> np.ndarray:
        """Random int64 [n] in 0..high-1."""
        return self.random.integers(0, high, n)

    def standard_points(self, n: int, series_nos: list[int] | None = None) -> AcceptedPoints:
        """Rows of random STANDARD series of run 1, at times at the last step there is."""
        chosen = self.standard if series_nos is None else series_nos
        zeros = np.zeros(n, dtype=np.int64)
        step = self.integers(n, 50)
        if self.random.random() < 0.2:
            step = STEP_MAX - step
        return AcceptedPoints(
            run_no=1,
            writer_no=int(self.random.integers(1, 3)),
            series_no=self.random.choice(np.array(chosen), n),
            env_no=zeros,
            step=step,
            rl_step=zeros,
            time_ms=self.integers(n, 2**41) - 2**40,
            value=self.values(n),
        )

    def episode_points(self, n: int) -> AcceptedPoints:
        """Rows of the EPISODE series."""
        return AcceptedPoints(
            run_no=1,
            writer_no=int(self.random.integers(1, 3)),
            series_no=self.random.choice(np.array(self.episode), n),
            env_no=self.integers(n, 40),
            step=self.integers(n, 9),
            rl_step=self.integers(n, 20),
            time_ms=self.integers(n, 1_000),
            value=self.values(n),
            has_envs=True,
        )

    def segments(self, k: int, longest: int = 5) -> AcceptedSegments:
        """Segments of one ENV_STEP series."""
        count = self.integers(k, longest) + 1
        n = int(count.sum())
        has_times = self.random.random() < 0.3
        return AcceptedSegments(
            run_no=1,
            writer_no=int(self.random.integers(1, 3)),
            series_no=int(self.random.choice(self.env_step)),
            mode=StepMode.AUTO,
            env_no=self.integers(k, 40),
            episode=self.integers(k, 5) - 1,
            generation=self.integers(k, 2),
            rl_step=np.full(k, self.integers(1, 30)[0]),
            minor=self.integers(k, 10),
            step=self.integers(k, 100),
            count=count,
            time_ms=np.full(k, 1_700_000_000_000),
            value=self.values(n),
            point_time_ms=self.integers(n, 1_000) if has_times else None,
        )

    def commit(self, *, scale: int = 1) -> Commit:
        """A random commit; about 60 points times `scale`."""
        seq = int(self.integers(1, 99)[0])
        recent = self.random.bytes(8 * min(seq - 1, SEQS_KEPT - 1)) if seq else b""
        changes = Commit(lanes=[LaneRow(1, 0, seq, 2**64 - 1, recent)])
        if self.random.random() < 0.7:
            changes.points.append(self.standard_points(20 * scale))
        if self.random.random() < 0.5:
            changes.points.append(self.episode_points(10 * scale))
        for _ in range(int(self.random.integers(3))):
            changes.segments.append(self.segments(4 * scale))
        if self.random.random() < 0.3:
            series_no, env_no = self.env_step[0], int(self.integers(1, 40)[0])
            changes.cuts.append(CutRow(series_no, env_no, 1, 2, 5, 7))
        path = f"config/{self.integers(1, 3)[0]}"
        env = None if self.random.random() < 0.5 else 3
        if self.random.random() < 0.5:
            changes.attributes.append(AttributeRow(1, env, None, path, [1, "x", None]))
        elif self.random.random() < 0.5:
            changes.attributes_removed.append((1, env, None, path))
        return changes


def same_points(found: StoredPoints | StoredEnvSteps, expected: object) -> None:
    """Assert equal rows; across environments, only order within each is promised."""
    names = list(type(found).__dataclass_fields__)
    orders = [np.argsort(rows.env_no, kind="stable") for rows in (found, expected)]
    for name in names:
        a, b = (
            np.asarray(getattr(rows, name))[order]
            for rows, order in zip((found, expected), orders, strict=True)
        )
        assert len(a) == len(found)
        np.testing.assert_array_equal(a.astype(b.dtype) if name == "value" else a, b, name)


def assert_same_answers(store: PointStore, oracle: PointStore, world: World) -> None:
    """Assert that both stores answer everything alike, with random ranges from the world."""
    assert store.runs() == oracle.runs()
    assert store.next_numbers() == oracle.next_numbers()
    for run_no in (1, 2):
        found, expected = store.run_contents(run_no), oracle.run_contents(run_no)
        for contents in (found, expected):
            contents.attributes.sort(key=repr)
            contents.lanes.sort(key=repr)
        assert found == expected
        assert store.heads(run_no) == oracle.heads(run_no)
    for series_no in world.series_nos:
        assert store.cuts(series_no) == oracle.cuts(series_no)
        assert tail_rows(store, series_no) == tail_rows(oracle, series_no)
    low = int(world.integers(1, 40)[0])
    between = (low, low + int(world.integers(1, 12)[0]))
    for series_no in [*world.standard[::9], *world.episode, *world.other_run]:
        for asked in ({}, {"env_no": low}, {"step_range": between}):
            same_points(
                store.read_points(series_no, **asked), oracle.read_points(series_no, **asked)
            )
    for series_no in world.env_step:
        for asked in (
            {},
            {"env_nos": [low, 3, low, 39]},
            {"env_nos": []},
            {"episode_range": (0, 2)},
            {"episodes": [2, 0, 99]},
            {"episodes": []},
            {"env_nos": [low, 3], "episodes": [1, 1]},
            {"rl_step_range": between},
            {"env_nos": [low], "episode_range": (-1, 1), "rl_step_range": (0, 15)},
        ):
            same_points(
                store.read_env_steps(series_no, **asked), oracle.read_env_steps(series_no, **asked)
            )


def tail_rows(store: PointStore, series_no: int) -> list[tuple]:
    """The tail of a series as plain rows, whatever the tables' borders are."""
    rows: list[tuple] = []
    for table in store.tail(series_no):
        if isinstance(table, AcceptedPoints):
            keep = table.series_no == series_no
            columns = (table.env_no, table.step, table.rl_step, table.time_ms, table.value)
            plain = [column[keep].tolist() for column in columns]
        else:
            columns = (table.env_no, table.episode, table.generation, table.rl_step)
            columns += (table.minor, table.step, table.count, table.time_ms)
            plain = [column.tolist() for column in columns]
            rows.append(("values", repr(table.value.tolist()), table.mode, table.writer_no))
            if table.point_time_ms is not None:
                rows.append(("times", table.point_time_ms.tolist()))
        rows += [(*map(repr, row), table.writer_no) for row in zip(*plain, strict=True)]
    return rows
