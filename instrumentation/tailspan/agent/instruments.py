"""Names, units and buckets of everything that the agent measures.

Source: OpenTelemetry semantic conventions, "Generative AI model server metrics", for the names under `gen_ai.` and
their buckets. The conventions name no token counter for servers, so ours is `tailspan.tokens`.
"""

from __future__ import annotations

from typing import Final

from tailspan.agent.pooled import Shape

REQUEST_DURATION: Final = Shape(
    "gen_ai.server.request.duration",
    "s",
    "Arrival of the request until its last byte was handed to the transport.",
    (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
)
TIME_TO_FIRST_TOKEN: Final = Shape(
    "gen_ai.server.time_to_first_token",
    "s",
    "Arrival of the request until the engine sampled its first token, of successful requests.",
    (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
TIME_PER_OUTPUT_TOKEN: Final = Shape(
    "gen_ai.server.time_per_output_token",
    "s",
    "(duration - time to first token) / (output tokens - 1), of successful requests.",
    (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
)
GEN_AI: Final = (REQUEST_DURATION, TIME_TO_FIRST_TOKEN, TIME_PER_OUTPUT_TOKEN)
"""Recorded by the SDK, one value a request."""

_NS = 1_000_000_000
_SHORT = (0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2)

STAGE_DURATION: Final = Shape(
    "tailspan.stage.duration",
    "s",
    "Wall time of a stage of a request, all its parts together; with `unattributed` they add up to the request.",
    (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0),
    _NS,
)
INTER_TOKEN: Final = Shape(
    "tailspan.inter_token_latency", "s", "Gap between two tokens of a request.", (*_SHORT, 0.3, 0.5, 1.0, 2.5), _NS
)
STEP_DURATION: Final = Shape(
    "tailspan.step.duration", "s", "Time of one engine step.", (0.0005, *_SHORT, 0.3, 0.5, 1.0, 2.5), _NS
)
STEP_IDLE: Final = Shape(
    "tailspan.step.idle",
    "s",
    "Time since the engine's previous step ended, while it had requests.",
    (0.00001, 0.00005, 0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0),
    _NS,
)
STEP_REQUESTS: Final = Shape(
    "tailspan.step.requests", "{request}", "Requests in the batch of one engine step.",
    (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024),
)  # fmt: skip
STEP_DEVICE_BUSY: Final = Shape(
    "tailspan.step.device.busy",
    "s",
    "Device time of one engine step, from its first kernel to its last.",
    STEP_DURATION.bounds,
    _NS,
)
STEP_DEVICE_IDLE: Final = Shape(
    "tailspan.step.device.idle",
    "s",
    "Device time from the previous step's last kernel to this one's first, while the engine had requests.",
    STEP_IDLE.bounds,
    _NS,
)
POOLED: Final = (
    STAGE_DURATION, INTER_TOKEN, STEP_DURATION, STEP_IDLE, STEP_REQUESTS, STEP_DEVICE_BUSY, STEP_DEVICE_IDLE,
)  # fmt: skip
"""Summed up by the agent, many values a request or step."""

TOKENS: Final = "tailspan.tokens"
"""Counter, {token}: tokens of finished requests by `gen_ai.token.type`, input or output."""
TOKEN_TYPE: Final = "gen_ai.token.type"  # noqa: S105 (the name of an attribute)
PROVIDER: Final = "gen_ai.provider.name"
"""The engine's software, for example `transformers`; `unknown` for a request that never reached an engine."""

AGENT_PREFIX: Final = "tailspan.agent."
"""In front of the names of `counters.Counters`."""
AGENT_UNITS: Final = {
    "records": "{record}",
    "records_dropped": "{record}",
    "requests_dropped": "{request}",
    "spans_exported": "{span}",
    "spans_dropped": "{span}",
    "export_failures": "{failure}",
}
