"""Non-negative least squares for a handful of columns (scipy is no dependency)."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from tailspan_queries.whatif_records import Floats


def least_squares(design: Floats, values: Floats, weight: Floats) -> Floats:
    """Return non-negative coefficients; shape (columns,). With five columns every subset of them can be tried.

    A subset whose unconstrained optimum has no negative coefficient is a candidate, and the best is the solution, as
    the optimum of non-negative least squares is the unconstrained one of its own positive columns.
    """
    root = np.sqrt(weight)
    scale = np.maximum(np.abs(design).max(axis=0), 1e-300)
    scaled, target = design / scale * root[:, None], values * root
    gram, moment = scaled.T @ scaled, scaled.T @ target
    best, best_score = np.zeros(design.shape[1]), 0.0
    used = np.flatnonzero(np.abs(design).max(axis=0) > 0)
    for size in range(1, len(used) + 1):
        for chosen in combinations(used.tolist(), size):
            part = np.linalg.lstsq(gram[np.ix_(chosen, chosen)], moment[list(chosen)], rcond=1e-10)[0]
            score = float(part @ moment[list(chosen)])
            if (part >= 0).all() and score > best_score * (1 + 1e-12):
                best = np.zeros(design.shape[1])
                best[list(chosen)] = part
                best_score = score
    found: Floats = best / scale
    return found
