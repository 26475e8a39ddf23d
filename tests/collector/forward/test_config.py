"""What users may write for a destination, and what they are told when it is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailspan.errors import UserError
from tailspan_collector.forward import destinations, from_table, from_url
from tailspan_collector.forward.destination import GRPC, HTTP, KAFKA, Login, Sample
from tailspan_collector.signals import LOGS, METRICS, TRACES


@pytest.mark.parametrize(
    ("url", "protocol", "address", "is_encrypted"),
    [
        ("grpc://apm", GRPC, "apm:4317", False),
        ("grpcs://api.honeycomb.io:443", GRPC, "api.honeycomb.io:443", True),
        ("http://tempo:4318", HTTP, "tempo:4318", False),
        ("https://apm.example/otlp", HTTP, "apm.example:443", True),
        ("http://[::1]:4318", HTTP, "[::1]:4318", False),
        ("kafka://a:9092,b:9092/spans", KAFKA, "a:9092,b:9092", False),
        ("kafkas://a:9093", KAFKA, "a:9093", True),
    ],
)
def test_scheme_of_a_url_says_protocol_and_encryption(
    url: str, protocol: str, address: str, is_encrypted: bool
) -> None:
    """`--forward URL` needs nothing else: the scheme says how to talk, and only grpc, http and kafka are plain."""
    destination = from_url(url)
    assert (destination.protocol, destination.address, destination.is_encrypted) == (protocol, address, is_encrypted)
    assert destination.signals == (TRACES,)


def test_every_key_of_a_table_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table with every key gives a destination with every value, secrets taken from the environment."""
    monkeypatch.setenv("TEAM", "blue")
    monkeypatch.setenv("KEY", "s3cret\n")
    for name in ("ca", "certificate", "key"):
        (tmp_path / name).touch()
    destination = from_table(
        {
            "name": "apm",
            "endpoint": "https://apm:4317",
            "protocol": "grpc",
            "headers": {"X-Team": "${TEAM}-1"},
            "headers_env": {"x-key": "KEY"},
            "tls": {name: str(tmp_path / name) for name in ("ca", "certificate", "key")},
            "compression": "none",
            "timeout": "500ms",
            "signals": ["logs", "traces"],
            "most_behind_bytes": "2GiB",
            "most_behind_seconds": "1h",
            "requests_in_flight": 9,
            "sample": {"errors": True, "slower_than": "2s", "share": 0.05, "settle": 3},
        }
    )
    assert dict(destination.headers) == {"x-team": "blue-1", "x-key": "s3cret"}
    assert (destination.name, destination.protocol, destination.is_encrypted) == ("apm", GRPC, True)
    assert (destination.tls.ca, destination.tls.key) == (tmp_path / "ca", tmp_path / "key")
    assert (destination.compression, destination.timeout_s, destination.requests_in_flight) == ("none", 0.5, 9)
    assert destination.signals == (TRACES, LOGS)
    assert (destination.most_behind_bytes, destination.most_behind_seconds) == (2 << 30, 3600)
    assert destination.sample == Sample(errors=True, slower_than_s=2, share=0.05, settle_s=3)


def test_kafka_login_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """SASL comes from a table of its own, its password from the environment."""
    monkeypatch.setenv("PASSWORD", "s3cret")
    sasl = {"mechanism": "SCRAM-SHA-256", "username": "me", "password": "${PASSWORD}"}
    destination = from_table({"endpoint": "kafkas://broker:9093", "sasl": sasl, "signals": ["traces", "metrics"]})
    assert destination.login == Login("SCRAM-SHA-256", "me", "s3cret")
    assert destination.signals == (TRACES, METRICS)


def test_secrets_are_not_shown() -> None:
    """The text of a destination, as a log might hold it, has neither header values nor passwords."""
    table = {"endpoint": "kafka://b:9092", "headers": {"a": "s3cret"}, "sasl": {"username": "u", "password": "s3cret"}}
    assert "s3cret" not in repr(from_table(table))


