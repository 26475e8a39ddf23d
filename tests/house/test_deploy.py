"""The files under deploy/: everything they name exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tailspan import cli

ROOT = Path(__file__).parents[2]
POD = ROOT / "deploy/kubernetes/worker-with-agent.yaml"
UNIT = ROOT / "deploy/systemd/tailspan-collector.service"
COMMAND = re.compile(r"tailspan (?P<name>[a-z]+)(?P<flags>(?: --[a-z-]+(?: [^-\s\"]\S*)?)*)")


def commands(path: Path) -> list[tuple[str, list[str]]]:
    """Return every `tailspan` command line in a file that is not a comment: its command and its flags."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    found = COMMAND.finditer("\n".join(lines))
    return [
        (match["name"], re.findall(r"--[a-z-]+", match["flags"])) for match in found if match["name"] in cli.COMMANDS
    ]


@pytest.mark.parametrize("path", [POD, UNIT], ids=lambda path: path.name)
def test_the_commands_and_flags_exist(path: Path) -> None:
    """Each command line names a command of ours, and its help knows each flag."""
    found = commands(path)
    assert found
    for name, flags in found:
        shown = subprocess.run(
            [sys.executable, "-m", "tailspan", name, "--help"], capture_output=True, text=True, check=True
        )
        assert all(flag in shown.stdout for flag in flags), (name, flags)


def test_the_pod_is_consistent() -> None:
    """Both containers mount the volume, and the worker's runtime folder is the one that the agent watches."""
    (pod,) = yaml.safe_load_all(POD.read_text())
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    worker, agent = pod["spec"]["containers"]
    for container in (worker, agent):
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    env = {item["name"]: item["value"] for item in worker["env"]}
    assert env["TAILSPAN_AGENT"] == "external"
    assert agent["command"][-1].endswith(f"--watch {env['TAILSPAN_RUNTIME_DIR']}")
    source = "".join(path.read_text() for path in (ROOT / "instrumentation").rglob("*.py"))
    assert all(name in source for name in env if name.startswith("TAILSPAN_"))


def test_the_unit_stores_where_the_service_may_write() -> None:
    """The data folder is the state directory that systemd makes."""
    text = UNIT.read_text()
    assert "--data /var/lib/tailspan" in text
    assert "StateDirectory=tailspan" in text
