"""Loaded by Python at start-up when `tailspan run` put this folder first on PYTHONPATH.

Runs the `sitecustomize` that this one hides, then instruments the process. Fails open: the program starts whatever
happens here.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def _run_hidden_sitecustomize() -> None:
    path = [entry for entry in sys.path if Path(entry).resolve() != _HERE]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _instrument() -> None:
    if os.environ.get("TAILSPAN_ENABLED", "").strip().lower() in ("0", "false", "no", "off"):
        return
    try:
        import tailspan

        tailspan.instrument()
    except Exception as error:
        print(f"tailspan: not tracing this process: {error}", file=sys.stderr)  # noqa: T201


_run_hidden_sitecustomize()
_instrument()
