"""The engines that the demo can serve with, by the names that the user types.

Errors: UserError when one is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tailspan_queries.demo.serve_transformers import transformers_engine
from tailspan_queries.demo.serve_vllm import vllm_engine
from tailspan_queries.demo.server import Engine

DEFAULT_ENGINE = "transformers"
ENGINES: Mapping[str, Callable[[], Engine]] = {"transformers": transformers_engine, "vllm": vllm_engine}
