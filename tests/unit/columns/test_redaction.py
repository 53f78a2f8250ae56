"""Facts about what is taken for a secret, and what is not."""

from __future__ import annotations

import pytest

from metrana_async.columns.attributes import config_updates, tags_update
from metrana_async.columns.redaction import redact_updates, redaction_text
from metrana_async.wire.model import AttributeOp


def redacted(config, **more) -> dict:
    updates, _ = redact_updates(config_updates("config", config), **more)
    return {update.path.removeprefix("config/"): update.value for update in updates}


@pytest.mark.parametrize(
    "key",
    [
        "password",
        "db_password",
        "DB_PASSWORD",
        "dbPassword",
        "passwd",
        "secret",
        "client-secret",
        "api_key",
        "apiKey",
        "apikey",
        "OPENAI_API_KEY",
        "secret_access_key",
        "private.key",
        "token",
        "hf_token",
        "access_token",
        "credentials",
        "METRANA_API_KEY",
    ],
)
def test_a_key_that_names_a_secret(key):
    """Any str under it is replaced, also in a list and below a mapping."""
    assert redacted({key: "abc"}) == {key: "***"}
    assert redacted({"outer": {key: ["abc", 4]}}) == {f"outer/{key}": ["***", 4]}
    assert redacted({key: ""}) == {key: ""}
    assert redacted({key: None}) == {key: None}


@pytest.mark.parametrize(
    ("key", "secret", "harmless"),
    [
        ("wandb_key", "K1", "image"),
        ("host_key", "AAAAB3NzaC1yc2E", "known"),
        ("bot_token", "123456:ABC-def", "PAD"),
        ("eos_token", "0123456789abcdef0123", "</s>"),
        ("text_key", "Zm9vYmFy1", "pixel_values_0"),
    ],
)
def test_a_key_that_may_name_a_secret(key, secret, harmless):
    """Only a str with the shape of a credential is replaced."""
    assert redacted({key: secret}) == {key: "***"}
    assert redacted({key: harmless}) == {key: harmless}


@pytest.mark.parametrize(
    "config",
    [
        {"num_memory_tokens": 4},
        {"use_cls_token": True},
        {"tokenizer": "gpt2"},
        {"tokenizer_name": "GPT2"},
        {"max_token_length": "1024X"},
        {"pad_token": "[PAD0]"},
        {"special_tokens": ["<A1>", "B2"]},
        {"sort_key": "reward"},
        {"keys": ["A1", "B2"]},
        {"key": "A1"},
        {"monkey": "A1"},
        {"secretary": "Ann"},
        {"password_file": "/run/secrets/x"},
        {"password_min_length": "8"},
        {"api_key_env": "OPENAI_API_KEY"},
        {"secret": 7},
        {"url": "https://host:8080/x?tokens=4"},
        {"repo": "git+ssh://git@host/x.git"},
        {"mail": "a@b.c"},
    ],
)
def test_no_false_positives(config):
    """Model fields and plain names stay as they are."""
    assert redacted(config) == config


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://u:K4@h/x", "https://***@h/x"),
        ("postgresql+psycopg2://u:p%40@h:5432/db", "postgresql+psycopg2://***@h:5432/db"),
        ("redis://:p@h", "redis://***@h"),
        ("see https://tok@h/x and ftp://a:b@c", "see https://***@h/x and ftp://***@c"),
        ("https://h/x?api_key=abc&page=2", "https://h/x?api_key=***&page=2"),
        ("https://h/x?page=2&sig=abc#top", "https://h/x?page=2&sig=***#top"),
    ],
)
def test_urls_keep_their_host(text, shown):
    """User-info and secret parameters are replaced, the rest stays readable."""
    assert redacted({"uri": text}) == {"uri": shown}
    assert redacted({"uris": [text, "x"]}) == {"uris": [shown, "x"]}


def test_command_lines():
    """A flag's value is judged by the flag's name."""
    argv = ["train.py", "--api-key", "abc", "--lr", "3e-4", "--password=x", "--seed=7"]
    shown = ["train.py", "--api-key", "***", "--lr", "3e-4", "--password=***", "--seed=7"]
    assert redacted({"argv": argv}) == {"argv": shown}


def test_the_own_key_is_found_wherever_it_stands():
    """Whole, and inside a text when it is long enough to be no accident."""
    assert redacted({"x": "K6"}, own_key="K6") == {"x": "***"}
    assert redacted({"x": "OK6"}, own_key="K6") == {"x": "OK6"}
    assert redacted({"x": "curl -H abcdefgh1"}, own_key="abcdefgh1") == {"x": "curl -H ***"}


def test_everything_below_secrets_is_one():
    """A mapping named so hides its str, whatever their keys."""
    assert redacted({"secrets": {"a": "x", "n": 1}}) == {"secrets/a": "***", "secrets/n": 1}


def test_paths_are_told_and_values_are_not():
    """The text names where, never what."""
    updates = config_updates("config", {f"p{i}": {"password": f"hidden{i}"} for i in range(7)})
    same, paths = redact_updates(updates)
    assert [update.path for update in same] == [update.path for update in updates] == paths
    text = redaction_text(paths)
    assert "config/p0/password" in text
    assert "2 more" in text
    assert "redact=False" in text
    assert "hidden" not in text


def test_tags_are_left_alone():
    """Tags are words that somebody chose."""
    update = tags_update(AttributeOp.TAGS_SET, ["api_key", "https://a:b@c"])
    assert redact_updates([update]) == ([update], [])
