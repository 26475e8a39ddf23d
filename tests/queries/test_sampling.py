"""Which sample of the traces is chosen, by how many requests are asked for and how many must be gone through."""

import pytest

from tailspan_queries.sampling import PARTS, STORED, WHOLE, Sample, Stored, sample_of

LIMIT = 50_000


@pytest.mark.parametrize(
    ("kept", "scanned", "chosen"),
    [
        pytest.param(0, 0, WHOLE, id="nothing"),
        pytest.param(50_000, 50_000, WHOLE, id="as many as are read"),
        pytest.param(100_000, 100_000, Sample(PARTS // 2), id="few to go through: a larger sample than the stored one"),
        pytest.param(1_000_000, 1_000_000, Sample(204, stored=True), id="many: of the stored sample what is needed"),
        pytest.param(500_000, 500_000, Sample(STORED, stored=True), id="of the stored sample all"),
        pytest.param(45_000, 10_000_000, Sample(STORED, stored=True), id="few asked for of many: the stored sample"),
        pytest.param(20_000, 10_000_000, WHOLE, id="fewer than make a sample: all, however long it takes"),
    ],
)
def test_the_sample_by_what_is_stored(kept: int, scanned: int, chosen: Sample) -> None:
    """The largest sample up to the limit that need not be searched for among too many, but never one of too few."""
    assert sample_of(Stored(kept, scanned), LIMIT, lambda: True) == chosen


def test_a_window_that_begins_before_the_stored_sample() -> None:
    """The sample is then searched for in the spans themselves."""
    assert sample_of(Stored(1_000_000, 1_000_000), LIMIT, lambda: False) == Sample(204)


def test_the_stored_sample_is_not_asked_about_where_it_is_not_needed() -> None:
    """A window with few requests costs no further query."""
    asked = []
    sample_of(Stored(100_000, 100_000), LIMIT, lambda: bool(asked.append(1)))
    assert not asked
