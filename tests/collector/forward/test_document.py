"""docs/FORWARDING.md says what the code does."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tailspan_collector.forward import config, destinations

DOCUMENT = Path(__file__).parents[3] / "docs" / "FORWARDING.md"


def test_examples_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every [[forward]] table of the document is accepted, given its variables and files."""
    text = DOCUMENT.read_text(encoding="utf-8").replace("/etc/tailspan", str(tmp_path))
    for name in ("ca.pem", "me.pem", "me.key"):
        (tmp_path / name).touch()
    for variable in ("APM_TOKEN", "GRAFANA_CLOUD_OTLP", "HONEYCOMB_API_KEY", "KAFKA_PASSWORD"):
        monkeypatch.setenv(variable, "s3cret")
    blocks = [tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL)]
    tables = [table for block in blocks for table in block.get("forward", [])]
    assert len(destinations(tables)) == len(tables) >= 8


def test_every_key_is_documented() -> None:
    """The table of keys lists exactly the keys that are read."""
    text = DOCUMENT.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[a-z_`, ]+`) \|", text[: text.index("## Examples")], re.MULTILINE)
    assert {key for row in rows for key in re.findall(r"\w+", row)} == set(config.KEYS)
