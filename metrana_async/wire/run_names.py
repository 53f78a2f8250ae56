"""Readable names for runs that were given none."""

from __future__ import annotations

import secrets
from typing import Final

_ADJECTIVES: Final = (
    *("amber", "brave", "bright", "calm", "clever", "cosmic", "crisp", "eager", "early", "gentle"),
    *("golden", "happy", "hidden", "icy", "jolly", "keen", "lively", "lucky", "mellow", "mighty"),
    *("misty", "nimble", "noble", "polar", "proud", "quick", "quiet", "rapid", "silent", "silver"),
    *("sleek", "smooth", "snowy", "solar", "steady", "swift", "tidy", "vivid", "warm", "wise"),
)
_NOUNS: Final = (
    *("badger", "birch", "brook", "canyon", "cedar", "cliff", "cloud", "comet", "coral", "crane"),
    *("delta", "dune", "eagle", "ember", "fern", "finch", "fjord", "forest", "glade", "harbor"),
    *("heron", "hill", "island", "lake", "lark", "lynx", "maple", "meadow", "moss", "oak"),
    *("orchid", "otter", "owl", "pine", "raven", "river", "robin", "spruce", "summit", "willow"),
)


def generate_run_name() -> str:
    """A name such as ``swift-otter-482``."""
    number = secrets.randbelow(900) + 100
    return f"{secrets.choice(_ADJECTIVES)}-{secrets.choice(_NOUNS)}-{number}"
