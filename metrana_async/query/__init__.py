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
from metrana_async.query.statistics_results import (
    BucketLine,
    Buckets,
    EnvironmentTable,
    Episode,
    GroupStatistics,
    Latest,
    MemberGroup,
    RLInfo,
    RLSeriesInfo,
    RLStep,
)

__all__ = [
    "BlockingQueryClient",
    "BucketLine",
    "Buckets",
    "EnvSeries",
    "EnvSeriesTable",
    "EnvironmentInfo",
    "EnvironmentTable",
    "Episode",
    "EpisodeSeries",
    "EpisodeSeriesTable",
    "GroupStatistics",
    "LastStep",
    "Latest",
    "Ledger",
    "MemberGroup",
    "MergedSeries",
    "ProjectInfo",
    "QueryClient",
    "RLInfo",
    "RLSeriesInfo",
    "RLStep",
    "RunInfo",
    "Series",
    "SeriesInfo",
]
