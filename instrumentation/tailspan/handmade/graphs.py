"""`tailspan.CapturedGraph`: a CUDA graph of a hand-written engine whose layers can be timed. Not measured on a GPU.

Taps on modules see nothing of a replay. So the function is captured a second time, with events around the parts of the
model, and this twin is replayed in the steps whose layers are sampled; the plain graph stays as fast as it was. Both
use one memory pool: they never run at once.

Errors: those of the function and of its capture are the engine's. Whatever goes wrong with the twin leaves the plain
graph, logged once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from tailspan.errors import UserError
from tailspan.guard import Guard, logger

if TYPE_CHECKING:
    from tailspan.handmade.engine import Engine
    from tailspan.layers.graphs import GraphLayers
    from tailspan.layers.sampler import LayerSampler

T = TypeVar("T")
_GUARD = Guard("api.capture")


class _Twin(NamedTuple):
    """A second graph of the same function with events in it; without a graph where that failed."""

    layers: GraphLayers
    graph: Any
    output: Any


class CapturedGraph(Generic[T]):
    """A captured function; use `tailspan.Engine.capture`. Belongs to the thread that runs the engine's steps."""

    __slots__ = ("_engine", "_function", "_graph", "_output", "_pool", "_twin")

    def __init__(self, engine: Engine, function: Callable[[], T], pool: Any, warm_up: int) -> None:
        self._engine = engine
        self._function = function
        self._graph: Any = None
        self._output: Any = None
        self._pool = pool
        self._twin: _Twin | None = None
        cuda = cuda_of(engine.module)
        if cuda is not None:
            _warm_up(cuda, function, warm_up)
            self._graph = cuda.CUDAGraph()
            with cuda.graph(self._graph, pool=pool):
                self._output = function()
            self._pool = self._graph.pool()
            sampler = None
            with _GUARD:
                sampler = _sampler_of(engine)
            if sampler is not None:
                self._twin = _capture_twin(sampler, function, cuda, self._pool)

    @property
    def pool(self) -> Any:
        """Its memory pool, for `pool=` of other graphs; without CUDA what was given."""
        return self._pool

    @property
    def times_layers(self) -> bool:
        """Whether the layers inside it are timed in steps that are sampled."""
        return self._twin is not None and not self._twin.layers.is_broken

    def replay(self) -> T:
        """Run the function's work on what its inputs hold now; return its output, valid until the next replay.

        The tensors returned are not the same in every step, nor need those be up to date that the function keeps
        elsewhere: use what this returns.
        """
        if self._graph is None:
            return self._function()
        twin, probe = self._twin, self._engine.open_probe
        if twin is not None and probe is not None and probe.replay(twin.layers, twin.graph):
            output: T = twin.output
            return output
        self._graph.replay()
        plain: T = self._output
        return plain


def cuda_of(module: Any) -> Any:
    """Return `torch.cuda` if the module is on a CUDA device, or without a module if there is one; else None."""
    try:
        import torch
    except ImportError:
        return None
    parameters = getattr(module, "parameters", tuple)
    kinds = {parameter.device.type for parameter in parameters()}
    return torch.cuda if "cuda" in kinds or (not kinds and torch.cuda.is_available()) else None


def _warm_up(cuda: Any, function: Callable[[], object], times: int) -> None:
    """Run the function before it is captured, off the current stream, so that what is made once is not captured."""
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(times):
            function()
    cuda.current_stream().wait_stream(side)


def _capture_twin(sampler: LayerSampler, function: Callable[[], object], cuda: Any, pool: Any) -> _Twin | None:
    """Return the twin; None if nothing of the model runs in it, so that the plain graph hides no layers."""
    from tailspan.layers.graphs import GraphLayers

    layers, graph, output = GraphLayers(sampler.plan, cuda), cuda.CUDAGraph(), None
    try:
        # A capture that fails leaves its own stream as the current one.
        with sampler.alone() as is_alone, cuda.stream(cuda.current_stream()):
            if not is_alone:
                layers.give_up("another engine samples the model while its graph is captured")
                return _Twin(layers, None, None)
            with layers.capture(cuda.graph(graph, pool=pool)):
                output = function()
    except UserError as error:
        logger.info("tailspan: layers inside a CUDA graph are not timed: %s", error)
        return None
    except Exception as error:
        layers.give_up(f"{type(error).__name__}: {error}")
        with _GUARD:
            raise
    return _Twin(layers, graph, output)


def _sampler_of(engine: Engine) -> LayerSampler | None:
    """Return what samples the layers of the engine's module, None if nothing does."""
    from tailspan.layers.sampler import LayerSampler

    probe = engine.probe()
    return probe.sampler if probe is not None and isinstance(probe.sampler, LayerSampler) else None
