"""TLS for both transports, from files that are read again when they change.

A new handshake uses the files as they are then; connections that exist stay. Files that do not fit together (half of
them replaced) are logged once, and the last good ones are used until they fit.
Errors: `UserError` at the start.
"""

from __future__ import annotations

import logging
import ssl
import threading
from pathlib import Path
from typing import Any

import grpc

from tailspan.errors import UserError
from tailspan_collector.receivers.settings import Tls

_LOG = logging.getLogger(__name__)
_Signature = tuple[tuple[int, int, int], ...]


class Certificates:
    """The files of one `Tls`, checked before each handshake; may be asked from any thread."""

    def __init__(self, tls: Tls) -> None:
        """Read the files.

        Raises:
            UserError: one cannot be read, or they do not fit together.
        """
        self._tls = tls
        self._paths: tuple[Path, ...] = (tls.cert, tls.key, *([tls.client_ca] if tls.client_ca else []))
        self._lock = threading.Lock()
        try:
            self._signature = self._stat()
            self._context, self._grpc = self._load()
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise UserError(
                f"TLS files {', '.join(map(str, self._paths))} cannot be used: {error}",
                "Give PEM files: the certificate chain, its key without a password, and the clients' CA",
            ) from error

    def server_context(self) -> ssl.SSLContext:
        """Return a context for asyncio that follows the files."""
        base, _ = self._load()

        def choose(connection: Any, _name: str | None, _base: ssl.SSLContext) -> None:
            connection.context = self._current()[0]

        # OpenSSL calls it in each handshake, also when the client names no server.
        base.sni_callback = choose
        return base

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Return credentials for gRPC that follow the files."""
        return grpc.dynamic_ssl_server_credentials(
            self._grpc, lambda: self._current()[1], require_client_authentication=self._tls.client_ca is not None
        )

    def _current(self) -> tuple[ssl.SSLContext, grpc.ServerCertificateConfiguration]:
        with self._lock:
            try:
                signature = self._stat()
            except OSError:
                signature = ()
            if signature != self._signature:
                try:
                    self._context, self._grpc = self._load()
                    _LOG.info("TLS files were read again")
                except (OSError, ValueError) as error:
                    _LOG.error("TLS files cannot be used, the last good ones stay: %s", error)
                self._signature = signature
            return self._context, self._grpc

    def _load(self) -> tuple[ssl.SSLContext, grpc.ServerCertificateConfiguration]:
        tls = self._tls
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        context.load_cert_chain(tls.cert, tls.key, password="")
        if tls.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(tls.client_ca)
        root = tls.client_ca.read_bytes() if tls.client_ca is not None else None
        pair = (tls.key.read_bytes(), tls.cert.read_bytes())
        return context, grpc.ssl_server_certificate_configuration([pair], root)

    def _stat(self) -> _Signature:
        found = (path.stat() for path in self._paths)
        return tuple((item.st_mtime_ns, item.st_size, item.st_ino) for item in found)
