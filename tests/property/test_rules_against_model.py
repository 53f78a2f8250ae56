"""The rules, through the service and a store, against the slow model, on random programs.

A program is a list of deliveries: batches of a few writers, interleaved, some sent twice, some
late, from a writer that is dead by then. Seeds are named when a program fails.
"""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from metrana_async.server.ingest.rules import env_steps
from metrana_async.server.ingest.service import IngestService
from metrana_async.server.store.base import PointStore
from metrana_async.server.store.memory import MemoryStore
from metrana_async.wire.batch import encode_batch
from metrana_async.wire.frames import frame_digest
from metrana_async.wire.messages import LeaveRequest, OpenRequest
from metrana_async.wire.model import (
    AUTOMATIC,
    NO_EPISODE,
    Batch,
    Family,
    Ordering,
    PointTable,
    SegmentTable,
    SeriesDef,
    StepMode,
)
from metrana_async.wire.pages import encode_env_page, encode_series_page
from tests.reference_model import Call, EnvSteps, Episodes, Model, Standard, Writer

ENVS = ("a", "b", "c", "d")
ENV_PAGE = encode_env_page(ENVS)


def definition(call: Call) -> SeriesDef:
    """The series that a call logs to."""
    if isinstance(call, Standard):
        ordering = Ordering.MERGE if call.is_merge else Ordering.ORDERED
        return SeriesDef(Family.STANDARD, call.metric, "ML_STEP", (), ordering)
    if isinstance(call, Episodes):
        ordering = Ordering.MERGE if call.is_explicit else Ordering.ORDERED
        return SeriesDef(Family.EPISODE, call.metric, "EPISODE", (), ordering)
    return SeriesDef(
        Family.ENV_STEP, call.metric, "ENVIRONMENT_STEP", (), Ordering.ORDERED, call.is_episodic
    )


def columns(rows: list, n: int) -> list[np.ndarray]:
    """Rows of integers as n int64 columns."""
    return list(np.array(rows, np.int64).reshape(-1, n).T)


def make_batch(run_uid: str, writer_id: str, lane: int, seq: int, prev: int, calls: list[Call]):
    """Encode calls as a client would: (pages and batch as bytes, digest of the batch)."""
    definitions = list(dict.fromkeys(definition(call) for call in calls))
    page = encode_series_page(definitions) if definitions else None
    batch = Batch(run_uid, writer_id, lane, seq, prev_digest=prev)
    batch.series_pages = (page.digest,) if page else ()
    batch.env_pages = (ENV_PAGE.digest,)
    for call in calls:
        at = definitions.index(definition(call))
        if isinstance(call, EnvSteps):
            rows = [
                (ENVS.index(e), NO_EPISODE if ep is None else ep, rl, start, len(values), 7)
                for e, ep, rl, start, values in call.segments
            ]
            values = [v for s in call.segments for v in s[4]]
            batch.segments.append(
                SegmentTable(at, StepMode(call.mode), *columns(rows, 6), np.float32(values))
            )
        elif isinstance(call, Episodes):
            rows = [
                (at, AUTOMATIC if ep is None else ep, 7, ENVS.index(e), rl)
                for e, ep, rl, _ in call.rows
            ]
            series, step, time_ms, env, rl_step = columns(rows, 5)
            value = np.float32([r[3] for r in call.rows])
            batch.points.append(PointTable(series, step, time_ms, value, env, rl_step))
        else:
            rows = [(at, AUTOMATIC if s is None else s, 7) for s, _ in call.rows]
            value = np.float32([v for _, v in call.rows])
            batch.points.append(PointTable(*columns(rows, 3), value))
    frame = encode_batch(batch)
    pages = (page.frame if page else b"") + ENV_PAGE.frame
    return pages + frame, frame_digest(frame)


