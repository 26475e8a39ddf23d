"""The Helm chart: rendered by helm itself, valid for Kubernetes, and in agreement with the collector's settings."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from tailspan_collector.options import variable
from tailspan_collector.settings import Settings
from tests.support import tools

CHART = Path(__file__).parents[2] / "deploy/helm/tailspan"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
KUBERNETES = ("1.29", "1.37")
EVERYTHING = {
    "replicas": 3,
    "config": '[[forward]]\nname = "apm"\nendpoint = "https://apm.example:4317"\n',
    "clickhouse": {"secretName": "ch", "caSecretName": "ch-ca", "cluster": "main", "url": "https://a:8443,https://b:8443"},
    "auth": {"tokensSecretName": "otlp-tokens"},
    "tls": {"secretName": "otlp-tls", "requireClientCertificate": True},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "imagePullSecrets": [{"name": "registry"}],
    "persistence": {"storageClass": "fast"},
    "service": {"type": "LoadBalancer", "annotations": {"a/b": "c"}},
    "serviceAccount": {"annotations": {"a/b": "c"}},
    "networkPolicy": {
        "otlpFrom": [{"podSelector": {"matchLabels": {"llm": "yes"}}}], "metricsFrom": [{"podSelector": {}}],
    },
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "llm", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
    "priorityClassName": "high",
    "podLabels": {"team": "sre"},
    "podAnnotations": {"a/b": "c"},
}  # fmt: skip
EMBEDDED = {"clickhouse": {"url": ""}}
CASES = {"defaults": {}, "everything": EVERYTHING, "embedded": EMBEDDED}
Objects = dict[tuple[str, str], Any]


def render(folder: Path, values: dict[str, Any]) -> str:
    """Return what helm makes of the chart with these values."""
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    done = tools.helm("template", "spans", CHART, "--namespace", "llm", "--values", file)
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(folder: Path, values: dict[str, Any]) -> Objects:
    """Return the rendered objects by kind and name."""
    found = [item for item in yaml.safe_load_all(render(folder, values)) if item]
    return {(item["kind"], item["metadata"]["name"]): item for item in found}


def container(found: Objects) -> dict[str, Any]:
    """Return the collector's container."""
    (only,) = found["StatefulSet", "spans"]["spec"]["template"]["spec"]["containers"]
    return dict(only)


def test_helm_finds_nothing_wrong() -> None:
    """`helm lint --strict` passes."""
    done = tools.helm("lint", "--strict", CHART)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("case", CASES)
def test_what_is_rendered_is_valid(case: str, version: str, tmp_path: Path) -> None:
    """Every object fits Kubernetes' schema strictly, so that no misspelt field is silently ignored."""
    documents = render(tmp_path, CASES[case]).split("\n---\n")
    # ServiceMonitor is the operator's own kind, for which there is no schema here.
    ours = [document for document in documents if "kind: ServiceMonitor" not in document]
    assert len(ours) >= len(documents) - 1
    file = tmp_path / "rendered.yaml"
    file.write_text("\n---\n".join(ours))
    checked = tools.run("kubernetes-validate==1.37.0", "kubernetes-validate", "--strict", "-k", version, file)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("case", CASES)
def test_every_variable_is_a_setting_of_the_command(case: str, tmp_path: Path) -> None:
    """Each TAILSPAN_ variable that the pod sets is one that its command reads."""
    found = container(objects(tmp_path, CASES[case]))
    command = found["args"][0]
    known = {variable(item.name) for item in fields(Settings) if command in item.metadata["of"]}
    assert {item["name"] for item in found["env"]} <= known


def test_every_value_is_used_and_every_used_one_exists() -> None:
    """Templates name only values that values.yaml has, and the other way round."""
    templates = "".join(path.read_text() for path in CHART.glob("templates/*"))
    used = set(re.findall(r"\.Values\.([A-Za-z.]+)", templates))
    divided = {word.split(".")[0] for word in used if "." in word}
    stated = {key for key in VALUES if key not in divided}
    stated |= {f"{key}.{name}" for key in divided for name in VALUES[key]}
    assert used == stated


def test_the_schema_knows_every_value() -> None:
    """Each value and each of its parts is described, and an unknown or mistyped one is refused."""
    assert set(VALUES) | {"global"} == set(SCHEMA["properties"])
    for key, value in VALUES.items():
        if "properties" in (part := SCHEMA["properties"][key]):
            assert set(value) == set(part["properties"]), key


@pytest.mark.parametrize(
    "values",
    [
        {"replica": 2},
        {"replicas": "2"},
        {"clickhouse": {"url": "http://user:password@clickhouse:8123"}},
        {"clickhouse": {"url": "clickhouse:9000"}},
        {"clickhouse": {"url": ""}, "replicas": 2},
        {"settings": {"max_spool_bytes": 4294967296}},
        {"settings": {"host": "127.0.0.1"}},
        {"settings": {"max_spool": "1"}},
        {"tls": {"secretName": "", "requireClientCertificate": True}},
        {"persistence": {"size": "20 GB"}},
    ],
    ids=str,
)
def test_wrong_values_are_refused(values: dict[str, Any], tmp_path: Path) -> None:
    """Helm stops with the schema's reason before anything is installed."""
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    done = tools.helm("template", "spans", CHART, "--values", file)
    assert done.returncode != 0
    assert "values don't meet the specifications of the schema" in done.stderr


