"""Reading back what was logged: `QueryClient`, its blocking twin, and the answers they give."""

from metrana_async.query.blocking import BlockingQueryClient
from metrana_async.query.client import QueryClient
from metrana_async.query.results import (
    EnvironmentInfo,
    EnvSeries,
    EnvSeriesTable,
    EpisodeSeries,
    EpisodeSeriesTable,
    LastStep,
    Ledger,
    MergedSeries,
    ProjectInfo,
    RunInfo,
    Series,
    SeriesInfo,
)

__all__ = [
    "BlockingQueryClient",
    "EnvSeries",
    "EnvSeriesTable",
    "EnvironmentInfo",
    "EpisodeSeries",
    "EpisodeSeriesTable",
    "LastStep",
    "Ledger",
    "MergedSeries",
    "ProjectInfo",
    "QueryClient",
    "RunInfo",
    "Series",
    "SeriesInfo",
]
