"""The run-level numbers of series and environments, and the pins that calls claim.

One `SeriesRegistry` per writer. Caller threads claim numbers and pins before they enqueue
anything; the engine thread looks names up again. A hit takes no lock: readers see dicts that only
grow, and arrays that are replaced, never changed, once they are handed out.

A claim is all or nothing: every check of a call passes before anything of it is registered, so a
refused call pins nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from metrana_async.collector import collector_resting
from metrana_async.errors import InternalError, InvalidStepError, PinConflictError
from metrana_async.wire.limits import STEP_MAX
from metrana_async.wire.messages import Seeds
from metrana_async.wire.model import Family, Int64Array, Ordering, SeriesDef, StepMode

ModeArray = npt.NDArray[np.int8]

_FAR_STEP: Final = 2**62
"""No program counts from below this to 2**63 - 1: only series beyond it are watched."""

_MANY_SERIES: Final = 10_000

_REMEMBERED_IDS: Final = 1 << 22

_FAMILIES: Final = {family.value: family for family in Family}
_ORDERINGS: Final = {ordering.value: ordering for ordering in Ordering}
_MODES: Final = (StepMode.AUTO, StepMode.AUTO_FROM_ONE, StepMode.EXPLICIT)
_MODE_CODES: Final = {mode: code for code, mode in enumerate(_MODES, start=1)}

PinKey = tuple[Family, str, str]
Pin = tuple[Ordering, bool | None]


class _Claim(NamedTuple):
    """A grid claim that was granted: these ids, as this object, in this mode."""

    env_ids: tuple[str, ...]
    mode: StepMode
    env_nos: Int64Array


class SeriesRegistry:
    """Numbers and pins of one run's series, as one writer knows them. Thread-safe.

    Attributes:
        conflicted: numbers of series whose pin the server refused. Test it before a call that
            goes by a remembered number: ``if registry.conflicted: registry.check_conflict(no)``.
        far_steps: greatest known step of the STANDARD series that are beyond 2**62. Test it before
            an automatic step: ``if registry.far_steps: registry.check_next(no, n)``.
        seeded_last_step: highest step per STANDARD series when this writer joined.
        seeded_environments: (last rl_step, last episode) per env_no, -1 where unknown.
        seeded_episodes: last episode per (series_no, env_no) of EPISODE series.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._series_nos: dict[SeriesDef, int] = {}
        self._definitions: list[SeriesDef] = []
        self._pins: dict[PinKey, Pin] = {}
        self._refused_pins: dict[PinKey, Pin] = {}
        self._env_nos: dict[str, int] = {}
        self._env_names: list[str] = []
        self._modes: dict[int, ModeArray] = {}
        self._refused_modes: dict[tuple[int, int], int] = {}
        self._claimed: dict[tuple[int, int], _Claim] = {}
        self._claimed_ids = 0
        self.conflicted: set[int] = set()
        self.far_steps: dict[int, int] = {}
        self.seeded_last_step: dict[int, int] = {}
        self.seeded_environments: dict[int, tuple[int, int]] = {}
        self.seeded_episodes: dict[tuple[int, int], int] = {}

    @property
    def is_held_here(self) -> bool:
        """Whether this very thread was interrupted in the middle of a claim."""
        return bool(self._lock._is_owned())  # type: ignore[attr-defined]  # what Condition asks

    # --- series ------------------------------------------------------------------------------

    def series_no(self, definition: SeriesDef) -> int:
        """The number of a series, registered and pinned on first use.

        Raises:
            PinConflictError: its metric is pinned to another ordering, or to (no) episodes, at
                this scale; or the server refused this pin.
        """
        number = self._series_nos.get(definition)
        if number is None or number in self.conflicted:
            return self.series_nos([definition])[0]
        return number

    def series_nos(self, definitions: Sequence[SeriesDef]) -> list[int]:
        """The numbers of all series of one call: all of them, or none is registered.

        Raises:
            PinConflictError: as `series_no`, for the first definition that conflicts.
        """
        with self._lock:
            for definition in definitions:
                self._check_pin(definition)
            return [self._register(definition) for definition in definitions]

    def definition(self, series_no: int) -> SeriesDef:
        """The definition of a series number."""
        return self._definitions[series_no]

    @property
    def series_count(self) -> int:
        """Number of series; their numbers are 0..series_count-1."""
        return len(self._definitions)

    def find(self, definition: SeriesDef) -> int | None:
        """The number of the series with this identity, whatever its pins; None where unknown."""
        with self._lock:
            found = [
                number
                for known, number in self._series_nos.items()
                if known.identity == definition.identity
            ]
        return found[-1] if found else None

    def _check_pin(self, definition: SeriesDef) -> None:
        key, pin = _pin_of(definition)
        if self._refused_pins.get(key) == pin:
            raise PinConflictError(
                f"metric {definition.metric!r} at {definition.scale} is pinned otherwise by "
                f"another writer: {_pin_text(definition.family, pin)} was refused by the server"
            )
        pinned = self._pins.get(key)
        if pinned is not None and pinned != pin:
            raise PinConflictError(
                f"metric {definition.metric!r} at {definition.scale} is pinned to "
                f"{_pin_text(definition.family, pinned)}, this call is "
                f"{_pin_text(definition.family, pin)}",
                hint="use another metric name for the other kind",
            )

    def _register(self, definition: SeriesDef) -> int:
        number = self._series_nos.get(definition)
        return self._add(definition, *_pin_of(definition)) if number is None else number

    def _add(self, definition: SeriesDef, key: PinKey, pin: Pin) -> int:
        number = len(self._definitions)
        self._pins[key] = pin
        self._definitions.append(definition)
        self._series_nos[definition] = number  # last: what readers find is complete
        return number

    # --- environments ------------------------------------------------------------------------

    def env_nos(self, env_ids: tuple[str, ...]) -> Int64Array:
        """The numbers of environments, registered on first use; ids may repeat."""
        try:
            return self._look_up(env_ids)
        except KeyError:
            with self._lock:
                return self._number_envs(env_ids)

    def env_name(self, env_no: int) -> str:
        """The environment id of a number."""
        return self._env_names[env_no]

    @property
    def envs_count(self) -> int:
        """Number of environments; their numbers are 0..envs_count-1."""
        return len(self._env_names)

    def _look_up(self, env_ids: tuple[str, ...]) -> Int64Array:
        return np.fromiter(
            map(self._env_nos.__getitem__, env_ids), dtype=np.int64, count=len(env_ids)
        )

    def _number_envs(self, env_ids: tuple[str, ...]) -> Int64Array:
        for env_id in dict.fromkeys(env_ids):
            if env_id not in self._env_nos:
                self._env_names.append(env_id)
                self._env_nos[env_id] = len(self._env_names) - 1
        return self._look_up(env_ids)

    # --- env-step modes ----------------------------------------------------------------------

    def claim_grid(
        self,
        definition: SeriesDef,
        env_ids: tuple[str, ...],
        mode: StepMode,
        *,
        mask: npt.NDArray[np.bool_] | None = None,
    ) -> tuple[int, Int64Array]:
        """Number an ENV_STEP series and its environments, and claim how its axes are fed.

        Args:
            definition: the series.
            env_ids: M distinct ids; the same tuple object again is recognised at once.
            mode: how the call feeds the env-step axis.
            mask: bool [M, T]; environments without a point in the call claim nothing.

        Returns:
            The series number, and the environments' numbers (read-only int64 [M]).

        Raises:
            PinConflictError: as `series_no`; or an environment's axis is fed in another mode, or
                the server refused this mode. Nothing is registered then.
        """
        number = self._series_nos.get(definition)
        if number is not None and number not in self.conflicted:
            claim = self._claimed.get((number, id(env_ids)))
            if claim is not None and claim.env_ids is env_ids and claim.mode is mode:
                return number, claim.env_nos
        with self._lock:
            self._check_pin(definition)
            number = self._series_nos.get(definition)
            active = None if mask is None else np.asarray(mask.any(axis=1))
            if number is not None:
                self._check_modes(number, env_ids, mode, active)
            number = self._register(definition)
            env_nos = self._number_envs(env_ids)
            env_nos.setflags(write=False)
            self._pin_modes(number, env_nos, mode, active)
            if active is None or bool(active.all()):
                self._remember(number, _Claim(env_ids, mode, env_nos))
            return number, env_nos

    def _remember(self, series_no: int, claim: _Claim) -> None:
        self._claimed_ids += len(claim.env_ids)
        if self._claimed_ids > _REMEMBERED_IDS:
            self._claimed.clear()
            self._claimed_ids = len(claim.env_ids)
        # The tuple is kept with its claim: as long as the entry lives, its id is not given anew.
        self._claimed[series_no, id(claim.env_ids)] = claim

    def _check_modes(
        self,
        series_no: int,
        env_ids: tuple[str, ...],
        mode: StepMode,
        active: npt.NDArray[np.bool_] | None,
    ) -> None:
        # Looked up without registering: a refused call leaves no environment behind either.
        numbers = np.fromiter(
            (self._env_nos.get(e, -1) for e in env_ids), dtype=np.int64, count=len(env_ids)
        )
        is_known = numbers >= 0 if active is None else (numbers >= 0) & active
        if self._refused_modes:
            for env_no in numbers[is_known].tolist():
                if self._refused_modes.get((series_no, env_no)) == _MODE_CODES[mode]:
                    self._raise_mode(series_no, env_no, mode, "another mode by another writer")
        modes = self._modes.get(series_no)
        if modes is None:
            return
        inside = numbers[is_known & (numbers < len(modes))]
        pinned = modes[inside]
        bad = (pinned != 0) & (pinned != _MODE_CODES[mode])
        if bad.any():
            position = int(np.argmax(bad))
            other = _MODES[int(pinned[position]) - 1]
            self._raise_mode(series_no, int(inside[position]), mode, other.value)

    def _raise_mode(self, series_no: int, env_no: int, mode: StepMode, pinned: str) -> None:
        raise PinConflictError(
            f"metric {self._definitions[series_no].metric!r}: the env-step axis of environment "
            f"{self._env_names[env_no]!r} is pinned to {pinned}, this call is {mode.value}"
        )

    def _pin_modes(
        self,
        series_no: int,
        env_nos: Int64Array,
        mode: StepMode,
        active: npt.NDArray[np.bool_] | None,
    ) -> None:
        modes = self._modes.get(series_no, np.zeros(0, np.int8))
        if len(modes) < len(self._env_names):
            grown = np.zeros(max(len(self._env_names), 2 * len(modes)), np.int8)
            grown[: len(modes)] = modes
            modes = self._modes[series_no] = grown
        modes[env_nos if active is None else env_nos[active]] = _MODE_CODES[mode]

    # --- what the server says ----------------------------------------------------------------

    def reseed_environments(self, seeds: Seeds) -> None:
        """Take in what the server knows of environments now."""
        with self._lock:
            self._seed_environments(seeds)

    def _seed_environments(self, seeds: Seeds) -> None:
        for env_id, rl_step, episode in seeds.environments:
            env_no = int(self._number_envs((env_id,))[0])
            known = (-1 if rl_step is None else rl_step, -1 if episode is None else episode)
            self.seeded_environments[env_no] = known

    def seed(self, seeds: Seeds) -> list[SeriesDef]:
        """Take in what the server knew when this writer joined.

        Returns:
            Definitions that this process had pinned otherwise before it was told (a writer that
            started without a server); they are marked conflicted.
        """
        conflicts: list[SeriesDef] = []
        numbers: list[int] = []
        with self._lock, collector_resting(rests=len(seeds.series) >= _MANY_SERIES):
            for row in seeds.series:
                definition = _seeded_definition(row)
                key, pin = _pin_of(definition)
                if self._pins.get(key, pin) != pin:
                    conflicts += self._refuse_pin(key)
                number = self._series_nos.get(definition)
                if number is None:
                    number = self._add(definition, key, pin)
                numbers.append(number)
                self._seed_last_step(number, row[6])
                for mode, env_ids in row[7].items():
                    env_nos = self._number_envs(tuple(env_ids))
                    self._pin_modes(number, env_nos, StepMode(mode), None)
            self._seed_environments(seeds)
            for index, env_id, episode in seeds.episodes:
                env_no = int(self._number_envs((env_id,))[0])
                if episode is not None:
                    self.seeded_episodes[numbers[index], env_no] = episode
        return conflicts

    def _seed_last_step(self, series_no: int, last_step: int | None) -> None:
        if last_step is not None:
            self.seeded_last_step[series_no] = last_step
            if last_step >= _FAR_STEP:
                self.far_steps[series_no] = last_step

    def mark_conflict(
        self, metric: str, *, scale: str | None = None, env_id: str | None = None
    ) -> None:
        """Remember that the server lost points of `metric` to another writer's pin.

        The next call of the kind this process had pinned raises PinConflictError; a call of the
        other kind is accepted. With `env_id` it is the environment's step mode that conflicts
        where the metric is an ENV_STEP one, and nothing else.
        """
        with self._lock:
            if env_id is not None and self._refuse_modes(metric, env_id):
                return
            for key in list(self._pins):
                if key[1] == metric and scale in {None, key[2]}:
                    self._refuse_pin(key)

    def _refuse_pin(self, key: PinKey) -> list[SeriesDef]:
        pin = self._pins.pop(key)
        self._refused_pins[key] = pin
        refused = [d for d in self._definitions if _pin_of(d) == (key, pin)]
        self.conflicted.update(self._series_nos[d] for d in refused)
        return refused

    def _refuse_modes(self, metric: str, env_id: str) -> bool:
        env_no = self._env_nos.get(env_id)
        is_found = False
        for series_no, modes in self._modes.items():
            if env_no is None or self._definitions[series_no].metric != metric:
                continue
            if env_no < len(modes) and modes[env_no]:
                self._refused_modes[series_no, env_no] = int(modes[env_no])
                modes[env_no] = 0
                self._claimed.clear()
                is_found = True
        return is_found

    def check_conflict(self, series_no: int) -> None:
        """Raise PinConflictError where the server refused this series' pin."""
        if series_no in self.conflicted:
            self.series_nos([self._definitions[series_no]])

    # --- the end of the axis -----------------------------------------------------------------

    def note_step(self, series_no: int, last_step: int) -> None:
        """Remember an explicit step beyond 2**62, from which automatic ones could run out."""
        if last_step >= _FAR_STEP:
            with self._lock:
                self.far_steps[series_no] = max(last_step, self.far_steps.get(series_no, 0))

    def check_next(self, series_no: int, points_count: int) -> None:
        """Claim automatic steps of a series whose last one is beyond 2**62.

        Raises:
            InvalidStepError: they would pass 2**63-1.
        """
        with self._lock:
            last = self.far_steps.get(series_no)
            if last is None:
                return
            if last > STEP_MAX - points_count:
                raise InvalidStepError(
                    f"metric {self._definitions[series_no].metric!r} is at step {last}: "
                    f"{points_count} automatic steps would pass 2**63-1"
                )
            self.far_steps[series_no] = last + points_count


def _pin_of(definition: SeriesDef) -> tuple[PinKey, Pin]:
    key = (definition.family, definition.metric, definition.scale)
    return key, (definition.ordering, definition.episodic)


def _pin_text(family: Family, pin: Pin) -> str:
    ordering, episodic = pin
    if family is Family.ENV_STEP:
        return "episodes" if episodic else "no episodes"
    if family is Family.EPISODE:
        return "automatic episodes" if ordering is Ordering.ORDERED else "explicit episodes"
    return "log (ordered)" if ordering is Ordering.ORDERED else "log_distributed (merge)"


def _seeded_definition(row: list[Any]) -> SeriesDef:
    try:
        family, metric, scale, labels, ordering, episodic = row[:6]
        pairs = tuple((str(key), str(value)) for key, value in labels) if labels else ()
        return SeriesDef(_FAMILIES[family], metric, scale, pairs, _ORDERINGS[ordering], episodic)
    except (TypeError, ValueError, KeyError) as error:
        raise InternalError(f"the server's seed {row!r:.200} is no series") from error
