"""Windows with nothing or next to nothing in them: a clear line for each section, never a gap or a traceback."""

from dataclasses import replace

import pytest

from tailspan_queries.client import Client
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.report.answers import Answers, gather
from tailspan_queries.report.changes import changes_of
from tailspan_queries.report.page import render_page
from tailspan_queries.times import Window
from tests.queries.report import page_traffic
from tests.queries.report.reading import read_page


def test_an_empty_window_says_when_there_are_requests(client: Client) -> None:
    """The page names what it searched and the option that reaches data; the ledger is still there."""
    page = read_page(render_page(gather(client, page_traffic.EMPTY, ALL)))
    assert "No requests between 2026-12-05 12:00:00 and 2026-12-05 13:00:00 UTC; there are" in page.header
    assert "use --since 2026-11-28T12:0" in page.header
    assert list(page.sections) == ["changes"]
    assert page.tiles == {}


def test_one_request_has_a_page(client: Client) -> None:
    """Without tokens, version, layers and days before each section says so in a line, and no number is made up."""
    text = render_page(gather(client, page_traffic.LONE, ALL))
    page = read_page(text)
    assert page.tiles["Requests"] == ["1"]
    assert "First token (TTFT)" not in page.tiles
    assert "No request of the window reported a first token or gaps between tokens." in page.sections["tokens"]
    assert "No layer was timed in the window" in page.sections["layers"]
    assert "nothing to hold it against" in page.sections["regression"]
    assert "too few to say what is different" in page.sections["different"].replace("Only 1 request: ", "")
    assert "of 5.00 ms" not in page.sections["series"]
    assert page.table("percentiles", "Percentiles of every stage")["queue"] == ["1", *["5000000.0"] * 5, "5000000"]
    assert "nan" not in text.casefold().replace("pennant", "")
    assert "None" not in text


def test_a_page_without_a_ledger_says_so(answers: Answers) -> None:
    """Without entries and versions the section about changes is one line."""
    ledger = replace(answers.ledger, accounts=())
    page = read_page(render_page(replace(answers, ledger=ledger, entries=(), versions=())))
    assert (
        "No service.version is known of the requests, and the ledger of optimisations is empty."
        in (page.sections["changes"])
    )


def test_what_matches_no_filter_is_empty(client: Client) -> None:
    """A filter that nothing has gives the line that the commands give."""
    page = read_page(render_page(gather(client, page_traffic.WINDOW, Filters(model="nobody"))))
    assert "No requests for --model nobody" in page.header


@pytest.mark.parametrize("step_s", [1, 59, 61])
def test_versions_that_come_back_are_changes_once(answers: Answers, step_s: int) -> None:
    """The first version of a service is no deployment, each later one is; numbers follow time."""
    rows = [
        replace(answers.versions[0], version=str(number), first_start_ns=answers.window.since_ns + number * step_s)
        for number in range(4)
    ]
    found = changes_of(rows[::-1], answers.entries, answers.window)
    assert [change.number for change in found] == [1, 2, 3, 4]
    assert [change.kind for change in found] == ["deployment"] * 3 + ["optimisation"]
    outside = Window(answers.window.until_ns, answers.window.until_ns + 1)
    assert changes_of([], answers.entries, outside) == ()
