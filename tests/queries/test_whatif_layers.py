"""Faster parts of the model in a prediction, against the shares that `tailspan layers --e2e` reports."""

import pytest

from tailspan.errors import UserError
from tailspan_queries.client import Client
from tailspan_queries.filters import Filters
from tailspan_queries.layers_contribution import contribution_report
from tailspan_queries.times import Window
from tailspan_queries.whatif import what_if, with_layers
from tailspan_queries.whatif_records import Change

MODEL = Filters(model="llama-6")


def test_layers_shorten_the_stages(client: Client, layer_window: Window) -> None:
    """Prefill and decode become shorter by what the parts are of each of them."""
    change = with_layers(client, layer_window, MODEL, Change(layers=("attention=1.3", "mlp=2")))
    report = contribution_report(client, layer_window, MODEL, "kind")
    saved = {"attention": 1 - 1 / 1.3, "mlp": 0.5}
    for name, factor in (("prefill_mean_ns", change.layer_prefill), ("decode_mean_ns", change.layer_decode)):
        shorter = sum(getattr(row, name) * saved.get(row.kind, 0) for row in report.parts)
        assert factor == pytest.approx(1 / (1 - shorter / getattr(report.whole, name)))
        assert factor > 1.2


def test_layers_in_a_prediction(client: Client, layer_window: Window) -> None:
    """A faster part shortens the prediction, a part that nobody timed is a mistake."""
    found = what_if(client, layer_window, MODEL, Change(layers=("attention=2",)), seeds=1, force=True)
    assert (found.measure("e2e P50").change_ratio or 0) < -0.05
    with pytest.raises(UserError, match="experts"):
        with_layers(client, layer_window, MODEL, Change(layers=("experts=2",)))
