"""Student's t distribution, as far as tests and intervals need it, without SciPy.

In: values of t and degrees of freedom. Out: probabilities between 0 and 1, values of t. Pure functions.
Source: the regularized incomplete beta function by Lentz's continued fraction (Numerical Recipes 6.4).
"""

from __future__ import annotations

import math
from functools import cache

_FURTHEST_T = 1e3


def student_greater(t: float, freedom: float) -> float:
    """Return the chance that Student's t with that many degrees of freedom is `t` or more."""
    half = 0.5 * incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))
    return half if t >= 0 else 1 - half


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function, by Lentz's continued fraction (Numerical Recipes 6.4)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    tiny = 1e-300
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or tiny)
    value = d
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        before = value
        for term in (even, odd):
            d = 1 / (1 + term * d or tiny)
            c = 1 + term / c or tiny
            value *= c * d
        if abs(value - before) < 1e-15 * abs(value):
            break
    return front * value / a


def student_tail(t: float, freedom: float) -> float:
    """Return the chance that Student's t is at least |t| away from 0, on either side."""
    return 2 * student_greater(abs(t), freedom)


@cache
def student_quantile(chance: float, freedom: float) -> float:
    """Return the t beyond which, on either side, Student's distribution has `chance`."""
    low, high = 0.0, _FURTHEST_T
    while high - low > 1e-6:
        middle = (low + high) / 2
        if student_tail(middle, freedom) > chance:
            low = middle
        else:
            high = middle
    return high
