"""Every attribute key that tailspan writes or reads, with its unit and meaning.

Keys of the OpenTelemetry semantic conventions keep their published names; what they do not name is under `tailspan.`.
This is the only module that spells a key; the collector's schema and the queries import it.

Source: OpenTelemetry semantic conventions 1.37 (GenAI, HTTP, service); DESIGN of the stages in ARCHITECTURE.md.
"""

from __future__ import annotations

from typing import Final

# --- what a span is -------------------------------------------------------------------------------------------------
ROLE: Final = "tailspan.role"
"""string: `request` (root span of one user request), `stage` (a part of it), `step` (one engine iteration) or `event`
(something that happened to the worker: `worker.crash`, `worker.stall`, `worker.drops`)."""
ROLE_REQUEST: Final = "request"
ROLE_STAGE: Final = "stage"
ROLE_STEP: Final = "step"
ROLE_LAYER: Final = "layer"
"""Role of the children of a step span, one for each part of the model, where TAILSPAN_LAYER_SPANS asks for them."""
ROLE_EVENT: Final = "event"
ROLE_SNAPSHOT: Final = "snapshot"
"""Role of the spans of a request that a stalled engine still holds: up to now, in case it never ends."""

STAGE: Final = "tailspan.stage"
"""string: the stage that a `stage` span measures, one of `STAGES`."""
STAGES: Final = (
    "tls",
    "receive",
    "tokenize",
    "dispatch",
    "queue",
    "prefill",
    "decode",
    "preempted",
    "detokenize",
    "respond",
)
"""The stages of a request in the order in which they occur; they partition its wall time."""
UNATTRIBUTED: Final = "unattributed"
"""Name under which reports show the part of a request that no stage covers."""

# --- times of a request ---------------------------------------------------------------------------------------------
BUSY_NS: Final = "tailspan.busy_ns"
"""int, ns: work done for the stage. For `detokenize` all detokenisation of the answer, most of it during `decode`."""
GPU_NS: Final = "tailspan.gpu_ns"
"""int, ns: time the device computed within the stage or step; absent where no device was measured."""
UNATTRIBUTED_NS: Final = "tailspan.unattributed_ns"
"""int, ns, on the request span: end-to-end time less the sum of its stages."""
TTFT_NS: Final = "tailspan.ttft_ns"
"""int, ns, on the request span: begin of the request until its first body chunk left; absent without a token."""
ITL_HISTOGRAM: Final = "tailspan.itl.histogram"
"""string, on the decode span: gaps between tokens as `bucket:count` pairs, see `tailspan.agent.histogram`."""
DEBUG: Final = "tailspan.debug"
"""bool, on the request span: the caller asked for this request's spans with the header `x-tailspan-debug: 1`."""
WEIGHT: Final = "tailspan.weight"
"""double: how many requests this span stands for; 1 unless sampled."""

