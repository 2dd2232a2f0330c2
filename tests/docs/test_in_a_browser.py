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


CUT = """
const cut = [], walk = document.createTreeWalker(document.querySelector("article"), NodeFilter.SHOW_TEXT);
for (let node; (node = walk.nextNode()); ) {
  const holder = node.parentElement.closest(".phrase pre, .phrase h3, .carry[open] pre");
  if (!holder?.checkVisibility()) continue;
  for (const found of node.data.matchAll(/\\w+/g)) {
    const range = document.createRange();
    range.setStart(node, found.index);
    range.setEnd(node, found.index + found[0].length);
    if (range.getClientRects().length > 1) cut.push(found[0]);
  }
}
return cut;
"""
"""The names of code that go on in the next line."""

SHOWN = """
return [...document.querySelectorAll(".phrase, .carry")].filter(e => e.checkVisibility()).map(
  e => e.dataset.of ?? e.dataset.pairs.split(" ").filter(pair => pair === arguments[0]).join());
"""


@pytest.mark.parametrize("scripts", [True, False])
def test_no_name_is_cut_in_the_phrase_book_of_layers(scripts, browser, site):
    browser.open(site / "phrasebook-layers.html", 390, scripts=scripts)
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    browser.run("document.querySelectorAll('.carry:not([hidden])').forEach(move => { move.open = true; })")
    assert browser.run(CUT) == []
    wide = "[...document.querySelectorAll('.phrase pre, .carry pre')].filter(e => e.scrollWidth > e.clientWidth)"
    assert browser.run(f"return {wide}.length") == 0
    browser.run("document.head.insertAdjacentHTML('beforeend', '<style>pre { word-break: break-all; }</style>')")
    assert browser.run(CUT) != []


def test_two_menus_choose_what_stands_side_by_side(browser, site):
    page = site / "phrasebook-layers.html"
    browser.open(page, 1440)
    first = browser.run(SHOWN, "torch-mha/keras-mha")
    assert "torch-mha/keras-mha" in first
    assert all(set(who.split()) & {"torch-mha", "keras-mha"} for who in first if "/" not in who)
    browser.run(
        "const to = document.querySelectorAll('.phrase-menus select')[1]; to.value = 'nnx';"
        "to.dispatchEvent(new Event('change', {bubbles: true}))"
    )
    second = browser.run(SHOWN, "torch-mha/nnx")
    assert "torch-mha/nnx" in second
    assert browser.run("return document.querySelector('.phrase-menus code').innerText") == "mha phrase torch-mha nnx"
    assert browser.run("return location.hash") == "#from=torch-mha&to=nnx"
    browser.open(page, 1440, target="from=linen&to=mxnet")
    assert "linen/mxnet" in browser.run(SHOWN, "linen/mxnet")


def test_the_phrase_book_of_layers_is_one_long_page_without_scripts(browser, site):
    browser.open(site / "phrasebook-layers.html", 1440, scripts=False)
    source = browser.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": "document.body.innerText"})
    text = source["result"].get("value", "")
    for part in ("key_padding_mask=~valid", "interleaved_matmul_encdec_qk(qh", "num_kv_heads=G", "nnx.Rngs(0)"):
        assert part in text
