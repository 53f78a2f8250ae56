"""Episode bookkeeping for RL code: what `env.step` returned in, what the RL functions take out.

Pure, numpy only; loaded on first use. `tracker` holds the state between rollouts, `rollouts` reads
the caller's arrays, `segments` cuts a block into stretches of one episode, `blocks` is the result,
`numbers` gives episodes their numbers.
"""

from metrana_async.rl.blocks import EndedEpisodes, EpisodeBlock
from metrana_async.rl.numbers import EpisodeAllocator, EpisodeKeys, EpisodeLeases
from metrana_async.rl.segments import Autoreset
from metrana_async.rl.tracker import EpisodeTracker

__all__ = [
    "Autoreset",
    "EndedEpisodes",
    "EpisodeAllocator",
    "EpisodeBlock",
    "EpisodeKeys",
    "EpisodeLeases",
    "EpisodeTracker",
]
