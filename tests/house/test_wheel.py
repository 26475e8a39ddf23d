"""The wheel that a user installs: what is in it, and that it works on its own."""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tailspan.cli import COMMANDS
from tailspan.version import __version__

PACKAGES = {"tailspan", "tailspan_collector", "tailspan_schemas", "tailspan_queries"}
DATA = {".json": "claims", ".html": "report/templates", ".css": "report/templates"}
"""Kinds of data that are shipped, and where each of them is."""
HEAVY = (
    "accelerate",
    "chdb",
    "click",
    "clickhouse_connect",
    "gguf",
    "h11",
    "numpy",
    "pandas",
    "rich",
    "starlette",
    "torch",
    "transformers",
    "uvicorn",
)
IMPORT_EVERYTHING = """
import importlib, json, pkgutil, sys
import tailspan
modules = [m.name for m in pkgutil.walk_packages(tailspan.__path__, "tailspan.") if not m.name.endswith("__main__")]
for name in modules:
    importlib.import_module(name)
print(tailspan.__file__)
print(json.dumps([len(modules), sorted({name.partition(".")[0] for name in sys.modules})]))
"""
READ_EVERYTHING = """
import json
from importlib import resources
from tailspan_queries import catalog
from tailspan_queries.optimizations_import import read_claims, shipped
from tailspan_schemas import migrations
page = resources.files("tailspan_queries.report") / "templates"
files = {
    "queries": [catalog.load(name).name for name in catalog.names()],
    "claims": [len(read_claims(name)) for name in shipped()],
    "page": [(page / name).is_file() for name in ("page.html", "style.css")],
    "demo": sorted(f.name for f in resources.files("tailspan_queries.demo").iterdir() if f.name.endswith(".sql")),
    "forward": sorted(f.name for f in (resources.files("tailspan_collector.forward") / "sql").iterdir()),
    "schema": len(migrations.load()),
    "module": migrations.__file__,
}
print(json.dumps(files))
"""


def run(bin_folder: Path, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of the fresh environment, away from the checkout and without its settings."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return subprocess.run(
        [str(bin_folder / command[0]), *command[1:]],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment,
        timeout=120,
    )


def names_in(wheel: Path) -> list[str]:
    """Return the files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def metadata_of(wheel: Path, file: str) -> str:
    """Return a file of the wheel's dist-info folder."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(f".dist-info/{file}")]
        return archive.read(name).decode()


def test_only_the_four_packages_are_at_the_top(wheel: Path) -> None:
    """No folder of ours pollutes site-packages."""
    top = {name.split("/", 1)[0] for name in names_in(wheel)}
    assert {name for name in top if not name.endswith(".dist-info")} == PACKAGES


def test_everything_the_checkout_has_is_in_the_wheel(wheel: Path, root: Path) -> None:
    """Every module, SQL file, protobuf schema, type marker, story of claims and template of a page is shipped."""
    shipped = set(names_in(wheel))
    expected = set()
    for source in ("instrumentation", "collector", "schemas", "queries"):
        for path in (root / source).rglob("*"):
            if path.suffix in (".py", ".sql", ".proto", *DATA) or path.name == "py.typed":
                expected.add(path.relative_to(root / source).as_posix())
    assert expected <= shipped
    assert {f"{package}/py.typed" for package in PACKAGES} <= expected
    assert any(name.startswith("tailspan_schemas/") and name.endswith(".sql") for name in shipped)
    assert any(name.startswith("tailspan_queries/") and name.endswith(".sql") for name in shipped)
    assert any(name.endswith(".proto") for name in shipped)


def test_nothing_else_is_in_the_wheel(wheel: Path) -> None:
    """No tests, caches, data or models are shipped."""
    kinds = {
        Path(name).suffix for name in names_in(wheel) if ".dist-info/" not in name and not name.endswith("py.typed")
    }
    assert kinds <= {".py", ".sql", ".proto", *DATA}
    for suffix, folder in DATA.items():
        found = [name for name in names_in(wheel) if name.endswith(suffix) and ".dist-info/" not in name]
        assert found
        assert all(name.startswith(f"tailspan_queries/{folder}/") for name in found)
    assert not [name for name in names_in(wheel) if "__pycache__" in name or "/tests/" in name]


def test_metadata_names_license_python_and_extras(wheel: Path) -> None:
    """The metadata says what a package index and pip need."""
    metadata = Parser().parsestr(metadata_of(wheel, "METADATA"))
    assert (metadata["Name"], metadata["Version"]) == ("tailspan", __version__)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert set(metadata.get_all("Provides-Extra") or ()) == {"collector", "demo", "dev", "kafka", "prometheus"}


def test_a_worker_installs_only_opentelemetry_and_wrapt(wheel: Path) -> None:
    """Without an extra, nothing heavy comes along."""
    requirements = Parser().parsestr(metadata_of(wheel, "METADATA")).get_all("Requires-Dist") or []
    light = [requirement for requirement in requirements if "extra ==" not in requirement]
    assert light
    assert all(requirement.startswith(("opentelemetry-", "wrapt")) for requirement in light)


def test_entry_points_are_declared(wheel: Path) -> None:
    """The command and the OpenTelemetry instrumentor are found by their tools."""
    entry_points = metadata_of(wheel, "entry_points.txt")
    assert "tailspan = tailspan.cli:main" in entry_points
    assert "[opentelemetry_instrumentor]" in entry_points


def test_the_installed_command_works(fresh: Path, tmp_path: Path) -> None:
    """`tailspan --help` lists every command, and `--version` is the wheel's."""
    shown = run(fresh, "tailspan", "--help", cwd=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert all(f"\n  {name} " in shown.stdout for name in COMMANDS)
    assert run(fresh, "tailspan", "--version", cwd=tmp_path).stdout == f"tailspan {__version__}\n"


def test_the_worker_side_imports_nothing_heavy(fresh: Path, tmp_path: Path) -> None:
    """All modules of `tailspan` load from the wheel, and neither torch nor anything of the collector comes along."""
    done = run(fresh, "python", "-W", "error", "-c", IMPORT_EVERYTHING, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    origin, result = done.stdout.splitlines()
    assert Path(origin).is_relative_to(fresh.parent)
    count, loaded = json.loads(result)
    assert count > 10
    assert not set(loaded) & set(HEAVY)


def test_the_installed_data_are_found(fresh: Path, root: Path, tmp_path: Path) -> None:
    """Queries, claims, the page's templates, the schema, SQL of the demo and of forwarding are read from the wheel."""
    done = run(fresh, "python", "-c", READ_EVERYTHING, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert Path(found.pop("module")).is_relative_to(fresh.parent)
    queries = root / "queries/tailspan_queries"
    assert found == {
        "queries": sorted(path.stem for path in (queries / "sql").glob("*.sql")),
        "claims": [6],
        "page": [True, True],
        "demo": sorted(path.name for path in (queries / "demo").glob("*.sql")),
        "forward": sorted(path.name for path in (root / "collector/tailspan_collector/forward/sql").glob("*.sql")),
        "schema": len(list((root / "schemas/tailspan_schemas/sql").glob("*.sql"))),
    }


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_of_the_wheel_has_help(fresh: Path, tmp_path: Path, command: str) -> None:
    """Each command of the table exists and explains itself."""
    shown = run(fresh, "tailspan", command, "--help", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "usage:" in shown.stdout.lower()
