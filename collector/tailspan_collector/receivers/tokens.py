"""Bearer tokens: any of those in a file, which is read again when it changes.

In: the value of an `Authorization` header. The file: one token a line, `#` begins a comment line.
To rotate: add the new token, let senders change over, remove the old one; replace the file by renaming a new one.
Errors: `UserError` at the start. Later a file that is gone, empty or unreadable is logged once and the tokens that
were read last stay valid, since a file that is just being written looks like that.
"""

from __future__ import annotations

import hmac
import logging
import threading
from hashlib import sha256
from pathlib import Path

from tailspan.errors import UserError

_LOG = logging.getLogger(__name__)
_SCHEME = "bearer "
_LEAST_LENGTH = 16
_Signature = tuple[int, int, int]


class Tokens:
    """The tokens of one file; may be asked from any thread."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            UserError: it cannot be read, holds no token, or one that is too short to be safe.
        """
        self._path = path
        self._lock = threading.Lock()
        try:
            self._signature = self._stat()
            self._digests = _read(path)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UserError(
                f"the tokens file {path} cannot be used: {reason}",
                f"Write one token of at least {_LEAST_LENGTH} characters a line, e.g. from `openssl rand -hex 32`",
            ) from error

    def check(self, authorization_header: str | None) -> bool:
        """Whether an `Authorization` header carries one of the tokens; takes as long for each of them."""
        if authorization_header is None or authorization_header[: len(_SCHEME)].lower() != _SCHEME:
            return False
        given = _digest(authorization_header[len(_SCHEME) :].strip())
        found = False
        for digest in self._current():
            found |= hmac.compare_digest(digest, given)
        return found

    def _current(self) -> tuple[bytes, ...]:
        try:
            signature = self._stat()
        except OSError:
            signature = (0, 0, 0)
        if signature != self._signature:
            with self._lock:
                if signature != self._signature:
                    self._reload(signature)
        return self._digests

    def _reload(self, signature: _Signature) -> None:
        try:
            self._digests = _read(self._path)
            _LOG.info("tokens file %s: %d tokens", self._path, len(self._digests))
        except (OSError, ValueError) as error:
            _LOG.error("tokens file %s cannot be used, the tokens read before stay valid: %s", self._path, error)
        self._signature = signature

    def _stat(self) -> _Signature:
        found = self._path.stat()
        return found.st_mtime_ns, found.st_size, found.st_ino


def _read(path: Path) -> tuple[bytes, ...]:
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    tokens = [line for line in lines if line and not line.startswith("#")]
    if not tokens:
        raise ValueError("it holds no token")
    if min(map(len, tokens)) < _LEAST_LENGTH:
        raise ValueError(f"a token is shorter than {_LEAST_LENGTH} characters")
    return tuple(_digest(token) for token in tokens)


def _digest(token: str) -> bytes:
    # Digests are of equal length, so that a comparison does not tell the length of a token.
    return sha256(token.encode("utf-8", "surrogateescape")).digest()
