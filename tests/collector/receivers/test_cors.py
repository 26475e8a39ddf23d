"""Browsers may send from the origins that are configured, and from no other."""

from __future__ import annotations

import httpx
import pytest

from tailspan.errors import UserError
from tailspan_collector.receivers.cors import Cors
from tests.collector.receivers.clients import JSON
from tests.collector.receivers.receiving import Receiving, receiving

ORIGIN = "https://shop.example.org"


def preflight(port: int, origin: str) -> httpx.Response:
    """Ask what a browser asks before it sends JSON with a token."""
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-tenant",
    }
    return httpx.options(f"http://127.0.0.1:{port}/v1/traces", headers=headers)


def send(port: int, origin: str, body: bytes = b"{}") -> httpx.Response:
    """Send what a browser sends then."""
    headers = {"Origin": origin, "Content-Type": JSON}
    return httpx.post(f"http://127.0.0.1:{port}/v1/traces", headers=headers, content=body)


def test_it_is_off_by_default(receivers: Receiving) -> None:
    """Without configured origins no page is allowed anything, though programs may send."""
    assert preflight(receivers.http.port, ORIGIN).status_code == 405
    response = send(receivers.http.port, ORIGIN)
    assert response.status_code == 200
    assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize("pattern", [ORIGIN, "https://*.example.org", "*"])
def test_configured_origins_may_send(pattern: str) -> None:
    """A browser is told that it may send, with the headers it asked for, and may read the answer, also an error."""
    with receiving(cors_origins=("https://other.example", pattern)) as running:
        asked = preflight(running.http.port, ORIGIN)
        assert (asked.status_code, asked.content) == (204, b"")
        assert asked.headers["access-control-allow-origin"] == ORIGIN
        assert asked.headers["access-control-allow-methods"] == "POST"
        assert "x-tenant" in asked.headers["access-control-allow-headers"]
        for body, status in ((b"{}", 200), (b"nonsense", 400)):
            response = send(running.http.port, ORIGIN, body)
            assert response.status_code == status
            assert response.headers.get_list("access-control-allow-origin") == [ORIGIN]
            assert response.headers["vary"] == "Origin"


@pytest.mark.parametrize(
    "origin", ["https://evil.org", "https://example.org.evil.org", "http://shop.example.org", "null"]
)
def test_other_origins_may_not(origin: str) -> None:
    """A page of another origin is refused before it can send."""
    with receiving(cors_origins=("https://*.example.org",)) as running:
        assert preflight(running.http.port, origin).status_code == 403
        assert "access-control-allow-origin" not in send(running.http.port, origin).headers


@pytest.mark.parametrize("origin", ["shop.example.org", "https://shop.example.org/path", "https://", "ftp://x", ""])
def test_what_is_no_origin_stops_the_start(origin: str) -> None:
    """A wrong origin is an error that says what to write."""
    with pytest.raises(UserError, match="cors-origins"):
        Cors((origin,))
