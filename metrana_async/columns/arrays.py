"""From what callers hold in their hands to numpy: lists, tensors, anything with an array protocol.

Pure, and blind to which libraries exist: a tensor is recognised by the protocol it speaks and, for
the few that need a word first (detach, copy to the host), by the module of its type. Nothing here
imports torch, jax, tensorflow or cupy.

Two questions are answered: *is it one number, a (nested) list, or an array* (`to_numpy`), and
*where in it is the element to complain about* (`locate`).
"""

from __future__ import annotations

import array
import collections
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from metrana_async.errors import InvalidShapeError, InvalidTypeError

AnyArray = npt.NDArray[Any]
BoolArray = npt.NDArray[np.bool_]

_SEQUENCES: Final = (list, tuple, range, collections.deque)
_PLAIN_NUMBERS: Final = frozenset({float, int, bool})


def is_sequence(value: Any) -> bool:
    """True for what is read element by element: list, tuple, range, deque."""
    return isinstance(value, _SEQUENCES)


def to_numpy(value: Any, what: str) -> AnyArray:
    """View `value` (a numpy scalar or anything with an array protocol) as a numpy array.

    The result may alias the caller's memory. Masked arrays stay masked arrays.

    Raises:
        InvalidTypeError: it speaks no array protocol, or its library refuses.
    """
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, np.generic):
        return np.asarray(value)
    try:
        found = _through_protocol(value)
    except Exception as error:  # whatever a foreign library raises, the argument is at fault
        raise InvalidTypeError(
            f"{what} is a {_type_name(value)} that does not become an array: {error}"
        ) from error
    if found is None:
        raise InvalidTypeError(f"{what} is {_shown(value)}, which is not a number")
    return found


def _through_protocol(value: Any) -> AnyArray | None:
    library = type(value).__module__.partition(".")[0]
    if library == "torch" or (hasattr(value, "detach") and hasattr(value, "cpu")):
        return _from_torch(value)
    if hasattr(value, "__cuda_array_interface__") and hasattr(value, "get"):
        return np.asarray(value.get())  # cupy copies to the host only when told to
    if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
        return np.asarray(value)
    if isinstance(value, array.array | memoryview):
        return np.asarray(value)
    if hasattr(value, "__dlpack__"):
        return np.from_dlpack(value)
    return None


def _from_torch(tensor: Any) -> AnyArray:
    tensor = tensor.detach()
    dtype = str(tensor.dtype)
    if dtype == "torch.bfloat16" or dtype.startswith("torch.float8"):
        tensor = tensor.float()  # numpy has no such type; float32 holds every value of it
    tensor = tensor.cpu()
    if hasattr(tensor, "resolve_neg"):
        tensor = tensor.resolve_neg()
    return np.asarray(tensor.numpy())


def flatten_sequence(value: Sequence[Any], what: str) -> tuple[list[Any], tuple[int, ...]]:
    """Flatten a rectangular nest of sequences into its leaves and its shape.

    Leaves are anything that is not a sequence; arrays among them are left whole.

    Raises:
        InvalidShapeError: it is ragged; the message has the position of the odd row.
    """
    leaves = list(value)
    shape = [len(leaves)]
    while leaves and _is_nested(leaves):
        width = len(leaves[0]) if is_sequence(leaves[0]) else -1
        if not all(map(is_sequence, leaves)) or set(map(len, leaves)) != {width}:
            _refuse_ragged(leaves, shape, what)
        leaves = list(chain.from_iterable(leaves))
        shape.append(width)
    return leaves, tuple(shape)


def _is_nested(leaves: list[Any]) -> bool:
    types = set(map(type, leaves))
    return not types <= _PLAIN_NUMBERS and any(issubclass(t, _SEQUENCES) for t in types)


def _refuse_ragged(rows: list[Any], shape: list[int], what: str) -> None:
    def extent(row: Any) -> str:
        return f"has {len(row)} elements" if is_sequence(row) else "is no list"

    for number, row in enumerate(rows):
        if extent(row) != extent(rows[0]):
            here = position_text(number, tuple(shape))
            raise InvalidShapeError(
                f"{what} is ragged: {what}{position_text(0, tuple(shape))} {extent(rows[0])}, "
                f"{what}{here} {extent(row)}"
            )


def position_text(flat: int, shape: tuple[int, ...]) -> str:
    """Where the flat index lies: ``[3, 17]``; empty for a scalar."""
    if not shape:
        return ""
    return str([int(i) for i in np.unravel_index(flat, shape)])


def first_position(bad: npt.ArrayLike) -> tuple[int, str]:
    """Flat index of the first True of `bad`, and its position text."""
    flags = np.asarray(bad)
    flat = int(np.argmax(flags))
    return flat, position_text(flat, flags.shape)


def locate(leaves: list[Any], shape: tuple[int, ...], is_bad: Callable[[Any], bool]) -> str:
    """Position text of the first leaf that is bad; empty where none is."""
    for flat, leaf in enumerate(leaves):
        if is_bad(leaf):
            return position_text(flat, shape)
    return ""


def masked_leaves(leaves: list[Any], keep: BoolArray, filler: float) -> list[Any]:
    """Put `filler` in place of the leaves that `keep` hides, so that nobody looks at them."""
    return [
        leaf if kept else filler for leaf, kept in zip(leaves, keep.ravel().tolist(), strict=True)
    ]


def _shown(value: Any) -> str:
    """The value for a message: its type and, where that says something, its text."""
    if value is None:
        return "None"
    if isinstance(value, str | bytes | complex):
        return f"the {_type_name(value)} {value!r:.60}"
    return f"a {_type_name(value)}"


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
