"""The model of an engine against queueing theory, cases that can be computed by hand, and what must always hold."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailspan_queries.whatif_engine import serve
from tailspan_queries.whatif_records import Cost, Limits, Load, Noise

REQUESTS = 100_000


def load(arrival: object, prompt: object, output: object, cached: object = None) -> Load:
    """Return a load from anything like arrays."""
    prompts = np.asarray(prompt, np.int64)
    return Load(
        np.asarray(arrival, np.float64),
        prompts,
        np.zeros(len(prompts), np.int64) if cached is None else np.asarray(cached, np.int64),
        np.asarray(output, np.int64),
    )


def one_server(service: np.ndarray, utilization: float) -> float:
    """Return the mean wait of a queue with one server, Poisson arrivals and these service times."""
    random = np.random.default_rng(4)
    arrival = np.cumsum(random.exponential(service.mean() / utilization, len(service)))
    served = serve(load(arrival, service, np.ones(len(service))), Limits(max_batch=1), Cost(0.0, token=1.0))
    return float(np.mean(served.joined_ns - arrival))


@pytest.mark.parametrize("utilization", [0.5, 0.8])
def test_wait_of_m_d_1(utilization: float) -> None:
    """A batch of one with equal prompts waits as long as an M/D/1 queue: rho / (2 (1 - rho)) service times."""
    service = np.full(REQUESTS, 1000)
    assert one_server(service, utilization) == pytest.approx(1000 * utilization / (2 * (1 - utilization)), rel=0.05)


@pytest.mark.parametrize("utilization", [0.5, 0.8])
def test_wait_of_m_m_1(utilization: float) -> None:
    """With exponential prompts the wait is that of M/M/1: rho / (1 - rho) service times."""
    service = np.maximum(np.rint(np.random.default_rng(7).exponential(100_000, REQUESTS)), 1).astype(np.int64)
    expected = service.mean() * utilization / (1 - utilization)
    assert one_server(service, utilization) == pytest.approx(expected, rel=0.08)


def test_wait_of_m_m_c() -> None:
    """Decodes that do not slow each other down are servers: with batch c the share that waits is Erlang's C formula."""
    servers, utilization, random = 4, 0.75, np.random.default_rng(3)
    steps = np.maximum(np.rint(random.exponential(2000, REQUESTS)), 1).astype(np.int64)
    arrival = np.cumsum(random.exponential(steps.mean() / (servers * utilization), REQUESTS))
    served = serve(load(arrival, np.ones(REQUESTS), steps), Limits(max_batch=servers), Cost(1.0, alone=1.0))
    offered = servers * utilization
    terms = np.cumprod([1.0, *(offered / np.arange(1, servers))])
    last = terms[-1] * offered / servers / (1 - utilization)
    erlang_c = last / (terms.sum() + last)
    # An arrival waits for the end of the step that is under way: less than one of some 2,000 of its service.
    wait = served.joined_ns - arrival
    assert np.mean(wait > 2) == pytest.approx(erlang_c, rel=0.05)
    assert np.mean(wait) == pytest.approx(erlang_c * steps.mean() / (servers * (1 - utilization)), rel=0.08)


def test_batch_by_hand() -> None:
    """Three requests at once in a batch of two: the third comes in when the first leaves."""
    cost = Cost(base=10.0, request=1.0, alone=10.0, start=5.0, token=2.0)
    served = serve(load([0, 0, 0], [3, 4, 5], [2, 4, 1]), Limits(max_batch=2), cost)
    # Step 1: prompts of 3 and 4, nobody decodes: 10 + 5 + 14 = 29. Step 2: two decode, 12: the first leaves at 41.
    # Step 3: a prompt of 5 beside a decode, 10 + 1 + 5 + 10 = 26: the third gets its only token at 67 and leaves.
    # Step 4: one decodes, 11: the second leaves at 78.
    assert served.joined_ns.tolist() == [0, 0, 41]
    assert served.first_ns.tolist() == [29, 29, 67]
    assert served.last_ns.tolist() == [41, 78, 67]
    assert (served.steps, served.evictions) == (4, 0)


def test_chunks_by_hand() -> None:
    """A prompt longer than a step's tokens is computed in chunks, and decodes take their tokens first."""
    cost = Cost(base=10.0, token=1.0, alone=10.0)
    served = serve(load([0, 1], [4, 10], [5, 1], [0, 2]), Limits(max_tokens=4), cost)
    # 4 tokens: 14. Then 3 beside the decode, three times 13 (3 + 3 + 2 of the 8 that are not cached: 13, 13, 12).
    assert served.first_ns.tolist() == [14, 52]
    assert served.last_ns.tolist() == [62, 52]
    assert served.joined_ns.tolist() == [0, 14]


