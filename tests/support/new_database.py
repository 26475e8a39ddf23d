"""A chDB folder that has the whole schema: made once for each state of the schema, then copied.

Applying the schema takes most of a second, a copy a tenth. The original lies in the user's cache, under a hash of all
that it was made from. That an empty folder gets the same is tested in tests/schemas and tests/collector/test_cli.py.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import chdb

import tailspan_collector.embedded
import tailspan_schemas

_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tailspan-tests" / "schema"
_KEEP_S = 7 * 24 * 3600


def make_database(folder: Path) -> Path:
    """Put a database with the whole schema and no rows where no folder is yet; return the folder."""
    _CACHE.mkdir(parents=True, exist_ok=True)
    original = _CACHE / _state()
    if not original.exists():
        with _lock(fcntl.LOCK_EX):
            if not original.exists():
                _make(original)
    with _lock(fcntl.LOCK_SH):
        shutil.copytree(original, folder, symlinks=True)
    return folder


def _state() -> str:
    schema = Path(tailspan_schemas.__file__).parent
    files = [path for path in schema.rglob("*") if path.suffix in {".sql", ".py", ".proto"}]
    digest = hashlib.sha256(chdb.__version__.encode())
    for path in (*sorted(files), Path(tailspan_collector.embedded.__file__)):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:32]


def _make(original: Path) -> None:
    """Apply the schema in a process of its own, since chDB opens one folder for each process."""
    for old in _CACHE.iterdir():
        if old.is_dir() and time.time() - old.stat().st_mtime > _KEEP_S:
            shutil.rmtree(old)
    unfinished = original.with_suffix(".new")
    shutil.rmtree(unfinished, ignore_errors=True)
    program = (
        "import sys; from pathlib import Path; from tailspan_collector.embedded import Engine\n"
        "from tailspan_schemas import migrations\n"
        "with Engine(Path(sys.argv[1])) as engine: migrations.apply(engine)"
    )
    subprocess.run([sys.executable, "-c", program, str(unfinished)], check=True, timeout=120)
    unfinished.rename(original)


@contextmanager
def _lock(kind: int) -> Iterator[None]:
    with (_CACHE / "lock").open("a") as file:
        fcntl.flock(file, kind)
        yield
