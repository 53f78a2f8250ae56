"""What `init` was told: argument > environment > default, resolved once and then frozen.

Only this module and `orchestration` read the environment. An empty variable counts as unset.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from metrana_async.errors import InitError
from metrana_async.transport.addresses import without_user

QUEUE_POINTS_DEFAULT: Final = 1 << 22
QUEUE_BYTES_DEFAULT: Final = 64 << 20
SPOOL_QUOTA_BYTES: Final = 2 << 30
EXIT_BUDGET_S: Final = 10.0

_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "resume_strategy": ("never", "allow"),
    "init_mode": ("online", "online_only", "offline", "auto", "disabled"),
    "backpressure_strategy": ("block", "drop_new", "raise", "spool_then_raise"),
    "delivery_policy": ("tolerate_loss", "all_or_crash"),
    "compression": ("none", "zstd"),
    "on_error": ("raise", "warn"),
    "log_level": ("trace", "debug", "info", "success", "warning", "error", "critical", "off"),
    "default_dtype": ("float16", "float32", "float64"),
}

_ENVIRONMENT: Final[dict[str, str]] = {
    "workspace_name": "METRANA_WORKSPACE",
    "project_name": "METRANA_PROJECT",
    "run_name": "METRANA_RUN_NAME",
    "ingestion_url": "METRANA_INGESTION_URL",
    "resume_strategy": "METRANA_RESUME_STRATEGY",
    "init_mode": "METRANA_INIT_MODE",
    "backpressure_strategy": "METRANA_BACKPRESSURE_STRATEGY",
    "delivery_policy": "METRANA_DELIVERY_POLICY",
    "compression": "METRANA_COMPRESSION",
    "on_error": "METRANA_ON_ERROR",
    "log_level": "METRANA_LOG_LEVEL",
    "default_dtype": "METRANA_DEFAULT_DTYPE",
    "api_key": "METRANA_API_KEY",
    "logger_id": "METRANA_LOGGER_ID",
    "data_dir": "METRANA_DATA_DIR",
    "disk": "METRANA_DISK_SPOOL_DIR",
    "queue_capacity": "METRANA_EVENT_QUEUE_MAX_SIZE",
    "init_timeout_secs": "METRANA_INIT_TIMEOUT_SECS",
    "quiet": "METRANA_QUIET",
    "redact": "METRANA_REDACT",
}

_DEFAULTS: Final[dict[str, Any]] = {
    "workspace_name": "default",
    "resume_strategy": "never",
    "init_mode": "online",
    "backpressure_strategy": "block",
    "delivery_policy": "tolerate_loss",
    "compression": "none",
    "on_error": "raise",
    "log_level": "warning",
    "default_dtype": "float32",
    "queue_capacity": QUEUE_POINTS_DEFAULT,
    "init_timeout_secs": 120.0,
    "quiet": False,
    "redact": True,
}


@dataclass(frozen=True, slots=True)
class DiskConfig:
    """The disk spool: where a run keeps what it cannot deliver yet.

    Attributes:
        path: its directory, made private (0700); None = ``spool`` beside the local server's store.
            Processes may share it: each writer has a directory of its own in it.
        quota_bytes: most bytes one writer keeps there at a time.
        is_required: whether `init` raises where the directory cannot be used; otherwise it is
            said once and the run goes on without a spool.
    """

    path: str | None = None
    quota_bytes: int = SPOOL_QUOTA_BYTES
    is_required: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything `init` decided. Immutable; safe to share between threads.

    Attributes:
        ingestion_url: base URL of the server; None = this user's local server.
        orchestration_id: what the caller gave, or None; `orchestration` resolves the ladder.
        api_key: bearer token; never shown, never pickled.
        queue_capacity: most points the inbox holds before the policy decides.
        init_timeout_secs: seconds the handshake may take.
        redact: replace what looks like a secret in attributes before it leaves the process.
        data_dir: where the local server keeps its store; None = `locations` decides.
        disk: the disk spool; None = none.
    """

    project_name: str
    workspace_name: str = "default"
    run_name: str | None = None
    ingestion_url: str | None = None
    resume_strategy: str = "never"
    init_mode: str = "online"
    orchestration_id: str | None = None
    backpressure_strategy: str = "block"
    delivery_policy: str = "tolerate_loss"
    compression: str = "none"
    on_error: str = "raise"
    log_level: str = "warning"
    default_dtype: str = "float32"
    api_key: str | None = None
    logger_id: str | None = None
    tags: tuple[str, ...] = ()
    description: str | None = None
    config: Mapping[str, Any] | None = None
    queue_capacity: int = QUEUE_POINTS_DEFAULT
    queue_bytes: int = QUEUE_BYTES_DEFAULT
    init_timeout_secs: float = 120.0
    data_dir: str | None = None
    disk: DiskConfig | None = DiskConfig(is_required=False)
    quiet: bool = False
    redact: bool = True

    def __repr__(self) -> str:
        url = None if self.ingestion_url is None else without_user(self.ingestion_url)
        return (
            f"Settings({self.workspace_name}/{self.project_name}/{self.run_name}, "
            f"ingestion_url={url!r}, init_mode={self.init_mode!r})"
        )

    @property
    def is_disabled(self) -> bool:
        """True when every call validates and does nothing."""
        return self.init_mode == "disabled"

    @property
    def is_offline(self) -> bool:
        """True when no server is ever asked: everything goes to the spool."""
        return self.init_mode == "offline"

    @property
    def starts_without_server(self) -> bool:
        """True when a server that does not answer is no reason not to start."""
        return self.init_mode in ("offline", "auto")

    def without_secrets(self) -> Settings:
        """The same settings, fit to leave the process.

        Without the configuration as it was given: the run has it, less its secrets.
        """
        return replace(self, api_key=None, config=None)

    def for_reconnect(self, *, run_name: str, orchestration_id: str) -> Settings:
        """The settings with which a child or another process joins the run that was opened."""
        key = self.api_key or _from_environment("api_key")
        return replace(
            self, run_name=run_name, orchestration_id=orchestration_id, api_key=key, quiet=True
        )