def test_settings_are_those_that_the_chart_does_not_set_itself(tmp_path: Path) -> None:
    """A misspelt setting is refused instead of silently ignored, and none of the collector's is missing."""
    allowed = set(SCHEMA["properties"]["settings"]["propertyNames"]["enum"])
    names = {item.name for item in fields(Settings)}
    assert allowed <= names
    of_chart = {item["name"] for case in (EVERYTHING, EMBEDDED) for item in container(objects(tmp_path, case))["env"]}
    ports = {"otlp_port", "otlp_http_port", "http_port", "admin_port"}
    not_offered = {"clickhouse_token", "clickhouse_cert", "clickhouse_key"}
    assert {name for name in names - allowed - ports if variable(name) not in of_chart} == not_offered


def test_ports_agree(tmp_path: Path) -> None:
    """Container, services, probes and policy mean the same ports, and they are the collector's defaults."""
    found = objects(tmp_path, {})
    pod = container(found)
    ports = {port["name"]: port["containerPort"] for port in pod["ports"]}
    defaults = Settings()
    assert ports == {
        "otlp-grpc": defaults.otlp_port,
        "otlp-http": defaults.otlp_http_port,
        "admin": defaults.admin_port,
    }
    for name in ("spans", "spans-headless"):
        for port in found["Service", name]["spec"]["ports"]:
            assert ports[port["targetPort"]] == port["port"]
    for probe, path in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert pod[probe]["httpGet"] == {"path": path, "port": "admin"}
    allowed = [port["port"] for rule in found["NetworkPolicy", "spans"]["spec"]["ingress"] for port in rule["ports"]]
    assert set(allowed) == set(ports)


def test_the_pod_has_few_rights_and_a_spool_that_stays(tmp_path: Path) -> None:
    """No root, nothing to write but data and /tmp, no token of the cluster; the volume outlives the replica."""
    spec = objects(tmp_path, {})["StatefulSet", "spans"]["spec"]
    pod = spec["template"]["spec"]
    (only,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert only["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    mounts = {mount["mountPath"]: mount["name"] for mount in only["volumeMounts"] if not mount.get("readOnly")}
    assert mounts == {"/var/lib/tailspan": "data", "/tmp": "tmp"}
    assert spec["volumeClaimTemplates"][0]["metadata"]["name"] == "data"
    assert set(spec["persistentVolumeClaimRetentionPolicy"].values()) == {"Retain"}
    env = {item["name"]: item.get("value") for item in only["env"]}
    assert env["TAILSPAN_DATA"] == "/var/lib/tailspan"
    assert pod["terminationGracePeriodSeconds"] > float(env["TAILSPAN_STOP_SECONDS"])
    size_gi = int(VALUES["persistence"]["size"].removesuffix("Gi"))
    assert size_gi << 30 > 3 * int(env["TAILSPAN_MAX_SPOOL_BYTES"])


def test_secrets_are_mounted_where_the_settings_look(tmp_path: Path) -> None:
    """Certificate, tokens, CA and config come from secrets; every file setting lies in a mounted folder."""
    found = objects(tmp_path, EVERYTHING)
    pod = found["StatefulSet", "spans"]["spec"]["template"]["spec"]
    (only,) = pod["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in only["volumeMounts"]}
    secrets = {item["name"]: item["secret"]["secretName"] for item in pod["volumes"] if "secret" in item}
    env = {item["name"]: item.get("value", "") for item in only["env"]}
    files = [value for value in env.values() if value.startswith("/etc/")] + [only["args"][1].partition("=")[2]]
    assert {secrets[mounts[str(Path(file).parent)]] for file in files} == {
        "otlp-tls", "otlp-tokens", "ch-ca", "spans-config",
    }  # fmt: skip
    assert "endpoint" in found["Secret", "spans-config"]["stringData"]["tailspan.toml"]
    (password,) = [item for item in only["env"] if item["name"] == "TAILSPAN_CLICKHOUSE_PASSWORD"]
    assert password["valueFrom"]["secretKeyRef"] == {"name": "ch", "key": "password"}


def test_a_token_takes_the_place_of_user_and_password(tmp_path: Path) -> None:
    """The collector refuses a token beside a user, so that the chart gives only one."""
    found = container(objects(tmp_path, {"clickhouse": {"secretName": "ch", "secretKey": "token"}}))
    names = {item["name"] for item in found["env"] if item["name"].startswith("TAILSPAN_CLICKHOUSE")}
    assert names == {"TAILSPAN_CLICKHOUSE_URL", "TAILSPAN_CLICKHOUSE_TOKEN"}


def test_embedded_runs_up_and_answers_sql(tmp_path: Path) -> None:
    """Without a server's address the pod runs `tailspan up`, with a port for queries and no ClickHouse variable."""
    found = objects(tmp_path, EMBEDDED)
    pod = container(found)
    assert pod["args"] == ["up"]
    assert {"name": "sql", "containerPort": Settings().http_port} in pod["ports"]
    assert not [item for item in pod["env"] if "CLICKHOUSE" in item["name"]]
