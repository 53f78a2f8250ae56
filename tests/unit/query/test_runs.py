"""Finding runs, reading what they have in common, and changing them, over a server in memory."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest

import metrana_sync_shim as metrana
from metrana_async import F
from metrana_async.errors import (
    InvalidNameError,
    InvalidQueryError,
    NotFoundError,
    RunAlreadyExistsError,
    RunDeletedError,
)
from metrana_async.query import BlockingQueryClient, InfoList, results
from metrana_async.testing import MemoryServer


@pytest.fixture
def server():
    with MemoryServer() as server:
        yield server


def start(server, name, **config):
    return metrana.init(
        project_name="p",
        run_name=name,
        transport=server.transport(),
        config=config,
        quiet=True,
    )


def log_and_flush(run, value, **more):
    run.log("x", value, **more)
    run.flush(timeout_secs=10)


@pytest.fixture
def client(server):
    """Three finished runs: losses 0.3, 0.1, 0.2 at the end; `c` without loss, with episodes."""
    for name, lr, losses in (("a", 1e-3, [1.0, 0.3]), ("b", 1e-4, [2.0, 0.1, math.nan])):
        with start(server, name, lr=lr, **{"opt/name": "adam"}, layers=[64, 32]) as run:
            run.log("train/loss", losses)
            run.set_tags(["best"] if name == "b" else [])
    with start(server, "c", lr="auto") as run:
        run.log_rl_episode("ep/return", [5.0, 7.0], rl_step=3, env_id="e1")
        run.log_env_attributes("e1", {"terrain": "hills"})
        run.log_distributed("rank/time", [4.0, 2.0], step=0)
    with BlockingQueryClient("p", transport=server.transport()) as client:
        yield client


def names(runs):
    return [run.name for run in runs]


def test_runs_are_filtered_and_ordered(client):
    """Config, summaries, tags, environments and plain facts; missing values come last."""
    assert names(client.runs()) == ["a", "b", "c"]
    assert names(client.runs(where="config.lr < 5e-4")) == ["b"]
    assert names(client.runs(where="config.opt/name = 'adam' and not 'best' in tags")) == ["a"]
    assert names(client.runs(where="config.opt.name ~ '^a'")) == ["a", "b"]
    assert names(client.runs(where="64 in config.layers")) == ["a", "b"]
    assert names(client.runs(where=F.summary["train/loss"].max >= 1.5)) == ["b"]
    assert names(client.runs(where="summary.ep/return.mean = 6")) == ["c"]
    assert names(client.runs(where="env.terrain = 'hills'")) == ["c"]
    assert names(client.runs(where="state = 'finished' and archived = false")) == ["a", "b", "c"]
    assert names(client.runs(where="created > '2020-01-01' and duration < 60")) == ["a", "b", "c"]
    assert names(client.runs(order_by="-summary.train/loss.min")) == ["a", "b", "c"]
    assert names(client.runs(order_by="summary.train/loss.min")) == ["b", "a", "c"]
    assert names(client.runs(order_by=-F.name)) == ["c", "b", "a"]
    assert names(client.runs(order_by="config.lr")) == ["b", "a", "c"]


def test_mistakes_are_named(client):
    """Where in the filter, and what is near; a wrong order and cursor as well."""
    with pytest.raises(InvalidQueryError, match=r"column 1: no run has config.lrate.*config.lr"):
        client.runs(where="config.lrate < 1")
    with pytest.raises(InvalidQueryError, match="did you mean summary.train/loss.last"):
        client.runs(where="summary.train/los.last < 1")
    with pytest.raises(InvalidQueryError, match="order_by: no run has config.l"):
        client.runs(order_by="config.l")
    with pytest.raises(InvalidQueryError, match="no field"):
        client.runs(order_by="-nam")
    with pytest.raises(InvalidQueryError, match="no cursor"):
        client.runs(after="xx")
    with pytest.raises(InvalidQueryError, match="limit"):
        client.runs(limit=0)
    page = client.runs(limit=1)
    with pytest.raises(InvalidQueryError, match="cursor is of order_by"):
        client.runs(after=page.after, order_by="name")


@pytest.mark.parametrize(
    "order_by", [None, "name", "-name", "summary.train/loss.last", "-config.lr"]
)
def test_pages_join_into_the_list(client, server, order_by):
    """Page by page every run comes once, in the order of the whole list."""
    whole = names(client.runs(order_by=order_by))
    paged, after = [], None
    while True:
        page = client.runs(order_by=order_by, limit=1, after=after)
        paged += names(page)
        after = page.after
        if after is None:
            break
    assert paged == whole


def test_pages_are_stable_while_runs_come_and_go(client, server):
    """The run a cursor names may be deleted, and others appear: nothing is repeated or hidden."""
    page = client.runs(order_by="name", limit=2)
    client.delete_run("b")
    start(server, "bb").close()
    start(server, "0").close()
    assert names(client.runs(order_by="name", after=page.after)) == ["bb", "c"]


def test_attributes_and_definitions(client):
    """What one run says of itself, and what the project's runs have in common."""
    found = {(a.path, a.env_id): a.value for a in client.attributes("c")}
    assert found["config/lr", None] == "auto"
    assert found["terrain", "e1"] == "hills"
    kinds = {d.path: (d.kinds, d.runs_count) for d in client.attribute_definitions()}
    assert kinds["config/lr"] == (("float", "str"), 3)
    assert kinds["terrain"] == (("str",), 1)
    metrics = {d.metric: (d.family, d.scale, d.runs_count) for d in client.metric_definitions()}
    assert metrics["train/loss"] == ("standard", "ML_STEP", 2)
    assert metrics["ep/return"] == ("rl_episode", "EPISODE", 1)


