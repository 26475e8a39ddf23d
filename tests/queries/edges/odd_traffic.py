"""Made-up traffic that is odd: each kind has a window of its own, all lie in one ClickHouse.

In: nothing. Out: `kinds()`, each with its spans and the window that holds them. Times are in nanoseconds.
"""

from __future__ import annotations

import math

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tailspan import attributes
from tailspan_queries.times import Window
from tests.queries import traffic
from tests.queries.contribution import traffic as contribution
from tests.queries.edges.odd_requests import (
    DAY,
    FIRST_DAY_NS,
    HOSTILE,
    HOSTILE_KEY,
    HOUR,
    MINUTE,
    MS,
    SECOND,
    TENANT,
    USUAL,
    Odd,
    Value,
    many,
    ns,
    request,
)


def kinds() -> list[Odd]:
    """Return all kinds; each but the last two has a window of an hour or a little more."""
    noons = iter(range(FIRST_DAY_NS + 12 * HOUR, FIRST_DAY_NS + 100 * DAY, DAY))
    found = []
    for name, make in MAKERS.items():
        begin_ns = next(noons)
        spans, requests = make(begin_ns)
        found.append(Odd(name, Window(begin_ns, begin_ns + HOUR), spans, requests))
    midnight = next(noons) + 12 * HOUR
    found.append(
        Odd("midnight", Window(midnight - HOUR // 2, midnight + HOUR // 2), many(midnight - 15 * MINUTE, 90), 90)
    )
    message, times = contribution.engine_message(40, 0, seed=19)
    found.append(Odd("engine_traced", contribution.window(0), (), len(times), message))
    for name, text in (("short_day", "2026-03-28T23:00"), ("long_day", "2026-10-24T22:00")):
        hours = {"short_day": 23, "long_day": 25}[name]
        begin_ns = ns(text)
        found.append(
            Odd(name, Window(begin_ns, begin_ns + hours * HOUR), many(begin_ns, 2 * hours, HOUR // 2), 2 * hours)
        )
    ends = [*request(0, service="ages"), *request(ns("2261-12-31T23:59"), service="ages")]
    found.append(Odd("ages", Window(0, ns("2261-12-31T23:59:59")), ends, 2, service="ages"))
    return found


def one(begin_ns: int) -> tuple[list[tuple[str, str, Span]], int]:
    """One request of 100 ms, of which its stages cover 90."""
    return list(request(begin_ns + MINUTE)), 1


def stageless(begin_ns: int) -> tuple[list[tuple[str, str, Span]], int]:
    """One request without stages."""
    return list(request(begin_ns + MINUTE, parts=(), keys={attributes.UNATTRIBUTED_NS: 100 * MS})), 1


def unfinished(begin_ns: int) -> tuple[list[tuple[str, str, Span]], int]:
    """Requests that went through the queue and no further."""
    return many(begin_ns, 60, parts=(("receive", 0, MS), ("queue", MS, 70 * MS)), keys={attributes.TTFT_NS: 0}), 60


def overlapping(begin_ns: int) -> tuple[list[tuple[str, str, Span]], int]:
    """Stages that overlap, leave the request, begin before it or lie outside."""
    parts = (
        ("queue", -30 * MS, 60 * MS), ("prefill", 10 * MS, 60 * MS), ("decode", 20 * MS, 500 * MS),
        ("decode", 60 * MS, 20 * MS), ("respond", 900 * MS, 5 * MS), ("tls", -500 * MS, 5 * MS),
    )  # fmt: skip
    return many(begin_ns, 60, parts=parts, keys={attributes.UNATTRIBUTED_NS: 0}), 60


def negative(begin_ns: int) -> tuple[list[tuple[str, str, Span]], int]:
    """Stages and requests that end before they begin, and negative numbers where none can be."""
    keys: dict[str, Value] = {
        attributes.UNATTRIBUTED_NS: -50 * MS, attributes.TTFT_NS: -MS,
        attributes.GEN_AI_INPUT_TOKENS: -3, attributes.GEN_AI_OUTPUT_TOKENS: -7,
    }  # fmt: skip
    parts = (("queue", 0, -10 * MS), ("prefill", 20 * MS, 0), ("decode", 30 * MS, -40 * MS))
    found = many(begin_ns, 30, parts=parts, keys=keys)
    for index in range(30):
        found += request(begin_ns + index * 30 * SECOND, -20 * MS, parts, keys, stage_keys={attributes.BUSY_NS: -5})
    return found, 60


def no_tokens(begin_ns: int) -> tuple[list[tuple[str, str, Span]], int]:
    """Requests without output tokens, without input tokens, without both, with one."""
    found: list[tuple[str, str, Span]] = []
    for index, (inputs, outputs) in enumerate(((0, 0), (100, 0), (0, 5), (0, 1)) * 15):
        keys: dict[str, Value] = {attributes.GEN_AI_INPUT_TOKENS: inputs, attributes.GEN_AI_OUTPUT_TOKENS: outputs}
        found += request(begin_ns + index * 30 * SECOND, keys=keys)
    return found, 60


def tokenless(begin_ns: int) -> tuple[list[tuple[str, str, Span]], int]:
    """Requests of which none has a token."""
    keys: dict[str, Value] = {
        attributes.GEN_AI_INPUT_TOKENS: 0, attributes.GEN_AI_OUTPUT_TOKENS: 0, attributes.TTFT_NS: 0
    }  # fmt: skip
    return many(begin_ns, 40, keys=keys), 40


def aborted(begin_ns: int) -> tuple[list[tuple[str, str, Span]], int]:
    """Requests of which each ended badly, and none well."""
    found: list[tuple[str, str, Span]] = []
    for index in range(60):
        outcome = attributes.OUTCOMES[1 + index % 5]
        keys: dict[str, Value] = {attributes.OUTCOME: outcome, attributes.GEN_AI_OUTPUT_TOKENS: index % 3}
        keys |= {attributes.ERROR_TYPE: "RuntimeError"} if outcome == "error" else {}
        parts = USUAL[: index % 4]
        found += request(
            begin_ns + index * 30 * SECOND, (20 + index) * MS, parts, keys, failed=outcome in ("error", "lost")
        )
    return found, 60


def equal(begin_ns: int) -> tuple[list[tuple[str, str, Span]], int]:
    """Requests that are all equal."""
    return many(begin_ns, 700, 5 * SECOND, vary=False), 700


def instant(begin_ns: int) -> tuple[list[tuple[str, str, Span]], int]:
    """Requests that begin in one nanosecond."""
    return many(begin_ns + 1, 60, 0), 60


def momentary(begin_ns: int) -> tuple[list[tuple[str, str, Span]], int]:
    """Requests that take no time at all."""
    parts = (("queue", 0, 0), ("prefill", 0, 0), ("decode", 0, 0))
    found: list[tuple[str, str, Span]] = []
    for index in range(40):
        found += request(begin_ns + index * MINUTE, 0, parts, {attributes.TTFT_NS: 0})
    return found, 40


def sampled(begin_ns: int) -> tuple[list[tuple[str, str, Span]], int]:
    """Requests that stand for ten, for one and a half and for one."""
    found: list[tuple[str, str, Span]] = []
    for index in range(60):
        weight = (10.0, 1.5, 1.0)[index % 3]
        found += request(begin_ns + index * 30 * SECOND, (100 + index) * MS, keys={attributes.WEIGHT: weight})
    return found, 60


def heavy(begin_ns: int) -> tuple[list[tuple[str, str, Span]], int]:
    """Requests with weights that cannot be: huge, infinite, none, negative, not a number."""
    weights = (1e6, 1e9, math.inf, math.nan, 0.0, -3.0, 1e-9, 12345.678, 2.5)
    found: list[tuple[str, str, Span]] = []
    for index in range(54):
        keys: dict[str, Value] = {attributes.WEIGHT: weights[index % len(weights)]}
        found += request(begin_ns + index * 30 * SECOND, (100 + index) * MS, keys=keys)
    return found, 54


def hostile(begin_ns: int) -> tuple[list[tuple[str, str, Span]], int]:
    """Names and values that would harm a terminal, a table, a spreadsheet or a query."""
    found: list[tuple[str, str, Span]] = []
    for index in range(60):
        text = HOSTILE[index % len(HOSTILE)]
        keys: dict[str, Value] = {
            TENANT: text, HOSTILE_KEY: text, attributes.PRIORITY: text, attributes.LORA: text,
            attributes.OUTCOME: text, attributes.ERROR_TYPE: text, attributes.ENGINE_ID: text,
            attributes.GEN_AI_RESPONSE_ID: text, "app.double": math.nan, "app.infinite": math.inf,
            attributes.HTTP_ROUTE: text, attributes.GEN_AI_STREAM: text,
        }  # fmt: skip
        slow = 50 * (index % len(HOSTILE) == 1)
        parts = (*USUAL, (text or "other", 90 * MS, MS))
        found += request(
            begin_ns + index * 30 * SECOND, (100 + index + slow) * MS, parts, keys, service=text, instance=text,
            model=text, stage_keys={attributes.ITL_HISTOGRAM: text, attributes.ENGINE_ID: text}, failed=index % 7 == 0,
        )  # fmt: skip
    for text in HOSTILE:
        event = traffic.Event(attributes.EVENT_CRASH, begin_ns + 5 * MINUTE + len(found), text, text, {
            attributes.ENGINE_ID: text, attributes.GEN_AI_MODEL: text, attributes.WORKER_PID: 7,
        })  # fmt: skip
        found.append(traffic.event_span(event))
    return found, 60


def duplicated(begin_ns: int) -> tuple[list[tuple[str, str, Span]], int]:
    """Requests whose spans arrive twice."""
    return many(begin_ns, 40, copies=2), 80


def distinct(begin_ns: int) -> tuple[list[tuple[str, str, Span]], int]:
    """Ten thousand values of an attribute."""
    found: list[tuple[str, str, Span]] = []
    for index in range(10_000):
        keys: dict[str, Value] = {TENANT: f"tenant-{index:05}", attributes.UNATTRIBUTED_NS: 100 * MS + index}
        found += request(begin_ns + index * 300 * MS, 100 * MS + index, (), keys)
    return found, 10_000


def two_models(begin_ns: int) -> tuple[list[tuple[str, str, Span]], int]:
    """Two models with the same stages."""
    return many(begin_ns, 60, model="small") + many(begin_ns + SECOND, 60, model="large"), 120


def endless(begin_ns: int) -> tuple[list[tuple[str, str, Span]], int]:
    """Requests that take longer than the window."""
    parts = (("queue", 0, HOUR), ("prefill", HOUR, HOUR), ("decode", 2 * HOUR, 3 * HOUR))
    return many(begin_ns, 30, MINUTE, parts=parts, keys={attributes.TTFT_NS: 2 * HOUR}) + list(
        request(begin_ns + 31 * MINUTE, 7 * HOUR, parts)
    ), 31


def engines(begin_ns: int) -> tuple[list[tuple[str, str, Span]], int]:
    """Engine steps whose numbers cannot be: no time, negative, none, more device than wall, parts without time."""
    found = many(begin_ns, 30, SECOND, stage_keys={
        attributes.ENGINE_ID: "e", attributes.STEP_FIRST: 9, attributes.STEP_LAST: 2, attributes.GPU_NS: 10**15,
    }, keys={attributes.ENGINE_ID: "e"})  # fmt: skip
    for number in range(1, 40):
        step = traffic.Step(
            number, begin_ns + number * SECOND, (number % 5 - 1) * 10 * MS, number % 3, (number % 4 - 1) * MS
        )
        service, instance, span = traffic.step_span(step, "e")
        keys: dict[str, Value] = {
            attributes.GEN_AI_MODEL: "small", attributes.DEVICE: "cuda",
            attributes.DEVICE_BUSY_NS: (number % 3) * SECOND, attributes.DEVICE_IDLE_NS: -number % 7 * MS,
            attributes.DEVICE_LAUNCH_NS: number % 2 * HOUR, attributes.GPU_NS: 0,
            attributes.LAYERS_STEPS: number % 4, attributes.LAYERS_PHASE: ("decode", "prefill", "")[number % 3],
            attributes.LAYERS_MODE: "eager", attributes.LAYERS_COST_NS: 0,
        }  # fmt: skip
        span.attributes.extend(traffic.key_values(keys))
        times = {"0/attention": 0.0, "1/attention": math.nan, "x": -5.0, "0/mlp": 1e6 * number, "1/mlp": math.inf}
        names = [AnyValue(string_value=name) for name in times]
        walls = [AnyValue(double_value=wall) for wall in times.values()]
        for key, values in ((attributes.LAYERS_PARTS, names), (attributes.LAYERS_NS, walls)):
            span.attributes.append(KeyValue(key=key, value=AnyValue(array_value=ArrayValue(values=values))))
        found.append((service, instance, span))
    return found, 30


MAKERS = {
    make.__name__: make
    for make in (
        one, stageless, unfinished, overlapping, negative, no_tokens, tokenless, aborted, equal, instant, momentary,
        sampled, heavy, hostile, duplicated, distinct, two_models, endless, engines,
    )
}  # fmt: skip
