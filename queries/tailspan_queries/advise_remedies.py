"""The usual remedies for each stage, what each costs, and where it is described.

In the order in which they are usually tried: settings first, then what costs accuracy, then what costs hardware.
No remedy comes with a gain: that depends on the traffic, and the replay predicts it. Papers are named with their venue
and arXiv number; `vLLM` and `SGLang` are their documentation, whose options are those of vLLM 0.29.
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


TENSOR_PARALLELISM = Remedy(
    "tensor parallelism", "GPUs; communication in every layer", "Megatron-LM, 2019, arXiv:1909.08053"
)
QUANTIZED_CACHE = Remedy(
    "quantized KV cache: room for a larger batch (--kv-cache-dtype fp8)",
    "accuracy: measure it; slower where attention cannot read it as it is",
    "vLLM, SGLang; KIVI, ICML 2024, arXiv:2402.02750",
)
LARGER_PIECES = Remedy(
    "several tokens to a message (vLLM: --stream-interval)", "text comes in larger pieces", "vLLM: engine arguments"
)
MORE_API_PROCESSES = Remedy(
    "more API processes (vLLM: --api-server-count)", "CPU and memory for each", "vLLM: serve arguments"
)

REMEDIES: Mapping[str, tuple[Remedy, ...]] = {
    "tls": (
        Remedy("session resumption", "the keys of tickets must be shared among workers", "TLS 1.3, RFC 8446"),
        Remedy("keep connections open, HTTP/2", "open connections to hold; uneven load on workers", "RFC 9113"),
        Remedy("end TLS at a proxy near the clients", "a hop and a component more"),
    ),
    "receive": (
        Remedy("smaller bodies: ids for earlier turns, images by reference", "state on the server"),
        Remedy("a proxy near the clients that reads bodies for the server", "a hop and a component more"),
    ),
    "tokenize": (
        Remedy("a fast (Rust) tokenizer, in threads of its own", "CPU", "huggingface/tokenizers"),
        MORE_API_PROCESSES,
        Remedy("tokenize common prefixes once", "memory; wrong tokens at the seam if it is not one of the tokenizer's"),
    ),
    "dispatch": (
        Remedy("more CPU for API and engine processes, no throttling by cgroups", "CPU"),
        Remedy("smaller messages to the engine: images by reference, no logprobs unless asked", "state on the server"),
    ),
    "queue": (
        Remedy(
            "larger batch (vLLM: --max-num-seqs); --batch predicts it",
            "longer steps: ITL rises; KV cache, or evictions",
            "Orca, OSDI 2022",
        ),
        Remedy("faster prefill and decode: the queue follows", "see these stages"),
        Remedy(
            "priorities, or the shortest output first (vLLM: --scheduling-policy)",
            "others starve: see `tailspan fairness`; lengths are guesses",
            "Fu et al., 2024, arXiv:2408.15792",
        ),
        Remedy("limit what is accepted, refuse early", "errors that clients must handle"),
        Remedy("more replicas, routing by load and prefix; --arrivals 0.5 predicts two", "GPUs"),
    ),
    "prefill": (
        Remedy(
            "prefix caching, shared parts of the prompt first; --prompt-cache predicts it",
            "KV cache; times betray what others asked (vLLM: cache_salt)",
            "SGLang, 2023, arXiv:2312.07104",
        ),
        Remedy(
            "chunked prefill, more tokens a step (vLLM: --max-num-batched-tokens)",
            "larger chunks: ITL of others rises",
            "Sarathi-Serve, OSDI 2024, arXiv:2403.02310",
        ),
        Remedy("FlashAttention: exact, less traffic to memory", "a GPU it supports", "2022, arXiv:2205.14135"),
        Remedy("FP8 matrix products", "accuracy: measure it; a GPU that has them"),
        Remedy("shorter prompts: retrieve less, compress", "quality of answers"),
        Remedy(
            "prefill on workers of its own",
            "GPUs; the KV cache crosses the network; no more throughput",
            "DistServe, OSDI 2024, arXiv:2401.09670; vLLM",
        ),
        TENSOR_PARALLELISM,
    ),
    "decode": (
        Remedy(
            "CUDA graphs, asynchronous scheduling (launch-bound? `tailspan gpu`)", "GPU memory, start-up time", "vLLM"
        ),
        Remedy(
            "speculative decoding: the same distribution of outputs",
            "memory and time of drafts; gains least at high load",
            "Leviathan et al., ICML 2023, arXiv:2211.17192; vLLM",
        ),
        Remedy(
            "quantized weights (AWQ, GPTQ, FP8)",
            "accuracy: measure it",
            "MLSys 2024, arXiv:2306.00978; ICLR 2023, arXiv:2210.17323",
        ),
        QUANTIZED_CACHE,
        Remedy("shorter answers: limits, terser prompts; --output-tokens predicts it", "completeness of answers"),
        Remedy(
            "smaller or distilled model, grouped-query attention",
            "accuracy; training",
            "Ainslie et al., 2023, arXiv:2305.13245",
        ),
        Remedy("smaller batch, more replicas", "GPUs; a longer queue without them"),
        TENSOR_PARALLELISM,
    ),
    "preempted": (
        Remedy(
            "larger KV cache (vLLM: --gpu-memory-utilization); --kv-cache predicts it",
            "less room for peaks: out of memory",
            "vLLM; PagedAttention, SOSP 2023, arXiv:2309.06180",
        ),
        Remedy("smaller batch, fewer tokens a step", "a longer queue", "vLLM"),
        QUANTIZED_CACHE,
        Remedy("offload the cache instead of computing it again (vLLM: --kv-offloading-size)", "RAM; PCIe traffic"),
        Remedy("more GPUs for the model's weights (tensor parallelism)", "GPUs; communication in every layer", "vLLM"),
    ),
    "detokenize": (
        Remedy("a fast (Rust) tokenizer, more API processes", "CPU and memory", "huggingface/tokenizers"),
        LARGER_PIECES,
    ),
    "respond": (
        LARGER_PIECES,
        MORE_API_PROCESSES,
        Remedy("no proxy that buffers answers; slow clients apart", "a component more"),
    ),
}
