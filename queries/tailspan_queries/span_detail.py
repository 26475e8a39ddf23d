"""What else matters about a span in a waterfall: tokens, engine steps, busy and GPU time, how it ended.

In: a span and the engine steps it took part in. Out: short pieces of text. Pure functions.
"""

from __future__ import annotations

from tailspan import attributes
from tailspan_queries import units
from tailspan_queries.records import STATUS_ERROR
from tailspan_queries.slow_steps import StepSummary
from tailspan_queries.trace_spans import SpanRow


def fold(parts: list[str], width: int) -> str:
    """Join parts with dots, breaking lines only between parts as far as they fit `width`."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 3 + len(part) <= width:
            lines[-1] += f" · {part}"
        else:
            lines.append(part)
    return "\n".join(lines)


def detail(span: SpanRow, steps: StepSummary | None) -> list[str]:
    """Return what else matters about a span: tokens, steps, how it ended."""
    parts: list[str] = []
    if span.role == attributes.ROLE_REQUEST:
        if span.input_tokens or span.output_tokens:
            parts.append(f"{span.input_tokens:,} in, {span.output_tokens:,} out")
        if span.ttft_ns:
            parts.append(f"TTFT {units.duration(span.ttft_ns)}")
        parts.append(span.attributes_string.get(attributes.OUTCOME, ""))
        if span.weight > 1:
            parts.append(f"stands for {span.weight:,.4g} requests")
    elif span.role == attributes.ROLE_STEP:
        parts += step_detail(span)
    elif span.role == attributes.ROLE_STAGE:
        parts += stage_detail(span, steps)
    elif span.service:
        parts.append(span.service)
    if span.status_code == STATUS_ERROR:
        kind = span.attributes_string.get(attributes.ERROR_TYPE, "")
        parts.append(": ".join(filter(None, (kind, span.status_message))) or "error")
    return [part for part in parts if part]


def stage_detail(span: SpanRow, steps: StepSummary | None) -> list[str]:
    """Return what a stage span says of engine steps and of its GPU and busy time."""
    parts = []
    if span.engine_id and span.last_step > span.first_step:
        parts.append(f"steps {span.first_step}{units.EN_DASH}{span.last_step}")
    elif span.engine_id and span.last_step > 0:
        parts.append(f"step {span.last_step}")
    chunks = span.attributes_int.get(attributes.PREFILL_CHUNKS, 1)
    if chunks > 1:
        parts.append(f"{chunks} chunks")
    if steps is not None:
        parts.append(f"batch {steps.requests_mean:.1f}")
        if steps.idle_ns:
            parts.append(f"idle {units.duration(steps.idle_ns)}")
    if span.gpu_ns >= 0:
        parts.append(f"GPU {units.percent(units.part(span.gpu_ns, span.duration_ns), 0)}")
    elif steps is None and 0 < span.busy_ns < span.duration_ns:
        parts.append(f"busy {units.percent(units.part(span.busy_ns, span.duration_ns), 0)}")
    return parts


def step_detail(span: SpanRow) -> list[str]:
    """Return batch and tokens of an engine step."""
    integers = span.attributes_int
    named = (("requests", attributes.STEP_REQUESTS), ("waiting", attributes.STEP_WAITING))
    parts = [f"{integers[key]:,} {name}" for name, key in named if key in integers]
    tokens = integers.get(attributes.STEP_PREFILL_TOKENS, 0), integers.get(attributes.STEP_DECODE_TOKENS, 0)
    parts.append(f"{tokens[0]:,} prefill + {tokens[1]:,} decode tokens")
    if span.link_trace_ids:
        parts.append(f"{len(span.link_trace_ids)} linked")
    return parts
