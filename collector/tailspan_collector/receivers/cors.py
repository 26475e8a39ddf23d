"""Cross-origin requests: which web pages may send telemetry from a browser. Off unless origins are configured.

Source: the Fetch standard, "CORS protocol".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tailspan.errors import UserError

_ORIGIN = re.compile(r"\*|https?://[\w.*\[\]:-]+", re.ASCII)
_HEADER_NAMES = re.compile(r"[\w ,-]{1,1000}", re.ASCII)
_DEFAULT_HEADERS = "content-type, content-encoding, authorization"
_PREFLIGHT_SECONDS = "7200"
Headers = list[tuple[bytes, bytes]]


class Cors:
    """The origins that may send."""

    def __init__(self, origins: tuple[str, ...]) -> None:
        """Take the patterns, `https://app.example.org`, `https://*.example.org` or `*`.

        Raises:
            UserError: one is no origin.
        """
        for origin in origins:
            if not _ORIGIN.fullmatch(origin):
                raise UserError(
                    f"--cors-origins names {origin!r}",
                    "Use origins such as https://app.example.org or https://*.example.org, without a path, or *",
                )
        patterns = (".*" if origin == "*" else re.escape(origin).replace(r"\*", "[^/]*") for origin in origins)
        self._allowed = re.compile("|".join(patterns)) if origins else None

    @property
    def is_on(self) -> bool:
        """Whether any origin is configured."""
        return self._allowed is not None

    def headers(self, request: Mapping[bytes, bytes]) -> Headers:
        """Return the headers by which a page may read the answer; none for an origin that may not."""
        origin = request.get(b"origin")
        if origin is None or self._allowed is None or not self._allowed.fullmatch(origin.decode("latin-1")):
            return []
        return [(b"access-control-allow-origin", origin), (b"vary", b"Origin")]

    def preflight(self, request: Mapping[bytes, bytes]) -> Headers:
        """Return the headers that answer the question that a browser asks before it sends; none if it may not."""
        headers = self.headers(request)
        if not headers:
            return []
        names = request.get(b"access-control-request-headers", b"").decode("latin-1")
        allowed = names if _HEADER_NAMES.fullmatch(names) else _DEFAULT_HEADERS
        return [
            *headers,
            (b"access-control-allow-methods", b"POST"),
            (b"access-control-allow-headers", allowed.encode("latin-1")),
            (b"access-control-max-age", _PREFLIGHT_SECONDS.encode()),
        ]
