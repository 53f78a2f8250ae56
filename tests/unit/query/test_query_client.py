"""The query clients, awaited and blocking, over endpoints in memory."""

from __future__ import annotations

import gc
import inspect
import math
import os
import threading

import numpy as np
import pytest

from metrana_async.errors import (
    ConnectError,
    InvalidQueryError,
    MetranaError,
    NotFoundError,
    ProtocolError,
    UnsupportedAggregationError,
    UsageError,
)
from metrana_async.query import BlockingQueryClient, QueryClient, results
from metrana_async.server.query.service import QueryService
from metrana_async.wire.answers import Columns
from metrana_async.wire.model import Family, Ordering
from tests.unit.server.query.stored_run import EndpointTransport, StoredRun


@pytest.fixture
def stored():
    stored = StoredRun()
    writer = stored.writer("a" * 32)
    stored.points(stored.series("loss"), writer, [(0, 1.0), (1, math.nan)])
    stored.points(
        stored.series("rank", ordering=Ordering.MERGE, labels={"evaluation": "true"}),
        writer,
        [(0, 1.0), (0, 3.0)],
    )
    stored.episodes(stored.series("ret", Family.EPISODE), writer, [("default", 4, 2, 7.0)])
    reward = stored.series("reward", Family.ENV_STEP, episodic=True)
    stored.segments(
        reward, writer, [("default", 0, 0, 0, 0, [1.0, 2.0]), ("e1", 1, 0, 3, 0, [9.0])]
    )
    stored.attributes(config__lr={"float": "inf"}, config__layers=[1, 2], sys__tags=["t"])
    stored.count(stored=8)
    return stored


@pytest.fixture
def transport(stored):
    service = QueryService(stored.store)
    yield EndpointTransport(service)
    service.close()


@pytest.mark.asyncio
async def test_every_question_has_its_columns(transport):
    """Series, episodes, environment steps and merged steps come back as numpy columns."""
    async with QueryClient("proj", transport=transport) as client:
        loss = await client.series("run", "loss")
        assert loss.step.tolist() == [0, 1]
        assert math.isnan(loss.value[1])
        assert len(loss) == 2
        assert len(await client.series("run", "loss", step_range=(1, 9))) == 1
        rank = await client.merged("run", "rank", labels={"evaluation": "true"})
        assert (rank.min.tolist(), rank.max.tolist(), rank.count.tolist()) == ([1.0], [3.0], [2])
        ret = await client.episode_series("run", "ret", env_id=None)
        assert (ret.episode.tolist(), ret.rl_step.tolist(), ret.value.tolist()) == ([4], [2], [7.0])
        every_ret = await client.episode_series_all("run", "ret")
        assert [every_ret.env_ids[no] for no in every_ret.env] == ["default"]
        reward = await client.env_series("run", "reward", episode=0)
        assert (reward.env_step.tolist(), reward.value.tolist()) == ([0, 1], [1.0, 2.0])
        assert len(await client.env_series("run", "reward", episode=5)) == 0
        assert len(await client.env_series("run", "reward", generation=1)) == 0
        table = await client.env_series_all("run", "reward")
        assert [table.env_ids[no] for no in table.env] == ["default", "default", "e1"]
        assert table.episode.tolist() == [0, 0, 1]
        assert table.rl_step.tolist() == [0, 0, 3]


@pytest.mark.asyncio
async def test_facts_of_a_run(transport, stored):
    """Runs, definitions, environments, last steps and the ledger are small frozen facts."""
    async with QueryClient("proj", transport=transport) as client:
        run = await client.run("run")
        assert run.config == {"lr": math.inf, "layers": [1, 2]}
        assert (run.tags, run.description, run.orchestration_ids) == (("t",), None, ("job",))
        assert await client.run(stored.row.run_uid) == run
        assert await client.runs() == [run]
        assert await client.runs(project="elsewhere") == []
        assert [p.project for p in await client.projects()] == ["proj"]
        assert [m.metric for m in await client.metrics("run")] == ["loss", "rank", "ret", "reward"]
        assert [(s.metric, s.last_step) for s in await client.last_steps("run")] == [
            ("loss", 1),
            ("rank", 0),
        ]
        environments = await client.environments("run")
        assert [(e.env_id, e.last_rl_step, e.last_episode) for e in environments] == [
            ("default", 2, 4),
            ("e1", 3, 1),
        ]
        ledger = await client.ledger("run")
        assert (ledger.committed, ledger.visible, ledger.merged) == (8, 7, 1)
        assert ledger.difference == 0


