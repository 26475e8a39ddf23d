"""Which tests one process of `make test` runs one after the other: those that share what takes long to set up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadFileScheduling

ROOT = Path(__file__).parents[1]
SHARING = [
    f"{folder.relative_to(ROOT).as_posix()}/"
    for folder in (
        ROOT / "tests" / "conformance",
        *(path.parent for path in sorted(ROOT.glob("tests/queries/*/conftest.py"))),
    )
]
"""Folders whose files share collectors or filled databases."""


@pytest.hookimpl(optionalhook=True)  # the environment of `make test-vllm` has no xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """With --dist loadfile keep the tests of a file in one process, and those of the files of a sharing folder."""
    from xdist.scheduler import LoadFileScheduling

    class TogetherScheduling(LoadFileScheduling):
        """The files of a sharing folder count as one."""

        def _split_scope(self, nodeid: str) -> str:
            return next((folder for folder in SHARING if nodeid.startswith(folder)), super()._split_scope(nodeid))

    return TogetherScheduling(config, log) if config.getvalue("dist") == "loadfile" else None
