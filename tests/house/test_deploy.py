"""The unit and the example pods under deploy/: everything they name exists, and systemd and Kubernetes accept them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tailspan import cli
from tailspan_collector.settings import Settings
from tests.support import tools

ROOT = Path(__file__).parents[2]
PODS = sorted((ROOT / "deploy/kubernetes").glob("*.yaml"))
UNIT = ROOT / "deploy/systemd/tailspan-collector.service"
COMMAND = re.compile(r"tailspan (?P<name>[a-z]+)(?P<flags>(?: --[a-z-]+(?: [^-\s\"]\S*)?)*)")


def commands(path: Path) -> list[tuple[str, list[str]]]:
    """Return every `tailspan` command line in a file that is not a comment: its command and its flags."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    found = COMMAND.finditer("\n".join(lines))
    return [
        (match["name"], re.findall(r"--[a-z-]+", match["flags"])) for match in found if match["name"] in cli.COMMANDS
    ]


def containers(path: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the pod's spec, the worker's container and the agent's, which may be a sidecar."""
    (pod,) = yaml.safe_load_all(path.read_text())
    spec = pod["spec"]
    named = {item["name"]: item for item in [*spec["containers"], *spec.get("initContainers", [])]}
    return spec, named["worker"], named["tailspan-agent"]


@pytest.mark.parametrize("path", [*PODS, UNIT], ids=lambda path: path.name)
def test_the_commands_and_flags_exist(path: Path) -> None:
    """Each command line names a command of ours, and its help knows each flag."""
    found = commands(path)
    assert found
    for name, flags in found:
        shown = subprocess.run(
            [sys.executable, "-m", "tailspan", name, "--help"], capture_output=True, text=True, check=True
        )
        assert all(flag in shown.stdout for flag in flags), (name, flags)


@pytest.mark.parametrize("path", PODS, ids=lambda path: path.name)
def test_a_pod_is_consistent(path: Path) -> None:
    """Both containers mount the volume, and the worker's runtime folder is the one that the agent watches."""
    spec, worker, agent = containers(path)
    volumes = {volume["name"] for volume in spec["volumes"]}
    for container in (worker, agent):
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        assert {"name": "tailspan", "mountPath": "/run/tailspan"} in container["volumeMounts"]
    env = {item["name"]: item.get("value") for item in worker["env"]}
    assert env["TAILSPAN_AGENT"] == "external"
    assert agent["command"][-1].endswith(f"--watch {env['TAILSPAN_RUNTIME_DIR']}")
    source = "".join(path.read_text() for path in (ROOT / "instrumentation").rglob("*.py"))
    assert all(name in source for name in env if name.startswith("TAILSPAN_"))
    endpoints = re.findall(r"http://tailspan-collector:(\d+)", path.read_text())
    assert set(map(int, endpoints)) == {Settings().otlp_port}


@pytest.mark.parametrize("path", PODS, ids=lambda path: path.name)
def test_kubernetes_accepts_a_pod(path: Path) -> None:
    """Strictly by Kubernetes' schema, so that no misspelt field is silently ignored."""
    done = tools.run("kubernetes-validate==1.37.0", "kubernetes-validate", "--strict", "-k", "1.33", path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_unit_stores_where_the_service_may_write() -> None:
    """The data folder is the state directory that systemd makes."""
    text = UNIT.read_text()
    assert "--data /var/lib/tailspan" in text
    assert "StateDirectory=tailspan" in text


def test_the_unit_names_the_ports_and_waits_long_enough() -> None:
    """The ports in its head are the collector's, and systemd kills it only after it could store what it took."""
    text = UNIT.read_text()
    defaults = Settings()
    for port in (defaults.otlp_port, defaults.otlp_http_port, defaults.http_port, defaults.admin_port):
        assert re.search(rf"\b{port}\b", text), port
    (stop,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert int(stop) > defaults.stop_seconds


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    """`systemd-analyze verify` finds nothing once the program is where the unit says; its sandbox is rated OK."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / UNIT.name
    program = tmp_path / "python"  # a path without the spaces that a checkout may have
    program.symlink_to(sys.executable)
    unit.write_text(UNIT.read_text().replace("/opt/tailspan/bin/tailspan", str(program)))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert unit.name not in done.stderr
    rated = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=30", unit],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert rated.returncode == 0, rated.stdout[-500:]
