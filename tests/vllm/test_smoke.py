"""A real vLLM starts with nothing but the installed plugin, answers as it should, and is traced."""

from __future__ import annotations

import subprocess
import sys

from tailspan import attributes as attr
from tests.support.otlp_sink import attributes_of
from tests.vllm.conftest import RunOffline
from tests.vllm.running import VllmServer, stages_of

QUESTION = "What is the capital of France? Answer in one sentence."


def test_offline_in_one_process(offline: RunOffline) -> None:
    """The plugin is loaded without VLLM_PLUGINS, the model's answer is right, and its request is a trace."""
    done = offline(f"""
        from tailspan.recorder import process
        messages = [{{"role": "user", "content": {QUESTION!r}}}]
        (output,) = llm.chat(messages, greedy, use_tqdm=False)
        return {{"text": output.outputs[0].text, "recording": process.is_started()}}
    """)
    assert done.value["recording"]
    assert "Paris" in done.value["text"]
    (root,) = done.requests
    assert attributes_of(root.attributes)[attr.GEN_AI_OUTPUT_TOKENS] == 8
    assert {"queue", "prefill", "decode"} <= set(stages_of(done.spans))


def test_serve(server: VllmServer) -> None:
    """Three processes, one trace, continued from the caller's."""
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    body = {"model": server.model, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
    headers = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
    answer = server.post("/v1/chat/completions", body | {"max_tokens": 12}, **headers)
    assert answer.status_code == 200, answer.text
    assert "Paris" in answer.json()["choices"][0]["message"]["content"]
    (root,) = [span for span in server.wait_requests(1) if span.trace_id.hex() == trace_id]
    assert root.parent_span_id.hex() == "b7ad6b7169203331"
    assert {"queue", "prefill", "decode"} <= set(stages_of(server.trace(root)))


def test_the_embedded_database_lives_beside_torch() -> None:
    """chDB and torch, each with a runtime of its own, can be imported into one process in either order."""
    for order in (["chdb", "torch"], ["torch", "chdb"]):
        program = f"import {order[0]}, {order[1]}; print(torch.ones(2).sum().item(), chdb.query('select 6*7').bytes())"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert "2.0 b'42" in done.stdout
