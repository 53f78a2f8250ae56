"""What waits to be stored, by client: one that sends much does not make the others wait. Pure.

Clients take turns, one request each, in the order in which they began to wait. The bound in bytes
is shared by the rule of dynamic thresholds: a client that has something waiting may add to it up to
what is still free, so that k greedy ones leave a (k+1)th of the room to whoever comes next; and a
client that has nothing waiting is admitted as long as anything is free.
"""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from typing import Final, Generic, TypeVar

from metrana_async.wire.frames import first_batch_start

_SENDER: Final = re.compile(rb'"writer":"([0-9a-f]{32})"')
_SENDER_BYTES: Final = 128

_Item = TypeVar("_Item")


def sender_of(body: bytes) -> str:
    """Which writer a request seems to be of; "" where that is not seen at once.

    Looks at the beginning of the first batch only, and checks nothing: it is for taking turns.
    """
    found = _SENDER.search(first_batch_start(body, _SENDER_BYTES))
    return found[1].decode() if found else ""


class FairQueue(Generic[_Item]):
    """Requests of many clients. Not thread-safe."""

    def __init__(self, bytes_max: int) -> None:
        """Make an empty queue; a single request may exceed what is free of `bytes_max`."""
        self.nbytes = 0
        self._bytes_max = bytes_max
        self._waiting: OrderedDict[str, deque[tuple[int, _Item]]] = OrderedDict()
        """In the order of their turns; nobody without a request is in it."""
        self._bytes_of: dict[str, int] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nobody waits."""
        return not self._waiting

    def admits(self, client: str, nbytes: int) -> bool:
        """Whether a request of this client may wait here now."""
        free = self._bytes_max - self.nbytes
        own = self._bytes_of.get(client)
        return free > 0 if own is None else own + nbytes <= free

    def credit_bytes(self, client: str, *, also_active: int = 0) -> int:
        """How much this client may send next, for all that are active to fit in; may be negative.

        `also_active` counts clients that have nothing waiting and are about to come back.
        """
        others = len(self._waiting) - (client in self._waiting) + also_active
        free = self._bytes_max - self.nbytes
        return free // (2 + others) - self._bytes_of.get(client, 0)

    def push(self, client: str, nbytes: int, item: _Item) -> None:
        """Let a request wait, behind those of its client."""
        self._waiting.setdefault(client, deque()).append((nbytes, item))
        self._bytes_of[client] = self._bytes_of.get(client, 0) + nbytes
        self.nbytes += nbytes

    def take(self, *, bytes_max: int, count_max: int) -> list[_Item]:
        """Take requests out, one client after the other; at least one where there is any."""
        taken: list[_Item] = []
        left = bytes_max
        while self._waiting and len(taken) < count_max:
            client, requests = next(iter(self._waiting.items()))
            nbytes, item = requests[0]
            if taken and nbytes > left:
                break
            requests.popleft()
            taken.append(item)
            left -= nbytes
            self._remove_bytes(client, nbytes)
            if requests:
                self._waiting.move_to_end(client)
            else:
                del self._waiting[client]
        return taken

    def _remove_bytes(self, client: str, nbytes: int) -> None:
        self.nbytes -= nbytes
        self._bytes_of[client] -= nbytes
        if len(self._waiting[client]) == 0:
            del self._bytes_of[client]