@pytest.mark.asyncio
async def test_aggregates_and_refusals_cross_the_wire(transport):
    """Numbers come as floats, refusals as the same classes with the same words."""
    async with QueryClient(transport=transport) as client:
        assert await client.aggregate("run", "loss", "mean") == 1.0
        assert await client.aggregate("run", "reward", "sum", env_id="default") == 3.0
        nothing = await client.aggregate("run", "reward", "mean", env_id="e1", episode=7)
        assert math.isnan(nothing)
        with pytest.raises(UnsupportedAggregationError, match="log_rl_episode"):
            await client.aggregate("run", "rank", "mean", labels={"evaluation": "true"})
        with pytest.raises(NotFoundError, match=r"'reword'.*did you mean 'reward'"):
            await client.series("run", "reword")
        with pytest.raises(NotFoundError, match="'rin'"):
            await client.run("rin", project="proj")


@pytest.mark.asyncio
async def test_a_read_that_got_no_answer_is_asked_again(transport):
    """Connection trouble is retried within the deadline, a refusal is not."""
    async with QueryClient("proj", transport=transport, timeout_secs=30) as client:
        transport.failures = [ConnectError("no"), ConnectError("no")]
        assert (await client.run("run")).name == "run"
        transport.failures = [NotFoundError("gone"), ConnectError("not reached")]
        with pytest.raises(NotFoundError, match="gone"):
            await client.run("run")
        assert len(transport.failures) == 1
    async with QueryClient("proj", transport=transport, timeout_secs=0.05) as client:
        transport.failures = [ConnectError("no")] * 9
        with pytest.raises(ConnectError):
            await client.run("run")


@pytest.mark.asyncio
async def test_a_closed_client_says_so_and_leaves_a_given_transport_open(transport):
    """Closing twice is fine; asking afterwards is the caller's mistake."""
    client = QueryClient("proj", transport=transport)
    await client.close()
    await client.close()
    assert not transport.is_closed
    with pytest.raises(UsageError, match="closed"):
        await client.run("run")


@pytest.mark.asyncio
async def test_an_answer_is_not_believed_unchecked(transport):
    """An environment number without a name, or JSON that is none, is a ProtocolError."""
    none = np.array([3], dtype=np.int64)
    names = ("env_no", "episode", "env_step", "rl_step", "time_ms")
    columns = {**dict.fromkeys(names, none), "value": np.zeros(1)}
    with pytest.raises(ProtocolError, match="env_no"):
        results.env_series_from(Columns(columns, {"env_names": ["a"]}))
    for content in ({}, [], None, {"run_uid": 1}):
        with pytest.raises(ProtocolError):
            results.run_from(content)
        with pytest.raises(ProtocolError):
            results.ledger_from(content)


def test_the_blocking_client_answers_the_same(transport):
    """The same questions give the same answers from ordinary code."""
    with BlockingQueryClient("proj", transport=transport) as client:
        assert client.series("run", "loss").step.tolist() == [0, 1]
        assert client.run("run").project == "proj"
        assert client.aggregate("run", "loss", "count") == 1.0
        assert client.env_series_all("run", "reward").env_ids == ("default", "e1")
        assert [p.runs_count for p in client.projects()] == [1]
        with pytest.raises(NotFoundError):
            client.series("run", "nothing")
        assert (client.project, client.workspace) == ("proj", "default")
    with pytest.raises(UsageError, match="closed"):
        client.run("run")
    client.close()


@pytest.mark.asyncio
async def test_the_blocking_client_works_inside_a_running_loop(transport):
    """A notebook's loop is running already; the client waits on its own."""
    with BlockingQueryClient("proj", transport=transport) as client:
        assert client.run("run").name == "run"


