"""The page in a real browser: nothing on the console, nothing asked for, nothing wider than the screen, printable."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import Browser

WIDTHS = (375, 1280)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A headless Chromium."""
    with Browser(tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["incident", "hostile"])
def test_a_page_opens_in_silence(browser: Browser, files: dict[str, Path], name: str, width: int) -> None:
    """No message, no request but for the page itself, no horizontal scroll, with all tables open."""
    browser.size(width)
    browser.open(files[name].as_uri())
    opened = "document.querySelectorAll('details').forEach(each => each.open = true)"
    browser.evaluate(opened)
    assert browser.complaints() == []
    assert browser.requested() == [files[name].as_uri()]
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert browser.evaluate("innerWidth") == width
    assert browser.evaluate("document.scripts.length") == 0
    wider = (
        "[...document.querySelectorAll('main *')].filter(each => !each.closest('.scroll, svg')"
        " && each.getBoundingClientRect().right > innerWidth + 1).map(each => each.outerHTML.slice(0, 200))"
    )
    assert browser.evaluate(wider) == []


@pytest.mark.parametrize("width", WIDTHS)
def test_each_picture_is_drawn_once_for_the_screen(browser: Browser, files: dict[str, Path], width: int) -> None:
    """A phone shows the narrow pictures, a desk the wide ones; letters are at least 10 px high on both."""
    browser.size(width)
    browser.open(files["incident"].as_uri())
    shown = "[...document.querySelectorAll('figure svg')].filter(each => each.getBoundingClientRect().width > 0)"
    kinds = browser.evaluate(f"[...new Set({shown}.map(each => each.getAttribute('class')))]")
    assert kinds == ["narrow" if width < 720 else "wide"]
    scale = f"Math.min(...{shown}.map(each => each.getBoundingClientRect().width / each.viewBox.baseVal.width))"
    assert browser.evaluate(scale) * 12 >= 10


def test_text_can_be_told_from_its_background(browser: Browser, files: dict[str, Path]) -> None:
    """In light and dark every text outside of pictures has a contrast of 4.5 or more, as WCAG asks for."""
    browser.size(1280)
    browser.open(files["incident"].as_uri())
    for scheme in ("light", "dark"):
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        assert browser.evaluate(CONTRAST) == []
    browser.call("Emulation.setEmulatedMedia", features=[])


def test_a_page_prints(browser: Browser, files: dict[str, Path]) -> None:
    """It becomes a PDF of several pages."""
    browser.open(files["incident"].as_uri())
    pdf = browser.pdf()
    assert pdf.startswith(b"%PDF-")
    assert pdf.count(b"/Type /Page\n") >= 3


def test_a_script_would_be_caught(browser: Browser, tmp_path: Path) -> None:
    """What the tests above look for is seen in a page that does it."""
    file = tmp_path / "bad.html"
    file.write_text("<!doctype html><title>x</title><img src='gone.png'><script>console.warn('here')</script>")
    browser.open(file.as_uri())
    assert len(browser.requested()) == 2
    assert any("here" in line for line in browser.complaints())


CONTRAST = """
(() => {
  const channels = words => words.match(/[0-9.]+/g).map(Number)
  const light = ([r, g, b]) => [r, g, b].map(value => value / 255)
    .map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
    .reduce((sum, value, place) => sum + value * [0.2126, 0.7152, 0.0722][place], 0)
  const behind = each => {
    for (; each; each = each.parentElement) {
      const found = channels(getComputedStyle(each).backgroundColor)
      if (found.length < 4 || found[3] > 0) return found
    }
    return [255, 255, 255]
  }
  return [...document.querySelectorAll('body *:not(svg *)')]
    .filter(each => [...each.childNodes].some(node => node.nodeType === 3 && node.data.trim()))
    .filter(each => each.getClientRects().length && !each.closest('.skip'))
    .filter(each => {
      const [a, b] = [light(channels(getComputedStyle(each).color)), light(behind(each))].sort((x, y) => y - x)
      return (a + 0.05) / (b + 0.05) < 4.5
    })
    .map(each => each.outerHTML.slice(0, 120))
})()
"""
