"""Which requests a report is about: service, model and instance; an empty value means all."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Filters:
    """Exact values that a request must have; an empty string lets everything through."""

    service: str = ""
    model: str = ""
    instance: str = ""

    @property
    def parameters(self) -> dict[str, str]:
        """The query parameters that every shipped query takes."""
        return {"service": self.service, "model": self.model, "instance": self.instance}

    @property
    def chosen(self) -> dict[str, str]:
        """Only the filters in use."""
        return {name: value for name, value in self.parameters.items() if value}

    def __str__(self) -> str:
        """The filters in use as the options that set them; empty without any."""
        return " ".join(f"--{name} {value}" for name, value in self.chosen.items())


ALL = Filters()
