"""What commands print, held against stored output that people have looked at."""

import os
import re
from pathlib import Path

SNAPSHOTS = Path(__file__).parent / "snapshots"
_DECIMALS = re.compile(r"\d+\.\d{4,}(?:e-?\d+)?")


def same_as_snapshot(name: str, text: str, folder: Path = SNAPSHOTS) -> None:
    """Compare with the stored output; TAILSPAN_UPDATE_SNAPSHOTS=1 stores it anew."""
    file = folder / name
    if os.environ.get("TAILSPAN_UPDATE_SNAPSHOTS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def rounded(text: str) -> str:
    """Shorten numbers: sums of what is no whole number depend on their order in the last digits."""
    return _DECIMALS.sub(lambda found: f"{float(found[0]):.9g}", text)
