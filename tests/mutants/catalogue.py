"""The seeded bugs, one place each, and the tests that must notice."""

from __future__ import annotations

from typing import Final, NamedTuple

LANE = "metrana_async/delivery/lane.py"
OUTBOX = "metrana_async/delivery/outbox.py"
RETRY = "metrana_async/delivery/retry.py"
SPOOLING = "metrana_async/delivery/spooling.py"
SEGMENT = "metrana_async/spool/segment.py"
SPOOL = "metrana_async/spool/writer.py"
LAYOUT = "metrana_async/spool/layout.py"
LOCK = "metrana_async/spool/lock.py"
FRAMES = "metrana_async/wire/frames.py"
REQUESTS = "metrana_async/server/ingest/requests.py"
SERVICE = "metrana_async/server/ingest/service.py"
POINTS = "metrana_async/server/ingest/rules/points.py"
UNITS = "metrana_async/server/ingest/rules/units.py"
PLAIN = "metrana_async/server/ingest/rules/plain.py"
INTAKE = "metrana_async/intake.py"
SETTLING = "metrana_async/settling.py"
REPLAY = "metrana_async/replay.py"
MEMBERSHIP = "metrana_async/membership.py"
LOOP = "metrana_async/engine/loop_thread.py"

LANES_TESTS: Final = ("tests/unit/delivery",)
SPOOL_TESTS: Final = (
    "tests/unit/spool",
    "tests/property/test_spool_crashes.py",
    "tests/unit/delivery",
)
RULES_TESTS: Final = ("tests/property/test_rules_against_model.py", "tests/unit/server/ingest")
DEDUPE_TESTS: Final = ("tests/unit/server/ingest",)
RUN_TESTS: Final = ("tests/unit/client", "tests/unit/spool")


class Mutant(NamedTuple):
    """One bug.

    Attributes:
        name: what is wrong, in a few words.
        path: the file, from the project's root.
        right: text that stands there exactly once.
        wrong: what stands there instead.
        tests: what must fail.
    """

    name: str
    path: str
    right: str
    wrong: str
    tests: tuple[str, ...]


