"""What making parts of the model faster would gain: the options as a user writes them, and the prediction.

In: `attention=1.3`, `12/mlp=2` or `12=1.1`, and the lines of query `layers_contribution` by part. Out: `Prediction`.
The prediction is of first order: each part's time is divided by its factor, and all other time stays.
Errors: `UserError` for what does not read, and for a part that no sampled step has.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from tailspan.errors import UserError
from tailspan_queries import units
from tailspan_queries.layers_records import Contribution, Prediction, Speedup

FORM = "Write --speedup attention=1.3, --speedup 12/mlp=2 or --speedup 12=1.1 (so many times as fast)"
_SPEEDUP = re.compile(r"(?:(?P<layer>\d{1,4})(?:/(?P<layer_kind>[a-z_]+))?|(?P<kind>[a-z_]+))=(?P<factor>[\d.]+)")


def parse_speedup(text: str) -> Speedup:
    """Read `KIND=FACTOR`, `LAYER/KIND=FACTOR` or `LAYER=FACTOR`.

    Raises: UserError if it is not of this form, or the factor is no positive number.
    """
    match = _SPEEDUP.fullmatch(text.strip())
    try:
        factor = float(match["factor"]) if match else 0.0
    except ValueError:
        factor = 0.0
    if match is None or not 0 < factor < math.inf:
        raise UserError(f"--speedup {text!r} does not read", FORM)
    layer = int(match["layer"]) if match["layer"] else None
    return Speedup(layer, match["kind"] or match["layer_kind"] or "", factor)


def predict(rows: Sequence[Contribution], whole: Contribution, speedups: Sequence[Speedup]) -> Prediction:
    """Return end-to-end time with parts faster; of several speed-ups that fit a part, the one that says most counts.

    `rows` are by part. Raises: UserError if a speed-up fits no part.
    """
    for speedup in speedups:
        if not any(speedup.fits(row) for row in rows):
            kinds = ", ".join(sorted({row.kind for row in rows if row.what == "part"}))
            raise UserError(f"no sampled step has the part {speedup.name!r}", f"There are: {kinds}")
    saved = tail_saved = 0.0
    for row in rows:
        fitting = [speedup for speedup in speedups if speedup.fits(row)]
        if fitting:
            chosen = max(fitting, key=lambda speedup: (speedup.layer is not None) + (speedup.kind != ""))
            saved += row.mean_ns * (1 - 1 / chosen.factor)
            tail_saved += row.tail_mean_ns * (1 - 1 / chosen.factor)
    return Prediction(whole.mean_ns, whole.mean_ns - saved, whole.tail_mean_ns, whole.tail_mean_ns - tail_saved)


def prediction_text(prediction: Prediction, speedups: Sequence[Speedup]) -> str:
    """Say what would be gained."""
    made = ", ".join(f"{speedup.title} {speedup.factor:g} times as fast" for speedup in speedups)
    return (
        f"{made}: mean end-to-end {moved(prediction.mean_change_ratio)}, "
        f"{units.duration(prediction.mean_ns)} to {units.duration(prediction.predicted_mean_ns)}; "
        f"slowest 1 % {moved(prediction.tail_change_ratio)}, "
        f"{units.duration(prediction.tail_mean_ns)} to {units.duration(prediction.predicted_tail_mean_ns)}."
    )


def moved(ratio: float) -> str:
    """Return a change in words."""
    if not ratio:
        return "stays"
    return f"{'falls' if ratio < 0 else 'rises'} by {units.percent_text(abs(ratio), 1)}"
