"""Which number an episode gets: counted, shared out between workers, leased, or from a string key.

Pure. Two workers must never give one number of one environment to two episodes: the second would
restart the first's. So numbers are given once, in increasing order, and none is taken back.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np

from metrana_async.columns.integers import coerce_integer
from metrana_async.errors import InvalidStepError, InvalidTypeError, UsageError, ValidationError
from metrana_async.wire.limits import STEP_MAX
from metrana_async.wire.model import Int64Array

_KEYS_KEPT: Final = 1 << 17


class EpisodeNumbers(Protocol):
    """Gives episodes their numbers."""

    def take(self, env_ids: Sequence[str]) -> Int64Array:
        """One new number for each entry, in order; ids may repeat. All of them, or none.

        Numbers of one environment increase.
        """
        ...


class EpisodeAllocator:
    """Every `count`-th number of each environment, from `index` on.

    Workers 0..count-1 with the same `count` never meet, whatever each of them does. How many there
    are must not change during a run; where it does, lease (`EpisodeLeases`).

    Args:
        index: this worker, 0..count-1.
        count: how many workers share the environments.
        first: numbers below it are not given: one bound, or one for each environment id (0 where
            an id is missing). After a resume: the last known episode + 1.

    Not thread-safe.
    """

    def __init__(
        self, index: int = 0, count: int = 1, *, first: int | Mapping[str, int] = 0
    ) -> None:
        index, count = coerce_integer(index, "index"), coerce_integer(count, "count")
        if index >= count:
            raise ValidationError(f"index is {index}; of {count} workers it is in 0..{count - 1}")
        self._index, self._count = index, count
        self._firsts: dict[str, int] = {}
        self._first = 0
        if isinstance(first, Mapping):
            self._firsts = {e: coerce_integer(n, f"first[{e!r}]") for e, n in first.items()}
        else:
            self._first = coerce_integer(first, "first")
        self._next: dict[str, int] = {}

    def take(self, env_ids: Sequence[str]) -> Int64Array:
        """One new number for each entry, in order; ids may repeat.

        Raises:
            InvalidStepError: a number would pass 2**63-1; none is taken then.
        """
        known, step = self._next, self._count
        moved: dict[str, int] = {}
        numbers = []
        for env_id in env_ids:
            number = moved.get(env_id, known.get(env_id, -1))
            if number < 0:
                number = self._first_of(env_id)
            numbers.append(number)
            moved[env_id] = number + step
        if numbers and max(numbers) > STEP_MAX:
            raise InvalidStepError("the episode numbers of an environment would pass 2**63-1")
        known.update(moved)
        return np.array(numbers, dtype=np.int64)

    def _first_of(self, env_id: str) -> int:
        local = -(-(self._firsts.get(env_id, self._first) - self._index) // self._count)
        return max(0, local) * self._count + self._index


class EpisodeLeases:
    """Numbers that the server reserved for this process: for workers that come and go.

    A lease is ``first .. first + n - 1`` of one environment, as `reserve_episodes` answers. Numbers
    that are left when the process ends stay unused.

    Args:
        reserve: called as ``reserve(env_id, n) -> first`` when an environment has no numbers left;
            the shim's `reserve_episodes` fits. Without it, `add` leases before they are needed.
        size: n of those calls; one question to the server for so many episodes.

    Not thread-safe.
    """

    def __init__(
        self, reserve: Callable[[str, int], int] | None = None, *, size: int = 256
    ) -> None:
        self._size = coerce_integer(size, "size")
        if not self._size:
            raise ValidationError("size is 0; a lease holds at least one episode")
        self._reserve = reserve
        self._leases: dict[str, deque[range]] = {}

    def add(self, env_id: str, first: int, n: int) -> None:
        """Add the lease ``first .. first + n - 1`` of an environment.

        Raises:
            InvalidStepError, InvalidTypeError: `first` or `n` is no number of episodes.
        """
        first, n = coerce_integer(first, "first"), coerce_integer(n, "n")
        if first + n - 1 > STEP_MAX:
            raise InvalidStepError(f"first is {first} and n {n}: the lease would pass 2**63-1")
        if n:
            self._leases.setdefault(env_id, deque()).append(range(first, first + n))

    def remaining(self, env_id: str) -> int:
        """How many numbers of an environment are left here."""
        return sum(map(len, self._leases.get(env_id, ())))

    def take(self, env_ids: Sequence[str]) -> Int64Array:
        """One new number for each entry, in order; ids may repeat.

        Raises:
            UsageError: no numbers are left and there is no `reserve`; none is taken then.

        Whatever `reserve` raises passes through; what it had leased by then is kept.
        """
        wanted: dict[str, int] = {}
        for env_id in env_ids:
            wanted[env_id] = wanted.get(env_id, 0) + 1
        for env_id, n in wanted.items():
            missing = n - self.remaining(env_id)
            if missing > 0:
                self._lease(env_id, missing)
        return np.array([self._pop(env_id) for env_id in env_ids], dtype=np.int64)

    def _lease(self, env_id: str, missing: int) -> None:
        if self._reserve is None:
            raise UsageError(
                f"environment {env_id!r} has {self.remaining(env_id)} leased episodes left, "
                f"{missing} too few",
                hint="add a lease of reserve_episodes() before the rollout",
            )
        n = max(self._size, missing)
        self.add(env_id, self._reserve(env_id, n), n)

    def _pop(self, env_id: str) -> int:
        leases = self._leases[env_id]
        lease = leases.popleft()
        if len(lease) > 1:
            leases.appendleft(lease[1:])
        return lease[0]


class EpisodeKeys:
    """Numbers for libraries that name episodes by strings, and the names to keep as attributes.

    The same (environment, key) has the same number for as long as it is remembered: the 131,072
    used last. A process that starts again gives new numbers, as an episode that was cut off is
    collected again from its start.

    Args:
        numbers: where new numbers come from; counts from 0 by default.

    Not thread-safe.
    """

    def __init__(self, numbers: EpisodeNumbers | None = None) -> None:
        self._numbers = EpisodeAllocator() if numbers is None else numbers
        self._known: OrderedDict[tuple[str, str], int] = OrderedDict()

    def number(
        self,
        env_id: str,
        key: str,
        *,
        on_new: Callable[[str, dict[str, Any], int], object] | None = None,
    ) -> int:
        """The episode number that stands for `key` in this environment.

        `on_new` is called as ``on_new(env_id, {"episode_key": key}, number)`` when it is a new one:
        `log_env_attributes` fits, so that the key can be read from the episode.

        Raises:
            InvalidTypeError: `key` is no str.
        """
        if not isinstance(key, str):
            raise InvalidTypeError(f"the episode key is {key!r:.60}, not a str")
        known = self._known.get((env_id, key))
        if known is not None:
            self._known.move_to_end((env_id, key))
            return known
        number = int(self._numbers.take([env_id])[0])
        self._known[env_id, key] = number
        if len(self._known) > _KEYS_KEPT:
            self._known.popitem(last=False)
        if on_new is not None:
            on_new(env_id, {"episode_key": key}, number)
        return number
