"""The garbage collector, while very many objects are built that are all going to stay."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Final

BIG_ANSWER_BYTES: Final = 1 << 20
"""An answer from this size on has so many objects that decoding it is worth a rest."""


@contextlib.contextmanager
def collector_resting(*, rests: bool = True) -> Iterator[None]:
    """Keep the collector from walking, again and again, what is only being built.

    A hundred thousand rows take half the time without it. Does nothing where `rests` is false or
    the program has switched the collector off itself.
    """
    is_ours = rests and gc.isenabled()
    if is_ours:
        gc.disable()
    try:
        yield
    finally:
        if is_ours:
            gc.enable()
