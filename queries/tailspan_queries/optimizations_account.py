"""The arithmetic of an account: what each effect is of the whole change, what counts once only, what is left over.

In: effects and totals, ns a request. Out: effects with `counted`, `StageChange`s, the tokens that claims leave open.
A claim by token says nothing of a request until somebody says how many tokens an answer has. So its gain is a range:
from no token up to as many as fit into what the other claims leave of the totals, before and afterwards, since stages
partition a request. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tailspan import attributes
from tailspan_queries.optimizations_records import Account, Claim, Effect, Optimization, Prices, Span, StageChange

END_TO_END = attributes.ROLE_REQUEST
STEPS = ("prefill", "decode")
"""The stages that parts of the model are in."""


def claims_account(title: str, total_ns: tuple[float, float] | None, items: Sequence[Effect]) -> Account:
    """Return the account of effects under a total that somebody claims; without one, shares and remainder are unknown.

    Effects by token whose tokens are not known get the range that fits.
    """
    tokens = fitting_tokens(total_ns, items)
    effects = tuple(with_gain(effect, tokens) for effect in items)
    before_ns, after_ns = total_ns or (0.0, 0.0)
    account = Account(
        title, "claim" if total_ns else "nothing", before_ns, after_ns, count_once(effects), tokens=tokens
    )
    stages = tuple(
        StageChange(place, None, None, listed(account.effects, place))
        for place in dict.fromkeys(effect.optimization.place for effect in account.effects)
    )
    return replace(account, stages=stages, tokens_needed=needed_tokens(total_ns, items))


def claimed(item: Optimization, claim: Claim) -> Effect:
    """Return the effect that an entry claims; that of a claim by token with unknown tokens has no gain yet."""
    if claim.per == "request":
        gain = claim.before_ns - claim.after_ns
        return Effect(item, "claim", claim.before_ns, claim.after_ns, "request", (gain, gain))
    return Effect(item, "claim", claim.before_ns, claim.after_ns, "token")


def with_gain(effect: Effect, tokens: Span | None) -> Effect:
    """Return an effect by token with its gain a request."""
    if effect.per == "request":
        return effect
    known = effect.optimization.claim.tokens if effect.optimization.claim else None
    low, high = (known, known) if known is not None else tokens or (0.0, math.inf)
    a_token = effect.before_ns - effect.after_ns
    ends = sorted(a_token * count if a_token else 0.0 for count in (low, high))
    return replace(effect, gain_ns=(ends[0], ends[1]))


def needs_tokens(effect: Effect) -> bool:
    """Whether the gain of an effect depends on tokens that nobody said."""
    claim = effect.optimization.claim
    return effect.per == "token" and (claim is None or claim.tokens is None)


def fitting_tokens(total_ns: tuple[float, float] | None, effects: Sequence[Effect]) -> Span | None:
    """Return how many tokens an answer fit into the totals; None if no effect leaves that open or there is no total."""
    if total_ns is None or not any(map(needs_tokens, effects)):
        return None
    most = [
        (whole - sum(side_ns(effect, side) for effect in effects)) / a_token
        for side, whole in enumerate(total_ns)
        if (a_token := sum((effect.before_ns, effect.after_ns)[side] for effect in effects if needs_tokens(effect)))
    ]
    return 0.0, max(min(most, default=0.0), 0.0)


def side_ns(effect: Effect, side: int) -> float:
    """Return what an effect's stage took of a request, before (0) or afterwards (1); 0 where that is not known."""
    took = (effect.before_ns, effect.after_ns)[side]
    if effect.per == "request":
        return took
    claim = effect.optimization.claim
    return took * claim.tokens if claim and claim.tokens is not None else 0.0


def needed_tokens(total_ns: tuple[float, float] | None, effects: Sequence[Effect]) -> float | None:
    """Return with how many tokens an answer the effects would explain the whole change; None if no number does."""
    a_token = sum(effect.before_ns - effect.after_ns for effect in effects if needs_tokens(effect))
    if total_ns is None or not a_token:
        return None
    rest = total_ns[0] - total_ns[1] - sum(side_ns(effect, 0) - side_ns(effect, 1) for effect in effects)
    return rest / a_token if rest / a_token >= 0 else None


def count_once(effects: Sequence[Effect]) -> tuple[Effect, ...]:
    """Mark effects that cover the same change as one before them, so that the sum has it once.

    That is so where both are about the same time of a request and were switched on in overlapping windows. The whole
    request comes last, so that its stages count where they are listed too.
    """
    kept: list[Effect] = []
    marked: dict[int, Effect] = {}
    order = sorted(range(len(effects)), key=lambda place: effects[place].optimization.place == END_TO_END)
    for place in order:
        effect = effects[place]
        if effect.origin == "nothing":
            marked[place] = replace(effect, counted=False)
            continue
        other = next((found for found in kept if same_change(found.optimization, effect.optimization)), None)
        if other is None:
            kept.append(effect)
            marked[place] = effect
        else:
            marked[place] = replace(effect, counted=False, why=f"the same change as {other.optimization.name}")
    return tuple(marked[place] for place in range(len(effects)))


def same_change(one: Optimization, other: Optimization) -> bool:
    """Whether two entries are about the same time of a request, switched on in windows that overlap."""
    if one.after is None or other.after is None:
        return False
    together = one.after.since_ns < other.after.until_ns and other.after.since_ns < one.after.until_ns
    return together and overlap(one, other)


def overlap(one: Optimization, other: Optimization) -> bool:
    """Whether one entry's stage or part lies within the other's."""
    if END_TO_END in (one.place, other.place):
        return True
    if one.is_part and other.is_part:
        layers = one.layer is None or other.layer is None or one.layer == other.layer
        return layers and (not one.kind or not other.kind or one.kind == other.kind)
    if one.is_part or other.is_part:
        return (other if one.is_part else one).stage in STEPS
    return one.stage == other.stage


def spans_another(effects: Sequence[Effect]) -> list[str]:
    """Return a line for each pair of which one was switched on between the windows of the other."""
    found = []
    counted = [effect.optimization for effect in effects if effect.counted]
    for one in counted:
        for other in counted:
            if one is other or not (one.before and one.after and other.after) or not overlap(one, other):
                continue
            if one.before.until_ns <= other.after.since_ns < one.after.since_ns:
                found.append(
                    f"{other.name} was switched on between the windows of {one.name}: what it gained may be in both; "
                    "begin the later one's --before after it, or divide the credit with --run"
                )
    return found


def listed(effects: Iterable[Effect], place: str) -> Span:
    """Return what the effects on one stage or part add up to."""
    gains = [effect.gain_ns for effect in effects if effect.counted and effect.optimization.place == place]
    return sum(low for low, _ in gains), sum(high for _, high in gains)


def by_return(effects: Iterable[Effect], prices: Prices) -> tuple[Effect, ...]:
    """Order effects by what they brought less what they cost, the most first; a range by its least."""
    return tuple(
        sorted(effects, key=lambda effect: (effect.origin == "nothing", -effect.worth_ns(prices)[0], effect.before_ns))
    )
