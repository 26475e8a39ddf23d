"""What `--help` says beside the options: commands by what one wants to know, examples, exit codes.

Out: `GROUPS` for the overview, `epilog` for a command's own help. It is text only, so that the overview loads nothing.
"""

from __future__ import annotations

GROUPS = {
    "Begin": ("demo", "up", "run", "doctor"),
    "Where does the time go": (
        "stages", "latency", "slowest", "trace", "layers", "gpu", "engine", "interference", "preemption",
    ),
    "What makes the tail": ("tail", "different", "fairness"),
    "What would help, and did it": ("advise", "whatif", "compare", "regress", "optimizations", "report"),
    "Questions of your own": ("query", "export"),
    "In production": ("collector", "migrate", "retention", "rejects", "agent", "blackbox"),
}  # fmt: skip
"""Every command once, under what it is for."""

EXAMPLES = {
    "stages": (
        "tailspan stages --since 15m",
        "tailspan stages --by prompt --stage prefill",
        "tailspan stages --since 1d --over 1h",
    ),
    "latency": (
        "tailspan latency --slo ttft=500ms --slo itl=50ms",
        "tailspan latency --since 1d --over 1h --by model",
    ),
    "slowest": ("tailspan slowest -n 20 --since 2h",),
    "trace": ("tailspan trace 8f2850d1",),
    "query": ("tailspan query", "tailspan query services", "tailspan query my.sql --param limit=10"),
    "tail": ("tailspan tail --quantile 0.999", "tailspan tail --by priority"),
    "different": ("tailspan different --since 6h", "tailspan different --slowest 5% --model llama-3"),
    "fairness": ("tailspan fairness", "tailspan fairness --by attr:app.tenant --since 1d"),
    "compare": (
        "tailspan compare --before 2h..1h --after 1h..now",
        "tailspan compare --by-attribute service.version=1.2 --versus 1.3 --since 6h",
    ),
    "regress": ("tailspan regress", "tailspan regress --since 2h --baseline 9d..8d --statistic p95"),
    "whatif": (
        "tailspan whatif --stage decode --speedup 1.3",
        "tailspan whatif --batch 16 --arrivals 1.5",
        "tailspan whatif",
    ),
    "report": ("tailspan report --since 6h -o incident.html",),
    "advise": ("tailspan advise --since 2h", "tailspan advise --factor 2 --by mean"),
    "interference": ("tailspan interference --by engine",),
    "preemption": ("tailspan preemption --by request -n 20",),
    "engine": ("tailspan engine --gap-ms 5",),
    "gpu": ("tailspan gpu --since 15m",),
    "export": ("tailspan export --perfetto --since 5m",),
    "layers": ("tailspan layers --e2e", "tailspan layers --speedup attention=1.3"),
    "optimizations": (
        'tailspan optimizations add --stage queue --name "priorities" --before 4h..3h --after 2h..1h',
        "tailspan optimizations report",
    ),
    "optimizations add": (
        'tailspan optimizations add --stage queue --name "priorities" --before 4h..3h --after 2h..1h',
        'tailspan optimizations add --kind attention --name "FP8" --before 2d..1d --after 1d..now --cost-accuracy 0.4',
    ),
    "optimizations import": ("tailspan optimizations import tuning-story",),
    "optimizations report": (
        "tailspan optimizations report --price-gpu-memory 10",
        "tailspan optimizations report --run 4h..3h=none --run 2h..1h=priorities",
    ),
}
EXIT_CODES = {
    "regress": "0 nothing regressed, or nothing to compare; 1 something got slower; 2 wrong input, or ClickHouse away.",
}
COMMON_EXIT_CODES = "0 done, also if there is nothing to show; 2 wrong input, or ClickHouse cannot be read."


def epilog(name: str) -> str | None:
    """Return examples and exit codes of a command in click's form, None for a command without examples."""
    if name not in EXAMPLES:
        return None
    examples = "\n".join(f"  {example}" for example in EXAMPLES[name])
    return f"\b\nExamples:\n{examples}\n\n\b\nExit codes:\n  {EXIT_CODES.get(name, COMMON_EXIT_CODES)}"
