"""What a destination with `sample` wants, read from ClickHouse slice by slice.

In: a `Place`. Out: the export requests of the slice that begins there, with the place after each page of whole traces.
Errors: whatever the client of ClickHouse raises; the caller begins again at the last place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from clickhouse_connect.driver.client import Client
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tailspan_collector.forward import traces, weights
from tailspan_collector.forward.destination import Sample
from tailspan_schemas.rows import select_spans

SLICE_S = 30
PAGE_TRACES, PAGE_SPANS = 200, 10_000
_FORMATS = {"String": "bytes", "FixedString": "bytes"}
_SETTINGS = {"distributed_product_mode": "global"}  # on a cluster both tables of an IN are Distributed
_PAGE = (
    "start >= {first_start:DateTime64(9, 'UTC')} and start <= {last_start:DateTime64(9, 'UTC')} "
    "and stored <= toDateTime({until:Int64}, 'UTC') "
    "and trace_id in (select toFixedString(unhex(arrayJoin({page:Array(String)})), 16)) "
    "and (stored > toDateTime({after:Int64}, 'UTC') or has({whole:Array(String)}, lower(hex(trace_id))))"
)


@dataclass(frozen=True, slots=True)
class Place:
    """How far a sampler is: all up to `after` is sent, and of the slice until `until` the traces up to `sent`.

    Times are unix times, seconds, of `stored`; `sent` is a trace id, hexadecimal.
    """

    after: int
    until: int = 0
    sent: str = ""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A trace to send; `whole` = its earlier spans too."""

    trace_id: str
    is_ruled: bool
    whole: bool
    spans: int


class Slices:
    """The queries of one sampler."""

    def __init__(self, sample: Sample, most_behind_s: float, query_client: Callable[[], Client]) -> None:
        self._query_client = query_client
        self._bounds = {"settle_s": int(sample.settle_s), "most_behind_s": int(most_behind_s), "slice_s": SLICE_S}
        self._threshold = weights.threshold(sample.share)
        self._rules = {
            "errors": sample.errors,
            "slower_than_ns": int((sample.slower_than_s or 0) * 1e9),
            "threshold": self._threshold,
        }

    def now(self) -> Place:
        """Return the place before what is stored from now on."""
        return Place(int(self._rows("horizon", after=0, **self._bounds)[0][0]) - 1)

    def begin(self, place: Place) -> Place:
        """Return a place with an end of its slice; `after` has moved if it was too long ago."""
        if place.until:
            return place
        _, after, until = map(int, self._rows("horizon", after=place.after, **self._bounds)[0])
        return Place(after, until)

    def pieces(self, place: Place) -> Iterator[bytes | Place]:
        """Yield the requests of a slice, and the places up to which all that came before is to be sent."""
        slice_of = {"after": place.after, "until": place.until}
        spans, first, last = self._rows("arrivals", **slice_of)[0]
        if spans:
            slice_of |= {"first_start": first, "last_start": last}
            rows = self._rows("wanted_traces", **slice_of, **self._rules)
            wanted = [_Wanted(row[0], bool(row[1]), not row[2], row[3]) for row in rows if row[0] > place.sent]
            for page in _pages(wanted):
                yield from self._requests(page, slice_of)
                yield replace(place, sent=page[-1].trace_id)
        yield Place(place.until)

    def _requests(self, page: Sequence[_Wanted], slice_of: dict[str, Any]) -> Iterator[bytes]:
        ruled = {bytes.fromhex(trace.trace_id) for trace in page if trace.is_ruled}

        def edit(span: Span) -> None:
            if span.trace_id not in ruled:
                weights.adjust(span, self._threshold)

        ids = [trace.trace_id for trace in page]
        whole = [trace.trace_id for trace in page if trace.whole]
        return traces.requests(self._spans({**slice_of, "page": ids, "whole": whole}), edit)

    def _spans(self, parameters: dict[str, Any]) -> Iterator[dict[str, Any]]:
        stream = self._query_client().query_row_block_stream(
            select_spans(_PAGE), parameters=parameters, settings=_SETTINGS, query_formats=_FORMATS
        )
        names: Sequence[str] = stream.source.column_names  # type: ignore[union-attr]
        with stream:
            for block in stream:
                for row in block:
                    yield dict(zip(names, row, strict=True))

    def _rows(self, name: str, **parameters: Any) -> Sequence[Sequence[Any]]:
        sql = resources.files("tailspan_collector.forward").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
        return self._query_client().query(sql, parameters=parameters, settings=_SETTINGS).result_rows


def _pages(wanted: Sequence[_Wanted]) -> Iterator[list[_Wanted]]:
    page: list[_Wanted] = []
    spans = 0
    for trace in wanted:
        if page and (len(page) >= PAGE_TRACES or spans + trace.spans > PAGE_SPANS):
            yield page
            page, spans = [], 0
        page.append(trace)
        spans += trace.spans
    if page:
        yield page
