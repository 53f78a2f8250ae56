"""The slow model: what a logged point becomes, one `if` per sentence of the semantics.

Written apart from the server's rules: no columns, no cursors, no state but the list of everything
stored so far, looked through again for every point. Feed it what writers seal, in the order in
which it arrives, and ask what is visible and what was counted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Standard:
    """A `log` or `log_distributed` call: rows of (step or None, value)."""

    metric: str
    is_merge: bool
    rows: tuple[tuple[int | None, float], ...]


@dataclass(frozen=True)
class Episodes:
    """A `log_rl_episode` call: rows of (env, episode or None, rl_step, value)."""

    metric: str
    is_explicit: bool
    rows: tuple[tuple[str, int | None, int, float], ...]


@dataclass(frozen=True)
class EnvSteps:
    """A `log_rl_environment_step` call: segments of (env, episode or None, rl_step, start, values).

    `start` is the position within the rl_step, or the env step itself when `mode` is "explicit".
    """

    metric: str
    is_episodic: bool
    mode: str
    segments: tuple[tuple[str, int | None, int, int, tuple[float, ...]], ...]


Call = Standard | Episodes | EnvSteps


@dataclass
class Row:
    """A stored row of a STANDARD or EPISODE axis."""

    writer: str
    step: int
    value: float
    rl_step: int = 0


@dataclass
class Point:
    """A stored point of an env-step axis."""

    writer: str
    generation: int
    rl_step: int
    minor: int
    step: int
    value: float

    @property
    def place(self) -> tuple[int, int]:
        return (self.rl_step, self.minor)


@dataclass
class Writer:
    """A writer: its place in the order, and whether it is live now."""

    order: tuple[int, str]
    is_live: bool


@dataclass
class Model:
    """Everything stored, in arrival order."""

    writers: dict[str, Writer] = field(default_factory=dict)
    counts: Counter = field(default_factory=Counter)
    told: set = field(default_factory=set)
    marks: dict = field(default_factory=dict)
    pins: dict = field(default_factory=dict)
    modes: dict = field(default_factory=dict)
    axes: dict = field(default_factory=dict)
    units: dict = field(default_factory=dict)

    # --- delivery ----------------------------------------------------------------------------
    def feed(self, writer: str, lane: int, seq: int, calls: list[Call]) -> str:
        """Take one batch: "stored", "duplicate" or "gap"."""
        mark = self.marks.get((writer, lane), 0)
        if seq <= mark:
            return "duplicate"
        if seq > mark + 1:
            return "gap"
        self.marks[writer, lane] = seq
        for call in calls:
            if isinstance(call, Standard):
                self._standard(writer, call)
            elif isinstance(call, Episodes):
                self._episodes(writer, call)
            else:
                self._env_steps(writer, call)
        return "stored"

    def _is_pinned_otherwise(self, family: str, metric: str, pin: object) -> bool:
        return self.pins.setdefault((family, metric), pin) != pin

    def _newer(self, one: str, other: str) -> bool:
        return self.writers[one].order > self.writers[other].order

    def _both_live(self, one: str, other: str) -> bool:
        return self.writers[one].is_live and self.writers[other].is_live

    # --- section 3 ---------------------------------------------------------------------------
    def _standard(self, w: str, call: Standard) -> None:
        if not call.rows:
            return
        if self._is_pinned_otherwise("standard", call.metric, call.is_merge):
            self.counts["pin_conflict"] += len(call.rows)
            self.told.add(("PinConflict", w, call.metric))
            return
        axis = self.axes.setdefault(("standard", call.metric), [])
        before = list(axis)
        for step, value in call.rows:
            if call.is_merge:
                # Every distinct point counts once, whatever the arrival order.
                axis.append(Row(w, step, value))
                self.counts["stored"] += 1
                continue
            if before and before[-1].writer != w and self._both_live(w, before[-1].writer):
                already = any(t[0] == "SecondWriter" and t[2] == call.metric for t in self.told)
                if not already:
                    self.told.add(("SecondWriter", w, call.metric))
                    self.told.add(("SecondWriter", before[-1].writer, call.metric))
            self._place(w, call.metric, axis, Row(w, -1, value), step, before)

    # --- section 4 ---------------------------------------------------------------------------
    def _episodes(self, w: str, call: Episodes) -> None:
        if not call.rows:
            return
        if self._is_pinned_otherwise("episode", call.metric, call.is_explicit):
            self.counts["pin_conflict"] += len(call.rows)
            self.told.add(("PinConflict", w, call.metric))
            return
        before = {
            env: list(self.axes.get(("episode", call.metric, env), [])) for env, *_ in call.rows
        }
        for env, episode, rl_step, value in call.rows:
            axis = self.axes.setdefault(("episode", call.metric, env), [])
            row = Row(w, -1, value, rl_step)
            self._place(w, call.metric, axis, row, episode, before[env])

    def _place(self, w, metric, axis, row, step, before) -> None:
        """One row of an ordered axis; `before` is what was there when its call arrived."""
        highest = max((r.step for r in axis), default=-1)
        if step is None:
            # The next number of that series, 0 at first, behind the highest ever stored.
            row.step = highest + 1
            axis.append(row)
            self.counts["stored"] += 1
            # A dead writer's automatic points behind its successor are counted late.
            is_behind = any(self._newer(r.writer, w) for r in before)
            if not self.writers[w].is_live and is_behind:
                self.counts["late"] += 1
            return
        row.step = step
        visible = next((r for r in reversed(axis) if r.step == step), None)
        if visible is None:
            axis.append(row)
            self.counts["stored"] += 1
            return
        # At one step the newer stays: incarnation order first, then position.
        if self._newer(visible.writer, w):
            self.counts["superseded"] += 1
            return
        axis.append(row)
        self.counts["stored"] += 1
        self.counts["replaced"] += 1
        if visible.writer == w:
            # A writer that replaces its own point is warned, a resume is not.
            self.told.add(("DuplicateStep", w, metric))

    # --- section 5 ---------------------------------------------------------------------------
    def _env_steps(self, w: str, call: EnvSteps) -> None:
        if not call.segments:
            return
        if self._is_pinned_otherwise("env_step", call.metric, call.is_episodic):
            self.counts["pin_conflict"] += sum(len(s[4]) for s in call.segments)
            self.told.add(("PinConflict", w, call.metric))
            return
        for env, episode, rl_step, start, values in call.segments:
            if self.modes.setdefault((call.metric, env), call.mode) != call.mode:
                self.counts["pin_conflict"] += len(values)
                self.told.add(("PinConflict", w, call.metric))
                continue
            unit = self.units.setdefault((call.metric, env, episode), [])
            end = start + len(values) - 1
            for position, value in enumerate(values):
                if call.mode == "explicit":
                    self._explicit(w, call, unit, rl_step, start + position, value, end)
                else:
                    self._automatic(w, call, unit, rl_step, start + position, value)

    def _automatic(self, w, call, unit, rl, minor, value) -> None:
        now = _current(unit)
        if not now:
            self._append(w, call, unit, rl, minor, value)
            return
        own = [p for p in now if p.writer == w]
        first_rl = now[0].rl_step
        is_opening = call.is_episodic and minor == 0 and rl <= first_rl
        if not own and any(p.writer == w for p in unit):
            # What it still sends to the superseded generation is dropped; a new opening of its
            # own restarts again.
            if is_opening and self.writers[w].is_live:
                self._restart(w, call, unit, rl, minor, value)
            else:
                self.counts["superseded"] += 1
            return
        successors = self._successors(w, now)
        if is_opening and not successors:
            self._restart(w, call, unit, rl, minor, value)
            return
        if own:
            if (rl, minor) <= max(p.place for p in own):
                self.counts["duplicate"] += 1
                self.told.add(("DuplicateStep", w, call.metric))
                return
        elif successors:
            for other in successors:
                opened = next(p for p in now if p.writer == other)
                if call.is_episodic and opened.minor == 0 and opened.rl_step <= rl:
                    # The successor's first point was an opening for the late writer.
                    self.counts["superseded"] += 1
                    return
        else:
            self._tell_joined(w, call, now)
            if rl < now[-1].rl_step:
                self.told.add(("RlStepDecreased", w, call.metric))
        if successors:
            self.counts["late"] += 1
        self._append(w, call, unit, rl, minor, value)

    def _explicit(self, w, call, unit, rl, step, value, end) -> None:
        now = _current(unit)
        if not now:
            self._append(w, call, unit, rl, step, value)
            return
        own = [p for p in now if p.writer == w]
        last = max(p.step for p in now)
        past = [p for p in unit if p.writer == w and p not in now]
        if not own and past:
            generation = max(p.generation for p in past)
            own_last = max(p.step for p in past if p.generation == generation)
            # Above its own last step it is a point for the generation the writer was in.
            if step in (0, 1) and step <= own_last and self.writers[w].is_live:
                self._restart(w, call, unit, rl, step, value)
            else:
                self.counts["superseded"] += 1
            return
        successors = self._successors(w, now)
        if successors:
            own_last = max([end, *(p.step for p in own)])
            for other in successors:
                opened = next(p for p in now if p.writer == other).step
                if call.is_episodic and opened in (0, 1) and opened <= own_last:
                    self.counts["superseded"] += 1
                    return
            # The late spool of a dead writer fills free steps but never replaces.
            if any(p.step == step for p in now):
                self.counts["superseded"] += 1
                return
            self.counts["late"] += 1
            self._append(w, call, unit, rl, step, value)
            return
        if step > last:
            if not own:
                self._tell_joined(w, call, now)
            if rl < now[-1].rl_step:
                self.told.add(("RlStepDecreased", w, call.metric))
            self._append(w, call, unit, rl, step, value)
            return
        continues = bool(own) and step > max(p.step for p in own)
        if call.is_episodic and step in (0, 1) and not continues:
            self._restart(w, call, unit, rl, step, value)
            return
        self.counts["duplicate"] += 1
        self.told.add(("DuplicateStep", w, call.metric))

    def _successors(self, w: str, now: list[Point]) -> set[str]:
        """Live or newer writers of this generation, seen from a writer that is not live."""
        if self.writers[w].is_live:
            return set()
        others = {p.writer for p in now} - {w}
        return {o for o in others if self._newer(o, w) or self.writers[o].is_live}

    def _append(self, w, call, unit, rl, minor, value, *, is_new=False) -> None:
        now = _current(unit)
        generation = now[0].generation if now else 0
        if is_new:
            generation, now = generation + 1, []
        if call.mode == "explicit":
            step = minor
        else:
            step = len(now) + (1 if call.mode == "auto_from_one" else 0)
        unit.append(Point(w, generation, rl, minor, step, value))
        self.counts["stored"] += 1

    def _restart(self, w, call, unit, rl, minor, value) -> None:
        now = _current(unit)
        self.counts["discarded_by_restart"] += len(now)
        self.told.add(("EpisodeRestarted", w, call.metric))
        self._tell_joined(w, call, now)
        self._append(w, call, unit, rl, minor, value, is_new=True)

    def _tell_joined(self, w: str, call: EnvSteps, now: list[Point]) -> None:
        kind = "EpisodeTakenOver" if call.is_episodic else "SecondWriter"
        for other in {p.writer for p in now} - {w}:
            if self._both_live(w, other):
                self.told.add((kind, w, call.metric))
                self.told.add((kind, other, call.metric))

    # --- reading -----------------------------------------------------------------------------
    def visible_rows(self) -> dict:
        """Per ordered axis the visible (value, rl_step) by step; of merge axes every row."""
        found = {}
        for key, axis in self.axes.items():
            if key[0] == "standard" and self.pins["standard", key[1]]:
                found[key] = sorted((r.step, r.value) for r in axis)
            else:
                found[key] = {r.step: (r.value, r.rl_step) for r in axis}
        return {key: rows for key, rows in found.items() if rows}

    def visible_points(self) -> dict:
        """Per unit its generation and its visible points (step, rl_step, value) by step."""
        return {
            key: (
                _current(unit)[0].generation,
                sorted((p.step, p.rl_step, p.value) for p in _current(unit)),
            )
            for key, unit in self.units.items()
            if unit
        }


def _current(unit: list[Point]) -> list[Point]:
    generation = max((p.generation for p in unit), default=0)
    return [p for p in unit if p.generation == generation]
