"""Only senders with a token are taken, over both transports, and tokens change without a restart."""

from __future__ import annotations

import os
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tailspan.errors import UserError
from tailspan_collector.receivers.tokens import Tokens
from tests.collector.receivers.clients import JSON, RawHttp, export, open_channel, post, refused
from tests.collector.receivers.receiving import LIMIT, receiving
from tests.support.otlp_messages import request_with_stages

REQUEST = request_with_stages(1)
FIRST, SECOND, THIRD = "first-token-of-many-letters", "second-token-of-many-letters", "third-token-of-many-letters"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with two tokens, a comment and blank lines."""
    path = tmp_path / "tokens"
    path.write_text(f"# rotated weekly\n\n{FIRST}\n  {SECOND}  \n")
    return path


def replace(path: Path, text: str) -> None:
    """Put a new file in the place of the old one."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def test_any_token_of_the_file_is_accepted(file: Path) -> None:
    """Each line is a token; the scheme may be in any case, nothing else is accepted."""
    tokens = Tokens(file)
    assert all(tokens.check(f"{scheme} {token}") for scheme in ("Bearer", "bearer") for token in (FIRST, SECOND))
    wrong = (
        "",
        FIRST,
        f"Basic {FIRST}",
        f"Bearer {FIRST[:-1]}",
        "Bearer ",
        "Bearer # rotated weekly",
        "Bearer é\udcff",
    )
    for header in (None, *wrong):
        assert not tokens.check(header)


def test_tokens_change_with_the_file(file: Path) -> None:
    """A new token counts and an old one ends with the very next request after the file changed."""
    tokens = Tokens(file)
    replace(file, f"{SECOND}\n{THIRD}\n")
    assert [tokens.check(f"Bearer {token}") for token in (FIRST, SECOND, THIRD)] == [False, True, True]


def test_a_file_that_is_being_written_changes_nothing(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """While the file is gone or empty the tokens read last stay valid, and the log says so once, without a token."""
    tokens = Tokens(file)
    file.write_text("")
    assert all(tokens.check(f"Bearer {FIRST}") for _ in range(3))
    file.unlink()
    assert all(tokens.check(f"Bearer {FIRST}") for _ in range(3))
    assert len(caplog.records) == 2
    assert FIRST not in caplog.text
    replace(file, THIRD)
    assert tokens.check(f"Bearer {THIRD}")
    assert not tokens.check(f"Bearer {FIRST}")


@pytest.mark.parametrize("text", ["", "# only a comment\n", "short\n"])
def test_a_useless_file_stops_the_start(tmp_path: Path, text: str) -> None:
    """A file without a safe token is an error that says what to write."""
    path = tmp_path / "tokens"
    path.write_text(text)
    with pytest.raises(UserError, match="openssl rand"):
        Tokens(path)
    with pytest.raises(UserError, match="No such file"):
        Tokens(tmp_path / "absent")


def test_senders_without_a_token_are_refused(file: Path) -> None:
    """Both transports take a request with a known token and refuse every other one for good, storing nothing."""
    with receiving(tokens_file=file) as running:
        wrong = ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {FIRST}"})
        for headers in wrong:
            failure = refused(running.grpc.port, REQUEST, metadata=tuple(headers.items()))
            assert (failure.code, failure.retry_after_s) == (grpc.StatusCode.UNAUTHENTICATED, None)
            response = post(running.http.port, REQUEST, **headers)
            assert (response.status, response.error().code) == (401, 16)
            assert response.headers["www-authenticate"] == "Bearer"
            assert post(running.http.port, b"{}", content_type=JSON, **headers).json()["code"] == 16
        assert running.traces.requests == []
        assert export(running.grpc.port, REQUEST, metadata=(("authorization", f"Bearer {FIRST}"),)) == b""
        assert post(running.http.port, REQUEST, authorization=f"Bearer {SECOND}").status == 200
        assert running.traces.requests == [REQUEST, REQUEST]
        assert running.count("grpc", "UNAUTHENTICATED") == running.count("http", "401") / 2 == 3


def test_strangers_cannot_make_the_collector_read(file: Path) -> None:
    """Without a token not even a large or slow body is waited for over gRPC, and over HTTP it is thrown away."""
    with receiving(tokens_file=file) as running:
        assert refused(running.grpc.port, os.urandom(LIMIT * 3)).code is grpc.StatusCode.UNAUTHENTICATED
        assert post(running.http.port, bytes(LIMIT * 3)).status == 401
        with RawHttp(running.http.port) as asking:
            asking.request({"content-length": "1000", "expect": "100-continue"})
            assert asking.response().status == 401


def test_probes_need_no_token_and_reflection_does(file: Path) -> None:
    """Health answers everybody over both transports; the list of services is for senders."""
    with receiving(tokens_file=file) as running, open_channel(running.grpc.port) as opened:
        assert health_pb2_grpc.HealthStub(opened).Check(health_pb2.HealthCheckRequest()).status == 1
        assert post(running.http.port, b"", "/readyz", "GET").status == 200
        with pytest.raises(grpc.RpcError) as caught:
            ProtoReflectionDescriptorDatabase(opened).get_services()
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
