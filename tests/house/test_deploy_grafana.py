"""The dashboards: every query is run, against a real Prometheus and a real ClickHouse with known traffic."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tailspan_collector.admin import AdminServer
from tailspan_collector.metrics import Metrics
from tailspan_collector.status import ClickHouseState, SpoolState, Status
from tests.house.test_deploy_prometheus import metric_names, used_metrics
from tests.queries import traffic
from tests.support.collector import RunningCollector, wait_until
from tests.support.prometheus import Prometheus

GRAFANA = Path(__file__).parents[2] / "deploy/grafana"
BOARDS = {path.stem: json.loads(path.read_text()) for path in sorted(GRAFANA.glob("dashboards/*.json"))}
PANELS = [(name, panel) for name, board in BOARDS.items() for panel in board["panels"] if panel["type"] != "row"]
FROM_S = traffic.BEGIN_NS // 10**9
HOUR_S = 3600
STATUS = Status((SpoolState("traces", True, "", 1, 2, 1, 2),), ClickHouseState("http://clickhouse:8123", True), 1)


def queries(kind: str, key: str) -> list[Any]:
    """Return (board and panel, query) of every target of a kind of data source."""
    return [
        pytest.param(target[key], id=f"{name}: {panel['title']} {target['refId']}")
        for name, panel in PANELS
        for target in panel["targets"]
        if target["datasource"]["type"] == kind
    ]


def expand(sql: str, service: str = "", model: str = "", from_s: int = FROM_S, step_s: int = 60) -> str:
    """Replace variables and macros as Grafana and its ClickHouse data source do, for an hour; empty = All.

    Source: README of grafana/clickhouse-datasource, "Macros".
    """
    begin, end = f"toDateTime({from_s})", f"toDateTime({from_s + HOUR_S})"
    for name, value in (("service", service), ("model", model)):
        condition = re.compile(rf"\$__conditionalAll\(([^()]*\([^()]*\)), \${name}\)")
        sql = condition.sub(lambda found, chosen=value: found[1] if chosen else "1=1", sql)  # type: ignore[misc]
        sql = sql.replace(f"${{{name}:singlequote}}", f"'{value}'")
    sql = re.sub(r"\$__timeFilter\((\w+)\)", rf"\1 >= {begin} AND \1 <= {end}", sql)
    return sql.replace("$__fromTime", begin).replace("$__toTime", end).replace("$__interval_s", str(step_s))


@pytest.fixture(scope="module")
def requests() -> list[traffic.Request]:
    """Requests of two services and two models over some twenty minutes."""
    return traffic.bursty(1000)


@pytest.fixture(scope="module")
def clickhouse(requests: list[traffic.Request], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCollector]:
    """A collector that holds them, some engine steps, an event and, so that their hour is whole, an earlier request."""
    earlier = [replace(requests[0], trace_id=b"e" * 16, start_ns=traffic.BEGIN_NS - 2 * HOUR_S * 10**9)]
    spans = [span for request in (*requests, *earlier) for span in traffic.request_spans(request)]
    begin = traffic.BEGIN_NS + 60 * 10**9
    spans += [
        traffic.step_span(traffic.Step(n, begin + n * 10**8, 9 * 10**7, 4, 10**6), "engine-1") for n in range(1, 40)
    ]
    spans.append(traffic.event_span(traffic.Event("worker.crash", begin, "chat", "worker-0", {})))
    with RunningCollector(tmp_path_factory.mktemp("grafana") / "data", "--batch-seconds", "0.1") as running:
        running.export(*traffic.messages(spans))
        # The rollups are filled after the spans, so that the count of the last is the one to wait for.
        counted = "select sum(span_count) from tailspan.stage_hours where stage = 'request'"
        assert wait_until(lambda: running.query(counted)[0][0], lambda n: n > len(requests)) == len(requests) + 1
        assert running.wait_rows(len(spans)) == len(spans)
        yield running


def panel_sql(title: str) -> str:
    """Return the SQL of a panel of the board of stages."""
    (sql,) = [panel["targets"][0]["rawSql"] for name, panel in PANELS if name == "stages" and panel["title"] == title]
    return str(sql)


HOURLY = [item for item in queries("grafana-clickhouse-datasource", "rawSql") if "stage_hours" in item.values[0]]


@pytest.mark.parametrize("sql", HOURLY)
def test_hours_answer_as_minutes_do(sql: str, clickhouse: RunningCollector) -> None:
    """A panel that reads the rollup by the hour shows what it would show without, and then needs no minutes."""
    step_s = 6 * HOUR_S
    hours, minutes, neither = (
        clickhouse.query(expand(text, step_s=step_s))
        for text in (
            sql,
            sql.replace("tailspan.stage_hours", "(select * from tailspan.stage_hours where 0)"),
            sql.replace("from tailspan.stage_minutes", "from (select * from tailspan.stage_minutes where 0)"),
        )
    )
    assert len(hours) > 0
    assert [approximate(row) for row in minutes] == hours
    assert neither == hours


def approximate(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values of a row as they may differ by the order of a sum."""
    return tuple(pytest.approx(value, rel=1e-12) if isinstance(value, float) else value for value in row)


