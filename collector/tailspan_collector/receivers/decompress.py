"""Decompression with a hard limit: a bomb costs the limit, whatever it would unpack to.

In: bytes and the name of their compression. Out: the bytes they stand for.
Units: bytes. Peak memory: twice the limit (the pieces, then the whole), for zstd 16 MiB and its window more.
Errors: `TooLarge`, `BadData` (damaged, cut off, or followed by something else), `UnknownEncoding`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import zstandard

from tailspan_collector.receivers.refusals import BadData, TooLarge, UnknownEncoding

IDENTITY = "identity"
ENCODINGS = ("gzip", "deflate", "zstd")
_GZIP_WINDOW, _ZLIB_WINDOW, _RAW_WINDOW = 31, 15, -15
_ZLIB_PIECE = 64 * 1024
# zstd's decompressor takes no limit of output: 4 bytes can stand for a block of 128 KiB, so 512 for 16 MiB.
_ZSTD_PIECE = 512
_ZSTD_WINDOW = 8 * 1024 * 1024  # RFC 9659 allows no more over HTTP
_MOST_MEMBERS = 4096  # a sender that compresses in parallel writes one for each 16 KiB or more


class _Zlib:
    """zlib's decompressor, which stops at a limit by itself."""

    def __init__(self, window: int) -> None:
        self.engine = zlib.decompressobj(window)

    def feed(self, piece: memoryview, most: int) -> bytes:
        return self.engine.decompress(piece, most)


class _Zstd:
    """zstd's decompressor, fed with so little that it cannot give much."""

    def __init__(self) -> None:
        self.engine = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj()

    def feed(self, piece: memoryview, _: int) -> bytes:
        return self.engine.decompress(piece)


def decompress(encoding: str, body: bytes, limit: int) -> bytes:
    """Return what a compressed body stands for.

    Raises:
        TooLarge: it is more than `limit` bytes.
        BadData: it is not whole, valid data of that compression.
        UnknownEncoding: the compression is not known.
    """
    if encoding == IDENTITY:
        return body
    make, piece = _maker(encoding, body)
    try:
        return _decompress(make, memoryview(body), piece, limit)
    except (zlib.error, zstandard.ZstdError) as error:
        raise BadData(f"the body is no valid {encoding}") from error


def _maker(encoding: str, body: bytes) -> tuple[Callable[[], _Zlib | _Zstd], int]:
    if encoding == "gzip":
        return (lambda: _Zlib(_GZIP_WINDOW)), _ZLIB_PIECE
    if encoding == "deflate":
        # HTTP and gRPC mean zlib's format; some senders leave its header out.
        window = _ZLIB_WINDOW if is_zlib(body) else _RAW_WINDOW
        return (lambda: _Zlib(window)), _ZLIB_PIECE
    if encoding == "zstd":
        return _Zstd, _ZSTD_PIECE
    raise UnknownEncoding(f"the compression {encoding[:40]!r} is not known; use one of: {', '.join(ENCODINGS)}")


def _decompress(make: Callable[[], _Zlib | _Zstd], body: memoryview, size: int, limit: int) -> bytes:
    out: list[bytes] = []
    produced, position = 0, 0
    for _ in range(_MOST_MEMBERS):
        member = make()
        while not member.engine.eof:
            piece = body[position : position + size]
            if not piece:
                raise BadData("the compressed body is cut off")
            got = member.feed(piece, limit - produced + 1)
            produced += len(got)
            if produced > limit:
                raise TooLarge(f"the request is larger than {limit} bytes after decompression")
            out.append(got)
            position += len(piece) - len(member.engine.unused_data)
        if position == len(body):
            return b"".join(out)
    raise BadData(f"the compressed body has more than {_MOST_MEMBERS} members")


def encoding_of(message: bytes) -> str:
    """Tell the compression of a gRPC message from its first bytes.

    An OTLP request begins with 0x0A. gzip's first byte cannot begin a protobuf message at all (wire type 7); those of
    zlib and zstd would be fields 15 and 5 of a request, which do not exist.
    """
    if message[:1] == b"\x0a":
        return IDENTITY
    if message[:2] == b"\x1f\x8b":
        return "gzip"
    if message[:4] == zstandard.FRAME_HEADER:
        return "zstd"
    return "deflate" if is_zlib(message) else IDENTITY


def is_zlib(body: bytes) -> bool:
    """Whether the first two bytes are zlib's header (RFC 1950)."""
    return len(body) > 1 and body[0] & 0x0F == 8 and body[0] >> 4 <= 7 and (body[0] << 8 | body[1]) % 31 == 0
