"""Names as they may be logged: metrics, scales, labels, environments, attribute paths.

Pure. A refusal names the character and its position; nothing is repaired, shortened or folded, so
names that differ stay different. Callers keep what passed in a dict: a name is checked once, not
once a call.
"""

from __future__ import annotations

import enum
import unicodedata
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from metrana_async.errors import InvalidNameError, InvalidTypeError
from metrana_async.wire import limits
from metrana_async.wire.model import DEFAULT_ENV, ML_STEP

Labels = tuple[tuple[str, str], ...]

_REFUSED_CATEGORIES: Final = {
    "Cc": "a control character",
    "Cf": "an invisible format character",
    "Cs": "a lone surrogate",
    "Zl": "a line separator",
    "Zp": "a paragraph separator",
}
# The joiners are part of how emoji and several scripts are written.
_JOINERS: Final = "\u200c\u200d"
_NOT_IN_ENV_IDS: Final = frozenset("/\\?#%")

_CHECKED_IDS_MAX: Final = 1 << 16
_checked_ids: dict[str, str] = {}
"""Environment ids that passed, bounded: thousands of them come again with every call."""


def check_metric_name(name: Any) -> str:
    """Return `name` as an exact str: 1..256 UTF-8 bytes, printable, no white space at its ends.

    Raises:
        InvalidTypeError: it is not a str.
        InvalidNameError: it is empty, too long or holds a character that is not allowed.
    """
    return _checked(name, "metric name", limits.METRIC_NAME_BYTES)


def check_scale(scale: Any) -> str:
    """Return the scale as an exact str of 1..64 bytes; None is ML_STEP.

    An enum member whose value is a str stands for that str. Raises as `check_metric_name`.
    """
    if scale is None:
        return ML_STEP
    if isinstance(scale, enum.Enum) and not isinstance(scale, str):
        scale = scale.value
    return _checked(scale, "scale", limits.SCALE_BYTES)


def check_labels(labels: Any, evaluation: Any = None) -> Labels:
    """Return the labels as pairs sorted by key.

    `evaluation=True` is the label ``evaluation=true`` unless the key is there already; False and
    None add nothing.

    Raises:
        InvalidTypeError: `labels` is not a mapping of str to str, `evaluation` not a bool or None.
        InvalidNameError: a key or value has a character or length that is not allowed, or there
            are more than 16 labels.
    """
    if evaluation is not None and not isinstance(evaluation, bool | np.bool_):
        raise InvalidTypeError(f"evaluation is {_described(evaluation)}; it is True, False or None")
    if labels is None:
        return (("evaluation", "true"),) if evaluation else ()
    if not isinstance(labels, Mapping):
        raise InvalidTypeError(f"labels is {_described(labels)}, not a mapping of str to str")
    checked = {_checked(k, "label key", limits.LABEL_KEY_BYTES): _label_value(k, labels[k])
               for k in labels}  # fmt: skip
    if evaluation:
        checked.setdefault("evaluation", "true")
    if len(checked) > limits.LABELS_COUNT:
        raise InvalidNameError(f"{len(checked)} labels are more than {limits.LABELS_COUNT}")
    return tuple(sorted(checked.items()))


def check_env_id(env_id: Any) -> str:
    r"""Return an environment id as an exact str: 1..128 bytes, URL-safe; None is ``default``.

    Raises:
        InvalidTypeError: it is not a str.
        InvalidNameError: it is empty, too long, ``.`` or ``..``, or holds one of ``/ \ ? # %``,
            white space or a control character.
    """
    return DEFAULT_ENV if env_id is None else _checked_env_id(env_id, "env_id")


def check_env_ids(env_ids: Any) -> tuple[str, ...]:
    """Return a list, tuple or numpy string array of ids as a tuple of exact, distinct str.

    Raises:
        InvalidTypeError: it is none of those, or an element is not a str.
        InvalidNameError: an id is not allowed, or occurs twice; the message has both positions.
    """
    checked = check_repeatable_env_ids(env_ids)
    if len(set(checked)) < len(checked):
        first_position: dict[str, int] = {}
        for position, env_id in enumerate(checked):
            earlier = first_position.setdefault(env_id, position)
            if earlier != position:
                raise InvalidNameError(
                    f"env_id {env_id!r} occurs twice, at positions {earlier} and {position}"
                )
    return checked


