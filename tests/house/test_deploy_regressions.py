"""The rules about regressions: valid, tested, and about metrics that a worker has."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

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


def test_the_rules_are_about_metrics_that_workers_have() -> None:
    """Every metric is one of docs/METRICS.md, or is recorded by the rules themselves."""
    document = (ROOT / "docs/METRICS.md").read_text()
    recorded = {rule["record"] for rule in RULES if "record" in rule}
    used = {name for rule in RULES for name in re.findall(r"\b(?:tailspan|gen_ai_server)_?[\w:]+", rule["expr"])}
    labels = {"tailspan_stage", "gen_ai_request_model"}
    raw = used - recorded - labels
    assert len(raw) == 4
    for name in raw:
        metric = re.sub(r"_seconds_(bucket|count)$", "", name)
        assert any(metric == re.sub(r"\W", "_", known) for known in re.findall(r"`([\w.]+)`", document)), name
