"""Several API servers, engines and ranks: one trace a request, every step once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tailspan import attributes as attr
from tests.support.otlp_sink import attributes_of
from tests.vllm.running import VllmServer, serve, stages_of

WHOLE = ["receive", "tokenize", "dispatch", "queue", "prefill", "decode", "detokenize", "respond"]
BODY = {"prompt": "The capital of France is", "max_tokens": 6, "temperature": 0, "ignore_eos": True}


def _ask(server: VllmServer, count: int) -> list[dict[str, object]]:
    """Send some requests one after another and look at each trace; return the attributes of their request spans."""
    for _ in range(count):
        answer = server.post("/v1/completions", BODY | {"model": server.model})
        assert answer.status_code == 200, answer.text
    roots = server.wait_requests(count)
    assert len(roots) == len({root.trace_id for root in roots}) == count
    for root in roots:
        assert stages_of(server.trace(root)) == WHOLE
    return [attributes_of(root.attributes) for root in roots]


def _steps(server: VllmServer) -> list[dict[str, object]]:
    spans = [attributes_of(span.attributes) for span in server.sink.spans]
    return [span for span in spans if span.get(attr.ROLE) == attr.ROLE_STEP]


def test_two_api_servers_before_two_engines(model_folder: Path, tmp_path: Path) -> None:
    """Data parallel, API server scale-out: each request has all stages, and both engines have steps of their own."""
    with serve(model_folder, tmp_path, "--api-server-count=2", "--data-parallel-size=2") as server:
        requests = _ask(server, 8)
        engines = Counter(request[attr.ENGINE_ID] for request in requests)
        assert len(engines) == 2, engines
        steps = Counter((step[attr.ENGINE_ID], step[attr.STEP_NUMBER]) for step in _steps(server))
        assert {engine for engine, _ in steps} >= set(engines)
        assert max(steps.values()) == 1


def test_three_ranks_of_one_engine(model_folder: Path, tmp_path: Path) -> None:
    """Tensor parallel: the scheduler owns the steps, so that three ranks do not make three of each."""
    # The model has nine heads; by itself each rank wants a core of its own.
    with serve(model_folder, tmp_path, "--tensor-parallel-size=3", VLLM_CPU_OMP_THREADS_BIND="nobind") as server:
        requests = _ask(server, 3)
        assert len({request[attr.ENGINE_ID] for request in requests}) == 1
        steps = Counter(step[attr.STEP_NUMBER] for step in _steps(server))
        assert max(steps.values()) == 1
        assert len(steps) >= 3 * 6
