"""vLLM's own asynchronous scheduler, driven by hand: on a CPU vLLM does not plan steps ahead."""

from __future__ import annotations

import time
from collections import deque
from copy import deepcopy
from typing import Any


def schedule_ahead(llm: Any, prompts: list[Any], params: Any) -> tuple[list[list[int]], dict[str, int]]:
    """Run prompts with two steps under way and a made-up model; return when each had its tokens, and what is left.

    The scheduler has as many KV blocks as that of `llm`. Times: ns since the request began.
    """
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

    from tailspan.engines import vllm_marks

    engine = llm.llm_engine
    core = engine.engine_core.engine_core
    config = deepcopy(core.vllm_config)
    config.scheduler_config.async_scheduling = True
    size = core.vllm_config.cache_config.block_size
    scheduler = AsyncScheduler(
        vllm_config=config, kv_cache_config=core.scheduler.kv_cache_config, block_size=size, hash_block_size=size,
        structured_output_manager=core.structured_output_manager,
    )  # fmt: skip
    calls, times = {}, {}
    for number, prompt in enumerate(prompts):
        made = engine.input_processor.process_inputs(
            f"ahead-{number}", prompt, params, supported_tasks=engine.get_supported_tasks()
        )
        calls[made.request_id] = vllm_marks.call_of(made.trace_headers).request
        times[made.request_id] = []
        scheduler.add_request(Request.from_engine_core_request(made, core.request_block_hasher))
    under_way: deque[tuple[Any, list[str]]] = deque()
    while scheduler.requests or under_way:
        if scheduler.requests:
            planned = scheduler.schedule()
            sampled = [name for name in planned.num_scheduled_tokens if not scheduler.requests[name].is_prefill_chunk]
            under_way.append((planned, sampled))
            if len(under_way) < 2:
                continue
        time.sleep(0.002)
        planned, sampled = under_way.popleft()
        names = list(planned.num_scheduled_tokens)
        output = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[[7] if name in sampled else [] for name in names],
        )
        found = scheduler.update_from_output(planned, output)
        for part in found.values():
            for told in part.outputs:
                times[told.request_id] += [time.monotonic_ns()] * len(told.new_token_ids)
    for name, request in calls.items():
        request.end(times[name][-1])
        times[name] = [at_ns - request.begin_ns for at_ns in times[name]]
    held = {
        name: getattr(scheduler.tailspan_batch, name) for name in ("_sequences", "_members", "_prefilling", "_plans")
    }
    return list(times.values()), {name: len(items) for name, items in held.items() if items}
