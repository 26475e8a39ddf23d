"""Fixtures of the layer timings: one thread for torch, so that times can be compared."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
import torch
from transformers.utils import logging

from tailspan.layers.governor import Governor


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILSPAN_STRICT", "1")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def eager() -> Governor:
    """A governor that lets every step be sampled."""
    return Governor(1e6, first_cost_ns=0, interval_ns=0, random=Random(0))
