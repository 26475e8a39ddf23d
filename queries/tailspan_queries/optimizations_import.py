"""Claims about optimisations from a file: numbers that somebody published or noted, which reports show as claims.

JSON: {"source": ..., "total": {"before_ms", "after_ms"}, "items": [{...}]}, or only the list of items; CSV: a header
and one line an item. An item has `name`, `stage`, `before_ms`, `after_ms`, and may have `layer`, `kind`, `per`
(`request` or `token`), `tokens` (an answer, for `per` token), `cost`, `cost_gpu_memory` (`2GiB`), `cost_accuracy`
(percentage points). An item of the stage `request` is the total.

The name of a shipped file may stand instead of a path: `tuning-story`.
Ids follow from source, stage and name, so that the same file, imported again, adds nothing.
Errors: `UserError` names the file and item that does not read.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from tailspan import attributes
from tailspan.errors import UserError
from tailspan_queries.optimizations_records import Claim, Cost, Optimization, Per

TOTAL = attributes.ROLE_REQUEST
"""Stage of the item that is the total."""
NEEDED = ("name", "stage", "before_ms", "after_ms")
KNOWN = (*NEEDED, "layer", "kind", "per", "tokens", "cost", "cost_gpu_memory", "cost_accuracy")
LONGEST_MS = 1e10
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)


def shipped() -> tuple[str, ...]:
    """Return the names of the shipped claims."""
    folder = resources.files(__package__) / "claims"
    return tuple(sorted(file.name[:-5] for file in folder.iterdir() if file.name.endswith(".json")))


def read_claims(name: str, source: str = "") -> list[Optimization]:
    """Read the claims of a file, or of a shipped one.

    Raises: UserError if there is no such file or it does not read.
    """
    path = Path(name)
    if name in shipped() and not path.exists():
        text = (resources.files(__package__) / "claims" / f"{name}.json").read_text(encoding="utf-8")
        return parse_json(text, name, source or name)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise UserError(
            f"cannot read {name!r}: {reason}", f"Name a JSON or CSV file, or one of: {', '.join(shipped())}"
        ) from error
    if path.suffix.lower() == ".csv":
        return parse_csv(text, name, source or path.stem)
    return parse_json(text, name, source or path.stem)


def parse_json(text: str, file: str, source: str) -> list[Optimization]:
    """Read the JSON form.

    Raises: UserError as the module says.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise UserError(f"{file} is no JSON: {error}", "Mend it, or name a file that ends in .csv") from error
    total: Any = None
    items = document
    if isinstance(document, Mapping):
        source = str(document.get("source") or source)
        items, total = document.get("items"), document.get("total")
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        raise UserError(f"{file} holds no list of items", 'Write {"items": [{"name": ..., "stage": ...}]}')
    if total is not None:
        if not isinstance(total, Mapping):
            raise UserError(f"{file}: total is no object", 'Write "total": {"before_ms": 2850, "after_ms": 950}')
        items = [{"name": "end-to-end", "stage": TOTAL, **total}, *items]
    return from_items(items, file, source)


def parse_csv(text: str, file: str, source: str) -> list[Optimization]:
    """Read the CSV form.

    Raises: UserError as the module says.
    """
    lines = csv.DictReader(io.StringIO(text))
    return from_items(
        [{key: value for key, value in line.items() if value not in ("", None)} for line in lines], file, source
    )


def from_items(items: Sequence[Mapping[str, Any]], file: str, source: str) -> list[Optimization]:
    """Turn items into entries.

    Raises: UserError as the module says, for a file without items and for two items of one name and stage.
    """
    found = [entry(item, f"{file}, item {number}", source) for number, item in enumerate(items, start=1)]
    if not found:
        raise UserError(f"{file} holds no items", f"Each needs {', '.join(NEEDED)}")
    if len({item.id for item in found}) < len(found):
        raise UserError(f"{file} has two items with the same name and stage", "Give each a name of its own")
    return found


def entry(item: Mapping[str, Any], where: str, source: str) -> Optimization:
    """Read one item.

    Raises: UserError with the place and what is wrong.
    """
    if unknown := [str(key) for key in item if key not in KNOWN]:
        raise UserError(f"{where} has the unknown field {unknown[0]!r}", f"Known are: {', '.join(KNOWN)}")
    if missing := [key for key in NEEDED if item.get(key) in (None, "")]:
        raise UserError(f"{where} has no {missing[0]}", f"Each item needs {', '.join(NEEDED)}")
    per: Per = "token" if item.get("per") == "token" else "request"
    if item.get("per") not in (None, "request", "token"):
        raise UserError(f"{where}: per is {item['per']!r}", "Use request or token")
    tokens = number(item, "tokens", where) if "tokens" in item else None
    if tokens is not None and per == "request":
        raise UserError(f"{where} has tokens but its times are for a request", "Add per: token, or leave tokens out")
    claim = Claim(number(item, "before_ms", where) * 1e6, number(item, "after_ms", where) * 1e6, per, tokens)
    cost = Cost(
        str(item.get("cost", "")),
        parse_size(str(item["cost_gpu_memory"]), where) if "cost_gpu_memory" in item else 0,
        number(item, "cost_accuracy", where) if "cost_accuracy" in item else 0.0,
    )
    layer = round(number(item, "layer", where)) if "layer" in item else None
    name, stage = str(item["name"]), str(item["stage"]).lower()
    return Optimization(
        entry_id(source, stage, name),
        name,
        stage,
        layer=layer,
        kind=str(item.get("kind", "")),
        cost=cost,
        claim=claim,
        source=source,
    )


def entry_id(source: str, stage: str, name: str) -> str:
    """Return the id of an imported entry, 32 hex digits."""
    return hashlib.sha256("\0".join((source, stage, name)).encode()).hexdigest()[:32]


def number(item: Mapping[str, Any], key: str, where: str) -> float:
    """Read a number that is not negative.

    Raises: UserError if it is none.
    """
    try:
        found = float(item[key])
    except (TypeError, ValueError):
        found = math.nan
    if isinstance(item[key], bool) or not 0 <= found < LONGEST_MS:
        raise UserError(f"{where}: {key} is {item[key]!r}", "Write a number from 0 on, times in milliseconds")
    return found


def parse_size(text: str, where: str) -> int:
    """Read a size such as `2GiB`, `500MB` or `1073741824`; GiB are powers of 1024, GB of 1000.

    Raises: UserError if it is none.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UserError(f"{where}: {text!r} is no size", "Write 2GiB, 500MiB or a number of bytes")
    power = " KMGT".index(match[2].upper() or " ")
    size = float(match[1]) * float(1024 if match[3] else 1000) ** power
    if size >= 2**62:
        raise UserError(f"{where}: {text!r} is no size of a memory", "Write 2GiB, 500MiB or a number of bytes")
    return round(size)
