"""Text for a CSV field that no spreadsheet runs as a formula.

Names and values come from whoever sends spans, and a CSV file ends up in a spreadsheet.

Source: OWASP, "CSV Injection".
"""

from __future__ import annotations

import re

_FORMULA = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]")
"""How a formula begins; in the wide forms of East Asian text, too."""
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")


def inert(text: str) -> str:
    """Return the text, with an apostrophe before it if it begins as a formula and is not simply a number."""
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text
