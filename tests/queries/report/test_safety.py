"""The page loads nothing and runs nothing, whatever the names in it are, and it is small whatever it is about."""

import re
from dataclasses import replace

from tailspan_queries.report.answers import Answers
from tailspan_queries.report.page import MAX_BYTES, render_page
from tests.queries.report.page_traffic import CLOSING, IMAGE, SCRIPT
from tests.queries.report.reading import Page, read_page

LOADING = ("src", "srcset", "href", "xlink:href", "action", "data", "poster", "background", "formaction", "style")
"""Attributes with which an element could ask for something."""


def check_inert(page: Page) -> None:
    """Check that no element runs or asks for anything."""
    assert page.named("script", "img", "iframe", "object", "embed", "base", "form", "use", "image", "audio") == []
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        for name in LOADING:
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:,")), (tag, attributes)


def test_a_page_asks_for_nothing(page: Page, text: str) -> None:
    """No script, no address but those within the page, and a policy that forbids all but its own style."""
    check_inert(page)
    (policy,) = (found["content"] for found in page.named("meta") if found.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:")
    assert set(re.findall(r"url\(([^)]*)\)", text)) == {"#hatch"}
    assert "@import" not in text


def test_markup_in_names_is_text(hostile_text: str) -> None:
    """Service, model, instance, version, stage, attribute, title and ledger entry are markup: all of it is shown."""
    page = read_page(hostile_text)
    check_inert(page)
    assert len(page.named("style")) == 1
    for words in (SCRIPT, IMAGE, CLOSING):
        assert words in page.sections["slowest"]
    assert CLOSING in page.header
    assert SCRIPT in page.sections["different"]
    assert CLOSING in page.sections["changes"]
    assert CLOSING in page.table("where", "Shares of every stage")
    assert hostile_text.count("<script") == 0


def test_a_page_can_be_read_without_seeing_it(page: Page) -> None:
    """Every picture has a title and a description by which it is named, each id is there once, tables have heads."""
    ids = [attributes["id"] for _, attributes in page.elements if attributes.get("id")]
    assert len(ids) == len(set(ids))
    pictures = [found for found in page.named("svg") if found.get("role") == "img"]
    assert len(pictures) >= 20
    for picture in pictures:
        assert set((picture["aria-labelledby"] or "").split()) <= set(ids)
    heads = page.named("th")
    assert heads
    assert all(head["scope"] in ("row", "col") for head in heads)


def test_a_page_is_small_whatever_it_is_about(answers: Answers) -> None:
    """Hundreds of stages with long names, a large model and thousands of changes stay below the limit."""
    stage, tail = answers.stages.rows[0], answers.tail.rows[0]
    names = [f"stage {number} {'x' * 500}" for number in range(400)]
    part = next(row for row in answers.layers.rows if row.layer is not None)
    layers = [
        replace(part, model=f"model {model}", layer=layer, kind=f"kind {kind}")
        for model in range(4)
        for layer in range(300)
        for kind in range(8)
    ]
    series = answers.series.rows[0]
    buckets = [replace(series, bucket_ns=answers.window.since_ns + 20_000_000_000 * n) for n in range(180)]
    version = answers.versions[0]
    grown = replace(
        answers,
        stages=replace(answers.stages, rows=(*(replace(stage, stage=name) for name in names), *answers.stages.rows)),
        tail=replace(answers.tail, rows=(*(replace(tail, stage=name) for name in names), *answers.tail.rows)),
        layers=replace(answers.layers, rows=tuple(layers)),
        series=replace(answers.series, rows=tuple(buckets)),
        versions=tuple(replace(version, version=f"{n} {'v' * 300}", first_start_ns=n) for n in range(3000)),
    )
    text = render_page(grown)
    read_page(text)
    assert len(text.encode()) < MAX_BYTES
