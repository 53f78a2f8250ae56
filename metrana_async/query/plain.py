"""Numbers as callers have them, and as a question carries them."""

from __future__ import annotations

import operator
from typing import Any


def plain(number: Any) -> Any:
    """An integer of any library as an int; anything else as it is, for the encoder to refuse."""
    try:
        return operator.index(number)
    except TypeError:
        return number
