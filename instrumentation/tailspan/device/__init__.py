"""Time by the device's own clock: what a GPU did in each step, never waiting for it."""

from tailspan.device.choice import timer_for

__all__ = ["timer_for"]
