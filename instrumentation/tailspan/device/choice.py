"""Which clock times the work of which device."""

from __future__ import annotations

from typing import Any

from tailspan.device.cuda import CudaTimer
from tailspan.device.host import HostTimer
from tailspan.device.timer import DeviceTimer
from tailspan.guard import logger


def timer_for(device: Any) -> DeviceTimer | None:
    """Return a timer for a `torch.device` or what names one; None for devices other than CPU, CUDA and ROCm."""
    import torch

    place = torch.device(device)
    if place.type == "cpu":
        return HostTimer()
    if place.type != "cuda":
        logger.info("tailspan has no clock for devices of type %s: their steps are not timed", place.type)
        return None
    index = torch.cuda.current_device() if place.index is None else place.index
    return CudaTimer(torch.cuda, index, "rocm" if torch.version.hip else "cuda")