# --- engine and steps -----------------------------------------------------------------------------------------------
ENGINE_ID: Final = "tailspan.engine.id"
"""string: the engine instance (one scheduler) that ran the request or step; unique per worker process."""
ENGINE_NAME: Final = "tailspan.engine.name"
"""string: engine software, e.g. `transformers`."""
STEP_FIRST: Final = "tailspan.step.first"
"""int, on prefill and decode spans: number of the first engine step in which the request took part."""
STEP_LAST: Final = "tailspan.step.last"
"""int, on prefill and decode spans: number of the last engine step in which the request took part."""
STEP_NUMBER: Final = "tailspan.step.number"
"""int, on step spans: consecutive number of the step within its engine."""
STEP_REQUESTS: Final = "tailspan.step.requests"
"""int, on step spans: requests in the batch."""
STEP_PREFILL_TOKENS: Final = "tailspan.step.prefill_tokens"
"""int, on step spans: prompt tokens computed in the step."""
STEP_DECODE_TOKENS: Final = "tailspan.step.decode_tokens"
"""int, on step spans: decode tokens computed in the step, one for each request that decodes."""
STEP_WAITING: Final = "tailspan.step.waiting"
"""int, on step spans: requests that waited for the scheduler when the step was planned."""
STEP_PREEMPTED: Final = "tailspan.step.preempted"
"""int, on step spans: requests that were evicted when the step was planned."""
STEP_KV_USAGE: Final = "tailspan.step.kv_usage_ratio"
"""double, on step spans: share of the KV cache in use, 0 to 1."""
STEP_IDLE_NS: Final = "tailspan.step.idle_ns"
"""int, ns, on step spans: time since the previous step of the engine ended, while requests were waiting or running."""
STEP_EXECUTE_NS: Final = "tailspan.step.execute_ns"
"""int, ns, on step spans: host time of the model runner for inputs and forward pass; on a GPU that of their launch."""
STEP_SAMPLE_NS: Final = "tailspan.step.sample_ns"
"""int, ns, on step spans: host time of the model runner for sampling; on a GPU it waits there for the device."""
DEVICE: Final = "tailspan.device"
"""string, on step spans: the clock that timed the step's work: `cuda`, `rocm`, or `cpu` (the host's own clock)."""
DEVICES: Final = ("", "cpu", "cuda", "rocm")
"""Devices by the number that records use."""
DEVICE_BUSY_NS: Final = "tailspan.device.busy_ns"
"""int, ns, on step spans: device time from the first kernel of the forward pass to the last one of sampling; what the
device waited for its host in between is in it. `tailspan.gpu_ns` is the same where the device is not the CPU."""
DEVICE_IDLE_NS: Final = "tailspan.device.idle_ns"
"""int, ns, on step spans: device time from the previous step's last kernel to this one's first, while requests were
there; absent where that is not known."""
DEVICE_LAUNCH_NS: Final = "tailspan.device.launch_ns"
"""int, ns, on step spans: host time to launch the forward pass; absent on a CPU, which computes meanwhile."""
DEVICE_BEGIN_NS: Final = "tailspan.device.begin_unix_ns"
"""int, ns since the epoch, on step spans: when the device began, put on the host's clock."""
DEVICE_UNCERTAINTY_NS: Final = "tailspan.device.uncertainty_ns"
"""int, ns, on step spans: how far off `tailspan.device.begin_unix_ns` can be, to either side."""
LAYERS_PARTS: Final = "tailspan.layers.parts"
"""string[], on sampled step spans: the parts of the model, `KIND` or `LAYER/KIND`, in order of execution. Kinds:
`embedding`, `norm`, `attention`, `mlp`, `experts`, `mixer`, `lm_head`, `sampler`, `other`."""
LAYERS_NS: Final = "tailspan.layers.ns"
"""double[], ns, on sampled step spans: device time of each part; together that of the step less what the marks took."""
LAYERS_STEPS: Final = "tailspan.layers.steps"
"""int, on sampled step spans: steps of the same phase that this one stands for, itself and those not sampled before."""
LAYERS_PHASE: Final = "tailspan.layers.phase"
"""string, on sampled step spans: `prefill` if the step computed prompt tokens, else `decode`."""
LAYERS_MODE: Final = "tailspan.layers.mode"
"""string, on sampled step spans: `eager`, or `graph` for a CUDA graph with events in it."""
LAYERS_MODES: Final = ("eager", "graph")
LAYERS_COST_NS: Final = "tailspan.layers.cost_ns"
"""int, ns, on sampled step spans: host time that sampling the layers took from the step."""
LAYER: Final = "tailspan.layer"
"""int, on spans of role `layer`: number of the decoder layer from 0; absent outside of the layers."""
LAYER_KIND: Final = "tailspan.layer.kind"
"""string, on spans of role `layer`: one of the kinds of `tailspan.layers.parts`."""
STEP_LINK: Final = "tailspan.step.link"
"""string, on the links of a step span: `join`, `leave` or `finish`, what the linked request did at the step."""
PREFILL_CHUNKS: Final = "tailspan.prefill.chunks"
"""int, on prefill spans: engine steps that computed a part of the prompt."""
CACHED_TOKENS: Final = "tailspan.prefill.cached_tokens"
"""int, on prefill spans: prompt tokens that were taken from the prefix cache."""
PRIORITY: Final = "tailspan.priority"
"""int, on request spans: priority that the caller asked for, as the engine orders it; absent when it is 0."""
LORA: Final = "tailspan.lora"
"""string, on request spans: name of the LoRA adapter."""
DRAFT_TOKENS: Final = "tailspan.speculative.draft_tokens"
"""int, on request spans: tokens that speculative decoding proposed."""
ACCEPTED_TOKENS: Final = "tailspan.speculative.accepted_tokens"
"""int, on request spans: proposed tokens that the model accepted."""
PROMPTS: Final = "tailspan.prompts"
"""int, on request spans: sequences of one offline call (batch size of `generate()`)."""