MUTANTS: Final[tuple[Mutant, ...]] = (
    # --- lanes -------------------------------------------------------------------------------
    Mutant(
        "a sequence is left out",
        LANE,
        "seq=self.sealed_seq + 1,",
        "seq=self.sealed_seq + 2,",
        LANES_TESTS,
    ),
    Mutant(
        "batches are not chained",
        LANE,
        "prev_digest=self._last_digest,",
        "prev_digest=0,",
        LANES_TESTS,
    ),
    Mutant(
        "an answer settles whatever is first",
        LANE,
        "if not self.queue or reply.seq != self.queue[0].seq:",
        "if not self.queue:",
        LANES_TESTS,
    ),
    Mutant(
        "a settled batch without a mark is believed",
        LANE,
        "if is_settled and (acked is None or acked < reply.seq):",
        "if False:",
        LANES_TESTS,
    ),
    Mutant(
        "a rollback sends nothing again",
        LANE,
        "while self.retained and self.retained[-1].seq >= seq:",
        "while False:",
        LANES_TESTS,
    ),
    Mutant(
        "pin conflicts count as committed",
        LANE,
        "sealed.committed = sealed.points_count - conflicts",
        "sealed.committed = sealed.points_count",
        LANES_TESTS,
    ),
    Mutant(
        "retention forgets the newest first",
        LANE,
        "sealed = self.retained.popleft()",
        "sealed = self.retained.pop()",
        LANES_TESTS,
    ),
    Mutant(
        "what is written and not synced is taken from the disk",
        LANE,
        "if is_own and frame.seq > self.durable_seq:",
        "if False:",
        LANES_TESTS,
    ),
    Mutant(
        "a hole is not declared",
        LANE,
        "if frame.seq > self.loaded_seq + 1:",
        "if False:",
        LANES_TESTS,
    ),
    Mutant(
        "the chain breaks behind a hole",
        LANE,
        "stands_for = digest if seq == last_seq else UNKNOWN_DIGEST",
        "stands_for = UNKNOWN_DIGEST",
        LANES_TESTS,
    ),
    Mutant(
        "a hole loses an unknown number of points",
        LANE,
        "points = 0 if self._loaded_total is None else max(0, total - self._loaded_total)",
        "points = 0",
        LANES_TESTS,
    ),
    Mutant(
        "a poison batch blocks its lane",
        LANE,
        "self._put_first(self._stand_in(poison.seq, lost, poison.chain_digest))",
        "self._put_first(poison)",
        LANES_TESTS,
    ),
    # --- outbox and retry ----------------------------------------------------------------------
    Mutant(
        "the echo of an answer is not checked",
        OUTBOX,
        "if (reply.run_uid, reply.writer_id) != (self.run_uid, self.writer_id):",
        "if False:",
        LANES_TESTS,
    ),
    Mutant(
        "credit is ignored",
        OUTBOX,
        "budget = min(self._body_bytes_max, max(self._credit_bytes, 1))",
        "budget = self._body_bytes_max",
        LANES_TESTS,
    ),
    Mutant(
        "pages travel once, asked for or not",
        OUTBOX,
        "self._known_pages.difference_update(answered.pages)",
        "pass",
        LANES_TESTS,
    ),
    Mutant(
        "new points overtake what is on the disk",
        OUTBOX,
        "if any(behind[number] != lane.sealed_seq for number, lane in self.lanes.items()):",
        "if False:",
        LANES_TESTS,
    ),
    Mutant(
        "an old answer rewinds what was acknowledged since",
        OUTBOX,
        "if mark < lane.acked_seq and not has_moved:",
        "if mark < lane.acked_seq:",
        LANES_TESTS,
    ),
    Mutant(
        "back-off overflows after a week",
        RETRY,
        "2.0 ** min(self.failures_count - 1, 10)",
        "2.0 ** (self.failures_count - 1)",
        LANES_TESTS,
    ),
    Mutant(
        "Retry-After is not capped",
        RETRY,
        "return min(max(float(asked), 0.0), RETRY_AFTER_MAX_S)",
        "return float(asked)",
        LANES_TESTS,
    ),
    # --- spool ---------------------------------------------------------------------------------
    Mutant(
        "reading stops at the first damage",
        SEGMENT,
        "resumed = _next_start(data, at + 1, is_end=is_end)",
        "resumed = len(data)",
        SPOOL_TESTS,
    ),
    Mutant(
        "a checksum is not looked at",
        FRAMES,
        "if crc32c.crc32c(body, crc32c.crc32c(cleared)) != crc:",
        "if False:",
        ("tests/unit/wire", "tests/unit/spool"),
    ),
    Mutant(
        "a new segment's name is not synced",
        SPOOL,
        "            self._disk.sync_directory(self.directory)\n        except OSError:\n"
        "            self._close(handle)",
        "            pass\n        except OSError:\n            self._close(handle)",
        SPOOL_TESTS,
    ),
    Mutant(
        "what a failed sync had is not written again",
        SPOOLING,
        "            sealed.is_written = False\n        self._written = []",
        "            pass\n        self._written = []",
        SPOOL_TESTS,
    ),
    Mutant(
        "what is written counts as durable",
        SPOOLING,
        "            self._written += part",
        "            self._written += part\n            self._outbox.note_durable(part)",
        SPOOL_TESTS,
    ),
    Mutant(
        "segments go before they are acknowledged",
        SPOOL,
        "return all(seq <= acked.get(lane, 0) for lane, seq in segment.last_seq.items())",
        "return any(seq <= acked.get(lane, 0) for lane, seq in segment.last_seq.items())",
        SPOOL_TESTS,
    ),
    Mutant(
        "a segment leans on the names of another",
        SPOOL,
        "new = [d for d in frame.pages if d not in segment.pages and d not in pages]",
        "new = [d for d in frame.pages if d not in self._named and d not in pages]",
        SPOOL_TESTS,
    ),
    Mutant(
        "the quota is not kept",
        SPOOL,
        "left = self._quota_bytes - self.nbytes",
        "left = 1 << 40",
        SPOOL_TESTS,
    ),
    Mutant(
        "small files are renamed before they are synced",
        LAYOUT,
        "        disk.append(handle, data)\n        disk.sync(handle)\n",
        "        disk.append(handle, data)\n",
        SPOOL_TESTS,
    ),
    Mutant(
        "a child keeps its parent's locks",
        LOCK,
        "        if _is_ours(handle, file):\n            os.close(handle)",
        "        if not _is_ours(handle, file):\n            os.close(handle)",
        ("tests/unit/spool/test_lock.py",),
    ),
    # --- the server's dedupe ---------------------------------------------------------------------
    Mutant(
        "a batch is stored twice",
        REQUESTS,
        "if frame.seq <= mark.seq:",
        "if frame.seq < mark.seq:",
        DEDUPE_TESTS,
    ),
    Mutant(
        "a hole in a lane is taken",
        REQUESTS,
        "if frame.seq > mark.seq + 1:",
        "if False:",
        DEDUPE_TESTS,
    ),
    Mutant(
        "a clone's bytes pass for our own",
        REQUESTS,
        "elif known is not None and known != digest:",
        "elif False:",
        DEDUPE_TESTS,
    ),
    Mutant(
        "a clone far behind passes for a retry",
        REQUESTS,
        "elif mark.has_outgrown(frame.seq):",
        "elif False:",
        DEDUPE_TESTS,
    ),
    Mutant(
        "a server that was restarted knows no digests",
        "metrana_async/server/store/sqlite/catalogue.py",
        "x.recent)",
        'b"")',
        DEDUPE_TESTS,
    ),
    Mutant(
        "the chain is not checked",
        REQUESTS,
        "if sent.batch.prev_digest != mark.digest and not _follows_anything(sent.batch):",
        "if False:",
        DEDUPE_TESTS,
    ),
    Mutant(
        "a rejected batch takes no sequence",
        REQUESTS,
        'self.run.count({"rejected": frame.points_count} if frame.points_count else {})\n'
        "        self._advance(mark.followed_by(frame.digest))",
        'self.run.count({"rejected": frame.points_count} if frame.points_count else {})',
        DEDUPE_TESTS,
    ),
    Mutant(
        "what was judged stays when its commit fails",
        SERVICE,
        "            for run_no in changes.runs:\n                self._forget(run_no)\n"
        "            raise",
        "            raise",
        DEDUPE_TESTS,
    ),
    # --- rules -----------------------------------------------------------------------------------
    Mutant(
        "an automatic number is used again",
        POINTS,
        "return np.where(is_auto, before + 1, steps), ~is_auto & (steps <= before)",
        "return np.where(is_auto, before, steps), ~is_auto & (steps <= before)",
        RULES_TESTS,
    ),
    Mutant(
        "automatic numbers forget a step given between them",
        POINTS,
        "level = _grouped_cummax(level, heads, sizes)",
        "level = level + 0",
        RULES_TESTS,
    ),
    Mutant(
        "an old writer's late point replaces a newer one's",
        POINTS,
        "is_stored = ~(low & np.isin(holder, newer))",
        "is_stored = np.ones(len(rows), np.bool_)",
        RULES_TESTS,
    ),
    Mutant(
        "a late row alone replaces a newer one's",
        POINTS,
        "if view.is_newer(holder, writer):",
        "if False:",
        RULES_TESTS,
    ),
    Mutant(
        "an episode that begins again goes on instead",
        UNITS,
        "if is_opening and not is_late:",
        "if False:",
        RULES_TESTS,
    ),
    Mutant(
        "points sent again within an rl_step are numbered on",
        UNITS,
        "skip = min(max(own.last_minor - start + 1, 0), segment.length)",
        "skip = 0",
        RULES_TESTS,
    ),
    Mutant(
        "a dead writer's late batch restarts an episode",
        UNITS,
        "        if self.writers.is_live(self.writer):\n            return []\n"
        "        spans = dict(others.spans)",
        "        return []\n        spans = dict(others.spans)",
        RULES_TESTS,
    ),
    Mutant(
        "a restart keeps the old generation",
        UNITS,
        "generation, discarded = unit[UNIT_GENERATION] + 1, unit[UNIT_COUNT]",
        "generation, discarded = unit[UNIT_GENERATION], unit[UNIT_COUNT]",
        RULES_TESTS,
    ),
    Mutant(
        "a late segment takes steps that are taken",
        UNITS,
        "is_free = ~np.isin(steps, taken)",
        "is_free = np.ones(segment.length, np.bool_)",
        RULES_TESTS,
    ),
    Mutant(
        "the vector pass takes what comes back to an earlier place",
        PLAIN,
        "grows = (rl > last_rl) | ((rl == last_rl) & is_behind)",
        "grows = rl >= last_rl",
        ("tests/property/test_rules_vector.py", *RULES_TESTS),
    ),
    # --- the ledger and the waits ----------------------------------------------------------------
    Mutant(
        "dropped points are not declared",
        INTAKE,
        "self._undeclared[reason] += points",
        "pass",
        RUN_TESTS,
    ),
    Mutant(
        "a flush does not wait",
        SETTLING,
        "            if is_reached():\n                return",
        "            if True:\n                return",
        RUN_TESTS,
    ),
)
