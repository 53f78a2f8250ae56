"""Questions about statistics as bytes, and what is refused of them."""

from __future__ import annotations

import orjson
import pytest

from metrana_async.errors import InvalidQueryError
from metrana_async.wire.statistics import (
    StatisticsQuery,
    decode_statistics_query,
    encode_statistics_query,
)


def test_a_question_comes_back_as_it_was():
    """Every field survives, defaults as well as values."""
    for query in (
        StatisticsQuery(),
        StatisticsQuery(
            workspace="w",
            project="p",
            runs=["a", "b"],
            metrics=["x"],
            labels={"k": "v"},
            env_where={"cfg/terrain": None, "n": 3},
            from_x=-(2**60),
            to_x=2**63 - 1,
            buckets=4096,
            exact=False,
            functions=["mean"],
            rl_step_range=[0, 5],
            at="episode",
            at_number=3,
        ),
    ):
        assert decode_statistics_query(encode_statistics_query(query)) == query


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"runs": "a"}, "runs of the query is 'a'; it is a sequence of str"),
        ({"runs": None}, "runs of the query is None"),
        ({"metrics": [1]}, r"metrics of the query is \[1\]"),
        ({"buckets": 0}, "n of the query is 0; it is an integer from 1 to 4096"),
        ({"buckets": True}, "n of the query is True"),
        ({"from_x": 1.5}, r"from_ of the query is 1.5; it is an integer"),
        ({"to_x": 2**63}, "to of the query is 9223372036854775808"),
        ({"functions": [None]}, "fn of the query is"),
        ({"axis": None}, "axis of the query is None; it is one of step, rl_step"),
        ({"exact": 1}, "exact of the query is 1; it is a bool"),
        ({"episode": -1}, "episode of the query is -1; it is an integer from 0"),
        ({"rl_step_range": [3, 1]}, "rl_step_range of the query is"),
        ({"labels": {"a": 1}}, "labels of the query is"),
        ({"limit": 0}, "limit of the query is 0; it is an integer from 1"),
        ({"env_where": ["a"]}, "env_where of the query is"),
        ({"env_where": {"a": object()}}, "env_where of the query is"),
    ],
)
def test_a_field_of_the_wrong_kind_is_named_as_the_caller_wrote_it(fields, words):
    """The refusal says the argument, its value and what fits."""
    with pytest.raises(InvalidQueryError, match=words):
        encode_statistics_query(StatisticsQuery(**fields))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (orjson.dumps({"bucket": 3}), "no field 'bucket'"),
        (orjson.dumps({"over": "time"}), "over of the query is 'time'"),
    ],
)
def test_bytes_that_are_no_question_are_refused(data, words):
    """Unknown fields and wrong values are refused on the server too."""
    with pytest.raises(InvalidQueryError, match=words):
        decode_statistics_query(data)


def test_one_run_and_one_metric_where_a_question_is_about_one():
    """Several or none are refused."""
    with pytest.raises(InvalidQueryError, match="names 2 runs"):
        _ = StatisticsQuery(runs=["a", "b"]).run
    with pytest.raises(InvalidQueryError, match="names 0 metrics"):
        _ = StatisticsQuery().metric
