"""A fuzz run: mutated requests among valid ones into one collector, and the account of what became of each."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import xxhash

from tests.conformance.running import OtlpCollector
from tests.conformance.signals import SIGNALS, TRACES, Signal
from tests.soak.collector_fuzz import mutate
from tests.soak.collector_fuzz.judge import Verdict, judge
from tests.soak.collector_fuzz.sending import Shot, send_all
from tests.soak.collector_fuzz.templates import SALT, SALT_HEX, templates

FORMS = ("http/protobuf",) * 6 + ("grpc",) * 2 + ("http/json",) * 2


@dataclass(slots=True)
class Tally:
    """What was sent and what it must become."""

    sent: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    mutations: Counter[str] = field(default_factory=Counter)
    neighbours: Counter[str] = field(default_factory=Counter)
    neighbour_ids: int = 0
    acknowledged: int = 0
    verdicts: dict[int, tuple[Verdict, str]] = field(default_factory=dict)
    """Of every acknowledged mutant in protobuf, by the hash of its bytes: verdict and mutation."""
    valid_items: Counter[str] = field(default_factory=Counter)
    unclear_items: Counter[str] = field(default_factory=Counter)
    memory: list[tuple[float, int]] = field(default_factory=list)
    seconds: float = 0.0

    def take(self, shot: Shot) -> None:
        """Note what became of a shot."""
        self.sent += 1
        if shot.is_neighbour:
            assert shot.acknowledged, f"a valid {shot.signal} request was refused with {shot.code}"
            self.neighbours[shot.signal.name] += 1
            return
        self.mutations[f"{shot.mutation} {'taken' if shot.acknowledged else 'refused'}"] += 1
        if shot.acknowledged and shot.form != "http/json":
            verdict, items = judge(shot.signal, shot.body)
            self.verdicts[xxhash.xxh64_intdigest(shot.body)] = verdict, shot.mutation
            target = self.valid_items if verdict is Verdict.VALID else self.unclear_items
            target[shot.signal.name] += items
        elif shot.acknowledged:
            self.valid_items[shot.signal.name] += json_items(shot)
        else:
            assert shot.code in (400, "INVALID_ARGUMENT"), f"{shot.mutation} was answered with {shot.code}"


def json_items(shot: Shot) -> int:
    """Return how many items an accepted JSON request has."""
    resources = {"traces": "Spans", "metrics": "Metrics", "logs": "Logs"}[shot.signal.name]
    items = {"traces": "spans", "metrics": "metrics", "logs": "logRecords"}[shot.signal.name]
    document = json.loads(shot.body)
    return sum(
        len(scope.get(items) or ())
        for resource in document.get(f"resource{resources}") or ()
        for scope in resource.get(f"scope{resources}") or ()
    )


class Traffic:
    """The requests of a run, in the order in which they are sent; iterate it from one thread."""

    def __init__(self, mutants: int, share_of_mutants: float, seed: int) -> None:
        self._rng, self._share, self._left = random.Random(seed), share_of_mutants, mutants
        self._templates = templates(seed)
        self._seen: set[int] = set()
        self.tally = Tally()
        self._before: list[Shot] = []

    def __iter__(self) -> Iterator[Shot]:
        while self._left:
            if self._rng.random() < self._share:
                shot = self._mutant()
                if shot is None:
                    continue
                self._left -= 1
            else:
                shot = self._neighbour()
            yield shot

    def _mutant(self) -> Shot | None:
        rng = self._rng
        template, form = rng.choice(self._templates), rng.choice(FORMS)
        salt = rng.randbytes(16)
        if form == "http/json":
            name, body = mutate.as_json(rng, template.json)
            body = body.replace(SALT_HEX, salt.hex().encode())
        else:
            name, body = mutate.protobuf(rng, template.tree, template.body)
            body = body.replace(SALT, salt)
            digest = xxhash.xxh64_intdigest(body)
            if digest in self._seen or not body:
                return None
            self._seen.add(digest)
        return Shot(template.signal, body, form, False, name)

    def _neighbour(self) -> Shot:
        signal: Signal = self._rng.choice((TRACES, TRACES, TRACES, *SIGNALS))
        message = signal.message("neighbour")
        form = self._rng.choice(("http/protobuf", "http/protobuf", "http/protobuf", "grpc"))
        if signal is TRACES:
            span = message.resource_spans[0].scope_spans[0].spans[0]
            self.tally.neighbour_ids = (self.tally.neighbour_ids + int.from_bytes(span.span_id, "big")) % 2**64
        else:
            scope = getattr(message, signal.resources)[0]
            scope.schema_url = self._rng.randbytes(8).hex()
        return Shot(signal, message.SerializeToString(), form, True)


def run(
    collector: OtlpCollector, mutants: int, share: float, seed: int, say: Callable[[str], None] = lambda _: None
) -> Tally:
    """Send everything; return what was sent, with the memory of the collector over time."""
    traffic = Traffic(mutants, share, seed)
    tally = traffic.tally
    begin = time.monotonic()

    def shots() -> Iterator[Shot]:
        next_look = 0.0
        for shot in traffic:
            if (now := time.monotonic() - begin) >= next_look:
                assert collector.is_up(), collector.output[-3000:]
                tally.memory.append((now, collector.resident_bytes()))
                say(f"{now:6.0f} s  {tally.sent:>9,} requests, {tally.memory[-1][1] / 2**20:5.0f} MiB")
                next_look = now + max(1.0, now / 30)
            yield shot

    asyncio.run(_send(shots(), collector, tally))
    tally.seconds = time.monotonic() - begin
    return tally


async def _send(shots: Iterator[Shot], collector: OtlpCollector, tally: Tally) -> None:
    def noted() -> Iterator[Shot]:
        # A shot is judged when the next one is taken: by then one of the workers has its answer.
        for shot in shots:
            waiting.append(shot)
            while waiting and waiting[0].code and waiting[0].code not in (429, 503, "UNAVAILABLE"):
                tally.take(waiting.pop(0))
            yield shot

    waiting: list[Shot] = []
    await send_all(noted(), collector.otlp_port, collector.otlp_http_port, tally.answers)
    for shot in waiting:
        tally.take(shot)
