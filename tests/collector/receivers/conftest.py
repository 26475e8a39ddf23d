"""Receivers for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.collector.receivers.receiving import Receiving, receiving


@pytest.fixture
def receivers() -> Iterator[Receiving]:
    """Both receivers with a small limit of size, open to everybody."""
    with receiving() as running:
        yield running
