"""The Makefile sets everything up by itself, also where the checkout's path has a space."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SHELL_TOOLS = ("sh", "make", "rm", "touch", "sed")


@pytest.fixture
def checkout(tmp_path: Path, root: Path) -> Path:
    """Return a folder with a space in its name that has what the Makefile reads."""
    folder = tmp_path / "my checkout"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy2(root / name, folder)
    return folder


def make(folder: Path, *arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run make in a folder, without what an outer make has set."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    environment |= {"PATH": path or environment["PATH"]}
    return subprocess.run(
        ["make", *arguments], cwd=folder, capture_output=True, text=True, env=environment, timeout=120
    )


def test_an_environment_is_made_once(checkout: Path) -> None:
    """The first call creates .venv in a path with a space, and the next one has nothing to do."""
    first = make(checkout, ".venv/created", f"PYTHON={sys.executable}")
    assert first.returncode == 0, first.stderr
    python = checkout / ".venv" / "bin" / "python"
    version = subprocess.run([python, "-m", "pip", "--version"], capture_output=True, text=True)
    assert "my checkout" in version.stdout
    assert "up to date" in make(checkout, ".venv/created").stdout


def test_no_python_is_one_clear_line(checkout: Path, tmp_path: Path) -> None:
    """Without a usable Python, make says what to install and how to name one."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in SHELL_TOOLS:
        (tools / name).symlink_to(str(shutil.which(name)))
    (tools / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tools / "python3").chmod(0o755)
    done = make(checkout, "demo", path=str(tools))
    assert done.returncode == 2
    assert "no Python 3.11 or newer" in done.stderr
    assert "PYTHON=" in done.stderr
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt"])
def test_a_changed_requirement_installs_again(checkout: Path, changed: str) -> None:
    """The stamp of an installation is older than a file that was changed after it."""
    (checkout / ".venv").mkdir()
    for stamp in ("created", "demo-installed", "dev-installed"):
        (checkout / ".venv" / stamp).touch()
    assert "pip install" not in make(checkout, "-n", "test").stdout
    future = (checkout / ".venv" / "dev-installed").stat().st_mtime + 10
    os.utime(checkout / changed, (future, future))
    assert "pip install" in make(checkout, "-n", "test").stdout


def test_targets_pass_their_arguments_on(checkout: Path) -> None:
    """ARGS and ONLY reach the demo, the tests and the benchmarks."""
    assert "tailspan demo --requests 7" in make(checkout, "-n", "demo", "ARGS=--requests 7").stdout
    vllm = ".venv-vllm/bin/tailspan demo --engine vllm --requests 7"
    assert vllm in make(checkout, "-n", "demo", "ENGINE=vllm", "ARGS=--requests 7").stdout
    assert ".venv-vllm/bin/python -m pytest tests/vllm -k x" in make(checkout, "-n", "test-vllm", "ARGS=-k x").stdout
    assert "--no-loadscope-reorder tests/demo" in make(checkout, "-n", "test", "ARGS=tests/demo").stdout
    assert "benchmarks --only recorder" in make(checkout, "-n", "bench", "ONLY=recorder").stdout
    assert "--only" not in make(checkout, "-n", "bench").stdout


def test_help_names_the_targets(checkout: Path) -> None:
    """`make` alone explains what there is."""
    text = make(checkout).stdout
    assert all(f"make {target}" in text for target in ("demo", "test", "test-vllm", "lint", "bench"))


def test_the_continuous_check_can_be_run(root: Path) -> None:
    """The script is executable and runs lint and the tests."""
    script = root / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert {"make lint", "run test", "run test-vllm"} <= set(script.read_text().splitlines())


@pytest.mark.parametrize(("failures", "code"), [(0, 0), (1, 0), (2, 2)])
def test_what_failed_runs_once_more(root: Path, tmp_path: Path, failures: int, code: int) -> None:
    """The script passes when the failed tests pass alone, and fails when they fail again."""
    fake = tmp_path / "make"
    fake.write_text(
        f"""#!/bin/sh
echo "$@" >> {tmp_path}/calls
[ "$1" = test ] && [ "$(grep -Ec '^test( |$)' {tmp_path}/calls)" -le {failures} ] && exit 2
exit 0
"""
    )
    fake.chmod(0o755)
    (tmp_path / "promtool").symlink_to("/bin/true")
    done = subprocess.run(
        ["bash", str(root / ".ci" / "run")], env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[:2] == ["lint", "test"]
    assert ("test ARGS=--last-failed --last-failed-no-failures none -n 0" in calls) == (failures > 0)