# --- why a request ended --------------------------------------------------------------------------------------------
OUTCOME: Final = "tailspan.outcome"
"""string, on request spans: `ok`, `error`, `client_disconnect`, `cancelled`, `lost` (the worker disappeared)
or `stalled` (in a snapshot)."""
OUTCOMES: Final = ("ok", "error", "client_disconnect", "cancelled", "lost", "stalled")
ERROR_TYPE: Final = "error.type"
"""string: class of the error that ended the request: exception class or HTTP status code."""

# --- what happened to a worker (spans of role `event`) --------------------------------------------------------------
EVENT_CRASH: Final = "worker.crash"
"""Span name: a process of the worker disappeared without saying good-bye."""
EVENT_STALL: Final = "worker.stall"
"""Span name: an engine with requests made no step for longer than TAILSPAN_STALL_TIMEOUT."""
EVENT_DROPS: Final = "worker.drops"
"""Span name: records, requests or spans were dropped since the last such event."""
WORKER_PID: Final = "tailspan.worker.pid"
"""int: process id."""
WORKER_OPEN_REQUESTS: Final = "tailspan.worker.open_requests"
"""int: requests that were under way."""
STALLED_NS: Final = "tailspan.stalled_ns"
"""int, ns: time since the engine's last step."""
DROPPED_RECORDS: Final = "tailspan.dropped.records"
"""int: records that found a ring full."""
DROPPED_REQUESTS: Final = "tailspan.dropped.requests"
"""int: requests left out as a whole because a ring was nearly full."""
DROPPED_SPANS: Final = "tailspan.dropped.spans"
"""int: spans that found the agent's queue full."""

# --- semantic conventions -------------------------------------------------------------------------------------------
GEN_AI_OPERATION: Final = "gen_ai.operation.name"
"""string: `chat`, `text_completion`, `generate_content` or `embeddings`."""
GEN_AI_MODEL: Final = "gen_ai.request.model"
"""string: model asked for."""
GEN_AI_RESPONSE_ID: Final = "gen_ai.response.id"
"""string: id of the response, the engine's request id."""
GEN_AI_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
"""int: prompt tokens."""
GEN_AI_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
"""int: generated tokens."""
GEN_AI_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
"""string[]: why the engine stopped: `stop`, `length`, `abort`, `error`."""
GEN_AI_STREAM: Final = "gen_ai.request.stream"
"""bool: the answer was streamed."""
GEN_AI_LATENCY_QUEUE: Final = "gen_ai.latency.time_in_queue"
"""double, s: waiting for the scheduler."""
GEN_AI_LATENCY_TTFT: Final = "gen_ai.latency.time_to_first_token"
"""double, s."""
GEN_AI_LATENCY_E2E: Final = "gen_ai.latency.e2e"
"""double, s."""

HTTP_METHOD: Final = "http.request.method"
HTTP_STATUS: Final = "http.response.status_code"
HTTP_ROUTE: Final = "http.route"
URL_PATH: Final = "url.path"

SERVICE_NAME: Final = "service.name"
SERVICE_INSTANCE: Final = "service.instance.id"
SCOPE_NAME: Final = "tailspan"
"""Instrumentation scope of every span that tailspan emits."""
