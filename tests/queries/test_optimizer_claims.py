"""Claims from a file: both forms say the same, and what does not read is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailspan.errors import UserError
from tailspan_queries.optimizations_import import parse_csv, parse_json, parse_size, read_claims
from tailspan_queries.optimizations_records import Claim

MS = 1e6


def test_json_and_csv_say_the_same(tmp_path: Path) -> None:
    """The same items come out of both forms, with costs and tokens."""
    item = {"name": "kernels", "stage": "decode", "before_ms": 35, "after_ms": 22, "per": "token", "tokens": 40}
    item |= {"cost": "upkeep, mostly", "cost_gpu_memory": "1.5GiB", "cost_accuracy": 0.4}
    (from_json,) = parse_json(json.dumps({"source": "notes", "items": [item]}), "x.json", "x")
    text = ",".join(item) + "\n" + ",".join(f'"{value}"' for value in item.values()) + "\n"
    (tmp_path / "notes.csv").write_text(text)
    (from_csv,) = read_claims(str(tmp_path / "notes.csv"))
    assert from_json == from_csv
    assert from_json.claim == Claim(35 * MS, 22 * MS, "token", 40)
    assert from_json.cost.gpu_memory_bytes == 3 * 2**29
    assert from_json.source == "notes"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[", "is no JSON"),
        ('{"items": 3}', "no list of items"),
        ('{"items": [], "total": 3}', "total is no object"),
        ("[]", "holds no items"),
        ('[{"name": "a"}]', "item 1 has no stage"),
        ('[{"name": "a", "stage": "queue", "before_ms": "x", "after_ms": 1}]', "before_ms is 'x'"),
        ('[{"name": "a", "stage": "queue", "before_ms": -1, "after_ms": 1}]', "before_ms is -1"),
        ('[{"name": "a", "stage": "queue", "before_ms": true, "after_ms": 1}]', "before_ms is True"),
        ('[{"name": "a", "stage": "queue", "before_ms": NaN, "after_ms": 1}]', "before_ms is nan"),
        ('[{"name": "a", "stage": "queue", "before_ms": 1, "after_ms": 1, "per": "day"}]', "per is 'day'"),
        ('[{"name": "a", "stage": "queue", "before_ms": 1, "after_ms": 1, "tokens": 3}]', "has tokens but"),
        ('[{"name": "a", "stage": "queue", "before_ms": 1, "after_ms": 1, "gpu": 3}]', "unknown field 'gpu'"),
        ('[{"name": "a", "stage": "queue", "before_ms": 1, "after_ms": 1, "cost_gpu_memory": "2 cows"}]', "no size"),
    ],
)
def test_a_file_that_does_not_read_is_told_where(text: str, words: str) -> None:
    """One line says which item is wrong and how."""
    with pytest.raises(UserError, match=words):
        parse_json(text, "claims.json", "claims")


def test_two_items_of_one_name_are_refused() -> None:
    """Ids follow from names, so that one would take the other's place."""
    text = "name,stage,before_ms,after_ms\na,queue,2,1\na,queue,3,1\n"
    with pytest.raises(UserError, match="two items with the same name and stage"):
        parse_csv(text, "claims.csv", "claims")


def test_a_file_that_is_not_there_is_told_with_the_shipped_ones() -> None:
    """The error names what could be meant."""
    with pytest.raises(UserError, match=r"cannot read 'nothing\.json'.*tuning-story"):
        read_claims("nothing.json")


@pytest.mark.parametrize(
    ("text", "size"), [("2GiB", 2**31), ("2 GB", 2 * 10**9), ("512", 512), ("0.5KiB", 512), ("1tb", 10**12)]
)
def test_sizes(text: str, size: int) -> None:
    """Powers of 1024 with an i, of 1000 without."""
    assert parse_size(text, "here") == size
