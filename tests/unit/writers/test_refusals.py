"""Every worked case that a single process refuses, played through columns and registry."""

from __future__ import annotations

import json
import pathlib

import pytest

from metrana_async.columns.episodes import episode_columns
from metrana_async.columns.names import check_labels, check_metric_name, check_scale
from metrana_async.columns.points import flatten_mapping, standard_columns
from metrana_async.columns.rl_grid import EnvIdCache, grid_columns
from metrana_async.wire.model import AUTOMATIC, Family, Ordering, SeriesDef
from metrana_async.writers.registry import SeriesRegistry

CASES = pathlib.Path(__file__).parents[2] / "cases" / "semantics.jsonl"
LOGGING = {"log", "log_distributed", "log_rl_episode", "log_rl_environment_step"}


def refusals():
    for line in CASES.read_text().splitlines():
        case = json.loads(line)
        own = all(call["process"] == "A" for call in case["calls"])
        if own and any("raises" in call for call in case["calls"]):
            yield pytest.param(case, id=case["id"])


class Validation:
    """What a call does before anything is enqueued."""

    def __init__(self):
        self.registry = SeriesRegistry()
        self.env_ids = EnvIdCache()

    def call(self, fn, args):
        args = dict(args)
        labels = check_labels(args.pop("labels", None), args.pop("evaluation", None))
        getattr(self, fn)(labels, **args)

    def log(self, labels, metric_name, value=None, step=None, *, is_merge=False):
        metrics = metric_name if isinstance(metric_name, dict) else {metric_name: value}
        definitions = []
        for name, each in flatten_mapping(metrics):
            standard_columns(each, step, None, None, 0, step_required=is_merge)
            ordering = Ordering.MERGE if is_merge else Ordering.ORDERED
            definitions.append(
                SeriesDef(
                    Family.STANDARD, check_metric_name(name), check_scale(None), labels, ordering
                )
            )
        self.registry.series_nos(definitions)

    def log_distributed(self, labels, metric_name, value=None, step=None):
        self.log(labels, metric_name, value, step, is_merge=True)

    def log_rl_episode(self, labels, metric_name, value, rl_step, episode=None, env_id=None):
        made = episode_columns(value, rl_step, episode, env_id, now_ms=0)
        is_automatic = isinstance(made.episode, int) and made.episode == AUTOMATIC
        ordering = Ordering.ORDERED if is_automatic else Ordering.MERGE
        name = check_metric_name(metric_name)
        self.registry.series_no(SeriesDef(Family.EPISODE, name, "EPISODE", labels, ordering))

    def log_rl_environment_step(
        self, labels, metric_name, value, rl_step, env_id=None, episode=None, env_step=None, **more
    ):
        ids = self.env_ids.resolve(env_id)
        made = grid_columns(value, rl_step, ids, episode, env_step, now_ms=0, **more)
        definition = SeriesDef(
            Family.ENV_STEP,
            check_metric_name(metric_name),
            "ENVIRONMENT_STEP",
            labels,
            Ordering.ORDERED,
            episode is not None,
        )
        self.registry.claim_grid(definition, made.env_ids, made.mode, mask=made.mask)


@pytest.mark.parametrize("case", list(refusals()))
def test_refused_calls(case):
    """The call raises one of the named errors; every other call of the case is accepted."""
    validation = Validation()
    for call in case["calls"]:
        if call["fn"] not in LOGGING:
            continue
        if "raises" not in call:
            validation.call(call["fn"], call["args"])
            continue
        with pytest.raises(Exception) as caught:
            validation.call(call["fn"], call["args"])
        assert {c.__name__ for c in type(caught.value).__mro__} & set(call["raises"])


def test_the_cases_are_there():
    """The refusals are found: a moved file would prove nothing."""
    assert len(list(refusals())) >= 15
