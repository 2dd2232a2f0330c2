"""The site as a browser shows it from disk: narrow and wide, light and dark, with scripts and without."""

from __future__ import annotations

import pytest

from tests.docs.conftest import ROOT

pytestmark = pytest.mark.same_on_newest  # pages in a browser

PAGES = sorted(path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md"))
SCROLLING = ".highlight, .table-wrapper, .formula, .sidebar-drawer, .toc-drawer"
"""What has a scroll bar of its own, or waits beside the screen until it is asked for."""


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_a_page_fits_can_be_read_and_asks_nobody(browser, site, page):
    for width, scheme in ((1440, "light"), (390, "dark")):
        browser.open(site / page, width, scheme)
        assert browser.overflowing(SCROLLING) == [], (width, scheme)
        assert browser.low_contrasts() == {}, (width, scheme)
        assert browser.console() == [], (width, scheme)
        asked = [address for address in browser.requests() if not address.startswith((f"file://{site}", "data:"))]
        assert [address for address in asked if address != "about:blank"] == [], (width, scheme)


def test_tabs_follow_over_pages(browser, site):
    browser.open(site / "stages.html", 1440)
    shown = "return [...document.querySelectorAll('.sd-tab-set > input:checked + label')].map(e => e.innerText)"
    assert set(browser.run(shown)) == {"PyTorch"}
    browser.run("document.querySelector('label[data-sync-id=jax]').click()")
    browser.wait(f"{shown.replace('return ', 'return (')}).every(name => name === 'JAX')")
    browser.driver.get((site / "api-layers.html").as_uri())
    browser.wait(f"{shown.replace('return ', 'return (')}).every(name => name === 'JAX')")
    browser.run("localStorage.clear(); sessionStorage.clear()")


def test_tabs_are_chosen_by_keys(browser, site):
    browser.open(site / "stages.html", 1440)
    browser.run("document.querySelector('.sd-tab-set > input').focus()")
    browser.press("ARROW_RIGHT")
    assert browser.run("return document.querySelector('.sd-tab-set > input:checked + label').innerText") == "TensorFlow"
    browser.run("localStorage.clear(); sessionStorage.clear()")


def test_the_search_finds_from_disk(browser, site):
    browser.open(site / "search.html", 1440)
    browser.driver.get(f"{(site / 'search.html').as_uri()}?q=softmax")
    links = "[...document.querySelectorAll('#search-results li a')].map(a => a.getAttribute('href'))"
    browser.wait(f"return {links}.some(address => address.startsWith('stages.html'))")
    assert browser.console() == []


@pytest.mark.parametrize("width", [390, 1440])
def test_without_scripts_the_text_stands_there(browser, site, width):
    browser.open(site / "stages.html", width, scripts=False)
    source = browser.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": "document.body.innerText"})
    text = source["result"].get("value", "")
    for part in ("The seven stages", "def split_heads", "Seen in public code"):
        assert part in text
