"""What the questions about engine steps cost: an hour of 10 engines, 1,000,000 steps and 200,000 requests.

Each query runs three times in a process of its own with the embedded ClickHouse; measured are the CPU time of the
median run and the process's peak memory less what it had before. The goals are limits of patience, chosen for
this table.
"""

from __future__ import annotations

import json
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.resources import files
from pathlib import Path

from benchmarks.result import Result

ENGINES, STEPS, REQUESTS = 10, 100_000, 20_000
QUESTIONS = ("interference", "engine", "preemption")
GOAL_CPU_S, GOAL_MIB = 5.0, 1024
BEGIN = "toDateTime64('2026-11-29 12:00:00', 9, 'UTC')"
STEP_NS = 33_000_000
_STEPS = f"""
INSERT INTO tailspan.spans
    (trace_id, span_id, service, instance, name, start, duration_ns, role, model, engine_id, step, attributes_int)
SELECT
    unhex(leftPad(hex(number), 32, '0')), unhex(leftPad(hex(number), 16, '0')), 'vllm', concat('w', toString(e)),
    'step', {BEGIN} + toIntervalNanosecond(toInt64(k) * {STEP_NS}), 22000000 + dec * 200000 + pre * 20000, 'step',
    'llama', concat('engine-', toString(e)), k + 1,
    map('tailspan.step.requests', dec + (pre > 0), 'tailspan.step.prefill_tokens', pre,
        'tailspan.step.decode_tokens', dec, 'tailspan.step.waiting', k % 4)
FROM (
    SELECT
        number, number % {ENGINES} AS e, intDiv(number, {ENGINES}) AS k,
        toInt64(10 + cityHash64(number, 7) % 24) AS dec,
        toInt64(if(cityHash64(number, 8) % 5 = 0, 64 + cityHash64(number, 9) % 450, 0)) AS pre
    FROM numbers({ENGINES * STEPS})
)"""
_STAGES = f"""
INSERT INTO tailspan.spans
    (trace_id, span_id, parent_span_id, service, instance, name, start, duration_ns, role, stage, model, engine_id,
     first_step, last_step, output_tokens)
SELECT
    trace, unhex(leftPad(hex(cityHash64(number, {{stage}})), 16, '0')), unhex('00000000000000AA'), 'vllm',
    concat('w', toString(e)), {{stage}}, {BEGIN} + toIntervalNanosecond(toInt64(f) * {STEP_NS}), n * {STEP_NS},
    {{role}},
    if({{role}} = 'stage', {{stage}}, ''), 'llama', concat('engine-', toString(e)), f, f + n - 1, n
FROM (
    SELECT
        number, number % {ENGINES} AS e, unhex(leftPad(hex(cityHash64(number)), 32, 'A')) AS trace,
        toInt64(intDiv(intDiv(number, {ENGINES}) * ({STEPS} - 400), {REQUESTS}) + 5) AS f,
        toInt64(50 + cityHash64(number, 3) % 200) AS n
    FROM numbers({ENGINES * REQUESTS})
)
WHERE {{stage}} != 'preempted' OR number % 20 = 0"""
_SPANS = (("request", "POST"), ("stage", "prefill"), ("stage", "decode"), ("stage", "preempted"))


def run() -> list[Result]:
    """Fill a database, then ask each question in a new process."""
    results = []
    with tempfile.TemporaryDirectory(prefix="tailspan-bench-") as folder:
        _ask_process(folder, "fill")
        for question in QUESTIONS:
            cpu_s, peak_mib = _ask_process(folder, question)
            results += [
                Result(f"steps.{question}.cpu", cpu_s, "s", GOAL_CPU_S),
                Result(f"steps.{question}.memory", peak_mib, "MiB", GOAL_MIB),
            ]
    return results


def _ask_process(folder: str, question: str) -> list[float]:
    command = [sys.executable, "-m", "benchmarks.bench_steps", folder, question]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], check=True, stdout=subprocess.PIPE, text=True)
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def fill(folder: str) -> list[float]:
    """Make the schema, the steps and the requests."""
    from chdb import session

    from tailspan_schemas.migrations import load

    database = session.Session(folder)
    for migration in load():
        database.query(migration.sql)
    database.query(_STEPS)
    for role, stage in _SPANS:
        database.query(_STAGES.replace("{stage}", f"'{stage}'").replace("{role}", f"'{role}'"))
    return []


def ask(folder: str, question: str) -> list[float]:
    """Return CPU seconds and MiB of a shipped query with its default parameters over the hour."""
    from chdb import session

    database = session.Session(folder)
    text = (files("tailspan_queries") / "sql" / f"{question}.sql").read_text(encoding="utf-8")
    parameters = {"since": "2026-11-29 12:00:00", "until": "2026-11-29 13:00:00"}
    for found in re.finditer(r"^--   (\w+)\s+\w+ = (\S+)", text, re.MULTILINE):
        parameters.setdefault(found[1], found[2].strip("'"))
    database.query("SELECT 1")
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = []
    for _ in range(3):
        begin_s = time.process_time()
        answer = str(database.query(text, "JSON", params=parameters))
        times.append(time.process_time() - begin_s)
        if not json.loads(answer)["data"]:
            raise RuntimeError(f"{question} found nothing")
    return [statistics.median(times), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) / 1024]


if __name__ == "__main__":
    where, what = sys.argv[1:]
    print(json.dumps(fill(where) if what == "fill" else ask(where, what)))
