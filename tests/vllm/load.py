"""A load of mixed requests with an honest clock, in a process of its own: `python load.py URL PLAN RESULT`.

PLAN: JSON list of `{headers, body, hang_up_after}`; RESULT: for each, in order, `{sent_ns, chunks_ns, end_ns, status,
server_timing, tail}`. `chunks_ns` has one entry for each event that carries a token. Units: ns of CLOCK_MONOTONIC,
which the server's records use too. At most CONCURRENT requests are under way, each on a connection of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

CONCURRENT = 8
TAIL_BYTES = 600
_TOKEN = (b'"content":', b'"text":')


async def main(url: str, plan: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Send everything, return what was seen."""
    with contextlib.suppress(OSError):
        os.nice(-10)  # so that the stamps are those of arrival, not of the machine's other work
    gate = asyncio.Semaphore(CONCURRENT)

    async def one(request: dict[str, Any]) -> dict[str, Any]:
        async with gate:
            return await send(url, request)

    return await asyncio.gather(*map(one, plan))


async def send(url: str, request: dict[str, Any]) -> dict[str, Any]:
    """Send one request; hang up after some tokens if it says so."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    body = json.dumps(request["body"]).encode()
    lines = [f"POST {request['path']} HTTP/1.1", f"Host: {parts.netloc}", "Connection: close"]
    lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in request["headers"].items()]
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    sent_ns = time.monotonic_ns()
    data, chunks_ns = b"", []
    while piece := await reader.read(1 << 16):
        now = time.monotonic_ns()
        data += piece
        # The first event of a chat names the role and has no text.
        chunks_ns += [now] * sum(piece.count(mark) - piece.count(mark + b'""') for mark in _TOKEN)
        if request["hang_up_after"] and len(chunks_ns) >= request["hang_up_after"]:
            break
    end_ns = time.monotonic_ns()
    writer.close()
    head, _, rest = data.partition(b"\r\n\r\n")
    timing = [line[15:].strip() for line in head.decode().split("\r\n") if line.lower().startswith("server-timing:")]
    return {
        "sent_ns": sent_ns, "chunks_ns": chunks_ns, "end_ns": end_ns, "status": int(head.split()[1]) if head else 0,
        "server_timing": timing[0] if timing else "", "tail": rest[-TAIL_BYTES:].decode(errors="replace"),
    }  # fmt: skip


if __name__ == "__main__":
    address, planned, result = sys.argv[1:]
    seen = asyncio.run(main(address, json.loads(Path(planned).read_text(encoding="utf-8"))))
    Path(result).write_text(json.dumps(seen), encoding="utf-8")
