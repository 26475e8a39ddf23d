"""Receivers for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.collector.receivers.receiving import INTAKES, Receiving, receiving


@pytest.fixture(params=INTAKES)
def receivers(request: pytest.FixtureRequest) -> Iterator[Receiving]:
    """Both receivers with a small limit of size, open to everybody; once for each kind of intake."""
    with receiving(request.param) as running:
        yield running
