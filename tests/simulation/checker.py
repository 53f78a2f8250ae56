"""What must hold at the end, whatever happened: the facts that a simulation asserts.

The store is the truth. Every check names what it found; a world without a finding is sound.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from metrana_async.server.store.base import RunContents
from metrana_async.server.store.memory import MemoryStore
from metrana_async.wire.model import Family
from tests.simulation.book import Book
from tests.simulation.client import Client

_CONTIGUOUS = ("automatic", "one", "two")

KILL_MOMENT_S: Final = 0.5
"""What a killed process may have logged last and not handed to the kernel: about 200 ms promised,
and what the calls before the write take."""
POWER_MOMENT_S: Final = 1.1
"""The same when the power goes: about 750 ms promised."""
DISK_CALLS: Final = 4
"""Calls of the disk, each as slow as it may be, that come before a batch's own write."""


@dataclass
class Stored:
    """One stored point."""

    writer_id: str
    metric: str
    env_id: str | None


@dataclass
class Findings:
    """What is wrong, at most a few of each kind in full."""

    texts: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, text: str) -> None:
        self.counts[kind] += 1
        if self.counts[kind] <= 5:
            self.texts.append(f"{kind}: {text}")


def stored_values(store: MemoryStore) -> set[int]:
    """Every value that is in the store now."""
    found: set[int] = set()
    for tables in (store._points, store._segments):
        for kept in tables.values():
            for table in kept:
                found.update(table.value.astype(np.int64).tolist())
    return found


