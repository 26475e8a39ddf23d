"""A bad network: `python proxy.py STATS SEED BYTES STALL LISTEN:TARGET...` passes TCP on and spoils some of it.

After some bytes from the client (BYTES on average) a connection meets one of `TROUBLES`; a stall is up to STALL
seconds. What happened how often is written to STATS when the process is told to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import socket
import struct
import sys
from collections import Counter
from pathlib import Path

TROUBLES = ("slow", "stall", "reset", "truncate", "lose the answer")
_PIECE = 64 * 1024
_RESET = struct.pack("ii", 1, 0)


class Proxy:
    """All connections of one process."""

    def __init__(self, rng: random.Random, mean_bytes: float, longest_stall_s: float) -> None:
        self.rng, self.mean_bytes, self.longest_stall_s = rng, mean_bytes, longest_stall_s
        self.counts: Counter[str] = Counter()

    async def listen(self, port: int, target: int) -> None:
        """Take connections for one target."""

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self.connection(reader, writer, target)

        await asyncio.start_server(accept, "127.0.0.1", port)

    async def connection(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter, target: int) -> None:
        """Pass one connection on until either side ends, or trouble ends it."""
        self.counts["connections"] += 1
        try:
            server_in, server_out = await asyncio.open_connection("127.0.0.1", target)
        except OSError:
            self.counts["no collector"] += 1
            reset(client_out)
            return
        losing = asyncio.Event()
        ways = [
            asyncio.create_task(self.upstream(client_in, server_out, losing)),
            asyncio.create_task(self.downstream(server_in, client_out, losing)),
        ]
        _, pending = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in pending:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        reset(client_out)
        reset(server_out)

    async def upstream(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, losing: asyncio.Event) -> None:
        """Client to collector, with trouble now and then."""
        until_trouble = self.rng.expovariate(1 / self.mean_bytes)
        while data := await source.read(_PIECE):
            until_trouble -= len(data)
            if until_trouble < 0:
                until_trouble = self.rng.expovariate(1 / self.mean_bytes)
                trouble = self.rng.choice(TROUBLES)
                self.counts[trouble] += 1
                if trouble == "reset":
                    return
                if trouble == "truncate":
                    sink.write(data[: self.rng.randrange(len(data))])
                    await sink.drain()
                    return
                if trouble == "lose the answer":
                    losing.set()
                elif trouble == "slow":
                    for start in range(0, len(data), 8192):
                        sink.write(data[start : start + 8192])
                        await asyncio.sleep(self.rng.uniform(0.01, 0.05))
                    continue
                else:
                    await asyncio.sleep(self.rng.uniform(0.2, self.longest_stall_s))
            sink.write(data)
            await sink.drain()

    async def downstream(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, losing: asyncio.Event) -> None:
        """Collector to client; ends with the first answer after `losing`, so that the client never sees it."""
        while data := await source.read(_PIECE):
            # Short ones over gRPC may be pings and window updates: an answer has some bytes.
            if losing.is_set() and len(data) > 20:
                self.counts["answers lost"] += 1
                return
            sink.write(data)
            await sink.drain()


def reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection with RST."""
    found = writer.get_extra_info("socket")
    if found is not None:
        with contextlib.suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


async def main(stats: Path, seed: int, mean_bytes: float, longest_stall_s: float, ways: list[str]) -> str:
    """Run until SIGTERM; return what happened how often."""
    proxy, ended = Proxy(random.Random(seed), mean_bytes, longest_stall_s), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    for way in ways:
        port, _, target = way.partition(":")
        await proxy.listen(int(port), int(target))
    stats.with_suffix(".ready").touch()
    await ended.wait()
    return json.dumps(proxy.counts)


if __name__ == "__main__":
    counts = asyncio.run(
        main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]), sys.argv[5:])
    )
    Path(sys.argv[1]).write_text(counts)
