"""Reads a page of `tailspan report` strictly: every element closed where it was opened, and what the tables hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

EMPTY = {"meta", "link", "br", "img", "input", "hr"}
"""Elements of HTML that have no end."""
Row = list[tuple[str, str | None]]
"""Of each cell its text, and the exact value or None."""


@dataclass(slots=True)
class Page:
    """Tables by section and title, the texts of sections, and every element with its attributes."""

    tables: dict[tuple[str, str], list[Row]] = field(default_factory=dict)
    sections: dict[str, str] = field(default_factory=dict)
    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    header: str = ""
    tiles: dict[str, list[str | None]] = field(default_factory=dict)

    def table(self, section: str, title: str) -> dict[str, list[str | None]]:
        """Return the values of a table by the first cell of each line; of a cell without a value its text."""
        return {
            row[0][0]: [words if value is None else value for words, value in row[1:]]
            for row in self.tables[section, title]
        }

    def named(self, *tags: str) -> list[dict[str, str | None]]:
        """Return the attributes of all elements of these names."""
        return [attributes for tag, attributes in self.elements if tag in tags]


class Reader(HTMLParser):
    """Fills a `Page`; an element that is closed wrongly is an error."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.page = Page()
        self._open: list[str] = []
        self._section = self._title = self._tile = ""
        self._text = ""
        self._value: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        attributes = dict(attrs)
        assert len(attributes) == len(attrs), (tag, attrs)
        self.page.elements.append((tag, attributes))
        if tag in EMPTY:
            return
        self._open.append(tag)
        if tag == "section":
            self._section = attributes["id"] or ""
        elif tag in ("caption", "td", "th", "dt"):
            self._text, self._value = "", None
        elif tag == "tr":
            self._row: Row = []
        elif tag == "data":
            self._value = attributes["value"]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element of SVG that has no content."""
        self.page.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """Check that it closes what was opened last, and keep what it holds."""
        assert self._open, tag
        assert self._open.pop() == tag, (tag, self.getpos())
        if tag == "caption":
            self._title = self._text
            self.page.tables[self._section, self._title] = []
        elif tag in ("td", "th"):
            self._row.append((self._text, self._value))
        elif tag == "tr" and "tbody" in self._open:
            self.page.tables[self._section, self._title].append(self._row)
        elif tag == "dt":
            self._tile = self._text
        elif tag == "data" and "dl" in self._open:
            self.page.tiles.setdefault(self._tile, []).append(self._value)

    def handle_data(self, data: str) -> None:
        """Add text to where it stands."""
        self._text += data
        if "section" in self._open:
            self.page.sections[self._section] = self.page.sections.get(self._section, "") + data
        elif "header" in self._open:
            self.page.header += data

    def close(self) -> None:
        """Check that nothing is left open."""
        super().close()
        assert self._open == []


def read_page(text: str) -> Page:
    """Read a page; what is not well-formed fails."""
    reader = Reader()
    reader.feed(text)
    reader.close()
    return reader.page
