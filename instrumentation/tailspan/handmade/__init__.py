"""The public API for hand-written workers: `request`, `stage`, `step`, `Engine`.

Everything goes into the recorder that the engine hooks use: records in a ring, no OpenTelemetry object, no lock that a
reader shares. While nothing records (`tailspan.instrument()` was not called) every call does nothing. An error inside
these calls never reaches the worker; only a mistake in how they are written does (`UserError` for an unknown stage).
"""

from tailspan.handmade.engine import Engine
from tailspan.handmade.graphs import CapturedGraph
from tailspan.handmade.handles import RequestHandle
from tailspan.handmade.requests import RequestScope, current_request, request
from tailspan.handmade.stages import StageName, StageScope, stage
from tailspan.handmade.steps import StepScope, step

__all__ = [
    "CapturedGraph",
    "Engine",
    "RequestHandle",
    "RequestScope",
    "StageName",
    "StageScope",
    "StepScope",
    "current_request",
    "request",
    "stage",
    "step",
]
