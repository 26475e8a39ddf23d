"""The scheduler of an engine with continuous batching: who is in the batch, and what its next step computes.

In: a load, limits. Out: `Served`, when all requests have left. Whoever drives it (`whatif_engine`) sets `now`.
Units: nanoseconds and tokens.

It is that of vLLM V1 and of `transformers` (FIFO): a step holds a token of every request that decodes, then chunks of
prompts under way, then waiting requests in the order of arrival, up to the limits of the batch, of the tokens of a
step, and of what the KV cache holds. The last chunk of a prompt samples the first token. When the cache is full the
request that joined last is evicted to the head of the queue and computes its prompt and its output again; nobody is let
in that step.
"""

from __future__ import annotations

import heapq
import math
from collections import deque

import numpy as np

from tailspan_queries.whatif_records import Cost, Limits, Load, Served


class Scheduler:
    """Queue, batch and KV cache of an engine; lists have one element a request, in the order of arrival."""

    def __init__(self, load: Load, limits: Limits, cost: Cost) -> None:
        self.limits, self.cost = limits, cost
        self.arrival: list[float] = load.arrival_ns.tolist()
        self.cached = load.cached_tokens.tolist()
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

    @property
    def is_done(self) -> bool:
        """Whether every request has left."""
        return self.done == len(self.arrival)

    def take_arrivals(self) -> None:
        """Put who came meanwhile into the queue; an engine with nothing to do waits for the next one."""
        if not self.batch and not self.waiting:
            self.now = max(self.now, self.arrival[self.next])
        while self.next < len(self.arrival) and self.arrival[self.next] <= self.now:
            self.waiting.append(self.next)
            self.next += 1

    def plan(self) -> list[tuple[int, int]]:
        """Choose the prompts of the next step: requests, each with how many tokens; none if it only decodes."""
        evictions = self.evictions
        self.make_room()
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
        lets_in = self.evictions == evictions or not self.batch
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

    def compute(self, chunks: list[tuple[int, int]]) -> None:
        """Count a step with prompts, whose end is now: every decode has a token, and so have prompts that are over."""
        self.prefilled += sum(count for _, count in chunks)
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

    def decode_steps(self) -> int:
        """Return in how many steps without prompts nobody leaves, and the cache does not overflow; at least one."""
        finishing = self.finishing
        while self.finish_at[finishing[0][1]] != finishing[0][0]:
            heapq.heappop(finishing)
        count = finishing[0][0] - self.step
        grows = self.decoding * self.cost.tokens_a_step
        room = self.limits.kv_tokens - self.occupied()
        return max(1, int(room // grows)) if count * grows > room else count

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
