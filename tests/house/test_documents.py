"""The documents: links lead somewhere, commands exist, and named files are there."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tailspan.cli import COMMANDS
from tailspan.engines import ENGINES
from tailspan_queries import catalog

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.DOTALL | re.MULTILINE)
OUR_COMMAND = re.compile(r"(?:^\s*(?:\$ )?|`)tailspan ([a-z]+)", re.MULTILINE)
OUR_TARGET = re.compile(r"(?:^\s*(?:\$ )?|`)make ([a-z][a-z-]*[a-z])", re.MULTILINE)
EXAMPLE = re.compile(
    r"^<!-- printed: (?P<file>\S+) -->\n```\n(?P<asked>(?:\$ (?:[^\n]*\\\n)*[^\n]*\n)+)(?P<printed>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
OUR_FILE = re.compile(
    r"`((?:instrumentation|collector|schemas|queries|tests|benchmarks|docs|deploy|\.ci)/[\w./-]*\w)/?`"
)


def anchors(document: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    text = FENCE.sub("", document.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def code_of(document: Path) -> str:
    """Return only what is set as code in a document."""
    return "\n".join(match[0] for match in CODE.finditer(document.read_text(encoding="utf-8")))


@pytest.fixture(params=DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def document(request: pytest.FixtureRequest) -> Path:
    """Return one document after the other."""
    path: Path = request.param
    return path


def test_links_resolve(document: Path) -> None:
    """Every link to a file of ours, and every anchor in it, exists."""
    broken = []
    for link in LINK.findall(FENCE.sub("", document.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (document.parent / name).resolve() if name else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_commands_exist(document: Path) -> None:
    """Every `tailspan` command that is shown is one of the table."""
    assert set(OUR_COMMAND.findall(code_of(document))) <= set(COMMANDS)


def test_targets_exist(document: Path) -> None:
    """Every `make` target that is shown is one of the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(OUR_TARGET.findall(code_of(document))) <= targets


def test_named_files_exist(document: Path) -> None:
    """Every file or folder of ours that is named in code style is there."""
    named = OUR_FILE.findall(document.read_text(encoding="utf-8"))
    assert not [name for name in named if not (ROOT / name).exists()]


def test_examples_are_what_the_commands_print(document: Path) -> None:
    """An example that names a snapshot is that snapshot, to the letter; TAILSPAN_UPDATE_SNAPSHOTS=1 pastes it anew."""
    text = document.read_text(encoding="utf-8")
    stated = text.count("<!-- printed: ")
    pasted = EXAMPLE.sub(
        lambda found: found[0].removesuffix(f"{found['printed']}```") + f"{(ROOT / found['file']).read_text()}```", text
    )
    if os.environ.get("TAILSPAN_UPDATE_SNAPSHOTS") and pasted != text:
        document.write_text(pasted, encoding="utf-8")
        text = pasted
    assert len(EXAMPLE.findall(text)) == stated
    assert text == pasted


@pytest.mark.parametrize("name", ["ANALYSIS", "COMPARE", "OPTIMIZATIONS", "WHATIF"])
def test_every_output_shown_is_held_to_a_snapshot(name: str) -> None:
    """In the pages about analysis no output can go stale: what begins with a prompt names its snapshot."""
    text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert text.count("```\n$ tailspan") == len(EXAMPLE.findall(text)) > 0


def test_the_table_of_questions_names_queries_that_are_shipped() -> None:
    """Every question of docs/ANALYSIS.md has its command and its SQL, and each of these queries exists."""
    text = (ROOT / "docs" / "ANALYSIS.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.split("\n## ")[0].splitlines() if line.startswith("| ") and "`" in line]
    assert len(rows) > 10
    for question, command, queries in rows:
        assert "`tailspan" in command, question
        assert set(re.findall(r"`(\w+)`", queries)) <= set(catalog.names()), question
        assert "`" in queries or "the same" in queries, question


def test_the_readme_shows_the_two_commands() -> None:
    """A newcomer finds `make demo` and `make test`."""
    code = code_of(ROOT / "README.md")
    assert "make demo" in code
    assert "make test" in code


def test_the_support_tables_are_those_of_the_code(root: Path) -> None:
    """Every line that `tailspan doctor` prints about an engine stands in docs/SUPPORT.md, with its state and note."""
    page = (root / "docs" / "SUPPORT.md").read_text(encoding="utf-8")
    for engine in ENGINES.values():
        for line in engine.SUPPORT:
            assert f"| {line.what} | {line.state} | {line.note} |\n" in page
