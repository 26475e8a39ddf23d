"""The alerts: valid, tested, explained, and about metrics that a collector has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, ProcessCollector

from tailspan_collector.admin import StatusCollector
from tailspan_collector.metrics import Metrics
from tailspan_collector.settings import Settings
from tailspan_collector.status import ClickHouseState, SpoolState, Status
from tests.support.prometheus import promtool

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/prometheus"
RULES = [
    rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"] for rule in group["rules"]
]  # fmt: skip
RUNBOOK = ROOT / "docs/COLLECTOR.md"
STATUS = Status((SpoolState("traces", True),), ClickHouseState("http://clickhouse:8123", True), 1)


def metric_names() -> set[str]:
    """Return the name of every sample that a collector can show, and `up`, which Prometheus makes."""
    page = CollectorRegistry()
    metrics = Metrics()
    ProcessCollector(registry=page)
    families = [*metrics.registry.collect(), *StatusCollector(lambda: STATUS).collect(), *page.collect()]
    names = {"up"}
    for family in families:
        names |= {sample.name for sample in family.samples}
        # Of a metric with labels there is no sample before its first event.
        names |= {"histogram": {f"{family.name}_{part}" for part in ("bucket", "sum", "count")},
                  "counter": {f"{family.name}_total"}}.get(family.type, {family.name})  # fmt: skip
    return names


def used_metrics(expression: str) -> set[str]:
    """Return the names of metrics in a PromQL expression."""
    return set(re.findall(r"\b(?:tailspan_collector|process)_\w+|\bup\b", expression))


def test_promtool_takes_the_configuration_and_the_rules() -> None:
    """`promtool check config` reads the scrape configuration and the rules that it names."""
    assert f"{len(RULES)} rules found" in promtool("check", "config", FOLDER / "prometheus.yml")


def test_each_alert_fires_and_is_quiet_when_it_should() -> None:
    """`promtool test rules` plays a history for every alert."""
    assert "SUCCESS" in promtool("test", "rules", FOLDER / "alerts_test.yml")
    tests = yaml.safe_load((FOLDER / "alerts_test.yml").read_text())["tests"]
    fired = {item["alertname"] for test in tests for item in test["alert_rule_test"] if item["exp_alerts"]}
    quiet = {item["alertname"] for test in tests for item in test["alert_rule_test"] if not item["exp_alerts"]}
    assert fired == quiet == {rule["alert"] for rule in RULES}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert_is_explained(rule: dict[str, object]) -> None:
    """Its link leads to a section of the runbook with its name, and it is about metrics that exist."""
    annotations = rule["annotations"]
    assert isinstance(annotations, dict)
    page, _, anchor = annotations["runbook_url"].partition("#")
    assert page.endswith("/docs/COLLECTOR.md")
    assert anchor == str(rule["alert"]).lower()
    assert re.search(rf"^#+ {rule['alert']}$", RUNBOOK.read_text(), re.MULTILINE)
    used = used_metrics(str(rule["expr"]))
    assert used
    assert used <= metric_names()


def test_no_runbook_section_is_left_over() -> None:
    """A section for an alert that is gone would mislead."""
    sections = set(re.findall(r"^#+ (Tailspan\w+)$", RUNBOOK.read_text(), re.MULTILINE))
    assert sections == {rule["alert"] for rule in RULES}


def test_prometheus_scrapes_the_admin_port_of_compose() -> None:
    """The target is the service of the compose file, at the admin port, under the job that the alerts name."""
    (job,) = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    services = yaml.safe_load((ROOT / "deploy/compose/compose.yaml").read_text())["services"]
    (target,) = job["static_configs"][0]["targets"]
    host, _, port = target.partition(":")
    assert host in services
    assert int(port) == Settings().admin_port
    jobs = set(re.findall(r'job="([^"]+)"', (FOLDER / "alerts.yml").read_text()))
    assert jobs == {job["job_name"]}
