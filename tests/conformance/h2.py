"""Just enough HTTP/2 to send gRPC by hand: a body that is compressed already, or one that never ends.

Source: RFC 9113 (frames, flow control), RFC 7541 (literals without indexing), gRPC over HTTP/2.
"""

from __future__ import annotations

import socket
import struct

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_FRAME = 16_384


class H2Connection:
    """One connection with one stream at a time."""

    def __init__(self, port: int, timeout: float = 30.0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self.socket.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, b""))
        self._window, self._stream_window, self._initial = 65_535, 65_535, 65_535
        self.ended = False
        """The server ended the stream or the connection."""
        self.headers = b""

    def open_call(self, method: str, encoding: str | None = None) -> None:
        """Send the headers of a gRPC call."""
        headers = [(":method", "POST"), (":scheme", "http"), (":path", method), (":authority", "localhost"),
                   ("content-type", "application/grpc"), ("te", "trailers")]  # fmt: skip
        if encoding:
            headers.append(("grpc-encoding", encoding))
        block = b"".join(b"\x00" + _text(name) + _text(value) for name, value in headers)
        self.socket.sendall(_frame(_HEADERS, _END_HEADERS, 1, block))

    def send_message(self, body: bytes, *, compressed: bool) -> None:
        """Send one whole gRPC message and end the stream; returns early if the server ends it."""
        payload = struct.pack(">BI", compressed, len(body)) + body
        position = 0
        while position < len(payload) and not self.ended:
            size = min(_FRAME, self._window, self._stream_window, len(payload) - position)
            if size <= 0:
                self.read_frame()
                continue
            last = position + size == len(payload)
            self.send_data(payload[position : position + size], end=last)
            position += size

    def send_data(self, data: bytes, *, end: bool = False) -> None:
        """Send one DATA frame."""
        self._window -= len(data)
        self._stream_window -= len(data)
        self.socket.sendall(_frame(_DATA, _END_STREAM if end else 0, 1, data))

    def wait(self) -> bytes:
        """Read until the server ended the stream; return all header bytes it sent (literals are readable)."""
        while not self.ended:
            self.read_frame()
        return self.headers

    def read_frame(self) -> None:
        """Read one frame and do what it asks.

        Raises:
            TimeoutError: the server sends nothing.
        """
        head = self._read(9)
        size, kind, flags, stream = int.from_bytes(head[:3], "big"), head[3], head[4], int.from_bytes(head[5:], "big")
        payload = self._read(size)
        if kind == _SETTINGS and not flags & _ACK:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == 4:  # SETTINGS_INITIAL_WINDOW_SIZE
                    self._stream_window += value - self._initial
                    self._initial = value
            self._answer(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            self._answer(_frame(_PING, _ACK, 0, payload))
        elif kind == _WINDOW_UPDATE:
            if stream:
                self._stream_window += int.from_bytes(payload, "big")
            else:
                self._window += int.from_bytes(payload, "big")
        elif kind == _HEADERS:
            self.headers += payload
            self.ended = self.ended or bool(flags & _END_STREAM)
        elif kind in (_RST_STREAM, _GOAWAY):
            self.ended = True

    def _answer(self, frame: bytes) -> None:
        try:
            self.socket.sendall(frame)
        except OSError:
            self.ended = True

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                piece = self.socket.recv(size - len(data))
            except ConnectionError:
                piece = b""
            if not piece:
                self.ended = True
                return bytes(size)
            data += piece
        return data

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _text(value: str) -> bytes:
    encoded = value.encode()
    assert len(encoded) < 127, "a longer literal needs a longer length"
    return bytes([len(encoded)]) + encoded
