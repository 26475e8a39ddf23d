"""Reads the admin port of a running collector: its pages, and the values of `/metrics` by name and label."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families

_PREFIX = "tailspan_collector_"
_TIMEOUT_S = 5.0


def fetch(url: str) -> str:
    """Return a page; also that of a collector that is not ready, since its body says why.

    Raises:
        OSError: nothing answers, or with an HTTP error.
    """
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310 (the caller checks the scheme)
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            if error.code != 503:
                raise
            return error.read().decode()


def reason(error: Exception) -> str:
    """Return why a page could not be read."""
    return str(getattr(error, "reason", "") or error)


class Samples:
    """The values of a `/metrics` page."""

    def __init__(self, text: str) -> None:
        self._samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def total(self, name: str, **labels: str) -> float:
        """Return the sum over all samples of a name that have the labels; 0 if there is none."""
        return sum(value for _, value in self._having(name, labels))

    def by(self, label: str, name: str, **labels: str) -> dict[str, float]:
        """Return the sums by the values of one label."""
        sums: dict[str, float] = {}
        for found, value in self._having(name, labels):
            sums[found.get(label, "")] = sums.get(found.get(label, ""), 0.0) + value
        return sums

    def _having(self, name: str, labels: dict[str, str]) -> Iterator[tuple[dict[str, str], float]]:
        for sample in self._samples:
            is_meant = sample.name in (name, f"{_PREFIX}{name}")
            if is_meant and all(sample.labels.get(key) == value for key, value in labels.items()):
                yield sample.labels, sample.value
