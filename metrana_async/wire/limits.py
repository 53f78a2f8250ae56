"""Every bound of names, batches and requests, in one place. Units are in the names."""

from __future__ import annotations

from typing import Final

STEP_MAX: Final = 2**63 - 1
TIME_MS_MAX: Final = 2**53

METRIC_NAME_BYTES: Final = 256
SCALE_BYTES: Final = 64
LABEL_KEY_BYTES: Final = 64
LABEL_VALUE_BYTES: Final = 256
LABELS_COUNT: Final = 16
ENV_ID_BYTES: Final = 128
# One lease of episode numbers.
LEASE_EPISODES: Final = 1 << 32
ATTRIBUTE_PATH_BYTES: Final = 512
ATTRIBUTE_STRING_BYTES: Final = 16_384
RUN_NAME_BYTES: Final = 256

# A batch is sealed when it reaches the target; a frame beyond the hard bound is refused unread.
BATCH_TARGET_BYTES: Final = 1 << 20
FRAME_BODY_BYTES: Final = 8 << 20
FRAME_RAW_BYTES: Final = 16 << 20
BATCH_POINTS: Final = 1 << 20
PAGE_ENTRIES: Final = 1 << 16
PAGES_PER_BATCH: Final = 8
REQUEST_BYTES: Final = 32 << 20
REQUEST_BATCHES: Final = 64

LANES_COUNT: Final = 16

# A writer is live while it has not left and its heartbeat is younger than this.
HEARTBEAT_INTERVAL_S: Final = 15.0
WRITER_LIVE_S: Final = 60.0

# Reads are complete or refused: an answer has at most this many rows.
ANSWER_ROWS: Final = 1 << 24

# Lines of one bucketed answer (run × metric), and the n that may be asked for.
LINES_COUNT: Final = 1000
BUCKETS_COUNT: Final = 4096

# A filter of runs: characters, and levels of parentheses and `not`.
FILTER_CHARS: Final = 16_384
FILTER_DEPTH: Final = 100
# Its regular expressions: characters of one, and characters looked at by all of a filter, where a
# step that was not taken before counts for more.
PATTERN_CHARS: Final = 1_000
PATTERN_WORK: Final = 20_000_000
