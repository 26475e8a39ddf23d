"""Which clock times which device, and that asking costs no import of torch."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from tailspan import attributes as attr
from tailspan.device import timer_for
from tailspan.device.cuda import CudaTimer
from tailspan.device.host import HostTimer
from tailspan.device.timer import HostTime


def test_a_cpu_is_timed_by_the_hosts_clock() -> None:
    """Marks of a CPU are done at once, exact, and as far apart as the host says."""
    timer = timer_for(torch.device("cpu"))
    assert isinstance(timer, HostTimer)
    begin, end = timer.record(), timer.record()
    assert timer.is_done(begin)
    assert timer.elapsed_ns(begin, end) == end - begin >= 0
    assert timer.host_time(end) == HostTime(end, 0)
    timer.release([begin, end])


@pytest.mark.parametrize(("hip", "kind"), [(None, "cuda"), ("7.1", "rocm")])
def test_a_gpu_is_timed_by_its_events(monkeypatch: pytest.MonkeyPatch, hip: str | None, kind: str) -> None:
    """CUDA and ROCm have the same API in torch and names of their own; nothing is recorded before the first mark."""
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    timer = timer_for("cuda")
    assert isinstance(timer, CudaTimer)
    assert timer.kind == kind
    assert timer.kind in attr.DEVICES
    assert timer.api is torch.cuda
    assert isinstance(timer_for(torch.device("cuda", 1)), CudaTimer)


def test_other_devices_have_no_clock() -> None:
    """A device without events of this kind is not timed."""
    assert timer_for("meta") is None


def test_importing_it_does_not_import_torch() -> None:
    """The modules of the device's time come without torch, also in a worker that has it."""
    code = "import sys, tailspan.device.steps, tailspan.device; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