class World:
    """A service on a store beside a model, fed the same deliveries."""

    def __init__(self, seed: int, store: PointStore, *, older_units_kept: int = 16_384) -> None:
        # Trimmed units are rebuilt by counting, so there clients number as ours does: densely.
        self.is_dense = older_units_kept < 16_384
        self.random = random.Random(seed)
        self.store = store
        self.now_s = 1_000_000.0
        self.older_units_kept = older_units_kept
        self.service = self.new_service()
        self.model = Model()
        self.run_uid = ""
        self.ids: dict[str, str] = {}
        self.queues: dict[str, list] = {}
        self.marks: dict[tuple[str, int], list[int]] = {}
        self.minors: dict[tuple, tuple[int, int]] = {}
        self.told: set[tuple[str, str, str]] = set()
        self.answers: dict[tuple[str, int, int], Counter] = {}
        self.values = 0

    def new_service(self) -> IngestService:
        return IngestService(
            self.store, clock=lambda: self.now_s, older_units_kept=self.older_units_kept
        )

    def open(self, name: str, *, is_online: bool) -> None:
        self.ids[name] = f"{self.random.getrandbits(128):032x}"
        reply = self.service.open(
            OpenRequest(
                "ws",
                "proj",
                "run",
                "job",
                "allow",
                self.ids[name],
                started_us=self.random.randrange(2_000_000) * 1_000_000,
                is_online=is_online,
            )
        )
        self.run_uid = reply.run_uid
        row = self.store.find_run_uid(self.run_uid)
        order = next(
            w.order_us
            for w in self.store.run_contents(row.run_no).writers
            if w.writer_id == self.ids[name]
        )
        self.model.writers[name] = Writer((order, self.ids[name]), is_online)
        self.queues[name] = []
        self.note(name, reply.notices)

    def note(self, name: str, notices) -> None:
        self.told |= {(n.kind, name, n.metric) for n in notices}

    def seal_some(self) -> None:
        for unit in self.store.due(now_s=self.now_s, everything=True):
            if self.random.random() < 0.5:
                self.service.seal(unit)

    def kill(self, name: str) -> None:
        self.model.writers[name].is_live = False
        how = LeaveRequest(self.run_uid, self.ids[name], is_dead=self.random.random() < 0.5)
        self.note(name, self.service.leave(how).notices)

    def write(self, name: str, calls: list[Call]) -> None:
        """Seal a batch of a writer; it waits for delivery."""
        lane = 0
        mark = self.marks.setdefault((name, lane), [0, 0])
        mark[0] += 1
        body, digest = make_batch(self.run_uid, self.ids[name], lane, mark[0], mark[1], calls)
        mark[1] = digest
        self.queues[name].append((lane, mark[0], calls, body))

    def deliver(self, name: str, *, count: int) -> None:
        """Deliver the next batches of a writer, sometimes again afterwards."""
        sent, self.queues[name] = self.queues[name][:count], self.queues[name][count:]
        if sent and self.random.random() < 0.2:
            sent.append(self.random.choice(sent))
        replies = self.service.ingest_many([body for *_, body in sent])
        for (lane, seq, calls, _), reply in zip(sent, replies, strict=True):
            before = Counter(self.model.counts)
            status = self.model.feed(name, lane, seq, calls)
            answer = reply.replies[0]
            assert answer.status.value == status
            counts = Counter(answer.counts)
            if status == "duplicate":
                # Nothing changes; the first answer, which may not have arrived, is told again.
                assert self.model.counts == before
                first = self.answers[name, lane, seq]
                assert counts == (first if first.keys() - {"stored"} else Counter())
            else:
                assert counts == self.model.counts - before
                self.answers[name, lane, seq] = counts
            self.note(name, reply.notices)

    # --- random calls ------------------------------------------------------------------------
    def fresh(self, n: int) -> tuple[float, ...]:
        self.values += n
        return tuple(float(v) for v in range(self.values - n, self.values))

    def call(self, name: str) -> Call:
        r = self.random
        family = r.random()
        if family < 0.2:
            is_merge = r.random() < 0.1
            metric = r.choice(("s", "t"))
            steps = [
                r.randrange(8) if is_merge or r.random() < 0.5 else None
                for _ in range(r.randrange(1, 5))
            ]
            return Standard(
                metric, is_merge, tuple(zip(steps, self.fresh(len(steps)), strict=True))
            )
        if family < 0.35:
            is_explicit = r.random() < 0.9
            metric = r.choice(("e", "f"))
            rows = [
                (r.choice(ENVS), r.randrange(4) if is_explicit else None, r.randrange(5), v)
                for v in self.fresh(r.randrange(1, 6))
            ]
            if metric == "f":
                is_explicit = False
                rows = [(env, None, rl, v) for env, _, rl, v in rows]
            return Episodes(metric, is_explicit, tuple(rows))
        metric, is_episodic, mode = r.choice(
            (
                ("auto", True, "auto"),
                ("auto", True, "auto"),
                ("one", True, "auto_from_one"),
                ("flat", False, "auto"),
                ("exact", True, "explicit"),
                ("exact", True, "explicit"),
                ("line", False, "explicit"),
                ("auto", True, r.choice(("auto", "explicit"))),
                ("auto", r.random() < 0.8, "auto"),
            )
        )
        segments = [self.segment(name, metric, is_episodic, mode) for _ in range(r.randrange(1, 7))]
        return EnvSteps(metric, is_episodic, mode, tuple(segments))

    def segment(self, name: str, metric: str, is_episodic: bool, mode: str) -> tuple:
        r = self.random
        env = r.choice(ENVS)
        episode = r.randrange(3) if is_episodic else None
        key = (name, metric, env, episode, mode)
        rl, minor = self.minors.get(key, (0, 0))
        n = r.randrange(1, 4)
        if r.random() < 0.15 and not self.is_dense:
            rl, minor = r.randrange(4), 0
        elif r.random() < 0.4:
            rl, minor = rl + r.randrange(1, 3), 0
        elif r.random() < 0.1 and not self.is_dense:
            minor = r.randrange(3)
        if mode == "explicit":
            known = self.minors.get((*key, "step"), (0, 0))[1]
            minor = known if r.random() < 0.7 else r.randrange(6)
            self.minors[(*key, "step")] = (0, minor + n)
        self.minors[key] = (rl, minor + n)
        return (env, episode, rl, minor, self.fresh(n))

    # --- the comparison ----------------------------------------------------------------------
    def check(self) -> None:
        row = self.store.find_run_uid(self.run_uid)
        contents = self.store.run_contents(row.run_no)
        rows, points = {}, {}
        for series in contents.series:
            d = series.definition
            if d.family is Family.ENV_STEP:
                points.update(self.read_units(series.series_no, d.metric, contents.env_names))
            else:
                rows.update(self.read_rows(series.series_no, d, contents.env_names))
        assert rows == self.model.visible_rows()
        assert points == self.model.visible_points()
        assert Counter(row.counters) == self.model.counts
        visible = sum(len(r) for r in rows.values()) + sum(len(p) for _, p in points.values())
        counts = self.model.counts
        gone = counts["replaced"] + counts["discarded_by_restart"]
        assert visible == counts["stored"] - gone

    def read_rows(self, series_no: int, d: SeriesDef, env_names: list[str]) -> dict:
        stored = self.store.read_points(series_no)
        cells = zip(
            stored.env_no.tolist(),
            stored.step.tolist(),
            stored.rl_step.tolist(),
            stored.value.tolist(),
            strict=True,
        )
        found: dict = {}
        for env, step, rl, value in cells:
            if d.family is Family.STANDARD and d.ordering is Ordering.MERGE:
                found.setdefault(("standard", d.metric), []).append((step, value))
            elif d.family is Family.STANDARD:
                found.setdefault(("standard", d.metric), {})[step] = (value, rl)
            else:
                found.setdefault(("episode", d.metric, env_names[env]), {})[step] = (value, rl)
        return {k: sorted(v) if isinstance(v, list) else v for k, v in found.items()}

    def read_units(self, series_no: int, metric: str, env_names: list[str]) -> dict:
        stored = self.store.read_env_steps(series_no)
        current = {}
        for cut in self.store.cuts(series_no):
            key = (metric, env_names[cut.env_no], cut.episode)
            assert cut.generation > current.get(key, 0)
            current[key] = cut.generation
        found: dict = {}
        for env, episode, generation, rl, step, value in zip(
            stored.env_no.tolist(),
            stored.episode.tolist(),
            stored.generation.tolist(),
            stored.rl_step.tolist(),
            stored.step.tolist(),
            stored.value.tolist(),
            strict=True,
        ):
            key = (metric, env_names[env], episode)
            if generation == current.get(key, 0):
                found.setdefault(key, []).append((step, rl, value))
        return {
            (m, e, None if ep == NO_EPISODE else ep): (current.get((m, e, ep), 0), sorted(p))
            for (m, e, ep), p in found.items()
        }


