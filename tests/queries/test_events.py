"""What happened to workers is told under the stage table, and only there where it happened."""

import json

import pytest

from tailspan import attributes
from tailspan.cli import main
from tailspan_queries.client import Client
from tailspan_queries.events import LINES, WorkerEvent, warning_lines, worker_events
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.stages import stage_report
from tailspan_queries.times import Window, clock, datetime_ns
from tests.queries import traffic

DROPS = "1,204 records and 3 requests were dropped by worker worker-0 (ring full): raise TAILSPAN_RING_RECORDS"
SPANS = "1 span was dropped by the agent of worker worker-1 (queue full): see whether the collector answers"


def crash_line(event: traffic.Event) -> str:
    """Return what is said of the crash."""
    return (
        f"worker worker-1 process 123 disappeared at {clock(event.start_ns)} UTC after step 1,204 "
        f"with 4 open requests: tailspan trace {event.open_trace_ids[0].hex()}"
    )


def stall_line(event: traffic.Event) -> str:
    """Return what is said of the stall."""
    return (
        f"worker worker-1 process 122 had made no step for 31.0 s at {clock(event.start_ns)} UTC with 1 open request: "
        f"tailspan trace {event.open_trace_ids[0].hex()}"
    )


def test_events_are_read_as_they_were_sent(client: Client, events: list[traffic.Event], sampled_window: Window) -> None:
    """Every event comes back in the order of time, with all that it says."""
    found = worker_events(client, sampled_window)
    assert [datetime_ns(event.start) for event in found] == sorted(event.start_ns for event in events)
    crash = next(event for event in found if event.event == attributes.EVENT_CRASH)
    assert (crash.service, crash.instance, crash.model, crash.pid) == ("sampled", "worker-1", "sampled-small", 123)
    assert (crash.engine_id, crash.step, crash.step_requests, crash.open_requests) == ("engine-1", 1204, 3, 4)
    assert list(crash.open_trace_ids) == [trace_id.hex() for trace_id in events[0].open_trace_ids]
    assert (crash.stalled_ns, crash.dropped_records) == (0, 0)


@pytest.mark.parametrize(
    ("filters", "told"),
    [
        (ALL, ["crash", "stall", "drops", "spans"]),
        (Filters(instance="worker-0"), ["drops"]),
        (Filters(service="sampled", instance="worker-1"), ["crash", "stall", "spans"]),
        (Filters(service="chat"), []),
        (Filters(model="sampled-small"), ["crash", "drops", "spans"]),
    ],
    ids=str,
)
def test_warnings_follow_the_filters(
    client: Client, events: list[traffic.Event], sampled_window: Window, filters: Filters, told: list[str]
) -> None:
    """A report warns of the events of the workers it is about; an event without a model is about all models."""
    lines = {"crash": crash_line(events[0]), "stall": stall_line(events[1]), "drops": DROPS, "spans": SPANS}
    report = stage_report(client, sampled_window, filters, warnings=["from the caller"])
    assert report.warnings == (*(lines[name] for name in told), "from the caller")
    assert len(report.events) == len(worker_events(client, sampled_window, filters))


def test_nothing_is_said_where_nothing_happened(client: Client, burst_window: Window) -> None:
    """A window without events has no warnings."""
    report = stage_report(client, burst_window)
    assert (report.warnings, report.events) == ((), ())


def test_many_crashes_are_counted(client: Client, sampled_window: Window) -> None:
    """Beyond a few lines the rest is counted, and the query that lists all is named."""
    crash = next(event for event in worker_events(client, sampled_window) if event.event == attributes.EVENT_CRASH)
    lines = warning_lines([crash] * (LINES + 2))
    assert len(lines) == LINES + 1
    assert lines[-1] == "and 2 more crashes: `tailspan query worker_events` lists all"
    assert len(warning_lines([crash] * LINES)) == LINES


def test_an_event_without_requests_points_to_itself(client: Client, sampled_window: Window) -> None:
    """Without a request to look at, the command shows the event's own trace."""
    drops: WorkerEvent = worker_events(client, sampled_window)[0]
    assert drops.open_trace_ids == []
    assert main(["trace", drops.trace_id, "--url", client.url]) == 0


def test_warnings_reach_every_reader(
    client: Client, events: list[traffic.Event], capsys: pytest.CaptureFixture[str]
) -> None:
    """Table and JSON carry the warnings, a window that holds events but no request too."""
    second = events[2].start_ns // 1_000_000_000
    arguments = ["stages", "--url", client.url, "--service", "sampled", "--instance", "worker-0"]
    arguments += ["--since", "2026-12-01T12:00:05Z", "--until", "2026-12-01T12:00:06Z"]
    assert second * 1_000_000_000 == events[2].start_ns
    assert main(arguments) == 0
    assert capsys.readouterr().out == ""
    arguments[-3:] = ["2026-12-01T12:00:10Z", "--until", "2026-12-01T12:00:10.000001Z"]
    assert main(arguments) == 0
    found = capsys.readouterr()
    assert " ".join(found.out.split()) == (
        "! 1,200 records and 2 requests were dropped by worker worker-0 (ring full): raise TAILSPAN_RING_RECORDS"
    )
    assert "no requests for" in found.err
    assert main([*arguments, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [event["dropped_records"] for event in document["events"]] == [1200]
    assert document["warnings"] == [" ".join(found.out.split()).removeprefix("! ")]
