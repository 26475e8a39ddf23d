"""A discrete-event model of an engine with continuous batching.

In: a load, limits, the cost of steps, noise. Out: when each request was scheduled, got its first token, and left.
Units: nanoseconds and tokens.

The scheduler is that of vLLM V1 and of `transformers` (FIFO): a step holds a token of every request that decodes, then
chunks of prompts under way, then waiting requests in the order of arrival, up to the limits of the batch, of the tokens
of a step, and of what the KV cache holds. The last chunk of a prompt samples the first token. When the cache is full
the request that joined last is evicted to the head of the queue and computes its prompt and its output again; nobody is
let in that step.

Steps that only decode, with nobody coming or going, are made in one go: the time of k of them is a difference of two
prefix sums of the noise, so that a request costs a few events however long it is.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections import deque

import numpy as np

from tailspan_queries.whatif_records import Cost, Limits, Load, Noise, Served

CONTEXT_STEPS = 32
"""Steps made in one go where the cost depends on the context, which is taken from the middle of them."""


def serve(load: Load, limits: Limits, cost: Cost, noise: Noise | None = None) -> Served:
    """Replay a load; without noise each step takes exactly its cost."""
    if not len(load.arrival_ns):
        nothing = np.zeros(0)
        return Served(nothing, nothing, nothing, nothing, 0, 0, 0.0, 0.0)
    replay = Replay(load, limits, cost, noise or Noise(np.ones(1024), np.ones(1)))
    replay.run()
    return replay.served()


class Replay:
    """The state of an engine, step by step."""

    def __init__(self, load: Load, limits: Limits, cost: Cost, noise: Noise) -> None:
        self.limits, self.cost = limits, cost
        self.arrival = load.arrival_ns.tolist()
        self.cached = load.cached_tokens.tolist()
        self.prompt = load.prompt_tokens.tolist()
        self.rest = np.maximum(load.prompt_tokens - load.cached_tokens, 1).tolist()
        """Tokens to compute before the next token can be sampled."""
        self.has_output = (load.output_tokens > 0).tolist()
        decoded = np.ceil(np.maximum(load.output_tokens - 1, 0) / cost.tokens_a_step)
        self.left = decoded.astype(np.int64).tolist()
        """Decode steps that a request still needs; while it decodes, as of the time it began to."""
        self.held = [0.0] * len(self.arrival)
        """Tokens in the KV cache; while a request decodes, as of the time it began to."""
        self.began, self.finish_at = [0] * len(self.arrival), [-1] * len(self.arrival)
        self.running = [False] * len(self.arrival)
        self.order: list[int] = []
        """Requests that joined, in that order; some have left meanwhile."""
        self.waiting: deque[int] = deque()
        self.prefilling: list[int] = []
        self.finishing: list[tuple[int, int]] = []
        self.joined, self.first, self.last = ([math.nan] * len(self.arrival) for _ in range(3))
        self.evicted_at, self.evicted = [math.nan] * len(self.arrival), [0.0] * len(self.arrival)
        self.now, self.used, self.decoded, self.prefilled = 0.0, 0.0, 0.0, 0.0
        self.next = self.batch = self.decoding = self.step = self.done = self.evictions = 0
        self.pace: list[float] = noise.pace.tolist()
        self.pace_ns, self.pace_from, self.pace_after = noise.pace_ns, self.arrival[0], float(noise.pace.mean())
        self.sums: list[float] = [0.0, *np.cumsum(noise.decode).tolist()]
        self.mixed: list[float] = noise.mixed.tolist()
        self.drawn = self.mixed_drawn = 0

    def run(self) -> None:
        """Go on until every request has left."""
        while self.done < len(self.arrival):
            if not self.batch and not self.waiting:
                self.now = max(self.now, self.arrival[self.next])
            while self.next < len(self.arrival) and self.arrival[self.next] <= self.now:
                self.waiting.append(self.next)
                self.next += 1
            evictions = self.evictions
            self.make_room()
            chunks = self.plan(lets_in=self.evictions == evictions)
            if chunks:
                self.make_mixed_step(chunks)
            else:
                self.make_decode_steps()

    def make_room(self) -> None:
        """Evict who joined last until the next tokens fit; the last request stays, whatever it takes."""
        while self.batch > 1 and self.occupied() + self.decoding * self.cost.tokens_a_step > self.limits.kv_tokens:
            victim = self.order.pop()
            if self.running[victim]:
                self.evict(victim)

    def occupied(self) -> float:
        """Return how many tokens of the KV cache are taken."""
        return self.used + self.batch * self.limits.request_overhead

    def evict(self, victim: int) -> None:
        """Take a request out of the batch; it will compute all that it had again."""
        made = self.step - self.began[victim] if self.finish_at[victim] >= 0 else 0
        held = self.held[victim] + made * self.cost.tokens_a_step
        if self.finish_at[victim] >= 0:
            self.rest[victim] = max(1, round(held) - self.cached[victim])
            # Computing them again samples the next one.
            self.left[victim] -= made + 1
            self.finish_at[victim] = -1
            self.decoding -= 1
        else:
            self.prefilling.remove(victim)
            self.rest[victim] += round(held) - self.cached[victim]
        self.used -= held
        self.held[victim] = 0.0
        self.running[victim] = False
        self.batch -= 1
        self.evictions += 1
        self.evicted_at[victim] = self.now
        self.waiting.appendleft(victim)

    def plan(self, *, lets_in: bool) -> list[tuple[int, int]]:
        """Choose the prompts of the next step: requests, each with how many tokens."""
        limits = self.limits
        if not self.prefilling and not self.waiting:
            return []
        budget = limits.max_tokens - self.decoding * self.cost.planned_tokens
        chunks = []
        for request in self.prefilling:
            if budget < 1:
                break
            tokens = int(min(budget, self.rest[request]))
            chunks.append((request, tokens))
            self.used += tokens
            budget -= tokens
        lets_in = lets_in or not self.batch
        grows = self.decoding * self.cost.tokens_a_step
        while lets_in and self.waiting and budget >= 1 and self.batch < limits.max_batch:
            request = self.waiting[0]
            tokens = int(min(budget, self.rest[request]))
            wanted = tokens + self.cached[request]
            taken = self.occupied() + grows + limits.request_overhead + wanted
            if self.batch and taken > limits.kv_tokens * limits.admit_ratio:
                break
            self.join(request)
            chunks.append((request, tokens))
            self.used += wanted
            budget -= tokens
        return chunks

    def join(self, request: int) -> None:
        """Let the head of the queue into the batch."""
        self.waiting.popleft()
        self.prefilling.append(request)
        self.order.append(request)
        self.running[request] = True
        self.held[request] = self.cached[request]
        self.batch += 1
        if math.isnan(self.joined[request]):
            self.joined[request] = self.now
        else:
            self.evicted[request] += self.now - self.evicted_at[request]

    def make_mixed_step(self, chunks: list[tuple[int, int]]) -> None:
        """Compute a step with prompts."""
        cost, tokens = self.cost, sum(count for _, count in chunks)
        took = cost.start + cost.token * tokens
        if self.decoding:
            took += cost.base + cost.request * self.decoding + cost.context * self.used
        else:
            took += cost.alone
        self.now += took * self.mixed[self.mixed_drawn] * self.pace_now()
        self.mixed_drawn = (self.mixed_drawn + 1) % len(self.mixed)
        self.prefilled += tokens
        self.advance(1)
        for request, count in chunks:
            self.rest[request] -= count
            self.held[request] += count
            if not self.rest[request]:
                self.prefilling.remove(request)
                self.sample_first(request)

    def sample_first(self, request: int) -> None:
        """A prompt is computed: its request has a token and decodes, or leaves."""
        if self.has_output[request] and math.isnan(self.first[request]):
            self.first[request] = self.now
        if self.left[request] <= 0:
            self.leave(request, self.held[request])
            return
        self.began[request] = self.step
        self.finish_at[request] = self.step + self.left[request]
        heapq.heappush(self.finishing, (self.finish_at[request], request))
        self.decoding += 1

    def pace_now(self) -> float:
        """Return the pace of the time of day; after the recorded time the mean."""
        place = int((self.now - self.pace_from) / self.pace_ns)
        return self.pace[place] if place < len(self.pace) else self.pace_after

    def make_decode_steps(self) -> None:
        """Compute steps without prompts until something can change."""
        cost, sums, finishing = self.cost, self.sums, self.finishing
        while self.finish_at[finishing[0][1]] != finishing[0][0]:
            heapq.heappop(finishing)
        grows = self.decoding * cost.tokens_a_step
        count = finishing[0][0] - self.step
        room = self.limits.kv_tokens - self.occupied()
        if count * grows > room:
            count = max(1, int(room // grows))
        if cost.context:
            count = min(count, CONTEXT_STEPS)
        if self.drawn >= len(sums) - 1:
            self.drawn = 0
        count = min(count, len(sums) - 1 - self.drawn)
        mean = cost.base + cost.request * self.decoding + cost.context * (self.used + grows * (count - 1) / 2)
        mean *= self.pace_now()
        if len(self.pace) > 1 and mean > 0:
            # No further than into the next pace.
            count = min(count, max(1, int(self.pace_ns / mean)))
        # Who waits already keeps those who come from being scheduled.
        if not self.waiting and self.next < len(self.arrival) and mean > 0:
            until = (self.arrival[self.next] - self.now) / mean + sums[self.drawn]
            count = min(count, max(1, bisect_left(sums, until, self.drawn + 1) - self.drawn))
        self.now += mean * (sums[self.drawn + count] - sums[self.drawn])
        self.drawn += count
        self.advance(count)

    def advance(self, count: int) -> None:
        """Give every decode its tokens of `count` steps; who has all of them leaves."""
        self.step += count
        grown = self.decoding * self.cost.tokens_a_step * count
        self.used += grown
        self.decoded += grown
        finishing = self.finishing
        while finishing and finishing[0][0] <= self.step:
            at, request = heapq.heappop(finishing)
            if self.finish_at[request] == at:
                self.finish_at[request] = -1
                self.decoding -= 1
                self.leave(request, self.held[request] + (at - self.began[request]) * self.cost.tokens_a_step)

    def leave(self, request: int, held: float) -> None:
        """A request is over."""
        self.used -= held
        self.last[request] = self.now
        self.running[request] = False
        self.batch -= 1
        self.done += 1
        # Requests that left stay on the list; now and then it is cut.
        if len(self.order) > 4 * (self.batch + 16):
            self.order = [request for request in self.order if self.running[request]]

    def served(self) -> Served:
        """Return what became of the requests."""
        return Served(
            np.array(self.joined),
            np.array(self.first),
            np.array(self.last),
            np.array(self.evicted),
            self.step,
            self.evictions,
            self.decoded,
            self.prefilled,
        )