def run_program(seed: int, *, restarts: bool = False, older_units_kept: int = 16_384) -> None:
    """Run one random program and compare at its end."""
    world = World(seed, MemoryStore(), older_units_kept=older_units_kept)
    r = world.random
    names = ["A"]
    world.open("A", is_online=r.random() < 0.8)
    for _ in range(r.randrange(4, 26)):
        world.now_s += 0.001
        dice = r.random()
        if dice < 0.12 and len(names) < 5:
            names.append("ABCDE"[len(names)])
            world.open(names[-1], is_online=r.random() < 0.75)
        elif dice < 0.18:
            name = r.choice(names)
            if world.model.writers[name].is_live:
                world.kill(name)
        elif dice < 0.25 and restarts:
            world.seal_some()
            world.service = world.new_service()
        elif dice < 0.65:
            name = r.choice(names)
            world.write(name, [world.call(name) for _ in range(r.randrange(1, 4))])
        else:
            world.deliver(r.choice(names), count=r.randrange(1, 4))
    for name in r.sample(names, len(names)):
        world.deliver(name, count=1000)
    world.check()
    if not restarts:
        for name in names:
            how = LeaveRequest(world.run_uid, world.ids[name])
            world.note(name, world.service.leave(how).notices)
        assert world.told == world.model.told


