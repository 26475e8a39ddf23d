"""The demo's model as a folder: prepared once, kept in the user's cache, verified before every use.

Out:    ${XDG_CACHE_HOME:-~/.cache}/tailspan/models/VERSION-bf16-FORMAT/SmolLM2-135M-Instruct
        with `manifest.json` (size and SHA-256 of every file).
Units:  sizes in bytes.
Errors: UserError (no space, no package, no network); `ModelError` with the log's path when the conversion fails.
A folder appears under its final name only when it is complete: it is written beside it and renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import util
from pathlib import Path

from tailspan.errors import UserError
from tailspan_queries.demo.convert import STEPS
from tailspan_queries.demo.model_source import find_source, source_version

FORMAT = 1
"""Raise it when what is written into the folder changes: old folders are then left alone and not used."""
NAME = "SmolLM2-135M-Instruct"
"""The folder's own name is what the server calls the model, so it is the model's."""
MANIFEST = "manifest.json"
CONVERTER_NEEDS = ("accelerate", "gguf", "torch", "transformers")
NEEDED_BYTES = 1_000_000_000
CONVERT_SECONDS = 900
TOTAL_STEPS = len(STEPS) + 2

Step = Callable[[int, str], None]
"""Called with (steps done, what comes next)."""


class ModelError(Exception):
    """The conversion failed; the message names the log."""


def prepare_model(step: Step = lambda _done, _text: None, cache: Path | None = None) -> Path:
    """Return the folder of the converted model; convert it first if it is missing or damaged."""
    models = (cache or cache_folder()) / "models"
    target = models / f"{source_version()}-bf16-{FORMAT}" / NAME
    step(0, "check the prepared model")
    if is_intact(target):
        step(TOTAL_STEPS, "model is ready")
        return target
    _check_packages()
    target.parent.mkdir(parents=True, exist_ok=True)
    _check_space(models)
    with tempfile.TemporaryDirectory(prefix=".preparing-", dir=models) as scratch:
        built = Path(scratch) / "model"
        built.mkdir()
        step(0, "find the model's file")
        source = find_source(Path(scratch))
        step(1, STEPS[0])
        _convert(source.gguf, built, models / "convert.log", step)
        step(TOTAL_STEPS - 1, "checksums")
        write_manifest(built)
        _put_in_place(built, target)
    step(TOTAL_STEPS, "model is ready")
    return target


def cache_folder() -> Path:
    """Return the user's cache folder for tailspan."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tailspan"


def write_manifest(folder: Path) -> None:
    """Write size and SHA-256 of every file of the folder into its manifest."""
    files = {path.name: _fingerprint(path) for path in sorted(folder.iterdir()) if path.name != MANIFEST}
    (folder / MANIFEST).write_text(json.dumps({"format": FORMAT, "files": files}, indent=1), encoding="utf-8")


def is_intact(folder: Path) -> bool:
    """Return whether every file of the manifest is there with its size and checksum."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = manifest["files"]
        return bool(files) and all(_fingerprint(folder / name) == expected for name, expected in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _fingerprint(path: Path) -> dict[str, int | str]:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return {"size": path.stat().st_size, "sha256": digest}


def _convert(gguf: Path, target: Path, log: Path, step: Step) -> None:
    command = [sys.executable, "-m", "tailspan_queries.demo.convert", str(gguf), str(target)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    with log.open("w", encoding="utf-8") as errors:
        child = subprocess.Popen(  # noqa: S603 (our own module)
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, start_new_session=True
        )
        try:
            for line in child.stdout or ():
                done = int(line.split("/", 1)[0])
                step(done + 1, STEPS[done] if done < len(STEPS) else "finish")
            code = child.wait(CONVERT_SECONDS)
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
            if child.stdout:
                child.stdout.close()
    if code:
        raise ModelError(f"converting the model failed with exit code {code}; its log is {log}")


def _put_in_place(built: Path, target: Path) -> None:
    if target.exists() and not is_intact(target):
        shutil.rmtree(target)
    try:
        built.rename(target)
    except OSError:
        if not is_intact(target):  # another process was faster: its folder serves as well
            raise


def _check_packages() -> None:
    missing = [name for name in CONVERTER_NEEDS if util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"preparing the model needs {' and '.join(missing)}, which this Python environment does not have",
            f"Run: pip install {' '.join(missing)}",
        )


def _check_space(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < NEEDED_BYTES:
        raise UserError(
            f"preparing the model needs {NEEDED_BYTES / 1e9:.0f} GB in {folder}, and {free / 1e9:.1f} GB are free",
            "Free some space or set XDG_CACHE_HOME to a roomier disk",
        )
