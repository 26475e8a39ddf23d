"""Every reading command with the options that change what it asks, and what its output must never hold."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from typing import Any

from tailspan_queries.times import Window, iso
from tests.queries.edges.odd_requests import HOSTILE, HOSTILE_KEY, TENANT

COMMANDS: dict[str, list[str]] = {
    "stages": ["stages"],
    "stages_exact_all": ["stages", "--exact", "--time", "all"],
    "stages_rollup": ["stages", "--rollup"],
    "stages_by_model": ["stages", "--by", "model", "--time", "all"],
    "stages_by_tenant": ["stages", "--by", f"attr:{TENANT}", "--stage", "decode"],
    "stages_by_output": ["stages", "--by", "output"],
    "stages_by_priority": ["stages", "--by", "priority"],
    "stages_by_batch": ["stages", "--by", "batch"],
    "stages_over": ["stages", "--over", "10m"],
    "stages_over_rollup": ["stages", "--over", "10m", "--rollup", "--by", "service"],
    "latency": ["latency", "--slo", "ttft=40ms", "--slo", "itl=5ms", "--slo", "tpot=5ms", "--slo", "e2e=100ms"],
    "latency_by": ["latency", "--by", "lora", "--slo", "e2e=1s"],
    "latency_over": ["latency", "--over", "10m"],
    "tail": ["tail"],
    "tail_half": ["tail", "--quantile", "0"],
    "tail_by_outcome": ["tail", "--by", "outcome"],
    "tail_by_key": ["tail", "--by", HOSTILE_KEY],
    "different": ["different", "--slowest", "20%"],
    "fairness": ["fairness"],
    "fairness_by_tenant": ["fairness", "--by", TENANT, "--times", "1"],
    "compare": ["compare", "--before", "FIRST_HALF", "--after", "SECOND_HALF", "--full"],
    "compare_attribute": ["compare", "--by-attribute", "gen_ai.request.model=small", "--versus", "large"],
    "regress": ["regress", "--baseline", "DAY_BEFORE", "--statistic", "p50", "--statistic", "mean"],
    "regress_days": ["regress", "--days", "1"],
    "whatif": ["whatif", "--stage", "decode", "--speedup", "1.3", "--seeds", "1"],
    "whatif_forced": ["whatif", "--force", "--arrivals", "2", "--output-tokens", "0.5", "--seeds", "1"],
    "advise": ["advise", "--force", "--requests", "100"],
    "layers": ["layers", "--by", "part"],
    "layers_batch": ["layers", "--batch"],
    "layers_baseline": ["layers", "--baseline", "DAY_BEFORE"],
    "layers_e2e": ["layers", "--e2e", "--speedup", "attention=2"],
    "gpu": ["gpu"],
    "slowest": ["slowest", "-n", "20"],
    "interference": ["interference"],
    "interference_requests": ["interference", "--by", "request"],
    "preemption": ["preemption"],
    "preemption_requests": ["preemption", "--by", "request"],
    "engine": ["engine", "--gap-ms", "0"],
    "engine_minutes": ["engine", "--by", "minute"],
    "query_services": ["query", "services"],
    "query_errors": ["query", "errors"],
    "query_itl": ["query", "itl"],
    "query_ttft": ["query", "ttft"],
    "query_throughput": ["query", "throughput"],
    "query_minutes": ["query", "latency_by_minute"],
    "query_events": ["query", "worker_events"],
    "query_tail_sample": ["query", "tail_by", "--param", "parts=4095", "--param", "quantile=0.5"],
    "query_longest_waits": ["query", "longest_waits", "--param", f"by={TENANT}", "--param", "limit=20"],
}
FIRST_OF_EACH = tuple(
    {words[0] if words[0] != "query" else name: name for name, words in reversed(COMMANDS.items())}.values()
)
"""One for each command, and each query."""
FORMATS = ("table", "json", "csv")
WRITES_NUMBERS = re.compile(r"(?<![\w.\"'\[])-?(?:nan|NaN|inf|Infinity|None|null)(?!\w)")
MINUS_ZERO = re.compile(r"(?<![\w.])-0(?:\.0+)?(?![\w.])")
NAMED = tuple(value for value in HOSTILE if value in ("nan", "1e400"))
"""Names that look like numbers, which a table rightly shows."""
FORMULA = re.compile(r"\s*[=+\-@](?!\d+(\.\d+)?(e[+-]?\d+)?$)")
"""What a spreadsheet runs: a sign of a formula with more behind it than a number."""
HARMFUL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Control characters but the line feed, separators of lines, and what turns the direction of text."""


def arguments(words: list[str], window: Window, service: str = "") -> list[str]:
    """Return the words of a command about a window."""
    middle = (window.since_ns + window.until_ns) // 2
    length = window.until_ns - window.since_ns
    named = {
        "FIRST_HALF": between(window.since_ns, middle),
        "SECOND_HALF": between(middle, window.until_ns),
        "DAY_BEFORE": between(max(window.since_ns - length, 0), max(window.since_ns, 1)),
    }
    found = [named.get(word, word) for word in words]
    if "--before" not in found:
        found += ["--since", iso(window.since_ns), "--until", iso(window.until_ns)]
    return [*found, *(["--service", service] if service else [])]


def between(since_ns: int, until_ns: int) -> str:
    """Return a window as options take it."""
    return f"{iso(since_ns)}..{iso(until_ns)}"


def check_text(text: str) -> None:
    """Fail if what goes to a terminal holds what could move its cursor, or a number that is none."""
    for value in NAMED:
        text = re.sub(rf"(?<!\S){re.escape(value)}(?=[\s:,])", "", text)
    assert not (found := HARMFUL.search(text)), repr(text[max(found.start() - 60, 0) : found.end() + 60])
    for pattern in (WRITES_NUMBERS, MINUS_ZERO):
        assert not (found := pattern.search(text)), text[max(found.start() - 200, 0) : found.end() + 60]


def check_json(text: str) -> Any:
    """Return the document; fail if it is not strict JSON, or a number is -0."""
    document = json.loads(text, parse_constant=no_constant)
    assert not HARMFUL.search(text), repr(HARMFUL.search(text))
    for value in numbers(document):
        assert value or math.copysign(1, value) > 0, "minus zero"
    return document


def check_csv(text: str) -> list[list[str]]:
    """Return the lines; fail if one has another number of fields than the header, or a field does harm."""
    lines = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    assert not lines or {len(line) for line in lines} == {len(lines[0])}
    assert not HARMFUL.search(text), repr(HARMFUL.search(text))
    assert not (found := [field for line in lines for field in line if FORMULA.match(field)]), found
    return lines


def no_constant(name: str) -> None:
    """Refuse what is not JSON."""
    raise AssertionError(f"{name} is not JSON")


def numbers(value: object) -> list[float]:
    """Return every number of a document."""
    match value:
        case bool() | None | str():
            return []
        case int() | float():
            return [float(value)]
        case dict():
            return [number for item in value.values() for number in numbers(item)]
        case list():
            return [number for item in value for number in numbers(item)]
    raise AssertionError(type(value))