def run_programs(seeds: range, **options) -> None:
    for seed in seeds:
        try:
            run_program(seed, **options)
        except BaseException as error:
            error.args = (f"program of seed {seed} {options}: {error}",)
            raise


@pytest.mark.parametrize("vector_from", [1, 3, 24])
def test_programs_agree_with_the_model(monkeypatch, vector_from) -> None:
    """Random programs end in what the model says: points, counts, generations and notices."""
    monkeypatch.setattr(env_steps, "VECTOR_FROM_SEGMENTS", vector_from)
    run_programs(range(vector_from * 10_000, vector_from * 10_000 + 400))


@pytest.mark.parametrize("vector_from", [1, 24])
def test_a_restarted_server_judges_the_same(monkeypatch, vector_from) -> None:
    """Seals and new services on the same store at random places change nothing."""
    monkeypatch.setattr(env_steps, "VECTOR_FROM_SEGMENTS", vector_from)
    run_programs(range(vector_from * 20_000, vector_from * 20_000 + 250), restarts=True)


@pytest.mark.parametrize("vector_from", [1, 24])
def test_trimmed_episodes_are_rebuilt_from_the_store(monkeypatch, vector_from) -> None:
    """With (almost) no old episode kept in memory, programs still end in what the model says."""
    monkeypatch.setattr(env_steps, "VECTOR_FROM_SEGMENTS", vector_from)
    seeds = range(vector_from * 30_000, vector_from * 30_000 + 150)
    run_programs(seeds, older_units_kept=0)
    run_programs(seeds, older_units_kept=1, restarts=True)
