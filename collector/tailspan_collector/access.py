"""Who may read the SQL port: everybody who knows one of the collector's tokens.

In: the headers of a request. A token may come as `Authorization: Bearer`, as the password of HTTP's basic
authentication or as `X-ClickHouse-Key`, since ClickHouse's clients and Grafana send it in one of these ways; the name
of the user does not matter.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Mapping

from tailspan_collector.receivers.tokens import Tokens


class Access:
    """The tokens of a file, and one secret of this process."""

    def __init__(self, tokens: Tokens, secret: str) -> None:
        self._tokens, self._own = tokens, f"Bearer {secret}".encode()

    def allows(self, headers: Mapping[str, str], password: str = "") -> bool:
        """Whether a request with these headers (names in lower case) and `password` parameter may be answered."""
        given = headers.get("authorization", "")
        if hmac.compare_digest(given.encode(), self._own):
            return True
        token = password or headers.get("x-clickhouse-key") or _basic_password(given)
        return self._tokens.check(f"Bearer {token}" if token else given)


def _basic_password(header: str) -> str:
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(encoded, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""
