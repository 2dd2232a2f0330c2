"""The report page as a browser shows it: narrow and wide, light and dark, on screen and alone on this machine."""

from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.reports.html import write_html
from tests.browser.driver import CONTRASTS
from tests.conformance.reports.sample import CASES, sample_report

pytestmark = pytest.mark.same_on_newest  # a page in a browser


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_html(path, sample_report())
    return path


@pytest.fixture
def show(browser, page) -> Callable:
    """Opens the page at a width, in a colour scheme, at an id."""

    def at(*how, **more):
        browser.open(page, *how, **more)
        return browser

    return at


@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "all-open"])
@pytest.mark.parametrize("width", [360, 1600])
def test_the_page_never_scrolls_sideways(show, width, is_open):
    browser = show(width)
    if is_open:
        browser.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.run("return innerWidth") == width
    # What is wider than the page scrolls in its own container, and nothing is cut off.
    assert browser.overflowing() == []


@pytest.mark.parametrize("width", [360, 1600])
def test_every_failure_is_there_and_visible(show, width):
    browser = show(width)
    failed = [i for i, r in enumerate(sample_report()["results"]) if r["status"] in ("different", "failed")]
    seen = browser.run(
        "return [...document.querySelectorAll('.failure')].filter(e => e.checkVisibility()).map(e => e.id)"
    )
    assert seen == [f"failure-{i}" for i in failed]
    assert len(seen) == 21


def test_every_link_leads_to_an_id_that_exists(show):
    browser = show(1600)
    targets = browser.run("return [...document.querySelectorAll('a')].map(a => a.getAttribute('href'))")
    lost = browser.run(
        "return arguments[0].filter(h => !h.startsWith('#') || !document.getElementById(h.slice(1)))", targets
    )
    assert lost == []
    assert len(browser.run("return [...document.querySelectorAll('section td a')]")) == 6 * len(CASES)


def test_a_cell_of_an_equal_result_opens_its_row(show):
    browser = show(1600)
    cell = browser.run("return document.querySelector('td.status-equal a')")
    target = cell.get_attribute("href").partition("#")[2]
    is_shown = "const e = document.getElementById(arguments[0]); return e.checkVisibility()"
    assert not browser.run(is_shown, target), "it is in a closed <details> at first"
    browser.run("arguments[0].focus(); arguments[0].click()", cell)
    in_view = (
        "const row = document.getElementById(arguments[0]), box = row.getBoundingClientRect();"
        "const around = row.closest('.scroll').getBoundingClientRect();"
        "return box.height > 0 && box.top >= Math.max(0, around.top)"
        " && box.bottom <= Math.min(innerHeight, around.bottom)"
    )
    browser.wait(is_shown, target)
    browser.wait(in_view, target)


def test_a_link_from_elsewhere_opens_the_row_too(show):
    browser = show(360, target="result-0")
    assert browser.run("return document.getElementById('result-0').checkVisibility()")


def test_everything_that_can_be_used_can_be_reached_by_keyboard(show):
    browser = show(1600)
    unreachable = browser.run(
        "return [...document.querySelectorAll('a, summary, .scroll')].filter(e => e.tabIndex < 0).length"
    )
    assert unreachable == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(show, scheme):
    browser = show(1600, scheme)
    browser.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert len(browser.run(CONTRASTS)) > 20
    assert browser.low_contrasts() == {}
    is_dark = browser.run("return getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert is_dark == (scheme == "dark")


def test_names_and_messages_stay_text(show):
    browser = show(1600)
    assert browser.driver.title.startswith("15 of ")
    assert browser.run("return document.querySelectorAll('img').length") == 0
    assert "<script>document.title='pwned'</script>" in browser.run("return document.body.innerText")


def test_no_errors_and_no_requests(show, page):
    browser = show(1600)
    assert browser.console() == []
    assert browser.requests() == [page.as_uri()]


def test_no_script_but_its_own_may_run(show):
    """The content security policy holds even if something gets past the escaping."""
    browser = show(1600)
    browser.run(
        "const s = document.createElement('script'); s.textContent = 'window.injected = 1'; document.body.append(s)"
    )
    assert browser.run("return window.injected") is None
