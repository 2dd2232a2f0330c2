"""The site as a browser shows it from disk: narrow and wide, light and dark, with scripts and without."""

import re

import pytest

from _ext.lessons.course import COURSE
from _ext.pages import traps
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
    browser.driver.get((site / "layers.html").as_uri())
    browser.wait(f"{shown.replace('return ', 'return (')}).every(name => name === 'JAX')")
    browser.run("localStorage.clear(); sessionStorage.clear()")


def test_tabs_are_chosen_by_keys(browser, site):
    browser.open(site / "stages.html", 1440)
    browser.run("document.querySelector('.sd-tab-set > input').focus()")
    browser.press("ARROW_RIGHT")
    assert browser.run("return document.querySelector('.sd-tab-set > input:checked + label').innerText") == "TensorFlow"
    browser.run("localStorage.clear(); sessionStorage.clear()")


def test_ten_worst_traps_lead_to_their_cards(browser, site):
    browser.open(site / "traps.html", 1440)
    links = browser.run(
        "return [...document.querySelectorAll('#ten-worst-first ol a')].map(a => a.getAttribute('href'))"
    )
    assert links == [f"#{one}" for one in traps.WORST]
    assert len(links) == 10
    assert browser.run("return arguments[0].every(link => document.querySelector(link))", links)


def test_print_shows_the_chosen_framework_and_predictions(browser, site):
    browser.open(site / "softmax.html", 1440)
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        hidden = "return [...document.querySelectorAll(arguments[0])].filter(e => !e.checkVisibility()).length"
        shown = "input:checked + label, input:checked + label + .sd-tab-content"
        for part in (shown, "details .sd-card-text, details p"):
            assert browser.run("return document.querySelectorAll(arguments[0]).length", part) > 0, part
            assert browser.run(hidden, part) == 0, part
        assert not browser.run("return document.querySelector('.skip-to-content').checkVisibility()")
        sets = browser.run("return document.querySelectorAll('.sd-tab-set').length")
        assert browser.run(hidden, ".sd-tab-content") == 4 * sets, "one of five"
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


@pytest.mark.parametrize("page", [lesson.page for lesson in COURSE])
def test_a_lesson_is_six_printed_pages_at_most(browser, site, page):
    browser.open(site / f"{page}.html", 1440)
    assert 1 <= browser.printed_pages() <= 6


def test_lessons_have_their_numbers_in_the_sidebar(browser, site):
    browser.open(site / "start.html", 1440)
    style = "return [...document.querySelectorAll('.sidebar-tree > ul:first-of-type > li > a')]"
    found = browser.run(style + ".map(e => getComputedStyle(e, '::before').content)")
    assert [one.startswith("counter(lesson)") for one in found] == [False, *[True] * len(COURSE)]


def figures(browser, site, page):
    """The figures of a page that are drawn, with their sizes."""
    browser.open(site / f"{page}.html", 390)
    return browser.run(
        "return [...document.querySelectorAll('figure svg')]"
        ".map(e => [e.getAttribute('aria-label'), e.getBoundingClientRect().height])"
    )


@pytest.mark.parametrize("page", [lesson.page for lesson in COURSE])
def test_a_lesson_has_its_figure_and_leads_on(browser, site, page):
    found = figures(browser, site, page)
    assert len(found) == 1
    assert all(label and height > 100 for label, height in found)
    following = [*(lesson.page for lesson in COURSE), "view"]
    if page != "own-heads":
        onward = f"a[href='{following[following.index(page) + 1]}.html']"
        last = "#exercises" if next(one for one in COURSE if one.page == page).exercises else "#in-short"
        assert browser.run("return document.querySelector(arguments[0])", f"{last} {onward}")


def test_the_first_page_says_where_to_start(browser, site):
    browser.open(site / "index.html", 390)
    card = "document.querySelector('.sd-row .sd-card')"
    link = f"return {card}.innerText + {card}.querySelector('a').href"
    assert re.fullmatch(r"Start here\s.*start\.html", browser.run(link), re.DOTALL)
    first = "return document.querySelector('.sidebar-tree a').getAttribute('href')"
    assert browser.run(first) == "start.html"


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
  const holder = node.parentElement.closest(".phrase pre, .phrase h4, .carry[open] pre");
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


@pytest.mark.parametrize("scripts", [True, False])
def test_no_name_is_cut_in_the_phrase_book_of_layers(scripts, browser, site):
    browser.open(site / "phrasebook.html", 390, scripts=scripts)
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    browser.run("document.querySelectorAll('.carry:not([hidden])').forEach(move => { move.open = true; })")
    assert browser.run(CUT) == []
    wide = "[...document.querySelectorAll('.phrase pre, .carry pre')].filter(e => e.scrollWidth > e.clientWidth)"
    assert browser.run(f"return {wide}.length") == 0
    browser.run("document.head.insertAdjacentHTML('beforeend', '<style>pre { word-break: break-all; }</style>')")
    assert browser.run(CUT) != []


def test_the_phrase_book_of_layers_is_one_long_page_without_scripts(browser, site):
    browser.open(site / "phrasebook.html", 1440, scripts=False)
    source = browser.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": "document.body.innerText"})
    text = source["result"].get("value", "")
    for part in ("key_padding_mask=~valid", "interleaved_matmul_encdec_qk(qh", "num_kv_heads=G", "nnx.Rngs(0)"):
        assert part in text
