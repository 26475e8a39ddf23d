"""`tailspan up`, `collector` and `migrate`: what they print, and one clear line for what is wrong."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from tailspan.errors import UserError
from tailspan_collector.embedded import Folder
from tailspan_collector.settings import Settings
from tailspan_schemas import migrations
from tests.collector.conftest import CollectorFactory
from tests.support.collector import run_tailspan


def test_up_says_where_it_listens(start_collector: CollectorFactory) -> None:
    """The ready lines and endpoints.json name the real ports and the folder; the file goes when the process ends."""
    collector = start_collector(from_nothing=True)
    endpoints = json.loads((collector.data / "endpoints.json").read_text())
    assert collector.process is not None
    assert endpoints["pid"] == collector.process.pid
    assert collector.query("select count() from tailspan.migrations")[0][0] == len(migrations.load())
    assert collector.stop() == 0
    assert endpoints["otlp"] in collector.output
    assert endpoints["clickhouse"] in collector.output
    assert str(collector.data) in collector.output
    assert "ready" in collector.output
    assert not (collector.data / "endpoints.json").exists()


FLAGS = ("--otlp-port", "--otlp-http-port", "--http-port", "--admin-port")


@pytest.mark.parametrize("flag", FLAGS)
def test_a_port_in_use_is_one_line(tmp_path: Path, flag: str) -> None:
    """A taken port ends with exit code 2, one line with the port and the flag, and creates no database."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ports = dict.fromkeys(FLAGS, "0") | {flag: port}
        flags = [word for pair in ports.items() for word in pair]
        ended = run_tailspan("up", "--data", str(tmp_path / "data"), *flags)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert port in ended.stderr
    assert flag in ended.stderr
    assert not (tmp_path / "data" / "clickhouse").exists()


def test_a_folder_in_use_names_the_process(start_collector: CollectorFactory) -> None:
    """A second collector on the same folder ends with exit code 2 and names the first one's process."""
    collector = start_collector()
    assert collector.process is not None
    ended = run_tailspan("up", "--data", str(collector.data), *(word for flag in FLAGS for word in (flag, "0")))
    assert ended.returncode == 2
    assert f"in use by process {collector.process.pid}" in ended.stderr
    assert ended.stderr.count("\n") == 1
    migrate = run_tailspan("migrate", "--apply", "--data", str(collector.data))
    assert migrate.returncode == 2
    assert f"process {collector.process.pid}" in migrate.stderr


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    """A data folder below a file ends with exit code 2 and says which folder."""
    (tmp_path / "file").touch()
    ended = run_tailspan("up", "--data", str(tmp_path / "file" / "data"))
    assert ended.returncode == 2
    assert "file/data cannot be used: Not a directory" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_folder_of_another_user_names_the_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that belongs to someone else is an error that names the owner."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.getuid", lambda: 4321)
    monkeypatch.setattr("tailspan_collector.embedded.os.open", refuse)
    with pytest.raises(UserError, match=r"belongs to user \w+"):
        Folder(tmp_path)


def test_a_wrong_clickhouse_url_is_one_line(tmp_path: Path) -> None:
    """An address that can never work ends with exit code 2, without the password; one that is down does not end it."""
    url = "clickhouse://user:secret@127.0.0.1:9000"
    ended = run_tailspan("collector", "--clickhouse", url, "--data", str(tmp_path / "data"), "--otlp-port", "0")
    assert ended.returncode == 2
    assert "is no ClickHouse URL" in ended.stderr
    assert "secret" not in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_environment_variables_are_below_flags(tmp_path: Path) -> None:
    """A flag wins over its environment variable, which wins over the default."""
    environment = {"TAILSPAN_DATA": str(tmp_path / "from-environment")}
    assert run_tailspan("migrate", **environment).returncode == 0
    assert (tmp_path / "from-environment").is_dir()
    assert run_tailspan("migrate", "--data", str(tmp_path / "from-flag"), **environment).returncode == 0
    assert (tmp_path / "from-flag").is_dir()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"otlp_port": 70000}, "--otlp-port is 70000"),
        ({"otlp_port": 5000, "http_port": 5000}, "both 5000"),
        ({"max_request_bytes": 1}, "--max-request-bytes is 1 bytes"),
        ({"batch_seconds": 0.0}, "--batch-seconds is 0.0"),
    ],
)
def test_wrong_settings_name_flag_and_value(arguments: dict[str, float], message: str) -> None:
    """A wrong value is an error that names the flag and the value."""
    with pytest.raises(UserError, match=message):
        Settings(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("host", "loopback"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("host", False)]
)
def test_loopback(host: str, loopback: bool) -> None:
    """Only loopback addresses need no warning."""
    assert Settings(host=host).is_loopback is loopback


def test_a_wider_bind_warns(start_collector: CollectorFactory) -> None:
    """Listening on all addresses prints that there is no authentication."""
    collector = start_collector("--host", "0.0.0.0")
    assert "without authentication" in collector.output


def test_migrate_shows_and_applies_once(tmp_path: Path) -> None:
    """`migrate` shows all as pending, `--apply` applies them, a second `--apply` has nothing to do."""
    data = str(tmp_path / "data")
    shown = run_tailspan("migrate", "--data", data)
    assert shown.returncode == 0
    assert "pending" in shown.stdout
    assert " applied" not in shown.stdout
    applied = run_tailspan("migrate", "--data", data, "--apply")
    assert applied.stdout.count("applied now") == shown.stdout.count(" pending\n")
    again = run_tailspan("migrate", "--data", data, "--apply")
    assert "applied now" not in again.stdout
    assert again.stdout.count(" applied\n") == applied.stdout.count("applied now")