URL = "http://apm:4318"
WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "no 'endpoint'"),
    ({"endpoint": 3}, "no 'endpoint'"),
    ({"endpoint": "apm:4317"}, "grpc[s]://"),
    ({"endpoint": "ftp://apm"}, "grpc[s]://"),
    ({"endpoint": "http://"}, "grpc[s]://"),
    ({"endpoint": "http://apm:99999"}, "no URL"),
    ({"endpoint": "http://[::1"}, "no URL"),
    ({"endpoint": "http://apm:4318?a=b"}, "http://apm:4318?a=b"),
    ({"endpoint": "http://me:s3cret@apm"}, "holds a login"),
    ({"endpoint": "grpc://apm/path"}, "gRPC has no paths"),
    ({"endpoint": URL, "protocol": "http/json"}, "grpc, http/protobuf, kafka"),
    ({"endpoint": "grpc://apm", "protocol": "http/protobuf"}, "grpc://"),
    ({"endpoint": URL, "name": "a/b"}, "'a/b'"),
    ({"endpoint": URL, "colour": "red"}, "unknown key 'colour'"),
    ({"endpoint": URL, "tls": {"verify": False}}, "unknown key 'tls.verify'"),
    ({"endpoint": URL, "tls": {"ca": "ca.pem"}}, "https://"),
    ({"endpoint": "https://apm", "tls": {"ca": "/nowhere/ca.pem"}}, "no file"),
    ({"endpoint": "https://apm", "tls": {"key": "/nowhere/ca.pem"}}, "both or neither"),
    ({"endpoint": URL, "compression": "zstd"}, "none, gzip"),
    ({"endpoint": URL, "timeout": "soon"}, "'soon'"),
    ({"endpoint": URL, "timeout": True}, "a number"),
    ({"endpoint": URL, "timeout": 0}, "0.1 to 600"),
    ({"endpoint": URL, "signals": []}, "traces, metrics, logs"),
    ({"endpoint": URL, "signals": ["spans"]}, "traces, metrics, logs"),
    ({"endpoint": URL, "signals": "traces"}, "a list"),
    ({"endpoint": URL, "headers": {"a": 1}}, "a table of strings"),
    ({"endpoint": URL, "headers": {"a b": "c"}}, "malformed"),
    ({"endpoint": URL, "headers": {"a": "b\r\nc: d"}}, "malformed"),
    ({"endpoint": URL, "headers": {"a": "${TAILSPAN_NO_SUCH}"}}, "TAILSPAN_NO_SUCH"),
    ({"endpoint": URL, "headers_env": {"a": "TAILSPAN_NO_SUCH"}}, "TAILSPAN_NO_SUCH"),
    ({"endpoint": URL, "most_behind_bytes": "1 apple"}, "KiB"),
    ({"endpoint": URL, "requests_in_flight": 0}, "1 to 64"),
    ({"endpoint": URL, "sasl": {"username": "a"}}, "Kafka only"),
    ({"endpoint": "kafka://b/t", "sasl": {"mechanism": "GSSAPI"}}, "PLAIN"),
    ({"endpoint": "kafka://b/t/u"}, "no '/'"),
    ({"endpoint": "kafka://b/t", "signals": ["traces", "logs"]}, "one topic"),
    ({"endpoint": URL, "sample": {}}, "names no trace"),
    ({"endpoint": URL, "sample": {"share": 1}}, "0 to less than 1"),
    ({"endpoint": URL, "sample": {"errors": "yes"}}, "true or false"),
    ({"endpoint": URL, "sample": {"slower_than": 0}}, "'sample.slower_than'"),
    ({"endpoint": URL, "sample": {"errors": True, "settle": "2h"}}, "0 to 1 hour"),
    ({"endpoint": URL, "sample": {"errors": True}, "signals": ["logs"]}, "without the signal traces"),
    ({"endpoint": URL, "sample": True}, "a table"),
]


@pytest.mark.parametrize(("table", "told"), WRONG)
def test_a_wrong_value_is_an_error_that_says_what_is_allowed(table: dict[str, Any], told: str) -> None:
    """Whatever is wrong, the user gets one message that names it, and no secret is in it."""
    with pytest.raises(UserError) as error:
        from_table(table)
    assert told in str(error.value)
    assert "s3cret" not in str(error.value)


def test_destinations_have_names_of_their_own() -> None:
    """Two destinations with one name would share a cursor, so that is an error; other endpoints have other names."""
    assert [item.name for item in destinations([{"endpoint": URL}], ["grpc://b"])] == ["http-apm-4318", "grpc-b"]
    with pytest.raises(UserError, match="two forward destinations have the name 'http-apm-4318'"):
        destinations([{"endpoint": URL}], [URL])