def resolve_settings(**arguments: Any) -> Settings:
    """Build the settings from `init`'s arguments; None means "not given".

    Raises:
        InitError: an unknown choice, an unparsable number, no project, or a mode that needs the
            disk spool without one. The message names the argument and, where it came from there,
            the variable.
    """
    disk = arguments.pop("disk", "default")
    values: dict[str, Any] = {"disk": None if disk is None else _parse("disk", disk, "disk")}
    plain = [name for name in _ENVIRONMENT if name != "disk"]
    for name in (*plain, "orchestration_id", "tags", "description", "config"):
        given, source = arguments.pop(name, None), name
        if given is None and name in _ENVIRONMENT:
            given, source = _from_environment(name), _ENVIRONMENT[name]
        if given is None:
            given = _DEFAULTS.get(name)
        if given is not None:
            values[name] = _parse(name, given, source)
    if arguments:
        raise InitError(f"init() got unknown arguments: {', '.join(sorted(arguments))}")
    if "project_name" not in values:
        raise InitError("init() needs a project", hint="pass project_name= or set METRANA_PROJECT")
    settings = Settings(**values)
    _check_spool(settings)
    return settings


@dataclass(frozen=True, slots=True)
class ConnectionDefaults:
    """Where leftovers are, and where they go.

    Attributes:
        url: the server that was asked for, for all of them.
        default_url: the server of runs that were for none in particular.
        api_key: bearer token.
        data_dir: the local server's store.
        spool_dir: the spool.
    """

    url: str | None
    default_url: str | None
    api_key: str | None
    data_dir: str | None
    spool_dir: str | None


def connection_defaults(
    ingestion_url: str | None, api_key: str | None, data_dir: str | os.PathLike[str] | None
) -> ConnectionDefaults:
    """Resolve what `replay_spool` needs to know of the surroundings.

    Raises:
        InitError: a URL that is none.
    """
    default = _from_environment("ingestion_url")
    variable = _ENVIRONMENT["ingestion_url"]
    return ConnectionDefaults(
        url=ingestion_url and _parse("ingestion_url", ingestion_url, "ingestion_url"),
        default_url=default and _parse("ingestion_url", default, variable),
        api_key=api_key or _from_environment("api_key"),
        data_dir=_from_environment("data_dir") if data_dir is None else os.fspath(data_dir),
        spool_dir=_from_environment("disk"),
    )