@pytest.mark.parametrize("chosen", [("", ""), ("chat", "large")], ids=["all", "one service and model"])
@pytest.mark.parametrize("sql", queries("grafana-clickhouse-datasource", "rawSql"))
def test_every_sql_panel_runs(sql: str, chosen: tuple[str, str], clickhouse: RunningCollector) -> None:
    """Each query runs with and without a choice of service and model, and finds rows where there are any."""
    expanded = expand(sql, *chosen)
    assert "$" not in expanded
    rows = clickhouse.query(expanded)
    if "tailspan.rejects" not in sql and not ("tailspan.steps" in sql and chosen[1]):
        assert rows


@pytest.mark.parametrize("variable", BOARDS["stages"]["templating"]["list"], ids=lambda variable: str(variable["name"]))
def test_the_choices_are_what_there_is(variable: dict[str, Any], clickhouse: RunningCollector) -> None:
    """The lists of services and models come from ClickHouse."""
    found = {row[0] for row in clickhouse.query(expand(variable["query"]))}
    assert found >= {"service": {"chat", "batch"}, "model": {"small", "large"}}[variable["name"]]


@pytest.mark.parametrize("from_s", [FROM_S, FROM_S - HOUR_S // 2], ids=["by the hour", "by the minute"])
def test_the_table_of_stages_is_right(
    requests: list[traffic.Request], clickhouse: RunningCollector, from_s: int
) -> None:
    """Percentiles agree with those of the requests sent within 1 %, and the shares of the stages add up to one."""
    names = ("stage", "count", "p50", "p90", "p95", "p99", "p999", "max", "share", "busy")
    rows = clickhouse.query(expand(panel_sql("Stages over the whole range"), from_s=from_s))
    table = {row[0]: dict(zip(names, row, strict=True)) for row in rows}
    e2e_s = np.array([request.e2e_ns for request in requests]) / 1e9
    assert table["request"]["count"] == len(requests)
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        assert table["request"][name] == pytest.approx(
            np.percentile(e2e_s, share * 100, method="inverted_cdf"), rel=0.01
        )
    assert table["request"]["max"] == pytest.approx(e2e_s.max())
    assert sum(row["share"] for stage, row in table.items() if stage != "request") == pytest.approx(1)
    queue = sum(request.stage_ns("queue") for request in requests) / sum(request.e2e_ns for request in requests)
    assert table["queue"]["share"] == pytest.approx(queue, rel=1e-6)


def test_the_slowest_request_is_the_first(requests: list[traffic.Request], clickhouse: RunningCollector) -> None:
    """The table names the trace that `tailspan trace` opens."""
    slowest = max(requests, key=lambda request: request.e2e_ns)
    assert clickhouse.query(expand(panel_sql("Slowest requests")))[0][1] == slowest.trace_id.hex()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that scrapes an admin port where every counter has counted something."""
    metrics = Metrics()
    for metric in vars(metrics).values():
        if hasattr(metric, "_labelnames"):
            one = metric.labels(*("traces" for _ in metric._labelnames))
            (one.observe if hasattr(one, "observe") else one.inc)(1)
    server = AdminServer(("127.0.0.1", 0), metrics, lambda: STATUS)
    server.start()
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [
            {"job_name": "tailspan-collector", "static_configs": [{"targets": [f"127.0.0.1:{server.port}"]}]}
        ],
    }
    try:
        with Prometheus(tmp_path_factory.mktemp("prometheus"), yaml.safe_dump(config)) as running:
            assert wait_until(lambda: running.query("count_over_time(up[1m]) >= 3"), bool, 30)
            yield running
    finally:
        server.stop()


@pytest.mark.parametrize("expression", queries("prometheus", "expr"))
def test_every_promql_panel_shows_something(expression: str, prometheus: Prometheus) -> None:
    """Each expression is understood by Prometheus, is about metrics that exist, and finds series."""
    expanded = expression.replace("$__rate_interval", "1m").replace("$instance", ".*")
    assert "$" not in expanded
    assert used_metrics(expression) <= metric_names()
    assert prometheus.query(expanded)


def test_nothing_that_a_collector_counts_is_missing() -> None:
    """Every metric of ours is on the dashboard of the collector."""
    shown = {
        name for _, panel in PANELS for target in panel["targets"] for name in used_metrics(target.get("expr", ""))
    }
    ours = {family.name for family in Metrics().registry.collect()}
    assert ours <= {re.sub("_(total|bucket)$", "", name) for name in shown}


def test_boards_and_sources_are_wired() -> None:
    """Panels name data sources that are provisioned, panels do not overlap, and the folder is the mounted one."""
    sources = yaml.safe_load((GRAFANA / "provisioning/datasources/tailspan.yaml").read_text())["datasources"]
    known = {(source["type"], source["uid"]) for source in sources}
    for board in BOARDS.values():
        cells = set()
        for panel in board["panels"]:
            place = panel["gridPos"]
            taken = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert place["x"] + place["w"] <= 24
            assert not cells & taken, panel["title"]
            cells |= taken
            for target in panel.get("targets", []):
                assert (target["datasource"]["type"], target["datasource"]["uid"]) in known
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/tailspan.yaml").read_text())["providers"]
    compose = yaml.safe_load((GRAFANA.parent / "compose/compose.yaml").read_text())
    mounts = dict(mount.split(":")[:2] for mount in compose["services"]["grafana"]["volumes"])
    assert mounts["../grafana/dashboards"] == provider["options"]["path"]
