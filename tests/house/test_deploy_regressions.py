"""The rules about regressions: valid, tested, explained, and about metrics that a worker has."""

from __future__ import annotations

import re
import socket
import urllib.request
from pathlib import Path

import pytest
import yaml
from prometheus_client import parser

from tailspan.agent.counters import Counters
from tests.support.finished import finished, finished_step, pipeline
from tests.support.prometheus import promtool

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/prometheus"
RULES = yaml.safe_load((FOLDER / "regressions.yml").read_text())["groups"][0]["rules"]


def test_promtool_takes_the_rules() -> None:
    """`promtool check rules` finds each of them in order."""
    assert f"{len(RULES)} rules found" in promtool("check", "rules", FOLDER / "regressions.yml")


def test_the_alert_fires_and_is_quiet_when_it_should() -> None:
    """A stage that got slower fires; before that, with few requests and at the same speed nothing does."""
    assert "SUCCESS" in promtool("test", "rules", FOLDER / "regressions_test.yml")
    tests = yaml.safe_load((FOLDER / "regressions_test.yml").read_text())["tests"]
    expected = [bool(item["exp_alerts"]) for test in tests for item in test["alert_rule_test"]]
    assert expected == [False, True, False]


def test_the_rules_are_about_metrics_that_an_agent_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every metric, with the labels that the rules group by, is on the Prometheus page of a real agent."""
    recorded = {rule["record"] for rule in RULES if "record" in rule}
    used = {name for rule in RULES for name in re.findall(r"\b(?:tailspan|gen_ai_server)_?[\w:]+", rule["expr"])}
    raw = used - recorded - {"tailspan_stage"}
    assert len(raw) == 4
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    monkeypatch.setenv("TAILSPAN_PROMETHEUS_PORT", str(port))
    agent = pipeline(counters=Counters)
    try:
        agent.emit([finished()], [finished_step(0)])
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            page = answer.read().decode()
    finally:
        agent.close()
    shown = {
        sample.name: sample.labels
        for family in parser.text_string_to_metric_families(page)
        for sample in family.samples
    }  # fmt: skip
    for name in raw:
        assert "gen_ai_request_model" in shown[name]
        assert ("tailspan_stage" in shown[name]) == name.startswith("tailspan_stage")


def test_the_alert_is_explained() -> None:
    """Its link leads to a section of a document of ours."""
    (alert,) = [rule for rule in RULES if "alert" in rule]
    page, _, anchor = alert["annotations"]["runbook_url"].partition("/blob/main/")[2].partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    assert anchor in [heading.lower().replace(" ", "-") for heading in headings]


def test_prometheus_loads_the_rules_where_compose_puts_them() -> None:
    """Every rule file that the configuration names is there, and is mounted beside it."""
    files = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["rule_files"]
    assert "regressions.yml" in files
    services = yaml.safe_load((ROOT / "deploy/compose/compose.yaml").read_text())["services"]
    for file in files:
        assert (FOLDER / file).is_file()
        assert f"../prometheus/{file}:/etc/prometheus/{file}:ro" in services["prometheus"]["volumes"]
