"""What the commands' queries would return for records that are in no database, so that decisions can be repeated often.

In: records of one service (`requests.DTYPE`) over the time of a `Traffic`. Out: what the commands' own code judges:
`Sample` of compare and regress, rows of query `different`, `FairnessReport`, `TailReport`. A test holds each against
the query itself. The one difference: `batch` is that at arrival, the query's that of the engine's steps.
Units: ns; one request is one, as nothing is sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.traffic.effects import e2e_ns
from benchmarks.traffic.fleet import Service
from benchmarks.traffic.requests import OUTCOMES, Traffic
from benchmarks.traffic.rows import TENANT
from benchmarks.traffic.times import STAGES
from benchmarks.traffic.truths import SINCE
from tailspan import attributes as attr
from tailspan_queries.compare_read import BLOCKS
from tailspan_queries.compare_records import REQUEST, TTFT, Group, Part, Sample
from tailspan_queries.fairness import LONG, FairnessReport, WaitClass
from tailspan_queries.filters import ALL
from tailspan_queries.sampling import WHOLE
from tailspan_queries.tail import TailReport, TailStage
from tailspan_queries.times import Window

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
TAIL = 0.99
FIRST_TOKEN_NS = 300_000
"""From the end of prefill to the first token, as `rows` has it."""
_TIME_BLOCKS, _WAIT_BLOCKS = 32, 8
_SLOW_MEMBERS, _OTHER_MEMBERS = 1000, 3000


def halves(traffic: Traffic) -> tuple[Window, Window]:
    """Return the windows before and after what is planted."""
    middle_ns = traffic.begin_ns + round(SINCE * traffic.length_s * 1e9)
    return Window(traffic.begin_ns, middle_ns), Window(middle_ns, traffic.begin_ns + round(traffic.length_s * 1e9))


def stage_walls(records: np.ndarray) -> dict[str, Ints]:
    """Return the times of each stage and of what no stage covers, one a request, 0 where it has none."""
    walls = {stage: records[f"{stage}_ns"].astype(np.int64) for stage in STAGES}
    walls["decode"] = walls["decode"] + walls.pop("resumed")
    return {**walls, attr.UNATTRIBUTED: records["gap_ns"].astype(np.int64)}


def sample(records: np.ndarray, window: Window) -> Sample:
    """Return the requests of a window as `tailspan compare` and `regress` read them."""
    chosen = records[(records["start_ns"] >= window.since_ns) & (records["start_ns"] < window.until_ns)]
    block_ns = -(-(window.until_ns - window.since_ns) // BLOCKS)
    walls = stage_walls(chosen)
    first = sum(walls[stage] for stage in STAGES[: STAGES.index("prefill") + 1]) + FIRST_TOKEN_NS
    walls[TTFT] = np.where(chosen["output_tokens"] > 0, first, 0)
    present = {name: np.flatnonzero(wall_ns > 0) for name, wall_ns in walls.items()}
    everyone = np.arange(len(chosen))
    parts = {name: Part(index, walls[name][index].astype(np.float64)) for name, index in present.items() if len(index)}
    return Sample(
        group=Group((window,)),
        blocks=(chosen["start_ns"] - window.since_ns) // block_ns,
        block_count=-(-(window.until_ns - window.since_ns) // block_ns),
        block_ns=block_ns,
        weights=np.ones(len(chosen)),
        input_tokens=chosen["input_tokens"].astype(np.int64),
        output_tokens=chosen["output_tokens"].astype(np.int64),
        failed=(chosen["outcome"] > 0).astype(np.int64),
        parts={**parts, REQUEST: Part(everyone, e2e_ns(chosen).astype(np.float64))},
        kept_ratio=1.0,
    )


def tail_report(records: np.ndarray, traffic: Traffic) -> TailReport:
    """Return what mean and tail consist of, as `tailspan tail` has it before its diagnosis; stages do not overlap."""
    whole_ns, count = e2e_ns(records), len(records)
    threshold_ns = float(np.quantile(whole_ns, TAIL))
    in_tail = whole_ns >= threshold_ns
    slow = int(in_tail.sum())
    rows = []
    for stage, wall_ns in {**stage_walls(records), REQUEST: whole_ns}.items():
        share = float(wall_ns.sum() / whole_ns.sum())
        tail_share = float(wall_ns[in_tail].sum() / whole_ns[in_tail].sum())
        rows.append(
            TailStage(
                key="all",
                stage=stage,
                requests=count,
                kept_requests=count,
                tail_requests=slow,
                kept_tail_requests=slow,
                threshold_ns=threshold_ns,
                mean_ns=float(wall_ns.mean()),
                share_ratio=share,
                tail_mean_ns=float(wall_ns[in_tail].mean()),
                tail_share_ratio=tail_share,
                variance_share_ratio=None,
                path_ratio=share,
                tail_path_ratio=tail_share,
            )
        )
    window = Window(traffic.begin_ns, halves(traffic)[1].until_ns)
    return TailReport(window, ALL, TAIL, "all", WHOLE, tuple(rows))


def different_rows(
    records: np.ndarray, service: Service, first_worker: int, traffic: Traffic, slowest: float = 0.01
) -> list[dict[str, Any]]:
    """Return the rows of query `different`, less the groups that hold every request, which are judged by nobody."""
    whole_ns, count = e2e_ns(records), len(records)
    threshold_ns = float(np.quantile(whole_ns, 1 - slowest))
    slow = whole_ns >= threshold_ns
    order = np.argsort(records["start_ns"], kind="stable")
    block = np.empty(count, np.int64)
    begins = np.arange(1, _TIME_BLOCKS) * count // _TIME_BLOCKS
    block[order] = np.searchsorted(begins, np.arange(count), side="right")
    numbers = np.where(slow, 2 * np.cumsum(slow) - 2, 2 * np.cumsum(~slow) - 1)
    chosen = numbers < 2 * np.where(slow, _SLOW_MEMBERS, _OTHER_MEMBERS)
    walls = stage_walls(records)
    del walls[attr.UNATTRIBUTED]
    rows = []
    for attribute, value, mask in (("", "", np.ones(count, bool)), *_groups(records, service, first_worker, traffic)):
        if not mask.any():
            continue
        held = mask & slow
        sums = {stage: float(wall_ns[held].sum()) for stage, wall_ns in walls.items()}
        totals = sums if attribute else {stage: float(wall_ns.sum()) for stage, wall_ns in walls.items()}
        stages = [stage for stage in walls if totals[stage]]
        rows.append(
            {
                "attribute": attribute,
                "value": value,
                "kept_requests": int(mask.sum()),
                "kept_slow": int(held.sum()),
                "requests": float(mask.sum()),
                "slow_requests": float(held.sum()),
                "squared_weight": float(mask.sum()),
                "threshold_ns": threshold_ns,
                "block_requests": np.bincount(block[mask], minlength=_TIME_BLOCKS).astype(float).tolist(),
                "block_slow": np.bincount(block[held], minlength=_TIME_BLOCKS).astype(float).tolist(),
                "stages": stages,
                "stage_sum_ns": [totals[stage] for stage in stages],
                "slow_sum_ns": [sums[stage] for stage in stages],
                "members": np.sort(numbers[mask & chosen]).tolist(),
            }
        )
    return rows


def _groups(
    records: np.ndarray, service: Service, first_worker: int, traffic: Traffic
) -> Iterator[tuple[str, str, npt.NDArray[np.bool_]]]:
    """Yield each attribute with each value and who has it."""
    for worker in np.unique(records["worker"]):
        instance, mask = f"{service.name}-{worker - first_worker}", records["worker"] == worker
        yield attr.SERVICE_INSTANCE, instance, mask
        yield attr.ENGINE_ID, f"vllm-{instance}-0", mask
        yield "host.name", f"gpu-node-{worker:02}", mask
    later = records["start_ns"] >= halves(traffic)[1].since_ns
    computed = records["input_tokens"].astype(np.int64) - records["cached_tokens"]
    prefilled = records["prefill_ns"] > 0
    yes_no = {
        "preempted": (records["preempted_ns"] > 0, np.ones(len(records), bool)),
        "chunked": (computed >= 8192, prefilled),
        "cached": (records["cached_tokens"] > 0, prefilled),
    }
    for name, (held, known) in yes_no.items():
        yield from ((name, "yes", held & known), (name, "no", ~held & known))
    yield from (("service.version", "1.4.0", ~later), ("service.version", "1.5.0", later))
    streamed = records["tenant"] != 1
    yield from ((attr.GEN_AI_STREAM, "true", streamed), (attr.GEN_AI_STREAM, "false", ~streamed))
    yield attr.ERROR_TYPE, "500", records["outcome"] == 1
    if service.lora:
        yield attr.LORA, service.lora, records["tenant"] == 2
    classes: dict[str, tuple[np.ndarray, Callable[[int], str]]] = {
        attr.PRIORITY: (records["priority"], str),
        TENANT: (records["tenant"], "tenant-{}".format),
        attr.OUTCOME: (records["outcome"], OUTCOMES.__getitem__),
        attr.HTTP_STATUS: (records["outcome"], ("200", "500", "499").__getitem__),
        attr.GEN_AI_INPUT_TOKENS: (_powers(records["input_tokens"]), str),
        attr.GEN_AI_OUTPUT_TOKENS: (_powers(records["output_tokens"]), str),
        "batch": (_powers(records["batch"]), str),
    }
    for name, (values, text) in classes.items():
        for value in np.unique(values).tolist():
            yield name, text(value), values == value


def _powers(values: np.ndarray) -> Ints:
    return np.where(values > 0, 2 ** np.floor(np.log2(np.maximum(values, 1))).astype(np.int64), 0)


def fairness_report(records: np.ndarray, traffic: Traffic) -> FairnessReport:
    """Return who waits, by priority, as `tailspan fairness` has it: the halves of the time are compared."""
    first, second = halves(traffic)
    earlier = records["start_ns"] < second.since_ns
    waits = records["queue_ns"].astype(np.int64)
    return waits_report(waits, earlier, records["priority"], Window(first.since_ns, second.until_ns), first)


def waits_report(
    waits: Ints, earlier: npt.NDArray[np.bool_], priorities: np.ndarray, window: Window, first: Window
) -> FairnessReport:
    """Return who waits, from the waits (n,) of a window in the order of time; `earlier` are those of its first part."""
    long_ns = float(np.quantile(waits, 0.5)) * LONG
    keys = sorted(np.unique(priorities).tolist(), key=lambda key: -int((priorities == key).sum()))
    masks = [("", np.ones(len(waits), bool)), *((str(key), priorities == key) for key in keys)]
    rows = [_wait_class(key, waits[mask], earlier[mask], long_ns) for key, mask in masks]
    return FairnessReport(window, first, ALL, "priority", LONG, WHOLE, rows[0], tuple(rows[1:]), ())


def _wait_class(key: str, waits: Ints, earlier: npt.NDArray[np.bool_], long_ns: float) -> WaitClass:
    """Return a class from its waits in the order of time; without a key it is everyone."""
    count = len(waits)
    p50, p90, p95, p99 = np.quantile(waits, (0.5, 0.9, 0.95, 0.99)).tolist()
    before, after = (
        np.quantile(waits[mask], (0.5, 0.99)).tolist() if mask.any() else (None, None) for mask in (earlier, ~earlier)
    )
    return WaitClass(
        everyone=not key,
        key=key,
        requests=count,
        kept_requests=count,
        wait_mean_ns=float(waits.mean()),
        wait_p50_ns=p50,
        wait_p90_ns=p90,
        wait_p95_ns=p95,
        wait_p99_ns=p99,
        wait_max_ns=int(waits.max()),
        long_wait_ns=long_ns,
        long_ratio=float((waits > long_ns).mean()),
        longest_trace_id="",
        before_requests=int(earlier.sum()),
        before_p50_ns=before[0],
        before_p99_ns=before[1],
        after_requests=count - int(earlier.sum()),
        after_p50_ns=after[0],
        after_p99_ns=after[1],
        before_blocks_ns=_by_block(waits[earlier]),
        after_blocks_ns=_by_block(waits[~earlier]),
    )


def _by_block(waits: Ints) -> tuple[float, ...]:
    """Return the P99 in each of the blocks with equally many requests."""
    block = np.arange(len(waits)) * _WAIT_BLOCKS // max(len(waits), 1)
    return tuple(float(np.quantile(waits[block == number], 0.99)) for number in np.unique(block))
