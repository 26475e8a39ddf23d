"""The agent's Prometheus page, read by Prometheus' own parser and by a real Prometheus."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import parser

from tailspan.agent.counters import Counters
from tailspan.agent.settings import check
from tailspan.errors import UserError
from tests.support.finished import Box, finished, finished_step, pipeline


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def page(port: int) -> str:
    """Return the Prometheus page."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        return str(answer.read().decode())


def test_the_prometheus_page_holds_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prometheus' own parser reads the page: buckets are cumulative, the service is in target_info."""
    port = free_port()
    monkeypatch.setenv("TAILSPAN_PROMETHEUS_PORT", str(port))
    line = pipeline(counters=lambda: Counters(records=7))
    try:
        line.emit([finished(), finished(200)], [finished_step(0)])
        page(port)
        families = {family.name: family for family in parser.text_string_to_metric_families(page(port))}
        samples = families["gen_ai_server_request_duration_seconds"].samples
        buckets = {s.labels["le"]: s.value for s in samples if s.name.endswith("_bucket")}
        assert (buckets["0.08"], buckets["0.16"], buckets["0.32"], buckets["+Inf"]) == (0, 1, 2, 2)
        assert {s.labels["gen_ai_request_model"] for s in samples} == {"smol"}
        stages = families["tailspan_stage_duration_seconds"].samples
        queue = [s.value for s in stages if s.labels["tailspan_stage"] == "queue" and s.name.endswith("_sum")]
        assert queue == pytest.approx([0.028])
        assert families["tailspan_agent_records"].samples[0].value == 7
        assert 'service_name="svc"' in page(port)
    finally:
        line.close()
    with pytest.raises(OSError, match="refused"):
        page(port)


def test_a_taken_prometheus_port_is_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A second worker on the host goes on without a page of its own."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setenv("TAILSPAN_PROMETHEUS_PORT", str(taken.getsockname()[1]))
        box = Box()
        line = pipeline(None, box)
        line.emit([finished()], [])
    assert len(box.spans) == 8
    assert [record.message for record in caplog.records if "Prometheus" in record.message] == [
        f"no Prometheus page on 127.0.0.1:{os.environ['TAILSPAN_PROMETHEUS_PORT']}: Address already in use; "
        "set TAILSPAN_PROMETHEUS_PORT"
    ]


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="the Debian package prometheus is not installed")
def test_a_real_prometheus_scrapes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """promtool has nothing to object; histogram_quantile over the scraped buckets answers with the stage's own time."""
    port, web = free_port(), free_port()
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "prometheus")
    monkeypatch.setenv("OTEL_EXPORTER_PROMETHEUS_PORT", str(port))
    config = tmp_path / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s}\n"
        f"scrape_configs: [{{job_name: tailspan, static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}]\n"
    )
    line = pipeline()
    line.emit([finished() for _ in range(50)], [])
    subprocess.run(["promtool", "check", "metrics"], input=page(port), text=True, check=True)
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path}/data",
               f"--web.listen-address=127.0.0.1:{web}", "--log.level=error"]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        try:
            by = "sum by (le) (tailspan_stage_duration_seconds_bucket{tailspan_stage='prefill'})"
            value = _query(web, f"histogram_quantile(0.5, {by})")
            assert 0.01 < value <= 0.025
            assert _query(web, "sum(gen_ai_server_request_duration_seconds_count)") == 50
        finally:
            server.terminate()
            line.close()


def _query(port: int, expression: str) -> float:
    url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                result = json.load(answer)["data"]["result"]
            if result:
                return float(result[0]["value"][1])
        except OSError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"no answer to {expression} within 30 s")


def test_a_page_without_its_package_is_refused_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exporter is an extra; asking for the page without it names the extra."""
    monkeypatch.setattr("tailspan.agent.settings.find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"OTEL_METRICS_EXPORTER=prometheus needs .*tailspan\[prometheus\]"):
        check({"OTEL_METRICS_EXPORTER": "otlp,prometheus"})
    with pytest.raises(UserError, match="TAILSPAN_PROMETHEUS_PORT needs"):
        check({"TAILSPAN_PROMETHEUS_PORT": "9464"})