def test_summaries_of_many_runs(client):
    """Six numbers for each (run, metric), no row where there are no points."""
    found = client.series_summaries(["a", "b", "c"], ["train/loss", "ep/return", "rank/time"])
    rows = {
        (found.runs[run], found.metrics[metric]): at
        for at, (run, metric) in enumerate(zip(found.run, found.metric, strict=True))
    }
    assert set(rows) == {
        ("a", "train/loss"), ("b", "train/loss"), ("c", "ep/return"), ("c", "rank/time")
    }  # fmt: skip
    b, episodes, merged = (
        rows[key] for key in (("b", "train/loss"), ("c", "ep/return"), ("c", "rank/time"))
    )
    assert math.isnan(found.last[b])
    assert (found.min[b], found.max[b], found.count[b]) == (pytest.approx(0.1), 2.0, 2)
    assert found.mean[b] == pytest.approx(1.05)
    assert (found.last_step[b], found.last_step[episodes]) == (2, 3)
    assert (found.last[episodes], found.mean[episodes]) == (7.0, 6.0)
    assert math.isnan(found.mean[merged])
    assert found.count[merged] == 2
    with pytest.raises(NotFoundError):
        client.series_summaries("zz", "train/loss")


@pytest.mark.parametrize("gap", [1, 1000, 10**12])
def test_a_scan_gives_every_point_in_batches(server, gap):
    """Dense or sparse steps, also in a range; batches are full but the last."""
    with start(server, "long") as run:
        run.log("x", np.arange(2500.0), step=np.arange(2500) * gap)
    with BlockingQueryClient("p", transport=server.transport()) as client:
        batches = list(client.scan("long", "x", batch_rows=1000))
        assert [len(batch) for batch in batches] == [1000, 1000, 500]
        steps = np.concatenate([batch.step for batch in batches])
        assert np.array_equal(steps, np.arange(2500) * gap)
        some = list(client.scan("long", "x", batch_rows=7, step_range=(10 * gap, 29 * gap)))
        assert sum(map(len, some)) == 20
        assert list(client.scan("long", "x", step_range=(2500 * gap, 2600 * gap))) == []
        with pytest.raises(NotFoundError):
            list(client.scan("long", "y"))


def test_a_run_is_changed_from_outside(client):
    """Rename, notes, tags and the archive; each answers the run as it is then."""
    uid = client.run("a").run_uid
    assert client.rename_run("a", "first").run_uid == uid
    assert client.set_notes("first", "warm start").notes == "warm start"
    assert client.tag_run("first", add=["x", "y"], remove=["x"]).tags == ("y",)
    assert client.archive_run("first").is_archived
    assert names(client.runs(where="archived = false")) == ["b", "c"]
    assert not client.unarchive_run("first").is_archived
    assert names(client.runs(where="notes ~ 'warm' and 'y' in tags")) == ["first"]
    with pytest.raises(RunAlreadyExistsError, match="'b'"):
        client.rename_run("first", "b")
    with pytest.raises(InvalidNameError):
        client.rename_run("first", "a\nb")
    with pytest.raises(NotFoundError, match="'a'"):
        client.set_notes("a", "gone")