def check_repeatable_env_ids(env_ids: Any) -> tuple[str, ...]:
    """Like `check_env_ids`, but an id may occur again: one row per episode that ended."""
    if isinstance(env_ids, np.ndarray):
        if env_ids.ndim != 1 or env_ids.dtype.kind not in "UOT":
            raise InvalidTypeError(
                f"env_id is an array of {env_ids.dtype} {list(env_ids.shape)}; "
                "it is a 1-D array of str"
            )
        env_ids = env_ids.tolist()
    if not isinstance(env_ids, list | tuple):
        raise InvalidTypeError(
            f"env_id is {_described(env_ids)}; it is a str, or a list, tuple or array of str"
        )
    try:
        return tuple(map(_checked_ids.__getitem__, env_ids))
    except (KeyError, TypeError):  # one is new, or is no id
        checked = [_checked_env_id(x, f"env_id[{i}]") for i, x in enumerate(env_ids)]
    return tuple(checked)


def check_attribute_path(path: Any) -> str:
    """Return an attribute path as an exact str: 1..512 bytes, printable.

    Raises as `check_metric_name`. White space at the ends is kept: it occurs in configuration keys.
    """
    return _checked(path, "attribute path", limits.ATTRIBUTE_PATH_BYTES, has_free_ends=True)


def check_name(kind: str, name: Any) -> str:
    """Return a workspace, project, run or tag name as an exact str: 1..256 bytes, printable.

    `kind` is what messages call it. Raises as `check_metric_name`.
    """
    return _checked(name, kind, limits.RUN_NAME_BYTES, has_free_ends=True)


def _label_value(key: Any, value: Any) -> str:
    what = f"labels[{str(key)!r}]"
    if isinstance(value, str) and not value:
        return ""
    return _checked(value, what, limits.LABEL_VALUE_BYTES, has_free_ends=True)


def _checked_env_id(env_id: Any, what: str) -> str:
    known = _checked_ids.get(env_id) if isinstance(env_id, str) else None
    if known is not None:
        return known
    checked = _checked(env_id, what, limits.ENV_ID_BYTES)
    if checked in {".", ".."}:
        raise InvalidNameError(f"{what} {checked!r} means a directory, it cannot be an id")
    for position, character in enumerate(checked):
        if character in _NOT_IN_ENV_IDS or character.isspace():
            raise InvalidNameError(
                f"{what} {checked!r}: {character!r} at position {position} is not URL-safe"
            )
    if len(_checked_ids) >= _CHECKED_IDS_MAX:
        _checked_ids.clear()
    _checked_ids[checked] = checked
    return checked


def _checked(name: Any, what: str, bytes_max: int, *, has_free_ends: bool = False) -> str:
    if not isinstance(name, str):
        raise InvalidTypeError(f"{what} is {_described(name)}, not a str")
    # A subclass (numpy's str_, a str enum) may print itself otherwise: take its characters.
    text = str.__str__(name)
    if not text:
        raise InvalidNameError(f"{what} is empty")
    if not text.isprintable():
        _refuse_unprintable(text, what)
    size = len(text.encode())
    if size > bytes_max:
        raise InvalidNameError(f"{what} {text[:40]!r}… has {size} bytes, more than {bytes_max}")
    if not has_free_ends and text.strip() != text:
        position = 0 if text[0].isspace() else len(text) - 1
        raise InvalidNameError(
            f"{what} {text!r}: {text[position]!r} at position {position} is white space at an end"
        )
    return text


def _refuse_unprintable(text: str, what: str) -> None:
    for position, character in enumerate(text):
        reason = _REFUSED_CATEGORIES.get(unicodedata.category(character))
        if reason is not None and character not in _JOINERS:
            raise InvalidNameError(
                f"{what} {text!r}: U+{ord(character):04X} at position {position} is {reason}"
            )


def _described(value: Any) -> str:
    """`value` in a message: its type, and its repr where that is short."""
    kind = type(value).__name__
    shown = repr(value) if isinstance(value, int | float | str | bytes | None) else ""
    return f"a {kind} ({shown})" if shown and len(shown) <= 40 else f"a {kind}"
