"""Histograms for values that come by the dozen: stage durations, gaps between tokens, engine steps.

One `record` of the OpenTelemetry SDK costs about as much as a whole stage span's attributes; a request of 150 tokens
would pay it 160 times. So these are summed up here, at a few hundred nanoseconds a value, and handed to the SDK's
readers as finished data points: what the specification calls a MetricProducer, which the Python SDK does not offer.

In: integers in the unit of the histogram's scale, from one thread. Out: `Metric`s of the SDK, from a reader's thread.
Each reader has a pool of its own, because each has its own temporality and takes its own exemplars.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics.export import AggregationTemporality, Histogram, HistogramDataPoint, Metric, MetricsData
from opentelemetry.trace import SpanContext

Source = tuple[int, SpanContext]
"""Where an exemplar comes from: wall time in ns, and the request's span."""
Labels = tuple[tuple[str, str], ...]
"""Attributes of a data point; whoever adds bounds how many different ones there are."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A histogram's name and buckets. A value of 1 is 1/`scale` units; upper bounds are given in units."""

    name: str
    unit: str
    description: str
    bounds: tuple[float, ...]
    scale: int = 1

    @property
    def raw_bounds(self) -> list[int]:
        """Upper bounds, inclusive, in the scale of the values."""
        return [round(bound * self.scale) for bound in self.bounds]


@dataclass(slots=True)
class _Point:
    counts: list[int]
    total: int = 0
    least: int = 1 << 62
    most: int = 0
    exemplars: dict[int, tuple[int, Source]] = field(default_factory=dict)
    """By bucket: a value, and whose it was."""


class PooledHistogram:
    """One histogram of one pool."""

    __slots__ = ("_bounds", "points", "shape")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.points: dict[Labels, _Point] = {}
        self._bounds = shape.raw_bounds

    def add(self, labels: Labels, values: Sequence[int], source: Source | None = None) -> None:
        """Count one or more values; the largest is the exemplar of its bucket when there is a source."""
        point = self.points.get(labels)
        if point is None:
            point = self.points[labels] = _Point([0] * (len(self._bounds) + 1))
        bounds, counts = self._bounds, point.counts
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        most = max(values)
        point.total += sum(values)
        point.most = max(point.most, most)
        point.least = min(point.least, min(values))
        if source is not None:
            point.exemplars[bisect_left(bounds, most)] = most, source

    def metric(self, start_ns: int, now_ns: int, temporality: AggregationTemporality) -> Metric | None:
        """Return the data points, None without one; exemplars are given once."""
        shape = self.shape
        points = []
        for labels, point in self.points.items():
            points.append(
                HistogramDataPoint(
                    attributes=dict(labels),
                    start_time_unix_nano=start_ns,
                    time_unix_nano=now_ns,
                    count=sum(point.counts),
                    sum=point.total / shape.scale,
                    bucket_counts=tuple(point.counts),
                    explicit_bounds=shape.bounds,
                    min=point.least / shape.scale,
                    max=point.most / shape.scale,
                    exemplars=[
                        Exemplar({}, value / shape.scale, at_ns, context.span_id, context.trace_id)
                        for value, (at_ns, context) in point.exemplars.values()
                    ],
                )
            )
            point.exemplars.clear()
        if not points:
            return None
        return Metric(shape.name, shape.description, shape.unit, Histogram(points, temporality))


class Pool:
    """The histograms of one reader. Hold `lock` while adding."""

    def __init__(self, shapes: Sequence[Shape], *, delta: bool = False) -> None:
        """With `delta` every collection starts from zero."""
        self.lock = threading.Lock()
        self.histograms = {shape.name: PooledHistogram(shape) for shape in shapes}
        self._delta = delta
        self._start_ns = time.time_ns()

    def collect(self) -> list[Metric]:
        """Return the metrics that have data."""
        temporality = AggregationTemporality.DELTA if self._delta else AggregationTemporality.CUMULATIVE
        now_ns = time.time_ns()
        with self.lock:
            found = [pooled.metric(self._start_ns, now_ns, temporality) for pooled in self.histograms.values()]
            if self._delta:
                self._start_ns = now_ns
                for pooled in self.histograms.values():
                    pooled.points.clear()
        return [metric for metric in found if metric is not None]

    def added_to(self, data: MetricsData) -> MetricsData:
        """Return the SDK's metrics and this pool's under the first scope, which is ours."""
        if not data.resource_metrics or not data.resource_metrics[0].scope_metrics:
            return data
        resource, *resources = data.resource_metrics
        scope, *scopes = resource.scope_metrics
        ours = replace(scope, metrics=[*scope.metrics, *self.collect()])
        return MetricsData([replace(resource, scope_metrics=[ours, *scopes]), *resources])
