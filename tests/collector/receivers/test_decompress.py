"""Decompression gives back what was compressed, never more than the limit, and refuses everything else."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tailspan_collector.receivers.decompress import ENCODINGS, decompress, encoding_of
from tailspan_collector.receivers.refusals import BadData, TooLarge
from tests.support.otlp_messages import request_with_stages

COMPRESS = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstandard.compress}
LIMIT = 10_000
encodings = st.sampled_from(ENCODINGS)


@given(encodings, st.lists(st.binary(max_size=3000), min_size=1, max_size=4))
def test_members_are_joined(encoding: str, parts: list[bytes]) -> None:
    """A body of several members, as parallel compressors write it, is the parts in order, up to the limit exactly."""
    whole = b"".join(parts)
    packed = b"".join(COMPRESS[encoding](part) for part in parts)
    assert decompress(encoding, packed, len(whole)) == whole
    if whole:
        with pytest.raises(TooLarge):
            decompress(encoding, packed, len(whole) - 1)


@given(encodings, st.binary(max_size=2000), st.data())
def test_a_body_that_is_cut_off_is_refused(encoding: str, body: bytes, data: st.DataObject) -> None:
    """No prefix of a compressed body passes for a smaller request."""
    packed = COMPRESS[encoding](body)
    cut = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(BadData):
        decompress(encoding, packed[:cut], LIMIT)


@given(encodings, st.binary(max_size=300))
def test_any_bytes_are_decompressed_or_refused(encoding: str, body: bytes) -> None:
    """No bytes raise anything but a refusal, or give more than the limit."""
    try:
        assert len(decompress(encoding, body, LIMIT)) <= LIMIT
    except (BadData, TooLarge):
        return


def bombs() -> dict[str, bytes]:
    """256 MiB of zeros, in a few kilobytes."""
    gzipped, zipped = zlib.compressobj(9, wbits=31), zlib.compressobj(9)
    zstd = zstandard.ZstdCompressor(level=19).compressobj()
    piece = bytes(1 << 20)
    return {
        "gzip": b"".join([gzipped.compress(piece) for _ in range(256)] + [gzipped.flush()]),
        "deflate": b"".join([zipped.compress(piece) for _ in range(256)] + [zipped.flush()]),
        "zstd": b"".join([zstd.compress(piece) for _ in range(256)] + [zstd.flush()]),
    }


@pytest.fixture(scope="module")
def bomb_of() -> dict[str, bytes]:
    """Bombs by encoding."""
    return bombs()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_bomb_costs_the_limit_of_memory(bomb_of: dict[str, bytes], encoding: str) -> None:
    """A bomb is refused once the limit is passed, with memory of that order."""
    assert len(bomb_of[encoding]) < 300_000
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            decompress(encoding, bomb_of[encoding], 1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()


def test_a_window_of_gigabytes_is_refused() -> None:
    """A frame of zstd that asks for a window beyond what HTTP allows gets none."""
    parameters = zstandard.ZstdCompressionParameters(window_log=27, enable_ldm=True)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    with pytest.raises(BadData):
        decompress("zstd", packer.compress(bytes(1000)) + packer.flush(), LIMIT)


def test_countless_members_are_refused() -> None:
    """Millions of empty members cost little time."""
    with pytest.raises(BadData, match="members"):
        decompress("gzip", gzip.compress(b"") * 100_000, LIMIT)


def test_compression_is_told_from_the_first_bytes() -> None:
    """A gRPC message tells its own compression; a plain request is never taken for a compressed one."""
    request = request_with_stages(1)
    assert encoding_of(request) == encoding_of(b"") == encoding_of(b"\x12\x00") == "identity"
    for encoding, compress in COMPRESS.items():
        assert encoding_of(compress(request)) == encoding
