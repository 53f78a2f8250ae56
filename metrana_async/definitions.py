"""Series definitions, checked once per spelling: names and labels do not change between calls."""

from __future__ import annotations

from typing import Any, Final

from metrana_async.columns.names import check_labels, check_metric_name, check_scale
from metrana_async.wire.model import Family, Ordering, SeriesDef

_KEPT: Final = 100_000


class DefinitionCache:
    """Remembers checked definitions by what the caller wrote. Thread-safe.

    Only plain spellings are remembered (exact str, a dict of them, True, False or None); anything
    else takes the full check in every call.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], SeriesDef] = {}

    def resolve(
        self,
        family: Family,
        metric_name: Any,
        *,
        scale: Any,
        labels: Any,
        evaluation: Any,
        ordering: Ordering,
        episodic: bool | None = None,
    ) -> SeriesDef:
        """The checked definition of a series.

        Raises:
            InvalidTypeError, InvalidNameError: see `columns.names`.
        """
        spelled = None if labels is None else _spelled(labels)
        is_plain = (
            type(metric_name) is str
            and (scale is None or type(scale) is str)
            and (evaluation is None or evaluation is True or evaluation is False)
            and (labels is None or spelled is not None)
        )
        key = (family, metric_name, scale, spelled, evaluation is True, ordering, episodic)
        if is_plain:
            known = self._known.get(key)
            if known is not None:
                return known
        definition = SeriesDef(
            family,
            check_metric_name(metric_name),
            check_scale(scale),
            check_labels(labels, evaluation),
            ordering,
            episodic,
        )
        if is_plain and len(self._known) < _KEPT:
            self._known[key] = definition
        return definition


def _spelled(labels: Any) -> tuple[tuple[str, str], ...] | None:
    """A hashable spelling of plain labels, or None where only the full check will do."""
    if type(labels) is not dict:
        return None
    items = tuple(labels.items())
    is_plain = all(type(k) is str and type(v) is str for k, v in items)
    return items if is_plain else None
