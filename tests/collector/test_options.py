"""Settings from flags, environment and file: who wins, and what a mistake says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tailspan.errors import UserError
from tailspan_collector.options import options, read_settings, variable
from tailspan_collector.settings import NAMES, Settings


def settings_of(command: str, arguments: list[str], environment: dict[str, str] | None = None) -> Settings:
    """Run a command that only reads its settings."""
    found: list[Settings] = []

    @click.command()
    @options(command)
    def read(config: Path | None, **given: Any) -> None:
        found.append(read_settings(command, given, config)[0])

    result = CliRunner().invoke(read, arguments, env=environment or {}, catch_exceptions=False)
    assert found, result.output
    return found[0]


def config_file(folder: Path, text: str) -> Path:
    """Write a configuration file."""
    path = folder / "tailspan.toml"
    path.write_text(text)
    return path


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    """The precedence is flag, environment variable, file, default."""
    path = config_file(tmp_path, "otlp_port = 1001\nadmin_port = 1002\nbatch_seconds = 2\n")
    settings = settings_of(
        "up",
        ["--config", str(path), "--otlp-port", "3001"],
        {"TAILSPAN_OTLP_PORT": "2001", "TAILSPAN_ADMIN_PORT": "2002"},
    )
    assert (settings.otlp_port, settings.admin_port, settings.batch_seconds) == (3001, 2002, 2.0)
    assert settings.otlp_http_port == 4318


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("clickhouse_password", "clickhouse_token")])
def test_every_setting_has_flag_variable_and_help(name: str) -> None:
    """No setting is left out of the command lines."""
    outputs = []
    for command in ("up", "collector"):

        @click.command()
        @options(command)
        def nothing(**_: Any) -> None: ...

        outputs.append(CliRunner().invoke(nothing, ["--help"], terminal_width=200).output)
    assert any(f"--{name.replace('_', '-')}" in output for output in outputs)
    assert variable(name) == f"TAILSPAN_{name.upper()}"


def test_secrets_are_not_shown() -> None:
    """The text of settings, as a log or traceback would show it, holds no password or token."""
    shown = repr(Settings(clickhouse_url="http://a", clickhouse_user="u", clickhouse_password="hush"))
    assert "hush" not in shown
    assert "hush" not in repr(Settings(clickhouse_url="http://a", clickhouse_token="hush"))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("otlp_prot = 1", "unknown key 'otlp_prot'"),
        ("otlp_port = '4317'", "otlp_port is '4317'. Give a number"),
        ("host = 7", "host is 7. Give a text in quotes"),
        ("otlp_port = true", "otlp_port is True"),
        ("cluster = 'c'", "belongs to another command"),
        ("forward = 3", "forward is no list of tables"),
        ("host = ", "is no TOML"),
    ],
)
def test_mistakes_in_the_file_name_file_and_key(tmp_path: Path, text: str, complaint: str) -> None:
    """A wrong key, type or syntax is one error that names the file and what is wrong."""
    path = config_file(tmp_path, text)
    with pytest.raises(UserError) as caught:
        read_settings("up", {}, path)
    assert complaint in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    """A file that was named must exist."""
    with pytest.raises(UserError, match="cannot be read"):
        read_settings("up", {}, tmp_path / "absent.toml")


def test_destinations_are_handed_on(tmp_path: Path) -> None:
    """`[[forward]]` tables come back as they stand in the file."""
    path = config_file(tmp_path, '[[forward]]\nname = "apm"\n[[forward]]\nname = "other"\n')
    assert [table["name"] for table in read_settings("up", {}, path)[1]] == ["apm", "other"]


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"tls_cert": Path("a")}, "--tls-cert is given without --tls-key"),
        ({"tls_client_ca": Path("a")}, "--tls-client-ca needs TLS"),
        ({"clickhouse_token": "t", "clickhouse_user": "u"}, "--clickhouse-token is given beside"),
        ({"otlp_port": 4318}, "--otlp-port and --otlp-http-port are both 4318"),
        ({"log_format": "xml"}, "--log-format is 'xml'. Use text or json"),
        ({"inserts_in_flight": 0}, "--inserts-in-flight is 0. Use 1 to 64"),
        ({"max_spool_seconds": -1.0}, "--max-spool-seconds is -1.0"),
    ],
)
def test_values_that_do_not_fit(values: dict[str, Any], complaint: str) -> None:
    """Each wrong value, alone or beside another, names its flag and what is allowed."""
    with pytest.raises(UserError) as caught:
        Settings(**values)
    assert complaint in str(caught.value)
