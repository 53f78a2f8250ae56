"""Answers as data frames: numpy columns to pandas, polars and Arrow, with the dtypes they have.

The three libraries are optional and imported when asked for. Integers stay int64, floats keep
their width, names behind codes become categoricals, times are timestamps in ms (UTC, naive), and
what some rows lack is NaN in a column of numbers and None in any other. Values of several types in
one column stay as they are in pandas and become JSON text in polars and Arrow, which have no such
columns.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np
import orjson

_Row = TypeVar("_Row")


class Frames:
    """What has columns can be a data frame."""

    __slots__ = ()

    def columns(self) -> dict[str, Any]:
        """The columns by name: arrays of one length."""
        raise TypeError(f"{type(self).__name__} has no columns")

    def categories(self) -> Mapping[str, Sequence[str]]:
        """Of columns that hold codes: the names they are positions in."""
        return {}

    def to_pandas(self) -> Any:
        """The columns as a pandas DataFrame; ImportError saying how to get pandas without it."""
        pandas = _library("pandas", "to_pandas")
        columns = dict(self.columns())
        for name, names in self.categories().items():
            columns[name] = pandas.Categorical.from_codes(columns[name], categories=list(names))
        return pandas.DataFrame(columns)

    def to_polars(self) -> Any:
        """The columns as a polars DataFrame; ImportError saying how to get polars without it."""
        polars = _library("polars", "to_polars")
        series = []
        categories = self.categories()
        for name, column in self.columns().items():
            if name in categories:
                names = list(categories[name])
                values = [names[code] for code in column.tolist()]
                series.append(polars.Series(name, values, dtype=polars.Enum(names)))
            elif column.dtype == object:
                series.append(polars.Series(name, _uniform(column)))
            else:
                series.append(polars.Series(name, column))
        return polars.DataFrame(series)

    def to_arrow(self) -> Any:
        """The columns as a pyarrow Table; ImportError saying how to get pyarrow without it."""
        arrow = _library("pyarrow", "to_arrow")
        categories = self.categories()
        arrays = {}
        for name, column in self.columns().items():
            if name in categories:
                names = arrow.array(list(categories[name]), type=arrow.string())
                codes = arrow.array(column.astype(np.int32))
                arrays[name] = arrow.DictionaryArray.from_arrays(codes, names)
            else:
                is_plain = column.dtype == object
                arrays[name] = arrow.array(_uniform(column) if is_plain else column)
        return arrow.table(arrays)


class InfoList(list[_Row], Frames):
    """A list of facts, one dataclass each, that is a table as well: a column for each field."""

    def columns(self) -> dict[str, Any]:
        """See Frames. Without rows there are no columns."""
        names = [field.name for field in fields(self[0])] if self else []  # type: ignore[arg-type]  # rows are dataclasses
        return {name: column_of(getattr(row, name) for row in self) for name in names}


def column_of(values: Iterable[Any]) -> Any:
    """Values as an array of the narrowest kind that loses nothing; None where one is missing."""
    found = list(values)
    present = [value for value in found if value is not None]
    kinds = {type(value) for value in present}
    if present and kinds <= {int, float} and all(abs(v) < 2**63 for v in present if type(v) is int):
        if len(present) == len(found) and kinds == {int}:
            return np.array(found, dtype=np.int64)
        return np.array([np.nan if v is None else v for v in found], dtype=np.float64)
    if kinds == {bool} and len(present) == len(found):
        return np.array(found, dtype=np.bool_)
    column = np.empty(len(found), dtype=object)
    column[:] = [dict(v) if isinstance(v, Mapping) else v for v in found]
    return column


def _uniform(column: Any) -> list[Any]:
    """Objects for a column of one type: of one type already, or else all of them as JSON text."""
    values = column.tolist()
    items = [i for v in values for i in (v if isinstance(v, list) else [v]) if i is not None]
    kinds = {(type(v) is list) for v in values if v is not None}
    if (
        len(kinds) <= 1
        and len({type(i) for i in items}) <= 1
        and not isinstance(next(iter(items), None), (dict, list))
    ):
        return list(values)
    return [v if v is None or isinstance(v, str) else orjson.dumps(v).decode() for v in values]


def _library(name: str, method: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"{method}() needs {name}: pip install 'metrana-async[{name}]'"
        ) from error
