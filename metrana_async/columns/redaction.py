"""Secrets stay in the process: what a configuration must not carry away is replaced by ``***``.

Pure. Works on attribute updates, after flattening and before anything is enqueued:

- a str whose key names a secret (``password``, ``api_key``, ``aws/secret_access_key``, ``token``);
- a str whose key may be one (``wandb_key``, ``eos_token``) and that has the shape of a credential;
- the user-info and secret query parameters of URLs, ``--api-key=…`` and ``--api-key …`` in lists of
  arguments, and the process's own API key wherever it stands.

Only str are replaced: ``num_memory_tokens: 4`` and ``use_cls_token: True`` are no secrets.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from metrana_async.wire.model import AttributeOp, AttributeUpdate

REDACTED: Final = "***"

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_URL: Final = re.compile(r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]*://)(?P<user>[^\s/?#@]+)@")
_PARAMETER: Final = re.compile(r"(?P<head>[?&;](?P<name>[^=&;#\s]+)=)[^&;#\s]+")
_ARGUMENT: Final = re.compile(r"(?P<head>--?(?P<name>[A-Za-z][\w.-]*)=)(?P<value>\S+)")
_FLAG: Final = re.compile(r"--?(?P<name>[A-Za-z][\w.-]*)")
_CREDENTIAL: Final = re.compile(r"[A-Za-z0-9_\-./+=:~]+")

_SECRET_WORDS: Final = frozenset(
    {"password", "passwd", "passphrase", "pwd", "secret", "secrets", "credential", "credentials"}
    | {"apikey", "authtoken", "accesstoken", "passwords"}
)
# What makes a following "key" or "token" a secret for certain.
_OWNERS: Final = frozenset(
    {"api", "access", "auth", "secret", "private", "bearer", "refresh", "session", "account"}
    | {"encryption", "signing", "hf", "github", "gitlab", "oauth", "ssh", "storage"}
)
# "password_file" and "secret_name" say where a secret is, not what it is.
_ABOUT: Final = frozenset(
    {"file", "path", "dir", "env", "var", "variable", "name", "id", "length", "len", "type"}
    | {"count", "policy", "field", "column", "min", "max", "url", "uri"}
)
_OWN_KEY_MIN: Final = 8
_PATHS_SHOWN: Final = 5
_LONG_CREDENTIAL: Final = 16


def redaction_text(paths: Sequence[str]) -> str:
    """What the caller is told once, given the paths where something was replaced."""
    more = "" if len(paths) <= _PATHS_SHOWN else f" and {len(paths) - _PATHS_SHOWN} more"
    return (
        f"{', '.join(paths[:_PATHS_SHOWN])}{more}: what looks like a secret was replaced by "
        f"{REDACTED!r} before it left this process; init(redact=False) stores attributes as they "
        "are"
    )


def redact_updates(
    updates: Sequence[AttributeUpdate], *, own_key: str | None = None
) -> tuple[list[AttributeUpdate], list[str]]:
    """Replace the secrets in the values of SET updates.

    Args:
        updates: leaves of a configuration, as `attributes.config_updates` lists them.
        own_key: the API key of this process, which is replaced wherever it stands.

    Returns:
        The updates, in order, and the paths where something was replaced.
    """
    redacted: list[AttributeUpdate] = []
    paths: list[str] = []
    for update in updates:
        value = update.value
        if update.op is AttributeOp.SET:
            value = _redact(update.path, update.value, own_key)
        if value == update.value:
            redacted.append(update)
            continue
        redacted.append(update._replace(value=value))
        paths.append(update.path)
    return redacted, paths


def _redact(path: str, value: Any, own_key: str | None) -> Any:
    if isinstance(value, str):
        return _redact_text(path, value, own_key)
    if isinstance(value, list):
        return _redact_list(path, value, own_key)
    return value


def _redact_list(path: str, values: list[Any], own_key: str | None) -> list[Any]:
    """Redact each str of a list; the one behind a flag belongs to that flag."""
    result: list[Any] = []
    flag: re.Match[str] | None = None
    for value in values:
        if not isinstance(value, str):
            result.append(value)
            flag = None
            continue
        is_value = flag is not None and not value.startswith("-")
        owner = flag["name"].replace("-", "_") if flag is not None and is_value else path
        result.append(_redact_text(owner, value, own_key))
        flag = _FLAG.fullmatch(value)
    return result


def _redact_text(path: str, text: str, own_key: str | None) -> str:
    if not text or _names_secret(path, text):
        return REDACTED if text else text
    argument = _ARGUMENT.fullmatch(text)
    if argument is not None and _names_secret(argument["name"], argument["value"]):
        return argument["head"] + REDACTED
    if "://" in text:
        text = _URL.sub(_redact_user, text)
        text = _PARAMETER.sub(_redact_parameter, text)
    if own_key and (text == own_key or (len(own_key) >= _OWN_KEY_MIN and own_key in text)):
        return text.replace(own_key, REDACTED)
    return text


def _redact_user(found: re.Match[str]) -> str:
    # "git@" is how one spells a host for git over ssh, and no secret.
    return found[0] if found["user"] == "git" else f"{found['scheme']}{REDACTED}@"


def _redact_parameter(found: re.Match[str]) -> str:
    name = found["name"].lower()
    is_secret = name in {"sig", "signature"} or _names_secret(found["name"], "secret")
    return found["head"] + REDACTED if is_secret else found[0]


def _names_secret(path: str, text: str) -> bool:
    """Whether `text`, found at `path`, is taken for a secret."""
    segments = [[word.lower() for word in _WORD.findall(part)] for part in path.split("/")]
    if any(words and words[-1] in _SECRET_WORDS for words in segments):
        return True
    # A list of mappings puts its positions behind the key that counts.
    named = [words for words in segments if words and not words[-1].isdigit()]
    words = named[-1] if named else []
    if not words or words[-1] in _ABOUT:
        return False
    if not _SECRET_WORDS.isdisjoint(words):
        return True
    if words[-1] not in {"key", "token"}:
        return False
    if words == ["token"] or not _OWNERS.isdisjoint(words):
        return True
    return len(words) > 1 and _is_credential(text)


def _is_credential(text: str) -> bool:
    """Whether a str looks made by a machine: no word, no ``<eos>``, no column name."""
    if _CREDENTIAL.fullmatch(text) is None or not any(c.isdigit() for c in text):
        return False
    return len(text) >= _LONG_CREDENTIAL or any(c.isupper() for c in text)
