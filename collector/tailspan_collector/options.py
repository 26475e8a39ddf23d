"""Settings from flags, environment variables and a TOML file, all made from the fields of `Settings`.

    otlp_port = 4317                flag --otlp-port, variable TAILSPAN_OTLP_PORT
    [[forward]]                     any number of destinations, see `forward`
    endpoint = "https://apm:4317"

Errors: `UserError` names the file, the key and what is allowed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import click

from tailspan.errors import UserError
from tailspan_collector.settings import NAMES, Settings

CONFIG = "TAILSPAN_CONFIG"
C = TypeVar("C", bound=Callable[..., Any])
_HINTS = get_type_hints(Settings)
Tables = list[dict[str, Any]]


def variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"TAILSPAN_{name.upper()}"


def options(command_name: str) -> Callable[[C], C]:
    """Return a decorator that adds `--config` and every setting of a command; it then gets them as keywords."""

    def add(command: C) -> C:
        for item in reversed(fields(Settings)):
            if command_name in item.metadata["of"]:
                command = _option(item.name, item.default, item.metadata["help"])(command)
        return click.option(
            "--config",
            envvar=CONFIG,
            type=click.Path(path_type=Path, dir_okay=False),
            default=None,
            help="TOML file with settings and [[forward]] destinations",
        )(command)

    return add


def _option(name: str, default: Any, text: str) -> Callable[[C], C]:
    words = [f"--{name.replace('_', '-')}"]
    if name == "clickhouse_url":
        words.append("--clickhouse")
    kind = _kind(name)
    # No default for click: an option that is not given must not hide what the file says.
    shown = "" if default in (None, "") else f"  [default: {default}]"
    return click.option(*words, name, envvar=variable(name), type=kind, default=None, help=f"{text}{shown}")


def _kind(name: str) -> Any:
    hint = _HINTS[name]
    if hint in (int, float):
        return hint
    return click.Path(path_type=Path) if "Path" in str(hint) else str


def read_settings(
    command_name: str, given: Mapping[str, Any], config: Path | None, **defaults: Any
) -> tuple[Settings, Tables]:
    """Return the settings of a command and its `[[forward]]` tables.

    In: `given`, what click found in flags and environment, None = not given; `defaults`, where the command has its own.

    Raises:
        UserError: a value, a key or the file is wrong.
    """
    table = read_file(config) if config is not None else {}
    forward = table.pop("forward", [])
    if not isinstance(forward, list) or not all(isinstance(item, dict) for item in forward):
        raise UserError(f"{config}: forward is no list of tables", "Write [[forward]] before each destination")
    allowed = {item.name for item in fields(Settings) if command_name in item.metadata["of"]}
    for name in table:
        if name not in allowed:
            other = f"; it belongs to another command than `tailspan {command_name}`" if name in NAMES else ""
            raise UserError(f"{config}: unknown key {name!r}{other}", f"Use one of: {', '.join(sorted(allowed))}")
    values = {name: _convert(config, name, value) for name, value in table.items()}
    values |= {name: value for name, value in given.items() if value is not None and name in allowed}
    return Settings(**defaults | values), forward


def read_file(path: Path) -> dict[str, Any]:
    """Return what a TOML file says.

    Raises:
        UserError: it cannot be read.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"the configuration file {path} cannot be read: {error.strerror}", "Check --config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"the configuration file {path} is no TOML: {error}", "Mend the file") from error


def _convert(config: Path | None, name: str, value: Any) -> Any:
    kind = _kind(name)
    wanted: tuple[type, ...] = (str,)
    if kind in (int, float):
        wanted = (int,) if kind is int else (int, float)
    if not isinstance(value, wanted) or isinstance(value, bool):
        word = "a number" if kind in (int, float) else "a text in quotes"
        raise UserError(f"{config}: {name} is {value!r}", f"Give {word}")
    return Path(str(value)) if isinstance(kind, click.Path) else kind(value)