def test_a_writer_of_a_deleted_run_is_told_and_counts_its_loss(server, client):
    """Logging goes on without an exception; what cannot be kept is lost(run_deleted)."""
    run = start(server, "doomed")
    run.log("x", 1.0)
    run.flush()
    client.delete_run("doomed")
    with pytest.warns(metrana.PointsLost, match="deleted"):
        log_and_flush(run, [2.0, 3.0])
    run.log("x", 4.0)
    info = run.close()
    assert info.statistics.lost == {"run_deleted": 3}
    assert info.statistics.is_balanced
    assert not info.is_complete
    with pytest.raises(NotFoundError):
        client.run("doomed")
    assert issubclass(RunDeletedError, NotFoundError)


def test_warnings_and_losses_of_the_writers_are_on_the_run(server, client):
    """What the writers were told and lost is summed on the run's facts."""
    run = start(server, "warned")
    run.log("x", 1.0, step=5)
    run.flush()
    with pytest.warns(metrana.DuplicateStep):
        log_and_flush(run, 2.0, step=5)
    run.close()
    info = client.run("warned")
    assert info.warnings == {"DuplicateStep": 1}
    assert info.lost == {}
    assert info.writers[0]["counters"]["committed"] == 2
    assert info.duration_s >= 0


def test_tables_have_real_dtypes(client):
    """A list of runs, of facts and a table of numbers as pandas, polars and Arrow."""
    columns = client.runs().columns()
    assert columns["created"].dtype == np.dtype("datetime64[ms]")
    assert columns["is_archived"].dtype == np.bool_
    assert columns["config.lr"].dtype == object
    assert client.runs(where="config.lr < 1").columns()["config.lr"].dtype == np.float64
    assert client.metrics("a").columns()["metric"].tolist() == ["train/loss"]
    assert InfoList().columns() == {}


def test_pandas_frames(client):
    """Categoricals for names behind codes, timestamps for times."""
    pytest.importorskip("pandas")
    frame = client.series_summaries(["a", "b"], "train/loss").to_pandas()
    assert frame["run"].tolist() == ["a", "b"]
    assert frame["last_step"].dtype == np.int64
    assert str(client.runs().to_pandas()["created"].dtype).startswith("datetime64")


def test_polars_frames(client):
    """The same in polars."""
    polars = pytest.importorskip("polars")
    frame = client.series_summaries(["a", "b"], "train/loss").to_polars()
    assert frame["run"].to_list() == ["a", "b"]
    assert frame["last_step"].dtype == polars.Int64
    runs = client.runs().to_polars()
    assert runs["created"].dtype == polars.Datetime("ms")
    assert runs["config.lr"].to_list() == ["0.001", "0.0001", "auto"]


def test_arrow_tables(client):
    """The same in Arrow."""
    arrow = pytest.importorskip("pyarrow")
    table = client.series_summaries(["a", "b"], "train/loss").to_arrow()
    assert table["run"].to_pylist() == ["a", "b"]
    assert table.schema.field("last_step").type == arrow.int64()
    assert client.series("a", "train/loss").to_arrow()["value"].type == arrow.float32()
    runs = client.runs().to_arrow()
    assert runs["created"].type == arrow.timestamp("ms")
    assert runs["config.lr"].to_pylist() == ["0.001", "0.0001", "auto"]
    assert runs["tags"].to_pylist() == [[], ["best"], []]
    assert runs["config.layers"].to_pylist() == [[64, 32], [64, 32], None]


@pytest.mark.parametrize("name", ["pandas", "polars", "pyarrow"])
def test_a_missing_library_says_how_to_get_it(monkeypatch, name):
    """The message has the pip line."""
    monkeypatch.setitem(sys.modules, name, None)
    series = results.Series(np.arange(2), np.zeros(2), np.arange(2))
    method = {"pandas": "to_pandas", "polars": "to_polars", "pyarrow": "to_arrow"}[name]
    with pytest.raises(
        ImportError, match=rf"{method}\(\) needs {name}: pip install 'metrana-async"
    ):
        getattr(series, method)()