def _from_environment(name: str) -> str | None:
    return os.environ.get(_ENVIRONMENT[name]) or None


def _parse(name: str, given: Any, source: str) -> Any:
    choices = _CHOICES.get(name)
    if choices is not None:
        return _choice(name, given, source, choices)
    parser = _PARSERS.get(name)
    if parser is None:
        return given
    try:
        return parser(given)
    except (TypeError, ValueError) as error:
        shown = "***" if name == "api_key" else repr(given)
        raise InitError(f"{source}={shown} is not acceptable: {error}") from error


def _choice(name: str, given: Any, source: str, choices: tuple[str, ...]) -> str:
    # Enum members and numpy dtypes are accepted by their spelling: str(member) may be qualified.
    spelled = getattr(given, "value", None) or getattr(given, "name", None) or given
    if isinstance(given, type):
        spelled = {"float": "float64"}.get(given.__name__, given.__name__)
    folded = str(spelled).lower().replace("-", "_")
    squeezed = {choice.replace("_", ""): choice for choice in choices}
    choice = squeezed.get(folded.replace("_", ""))
    if choice is None:
        raise InitError(f"{source}={given!r} is unknown; {name} is one of {', '.join(choices)}")
    return choice


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError(f"a str is needed, not {type(given).__name__}")
    return given


def _logger_id(given: Any) -> str:
    # The hosted client numbers its loggers; both spellings name one logical writer.
    if isinstance(given, int) and not isinstance(given, bool):
        return str(given)
    return _text(given)


def _url(given: Any) -> str:
    url = _text(given).rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise ValueError("a URL starts with http:// or https://")
    return url


def _capacity(given: Any) -> int:
    points = int(given)
    if points < 1 or isinstance(given, bool):
        raise ValueError("at least one point is needed")
    return points


def _seconds(given: Any) -> float:
    seconds = float(given)
    if not 0 < seconds < float("inf"):
        raise ValueError("a positive number of seconds is needed")
    return seconds


def _switch(given: Any) -> bool:
    if isinstance(given, str):
        return given.strip().lower() not in ("", "0", "false", "no", "off")
    return bool(given)


def _tags(given: Any) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise TypeError("a list of str is needed")
    return tuple(_text(tag) for tag in given)


def _config(given: Any) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise TypeError(f"a mapping is needed, not {type(given).__name__}")
    return given


def _disk(given: Any) -> DiskConfig:
    if isinstance(given, DiskConfig):
        if given.quota_bytes < 1:
            raise ValueError("quota_bytes is at least 1")
        return given
    spelled = getattr(given, "value", given)
    if isinstance(spelled, str) and spelled.lower() == "default":
        # Also what the variable says is a default: the script goes on where it cannot be used.
        return DiskConfig(_from_environment("disk"), is_required=False)
    return DiskConfig(os.fspath(given))


_PARSERS: Final[dict[str, Callable[[Any], Any]]] = {
    "workspace_name": _text,
    "project_name": _text,
    "run_name": _text,
    "ingestion_url": _url,
    "orchestration_id": _text,
    "api_key": _text,
    "logger_id": _logger_id,
    "description": _text,
    "data_dir": os.fspath,
    "disk": _disk,
    "queue_capacity": _capacity,
    "init_timeout_secs": _seconds,
    "quiet": _switch,
    "redact": _switch,
    "tags": _tags,
    "config": _config,
}


def _check_spool(settings: Settings) -> None:
    for name in ("init_mode", "backpressure_strategy"):
        value = getattr(settings, name)
        if settings.disk is None and value in ("offline", "auto", "spool_then_raise"):
            raise InitError(f"{name}={value!r} needs the disk spool, and disk=None switches it off")


def ssh_host() -> str | None:
    """The address under which this machine was reached by ssh; None where it was not."""
    parts = os.environ.get("SSH_CONNECTION", "").split()
    return parts[2] if len(parts) == 4 else None


def has_display() -> bool:
    """Whether a browser that is started here can show a window."""
    if sys.platform in ("darwin", "win32"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
