"""What the user is told of a ClickHouse that does not answer a query."""

import pytest

from tailspan.errors import UserError
from tailspan_queries import catalog
from tailspan_queries.client import Client, connect

SLOW = catalog.Query("slow", "select sleepEachRow(1) from numbers(3) settings max_block_size = 1")


def test_an_answer_that_takes_too_long_is_no_fault_of_the_query(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the time a query may take, the line names it and what makes questions cheaper."""
    monkeypatch.setattr("tailspan_queries.client.QUERY_TIMEOUT_S", 1)
    impatient = connect(client.url)
    try:
        with pytest.raises(UserError) as caught:
            impatient.execute(SLOW, {})
    finally:
        impatient.close()
    assert "did not answer slow within 1 s" in str(caught.value)
    assert "shorter window" in str(caught.value)
