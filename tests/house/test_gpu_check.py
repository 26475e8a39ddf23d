"""`make gpu-check` itself: it runs through on a CPU, and says plainly that there is no GPU."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import gpu_check


def test_every_row_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a CPU all rows that need no GPU have a figure; whether they hold is not judged in a few steps."""
    monkeypatch.setattr(gpu_check, "STEPS", 6)
    monkeypatch.setattr(gpu_check, "ROUNDS", 2)
    monkeypatch.setattr(gpu_check, "NEW_TOKENS", 8)
    torch.set_num_threads(1)
    assert gpu_check.main(["--device", "cpu"]) in (0, 1)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert {row["name"] for row in rows} == {
        "gpu.pair", "gpu.idle_gap.off", "layers.decode.closure", "layers.prefill.closure", "layers.attention.off",
        "layers.mlp.off", "layers.lm_head.off", "gpu.overhead.wall",
    }  # fmt: skip
    assert all(row["value"] >= 0 for row in rows if row["name"] != "gpu.overhead.wall")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_claimed(capsys: pytest.CaptureFixture[str]) -> None:
    """One line on standard error, exit code 3, no figures."""
    assert gpu_check.main([]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "no CUDA GPU" in captured.err
