"""The usual remedies for each stage, what each costs, and where it is described.

In the order in which they are usually tried: settings first, then what costs accuracy, then what costs hardware.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Remedy:
    """Something that is done about a stage."""

    name: str
    cost: str
    source: str = ""


REMEDIES: Mapping[str, tuple[Remedy, ...]] = {
    "tls": (
        Remedy("session resumption (tickets)", "tickets must be shared among workers", "RFC 8446, 2.2"),
        Remedy("keep connections open, HTTP/2", "open connections to hold; uneven load on workers", "RFC 9113"),
        Remedy("end TLS at a proxy near the clients", "a hop and a component more"),
    ),
    "receive": (
        Remedy("smaller bodies: ids for earlier turns, images by reference", "state on the server"),
        Remedy("proxy without buffering, near the clients", "a component more"),
    ),
    "tokenize": (
        Remedy("a fast (Rust) tokenizer, in threads of its own", "none known but CPU", "huggingface/tokenizers"),
        Remedy("more API processes (vLLM: --api-server-count)", "CPU and memory for each", "vLLM documentation"),
        Remedy("tokenize common prefixes once", "memory; care at the seam of prefix and rest"),
    ),
    "dispatch": (
        Remedy("more CPU for API and engine processes, no cgroup throttling", "CPU"),
        Remedy("fewer, larger messages to the engine; no logprobs unless asked", "none known"),
    ),
    "queue": (
        Remedy("larger batch (vLLM: --max-num-seqs)", "longer steps: ITL rises; KV cache", "Orca, OSDI 2022"),
        Remedy(
            "make decode and prefill faster: the queue follows", "see these stages; `tailspan whatif` says by how much"
        ),
        Remedy(
            "priorities, or the shortest output first", "others starve: see `tailspan fairness`", "arXiv:2408.15792"
        ),
        Remedy("limit what is accepted, refuse early", "errors that clients must handle"),
        Remedy("more replicas, routing by load and prefix", "GPUs"),
    ),
    "prefill": (
        Remedy(
            "prefix caching; shared parts of the prompt first", "KV cache; timing may leak prefixes", "arXiv:2312.07104"
        ),
        Remedy("chunked prefill, more tokens a step", "larger chunks: ITL of others rises", "arXiv:2403.02310"),
        Remedy("FlashAttention, FP8 matrix products", "accuracy (FP8): measure it", "arXiv:2205.14135"),
        Remedy("shorter prompts: retrieve less, compress", "quality of answers"),
        Remedy("prefill on workers of its own", "GPUs; the KV cache crosses the network", "arXiv:2401.09670"),
        Remedy("tensor parallelism", "GPUs; communication in every layer", "arXiv:1909.08053"),
    ),
    "decode": (
        Remedy(
            "CUDA graphs, asynchronous scheduling (launch-bound? `tailspan gpu`)", "GPU memory, start-up time", "vLLM"
        ),
        Remedy("speculative decoding", "a draft model's memory; at large batches slower", "arXiv:2211.17192"),
        Remedy("quantized weights (AWQ, GPTQ, FP8)", "accuracy: measure it", "arXiv:2306.00978, arXiv:2210.17323"),
        Remedy("quantized KV cache", "accuracy on long contexts", "arXiv:2402.02750"),
        Remedy("shorter answers: limits, terser prompts", "completeness of answers"),
        Remedy("smaller or distilled model, grouped-query attention", "accuracy; training", "arXiv:2305.13245"),
        Remedy("smaller batch, more replicas; tensor parallelism", "GPUs"),
    ),
    "preempted": (
        Remedy(
            "larger KV cache (vLLM: --gpu-memory-utilization)", "less room for peaks: out of memory", "arXiv:2309.06180"
        ),
        Remedy("smaller batch", "a longer queue"),
        Remedy(
            "quantized KV cache, offloading instead of computing again", "accuracy; PCIe traffic", "arXiv:2402.02750"
        ),
    ),
    "detokenize": (
        Remedy("detokenize incrementally, in a process of its own", "CPU", "vLLM documentation"),
        Remedy("several tokens to a message (vLLM: --stream-interval)", "text comes in larger pieces"),
    ),
    "respond": (
        Remedy("several tokens to a message; no buffering proxy", "text comes in larger pieces"),
        Remedy("more API processes; slow clients apart", "CPU and memory for each"),
    ),
}