def test_eviction_by_hand() -> None:
    """When the cache is full, who joined last goes, and computes its prompt and its output again."""
    cost = Cost(base=10.0, alone=10.0)
    served = serve(load([0, 0], [4, 4], [4, 4]), Limits(kv_tokens=11), cost)
    # After the prompts 8 tokens are held, after a step 10; two more do not fit: the second is evicted at 20.
    # The first decodes alone to 40 and frees 7; the second computes 5 tokens, which samples its third, and one more.
    assert served.evictions == 1
    assert served.evicted_ns.tolist() == [0, 20]
    assert served.last_ns.tolist() == [40, 60]
    assert served.first_ns.tolist() == [10, 10]


def test_zero_tokens_and_nothing() -> None:
    """A request without output leaves when its prompt is computed, without a first token; an empty load is no load."""
    served = serve(load([5.0], [7], [0]), Limits(), Cost(1.0, alone=1.0, token=1.0))
    assert np.isnan(served.first_ns).all()
    assert served.last_ns.tolist() == [13.0]
    assert len(serve(load([], [], []), Limits(), Cost(1.0)).last_ns) == 0


def test_pace() -> None:
    """An engine that was half as fast in the second half of the time is so in the replay."""
    noise = Noise(np.ones(100), np.ones(10), np.array([1.0, 2.0]), 1000.0)
    served = serve(load([0.0, 1500.0], [1, 1], [11, 11]), Limits(), Cost(10.0, alone=10.0), noise)
    assert (served.last_ns - served.joined_ns).tolist() == [110.0, 220.0]


def test_steps_in_one_go() -> None:
    """Making many decode steps in one go takes as long as making them one by one, with noise too."""
    random = np.random.default_rng(2)
    factors = random.lognormal(0, 0.5, 500)
    served = serve(load([0.0], [1], [301]), Limits(), Cost(10.0, alone=7.0), Noise(factors, np.ones(1)))
    assert served.last_ns[0] == pytest.approx(7 + 10 * factors[:300].sum())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 500), st.integers(1, 60), st.integers(0, 40), st.integers(0, 59)),
        min_size=1,
        max_size=40,
    ),
    st.integers(1, 6),
    st.integers(1, 64),
    st.one_of(st.just(np.inf), st.floats(30, 300)),
    st.floats(0, 0.1),
)
def test_what_always_holds(
    requests: list[tuple[float, int, int, int]], batch: int, tokens: int, kv: float, context: float
) -> None:
    """Every request leaves once, in the order of its stages, and the tokens add up whatever the limits are."""
    requests = sorted(requests)
    arrival, prompt, output, cached = (np.array(column) for column in zip(*requests, strict=True))
    cached = np.minimum(cached, prompt - 1)
    served = serve(
        load(arrival, prompt, output, cached),
        Limits(batch, tokens, kv, 1.0, 2.0),
        Cost(3.0, 0.5, context, 3.0, 1.0, 0.1),
    )
    assert not np.isnan(served.last_ns).any()
    assert (served.joined_ns >= arrival).all()
    has_token = output > 0
    assert (np.isnan(served.first_ns) == ~has_token).all()
    assert (served.first_ns[has_token] > served.joined_ns[has_token]).all()
    assert (served.last_ns[has_token] >= served.first_ns[has_token]).all()
    if not served.evictions:
        assert served.decoded_tokens == np.maximum(output - 1, 0).sum()
        assert served.prefilled_tokens == (prompt - cached).sum()
    else:
        assert served.prefilled_tokens > (prompt - cached).sum()
    # First come, first served: nobody is scheduled before who came earlier.
    assert (np.diff(served.joined_ns) >= 0).all()


@pytest.mark.parametrize("utilization", [0.4, 0.9])
def test_monotone(utilization: float) -> None:
    """Faster steps, slower arrivals, shorter outputs and a larger batch lower latency; a full engine gains more."""
    random = np.random.default_rng(9)
    output = random.integers(5, 60, 3000)
    cost = Cost(10.0, 1.0, 0.0, 10.0, 2.0, 0.05)
    a_request = 33 * (10 + 8) / 8 + 2 + 5
    arrival = np.cumsum(random.exponential(a_request / utilization, 3000))
    prompt = random.integers(10, 200, 3000)

    def latency(cost: Cost = cost, batch: int = 8, slower: float = 1.0, shorter: float = 1.0) -> float:
        outputs = np.maximum(output * shorter, 1).astype(np.int64)
        served = serve(load(arrival * slower, prompt, outputs), Limits(batch, 256), cost)
        return float(np.mean(served.last_ns - arrival * slower))

    was = latency()
    assert latency(cost.faster(decode=1.3)) < was
    assert latency(cost.faster(prefill=1.3)) < was
    assert latency(cost.faster(decode=1.1)) > latency(cost.faster(decode=1.3))
    assert latency(slower=1.5) < was
    assert latency(shorter=0.5) < was
    assert latency(batch=4) > was
    gain = 1 - latency(cost.faster(1.3, 1.3)) / was
    # Without a queue all of it is 1 - 1/1.3.
    assert gain > 1 - 1 / 1.3 if utilization > 0.8 else gain == pytest.approx(1 - 1 / 1.3, rel=0.5)
