"""The conformance page: every row names a test that exists, and every conformance test is in a row."""

from __future__ import annotations

import ast
import re
from pathlib import Path

NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
LEVELS = {"MUST", "SHOULD", "MAY", "ours"}


def functions_of(path: Path) -> set[str]:
    """Return the names of a file's test functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def rows(root: Path) -> list[list[str]]:
    """Return the cells of every row of every table, without heads."""
    lines = (root / "docs" / "CONFORMANCE.md").read_text(encoding="utf-8").splitlines()
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [cells for cells in found if cells[-1] not in ("test", "---")]


def test_every_row_names_a_test(root: Path) -> None:
    """Each row has a level that we know, and ends with a test that is there."""
    for cells in rows(root):
        match = NAMED.fullmatch(cells[-1])
        assert match is not None, cells
        assert (root / match[1]).exists(), match[1]
        assert match[2] in functions_of(root / match[1]), match[0]
        assert len(cells) == 2 or cells[1] in LEVELS, cells
    assert len(rows(root)) > 60


def test_the_specification_is_covered(root: Path) -> None:
    """Every test of the transports, encodings and examples is named in a row, so that none is left behind."""
    text = (root / "docs" / "CONFORMANCE.md").read_text(encoding="utf-8")
    named = {(match[1], match[2]) for match in NAMED.finditer(text)}
    unnamed = []
    for name in ("test_every_transport", "test_grpc", "test_http", "test_json"):
        path = f"tests/conformance/{name}.py"
        unnamed += [test for test in sorted(functions_of(root / path)) if (path, test) not in named]
    assert not unnamed