class Checker:
    """Compares a store with what was logged and with what each client believes."""

    def __init__(
        self, store: MemoryStore, book: Book, clients: list[Client], rolled_back: set[str]
    ) -> None:
        """Make a checker.

        Args:
            store: what there is at the end.
            book: what was logged.
            clients: everybody.
            rolled_back: the server's generations before its last rollback.
        """
        self._store = store
        self._book = book
        self._clients = clients
        self._rolled_back = rolled_back
        self.has_clones = False
        """Whether several processes wrote under one identity: what one of them kept on disk may
        have had to be set aside."""
        self.has_poison = False
        """Whether the server refused some batches for good."""
        self.rolled_back_s = float("-inf")
        """When the server was put back to an older store for the last time."""
        self.delivered: dict[str, str] = {}
        """For each writer whose leftovers were delivered: the server's generation then."""
        self.findings = Findings()
        self.stored: dict[int, Stored] = {}

    def check(self) -> list[str]:
        """Every finding."""
        runs = self._store.runs()
        if len(runs) > 1 and not self._rolled_back:
            self.findings.add("runs", f"{[(row.name, row.run_uid) for row in runs]}")
        for row in runs:
            contents = self._store.run_contents(row.run_no)
            self._read(contents)
            self._check_server(contents)
        for client in self._clients:
            self._check_client(client)
        return self.findings.texts

    # --- exactly once, in order, nothing invented ----------------------------------------------
    def _read(self, contents: RunContents) -> None:
        writer_ids = {w.writer_no: w.writer_id for w in contents.writers}
        for series in contents.series:
            definition = series.definition
            if definition.family is Family.ENV_STEP:
                rows: Any = self._store.read_env_steps(series.series_no)
            else:
                rows = self._store.read_points(series.series_no)
            has_envs = definition.family is not Family.STANDARD
            values = rows.value.astype(np.int64).tolist()
            last: dict[tuple[str, str | None], int] = {}
            for value, writer_no, env_no in zip(
                values, rows.writer_no.tolist(), rows.env_no.tolist(), strict=True
            ):
                env_id = contents.env_names[env_no] if has_envs else None
                self._take(value, Stored(writer_ids[writer_no], definition.metric, env_id))
                point = self._book.points.get(value)
                whose = "" if point is None else point.client
                key = (f"{whose} as {writer_ids[writer_no]}", env_id)
                if value <= last.get(key, 0):
                    self.findings.add("order", f"{value} came after {last[key]} in {key}")
                last[key] = value
            self._check_steps(contents, series.definition, rows)

    def _take(self, value: int, stored: Stored) -> None:
        if value in self.stored:
            self.findings.add("stored twice", f"{value} as {stored} and {self.stored[value]}")
        self.stored[value] = stored
        point = self._book.points.get(value)
        if point is None or (point.metric, point.env_id) != (stored.metric, stored.env_id):
            self.findings.add("invented", f"{value} stored as {stored}, logged as {point}")

    def _check_steps(self, contents: RunContents, definition: Any, rows: Any) -> None:
        """Numbers that the server gave have no holes and are given once."""
        is_automatic = definition.metric.rpartition("/")[2] in _CONTIGUOUS
        if not is_automatic and definition.metric not in ("return", "reward", "episodic reward"):
            return
        steps: dict[tuple[int, int], list[int]] = defaultdict(list)
        episodes = getattr(rows, "episode", np.zeros(len(rows), np.int64))
        for env_no, episode, step in zip(
            rows.env_no.tolist(), episodes.tolist(), rows.step.tolist(), strict=True
        ):
            steps[env_no, episode].append(step)
        for key, given in steps.items():
            if given != list(range(len(given))):
                name = contents.row.name
                self.findings.add("numbering", f"{name} {definition.metric} {key}: {given[:20]}")

    # --- conservation --------------------------------------------------------------------------
    def _check_server(self, contents: RunContents) -> None:
        counters = dict(contents.row.counters)
        counted = counters.pop("stored", 0)
        if counted != len(self.stored):
            self.findings.add("server ledger", f"{counted} counted, {len(self.stored)} stored")
        declared = {name: n for name, n in counters.items() if n and name.startswith("lost:")}
        usual = {"late", "rejected"} if self.has_poison else {"late"}
        unexpected = {n: c for n, c in counters.items() if c and n not in {*declared, *usual}}
        if unexpected:
            self.findings.add("server outcomes", str(unexpected))
        # What a full disk did not take before its process left is a hole for whoever reads it.
        is_sound = all(c.host.is_prompt and not _may_be_damaged(c) for c in self._clients)
        is_excused = self._rolled_back or not is_sound
        if "lost:spool_damaged" in declared and not is_excused:
            self.findings.add("damage", f"{declared} with sound disks")
        if contents.row.state == "running":
            self.findings.add("state", "the run is still running though nobody is left")

    def _check_client(self, client: Client) -> None:
        mine = [v for v, point in self._book.points.items() if point.client == client.name]
        there = [v for v in mine if v in self.stored]
        for value in there:
            if self.stored[value].writer_id not in client.all_writer_ids:
                self.findings.add("whose", f"{value} of {client.name}: {self.stored[value]}")
        self.findings.texts += client.problems
        statistics = client.statistics
        if not statistics.is_balanced:
            self.findings.add("client ledger", f"{client.name}: {statistics}")
        if client.fate not in ("closed", "killed"):
            self.findings.add("liveness", f"{client.name} is {client.fate}: {statistics}")
            return
        if self._was_rolled_back(client):
            if not self._was_delivered_before(client):
                self._check_spooled(client, there)
            return
        if client.fate == "closed":
            self._check_closed(client, mine, there)
        else:
            self._check_killed(client, mine, there)
        self._check_kept(client, mine, there)

    def _was_rolled_back(self, client: Client) -> bool:
        """Whether nobody is there to send again what a rollback took of this client.

        It ended before it heard of the rollback. Or what it left had been delivered by then: a
        deliverer keeps what is acknowledged no longer than the writer itself would have.
        """
        return client.generation in self._rolled_back or self._was_delivered_before(client)

    def _was_delivered_before(self, client: Client) -> bool:
        delivered = [self.delivered.get(writer_id) for writer_id in client.all_writer_ids]
        return any(generation in self._rolled_back for generation in delivered)

    def _check_spooled(self, client: Client, there: list[int]) -> None:
        """What was on the disk then is delivered all the same."""
        spooled = client.statistics.spooled
        is_excused = client.host.is_tampered or self.has_clones or self.has_poison
        if len(there) < spooled and not is_excused:
            text = f"{client.name}: {len(there)} there; {client.statistics}"
            self.findings.add("spooled and gone", text)

    def _check_closed(self, client: Client, mine: list[int], there: list[int]) -> None:
        assert client.info is not None
        statistics = client.info.statistics
        lost = Counter(statistics.losses)
        dropped = lost.pop("drop_new", 0) + lost.pop("spool_full", 0)
        if statistics.in_flight:
            self.findings.add("in flight", f"{client.name}: {statistics}")
        shed = statistics.lost.get("spool_full", 0)
        if statistics.accepted != len(mine) + dropped - shed:
            self.findings.add("accepted", f"{client.name}: {statistics}, logged {len(mine)}")
        unexpected = set(lost) - self._may_be_lost(client)
        if unexpected:
            self.findings.add("lost", f"{client.name}: {dict(lost)}")
        expected = statistics.committed + statistics.spooled
        # What was given up while it was under way may have arrived all the same; and a copy of
        # what a restored server had lost before the word that nobody has it any more.
        most = expected + lost["closed"] + lost["server_rollback"]
        is_kept = not (client.host.is_tampered or self.has_clones or self.has_poison)
        least = self._least_committed(client) + (statistics.spooled if is_kept else 0)
        if not least <= len(there) <= most:
            text = f"{client.name}: {len(there)} there, {least} to {most} expected; {statistics}"
            self.findings.add("conservation", text)

    def _least_committed(self, client: Client) -> int:
        """Points that must be there because the client knows them to be stored."""
        return 0 if is_twice_unsure(client, self._rolled_back) else client.statistics.committed

    def _may_be_lost(self, client: Client) -> set[str]:
        """Reasons for which this client may have lost points."""
        reasons = set()
        if self._rolled_back:
            reasons.add("server_rollback")
            if client.habits.close_s < 60:
                # It heard of the rollback while it was leaving, with no time to send again.
                reasons.add("closed")
        if not client.habits.spools or not client.host.is_prompt:
            reasons.add("closed")
        if _may_be_damaged(client):
            reasons.add("spool_damaged")
        if self.has_poison:
            reasons.update(client.statistics.rejected)
        return reasons

    def _check_killed(self, client: Client, mine: list[int], there: list[int]) -> None:
        """What a dead client leaves behind: what it had kept, and all but its last moments."""
        statistics = client.statistics
        least = self._least_committed(client)
        is_kept = not (client.host.is_tampered or self.has_clones or self.has_poison)
        least += statistics.spooled if is_kept else 0
        if least > len(there):
            text = f"{client.name}: {len(there)} there, {statistics}"
            self.findings.add("kept and gone", text)
        if not (self._rolled_back or self.has_poison or _may_be_damaged(client)):
            self._check_holes(client, mine, set(there))
        is_prompt = client.habits.spools and client.host.is_prompt and not client.was_paused
        is_prompt &= not (self.has_clones or self.has_poison)
        if is_prompt and not client.host.is_tampered:
            self._check_old(client, mine)

    def _check_old(self, client: Client, mine: list[int]) -> None:
        """All but what a dead client logged in its last moments."""
        statistics, died_s = client.statistics, client.process.died_s
        moment_s = POWER_MOMENT_S if client.lost_power else KILL_MOMENT_S
        moment_s += DISK_CALLS * client.host.disk_s
        late = [
            v for v in mine if v not in self.stored and self._book.logged_s[v] < died_s - moment_s
        ]
        # Old points that a restored server had lost: those beyond the retention were declared,
        # and the others have as long to get to the disk again as new ones.
        excused = statistics.lost.get("server_rollback", 0)
        if died_s - client.queued_again_s < moment_s:
            excused += statistics.in_flight
        if len(late) > excused:
            ages = [round(died_s - self._book.logged_s[v], 3) for v in late[:5]]
            text = f"{client.name}: {len(late)} of {len(mine)}, ages {ages} s; {statistics}"
            self.findings.add("old and gone", text)

    def _check_holes(self, client: Client, mine: list[int], there: set[int]) -> None:
        """In every series, the beginning of what it logged.

        But for what it had to shed while neither the server nor the disk took anything.
        """
        by_series: dict[tuple[str, str | None], list[int]] = defaultdict(list)
        for value in sorted(mine):
            point = self._book.points[value]
            by_series[point.metric, point.env_id].append(value)
        holes: dict[tuple[str, str | None], list[int]] = {}
        for key, values in by_series.items():
            last = max((v for v in values if v in there), default=0)
            missing = [v for v in values if v < last and v not in there]
            if missing:
                holes[key] = missing
        shed = client.statistics.lost.get("spool_full", 0)
        if sum(map(len, holes.values())) > shed:
            for key, missing in holes.items():
                self.findings.add("hole", f"{client.name} {key}: {missing[:40]}, {shed} shed")

    def _check_kept(self, client: Client, mine: list[int], there: list[int]) -> None:
        """Whatever a flush said is kept is there at the end, or was declared lost.

        A rollback takes that back: what was stored is in the client's memory again, until the
        disk or the server has it once more. Who is killed before that loses it.
        """
        is_excused = client.host.is_tampered or self.has_clones or self.has_poison
        since_s = self.rolled_back_s if client.fate == "killed" else float("-inf")
        flushed = [covered for covered, at_s in client.flushed if at_s > since_s]
        if not flushed or is_excused:
            return
        present = set(there)
        missing = [v for v in mine if v < flushed[-1] and v not in present]
        declared = Counter(client.statistics.losses)
        del declared["drop_new"]
        if len(missing) > declared.total():
            text = f"{client.name}: {len(missing)} flushed and gone, {dict(declared)} declared"
            self.findings.add("flush lied", text)


def is_twice_unsure(client: Client, rolled_back: set[str]) -> bool:
    """Whether nobody can say any more what of this client's acknowledged points is stored.

    A restored server takes new batches of one clone in the places of those that it has lost of
    another. Its marks are as they were before the rollback then, and the other sends nothing
    again; nor does who has taken a new name send what was stored under the old one.
    """
    return client.is_cloned and bool(rolled_back)


def _may_be_damaged(client: Client) -> bool:
    return client.host.is_tampered or client.lost_power
