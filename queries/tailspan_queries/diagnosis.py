"""One sentence that says where the tail's time goes and what to look at first, and what to be careful about.

In: the rows of a stage report. Out: text. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailspan import attributes
from tailspan_queries import units
from tailspan_queries.records import QUANTILES, REQUEST, Distribution, StageRow, Tail

UNATTRIBUTED_LIMIT = 0.05
OVERLAP_LIMIT = -0.01
CLOSE_SECOND = 0.8
"""A second stage with this part of the first one's share is named too."""
CONTRAST = 0.1
"""The share over all requests is named when it differs by this much from the share at the tail."""
DEVICE_IDLE = 0.5
"""A device that computes for less than this part of a stage is worth a word."""
MEASURED = 0.99
"""Part of the spans that must carry a busy or GPU time before it is compared with the wall time of all."""

ADVICE = {
    "tls": "connections are set up anew; let clients keep them open and resume sessions",
    "receive": "request bodies arrive slowly; look at their size and at the network before the worker",
    "tokenize": "chat template and tokenizer take long; look at prompt lengths and at threads that wait for the GIL",
    "dispatch": "token ids are slow to reach the engine; look at the IPC and at a busy event loop",
    "queue": "requests wait for the scheduler; look at batch limits, KV cache room and bursts before any kernel",
    "prefill": "prompts are expensive; look at prompt lengths, prefix caching and chunk size",
    "decode": "generation itself is slow; look at what others' prefills add (`tailspan interference`) and at idle gaps "
    "(`tailspan engine`), then at output lengths and kernels",
    "preempted": "requests are evicted and wait to run again (`tailspan preemption`); admit fewer or give the "
    "KV cache more room",
    "detokenize": "text is slow to come out of the tokens; look at threads waiting for the GIL and at stop strings",
    "respond": "answers are slow to leave; look at slow readers, proxies and a busy event loop",
    attributes.UNATTRIBUTED: "no stage covers this time; `tailspan doctor` says which hook is missing",
}
UNKNOWN_ADVICE = "this stage comes from your own spans; look at the slowest requests with `tailspan slowest`"


def diagnose(rows: Sequence[StageRow], tail: Tail) -> str:
    """Return the sentence; empty without requests."""
    parts = sorted((row for row in rows if row.stage != REQUEST), key=lambda row: -row.tail_share_ratio)
    if not parts or tail.requests == 0:
        return ""
    first = parts[0]
    sentence = (
        f"{first.stage} is {units.percent_text(first.tail_share_ratio)} of the {quantile_name(tail.quantile)} "
        f"({units.duration(first.tail_mean_ns)} of {units.duration(tail.mean_ns)})"
    )
    if len(parts) > 1 and parts[1].tail_share_ratio >= CLOSE_SECOND * first.tail_share_ratio:
        sentence += f", {parts[1].stage} {units.percent_text(parts[1].tail_share_ratio)}"
    if abs(first.share_ratio - first.tail_share_ratio) >= CONTRAST:
        sentence += f" and {units.percent_text(first.share_ratio)} over all requests"
    return f"{sentence}: {ADVICE.get(first.stage, UNKNOWN_ADVICE)}{device_note(first)}."


def device_note(row: StageRow) -> str:
    """Say so if the device computed for less than half of a stage that runs on it."""
    ratio = busy_ratio(row, row.gpu)
    if ratio is None or ratio >= DEVICE_IDLE or row.stage not in ("prefill", "decode"):
        return ""
    return f"; the GPU computes for only {units.percent_text(ratio)} of it"


def busy_ratio(row: StageRow, times: Distribution | None) -> float | None:
    """Return which part of a stage's wall time was busy or GPU time; None unless nearly all of its spans say so."""
    if times is None or row.wall.sum_ns <= 0 or times.count < MEASURED * row.count:
        return None
    return times.sum_ns / row.wall.sum_ns


def cautions(rows: Sequence[StageRow], tail: Tail) -> tuple[str, ...]:
    """Return what a reader must know before trusting the table, the gravest first."""
    by_stage = {row.stage: row for row in rows}
    request = by_stage.get(REQUEST)
    if request is None:
        return ()
    found = []
    rest = by_stage.get(attributes.UNATTRIBUTED)
    if rest is not None:
        worst = max(rest.share_ratio, rest.tail_share_ratio)
        if worst > UNATTRIBUTED_LIMIT:
            where = "end-to-end time" if rest.share_ratio >= rest.tail_share_ratio else "the tail"
            found.append(
                f"{units.percent_text(worst, 1)} of {where} is unattributed, more than "
                f"{units.percent_text(UNATTRIBUTED_LIMIT)}: `tailspan doctor` says which hook is missing"
            )
        if min(rest.share_ratio, rest.tail_share_ratio) < OVERLAP_LIMIT:
            found.append("stages add up to more than end-to-end: spans overlap or were sent by two instrumentations")
    sampled = request.kept_count < request.count
    found += sample_cautions(request.kept_count, tail.quantile, sampled=sampled)
    if request.error_count:
        about = "about " if sampled else ""
        found.append(
            f"{about}{request.error_count:,} of {request.count:,} requests failed; their times are included: "
            "`tailspan query errors`"
        )
    return tuple(found)


def sample_cautions(requests: int, tail_quantile: float, *, sampled: bool = False) -> list[str]:
    """Name the percentiles that so few stored requests cannot carry: a quantile q needs 1 / (1 - q) of them."""
    weak = [name for name, q in QUANTILES.items() if requests < needed(q) and q >= min(tail_quantile, 0.99)]
    if not weak:
        return []
    names = " and ".join(quantile_name(QUANTILES[name]) for name in weak)
    amount = f"{requests:,} request{'' if requests == 1 else 's'}{' kept' if sampled else ''}"
    need = " and ".join(f"{needed(QUANTILES[name]):,}" for name in weak)
    verb = "rest on the slowest few" if len(weak) > 1 else "rests on the slowest few"
    return [f"only {amount}: {names} {verb} (at least {need} needed)"]


def needed(quantile: float) -> int:
    """Return how many requests put one of them beyond the quantile."""
    return round(1 / (1 - quantile)) if quantile < 1 else 1


def quantile_name(quantile: float) -> str:
    """Return `p99` for 0.99, `p99.9` for 0.999."""
    return f"p{quantile * 100:.10g}"