def test_the_blocking_client_serves_many_threads(transport):
    """Threads ask at once over one loop."""
    found = []
    with BlockingQueryClient("proj", transport=transport) as client:
        threads = [
            threading.Thread(target=lambda: found.append(len(client.series("run", "loss"))))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert found == [2] * 8


def test_a_forgotten_blocking_client_takes_its_thread_along(transport):
    """Without close(), the loop thread ends with the client."""
    client = BlockingQueryClient("proj", transport=transport)
    client.run("run")
    (thread,) = [t for t in threading.enumerate() if t.name == "metrana-query-client"]
    del client
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_asks_over_a_loop_of_its_own(stored):
    """The parent's loop thread does not exist in the child; it makes its own."""

    class PerProcess:
        """A server for whichever process asks: a forked thread pool has no threads."""

        def __init__(self):
            self.services = {}

        async def post(self, path, body, *, timeout_s, content_type=""):
            pid = os.getpid()
            service = self.services.setdefault(pid, QueryService(stored.store))
            return await EndpointTransport(service).post(path, body, timeout_s=timeout_s)

    transport = PerProcess()
    with BlockingQueryClient("proj", transport=transport) as client:
        assert len(client.series("run", "loss")) == 2
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = 0 if len(client.series("run", "loss")) == 2 else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert len(client.series("run", "loss")) == 2
    transport.services[os.getpid()].close()


def test_the_twins_have_the_same_signatures():
    """Every public method of one is a method of the other, argument for argument."""
    own, iterating = {"close"}, {"scan", "scan_episodes", "scan_env_steps"}
    names = {n for n, m in inspect.getmembers(QueryClient, inspect.isfunction) if n[0] != "_"}
    assert names - own == {
        n
        for n, m in inspect.getmembers(BlockingQueryClient, inspect.isfunction)
        if n[0] != "_" and n not in own
    }
    for name in [*names, "__init__"]:
        left = inspect.signature(getattr(QueryClient, name))
        right = inspect.signature(getattr(BlockingQueryClient, name))
        if name in iterating:
            assert left.parameters == right.parameters, name
        else:
            assert left == right, name
    for name in names:
        method = getattr(QueryClient, name)
        is_right = inspect.isasyncgenfunction if name in iterating else inspect.iscoroutinefunction
        assert is_right(method), name


def test_settings_fall_back_to_the_environment(monkeypatch):
    """Workspace and server come from the variables that init() reads, arguments win."""
    monkeypatch.setenv("METRANA_WORKSPACE", "team")
    monkeypatch.setenv("METRANA_INGESTION_URL", "http://example.invalid:7/")
    monkeypatch.setenv("METRANA_API_KEY", "secret")
    monkeypatch.setenv("METRANA_INIT_MODE", "offline")
    client = QueryClient()
    assert client.workspace == "team"
    assert client._address.url == "http://example.invalid:7"
    assert client._address.token == "secret"
    assert QueryClient(workspace="mine").workspace == "mine"
    assert QueryClient(url="http://other.invalid")._address.url == "http://other.invalid"
    with pytest.raises(MetranaError, match="http"):
        QueryClient(url="no-scheme")


def test_pandas_is_asked_for_only_where_it_is_used(monkeypatch):
    """Without pandas the error says how to get it."""
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    series = results.Series(np.arange(2), np.zeros(2), np.arange(2))
    with pytest.raises(ImportError, match=r"pip install 'metrana-async\[pandas\]'"):
        series.to_pandas()


def test_a_table_becomes_a_data_frame():
    """Columns keep their dtypes; environments are a categorical of their ids."""
    pytest.importorskip("pandas")
    series = results.Series(np.arange(2), np.zeros(2, np.float32), np.arange(2))
    frame = series.to_pandas()
    assert list(frame.columns) == ["step", "value", "time_ms"]
    assert frame["value"].dtype == np.float32
    column = np.arange(2)
    table = results.EpisodeSeriesTable(("a", "b"), column, column, column, np.zeros(2), column)
    assert table.to_pandas()["env"].tolist() == ["a", "b"]


@pytest.mark.asyncio
async def test_a_numpy_integer_is_an_episode_and_a_step(transport):
    """Episodes and ranges come out of numpy columns, so they go in as they come."""
    async with QueryClient("proj", transport=transport) as client:
        reward = await client.env_series("run", "reward", episode=np.int64(0))
        assert reward.value.tolist() == [1.0, 2.0]
        last = await client.series("run", "loss", step_range=(np.int64(1), np.int32(9)))
        assert last.step.tolist() == [1]


@pytest.mark.asyncio
async def test_an_argument_of_the_wrong_type_is_refused_by_name(transport):
    """Whatever does not fit is named with its value, before anything is sent."""
    async with QueryClient("proj", transport=transport) as client:
        with pytest.raises(InvalidQueryError, match="run of the query is <object .*it is a str"):
            await client.series(object(), "loss")
        for bounds in (5, (5, 1), ("a", "b"), (1.5, 2), (1, 2, 3)):
            with pytest.raises(InvalidQueryError, match="step_range of the query is .*first, last"):
                await client.series("run", "loss", step_range=bounds)
        with pytest.raises(InvalidQueryError, match="labels of the query is 'a'"):
            await client.series("run", "loss", labels="a")


@pytest.mark.asyncio
async def test_what_is_missing_is_said_with_what_is_there(transport):
    """A wrong name gets the names like it, or where to find the list."""
    async with QueryClient("proj", transport=transport) as client:
        with pytest.raises(NotFoundError, match=r"no series 'lost'.*did you mean 'loss'\?"):
            await client.series("run", "lost")
        with pytest.raises(NotFoundError, match=r"no series 'zzz'.*metrics\(\) lists"):
            await client.series("run", "zzz")
        with pytest.raises(NotFoundError, match=r"no run 'runn' .*did you mean 'run'\?"):
            await client.series("runn", "loss")
        with pytest.raises(NotFoundError, match=r"no project 'other' .*projects\(\) lists"):
            await client.series("run", "loss", project="other")
        with pytest.raises(InvalidQueryError, match=r"'quantile:90' .* not within 0\.\.1"):
            await client.aggregate("run", "loss", "quantile:90")
