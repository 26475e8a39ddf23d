"""Bind ports, with errors that say what to do.

Errors: `UserError` names the port, the host and the flag.
"""

from __future__ import annotations

import socket

from tailspan.errors import UserError


def port_error(what: str, host: str, port: int, flag: str) -> UserError:
    """Return the error for a port that cannot be bound."""
    return UserError(
        f"{what} port {port} on {host} cannot be bound: it is in use", f"Stop the other program or use {flag}"
    )


def check_port(what: str, host: str, port: int, flag: str) -> None:
    """Fail early, before anything is created, if a port is taken.

    Raises:
        UserError: the port is in use, or the host is not an address of this machine.
    """
    listen(what, host, port, flag).close()


def listen(what: str, host: str, port: int, flag: str) -> socket.socket:
    """Return a bound TCP socket that listens.

    Raises:
        UserError: the port is in use, or the host is not an address of this machine.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UserError(f"--host {host} is unknown", "Use an address of this machine, e.g. 127.0.0.1") from error
    found = socket.socket(family, kind)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted connections inherit it; without it a kept-alive answer waits some 40 ms for the client's delayed ACK.
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        found.bind(address)
        found.listen(128)
    except OSError as error:
        found.close()
        if isinstance(error, PermissionError):
            raise UserError(f"{what} port {port} is not allowed for this user", f"Use {flag} 1024 to 65535") from error
        raise port_error(what, host, port, flag) from error
    return found


def bracketed(host: str) -> str:
    """Return a host as it stands before `:PORT`."""
    return f"[{host}]" if ":" in host else host
