"""The public API as a user's type checker sees it."""

from __future__ import annotations

from pathlib import Path

from mypy import api

FILE = Path(__file__).with_name("typed_public_api.py")


def test_the_public_api_is_typed_and_decorators_keep_signatures() -> None:
    """mypy --strict accepts every right use and, as no ignore is superfluous, refuses every wrong one."""
    output, errors, status = api.run(["--strict", str(FILE)])
    assert status == 0, output + errors
