"""The report page as a browser shows it: narrow and wide, light and dark, on screen and alone on this machine.

Without Chromium these tests are skipped on somebody's own machine; in CI, or with MHA_BROWSER set, they fail.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conformance.reports.html import write_html
from tests.conformance.reports.sample import CASES, sample_report

pytestmark = pytest.mark.same_on_newest  # a page in a browser

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

CONTRASTS = """
function parse(text) { return text.match(/[\\d.]+/g).map(Number); }
function background(element) {
  for (; element; element = element.parentElement) {
    const color = parse(getComputedStyle(element).backgroundColor);
    if (color.length === 3 || color[3] === 1) return color;
  }
  return [255, 255, 255];
}
function luminance(color) {
  const linear = c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const [r, g, b] = color.slice(0, 3).map(c => linear(c / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
const worst = {};
for (const element of document.body.querySelectorAll("*")) {
  if (![...element.childNodes].some(node => node.nodeType === 3 && node.data.trim())) continue;
  if (element.tagName === "SCRIPT") continue;
  const pair = [parse(getComputedStyle(element).color), background(element)].map(luminance);
  const contrast = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
  const name = element.tagName + "." + element.className;
  worst[name] = Math.min(contrast, worst[name] ?? Infinity);
}
return worst;
"""


def missing() -> str:
    """What a browser test needs and is not here; empty if all is."""
    if not any(map(shutil.which, BROWSERS)):
        return f"no browser on PATH (looked for {', '.join(BROWSERS)})"
    if not shutil.which("chromedriver"):
        return "no chromedriver on PATH"
    try:
        import selenium  # noqa: F401
    except ModuleNotFoundError:
        return "selenium is not installed; it is in the extra 'test'"
    return ""


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> Iterator:
    reason = missing()
    if reason and not (os.environ.get("CI") or os.environ.get("MHA_BROWSER")):
        pytest.skip(reason)
    assert not reason, f"{reason}; CI or MHA_BROWSER is set, so it must be there"

    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = next(filter(None, map(shutil.which, BROWSERS)))
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    yield browser
    browser.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_html(path, sample_report())
    return path


@pytest.fixture
def show(driver, page) -> Callable:
    """Opens the page at a width, in a colour scheme, at an id."""

    def at(width: int, scheme: str = "light", target: str = ""):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme_feature = {"name": "prefers-color-scheme", "value": scheme}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme_feature]})
        driver.get("about:blank")
        for kind in ("browser", "performance"):
            driver.get_log(kind)  # what earlier pages left
        driver.get(f"{page.as_uri()}#{target}")
        return driver

    return at


@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "all-open"])
@pytest.mark.parametrize("width", [360, 1600])
def test_the_page_never_scrolls_sideways(show, width, is_open):
    browser = show(width)
    if is_open:
        browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    inner, needed = browser.execute_script("return [innerWidth, document.documentElement.scrollWidth]")
    assert inner == width
    assert needed <= width
    # What is wider than the page scrolls in its own container, and nothing is cut off.
    overflowing = browser.execute_script(
        "return [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1"
        " && !e.closest('.scroll')).map(e => e.outerHTML.slice(0, 80))"
    )
    assert overflowing == []


@pytest.mark.parametrize("width", [360, 1600])
def test_every_failure_is_there_and_visible(show, width):
    browser = show(width)
    failed = [i for i, r in enumerate(sample_report()["results"]) if r["status"] in ("different", "failed")]
    seen = browser.execute_script(
        "return [...document.querySelectorAll('.failure')].filter(e => e.checkVisibility()).map(e => e.id)"
    )
    assert seen == [f"failure-{i}" for i in failed]
    assert len(seen) == 21


def test_every_link_leads_to_an_id_that_exists(show):
    browser = show(1600)
    targets = browser.execute_script("return [...document.querySelectorAll('a')].map(a => a.getAttribute('href'))")
    lost = browser.execute_script(
        "return arguments[0].filter(h => !h.startsWith('#') || !document.getElementById(h.slice(1)))", targets
    )
    assert lost == []
    assert len(browser.execute_script("return [...document.querySelectorAll('section td a')]")) == 6 * len(CASES)


def test_a_cell_of_an_equal_result_opens_its_row(show):
    browser = show(1600)
    cell = browser.execute_script("return document.querySelector('td.status-equal a')")
    target = cell.get_attribute("href").partition("#")[2]
    is_shown = "const e = document.getElementById(arguments[0]); return e.checkVisibility()"
    assert not browser.execute_script(is_shown, target), "it is in a closed <details> at first"
    browser.execute_script("arguments[0].focus(); arguments[0].click()", cell)
    in_view = (
        "const row = document.getElementById(arguments[0]), box = row.getBoundingClientRect();"
        "const around = row.closest('.scroll').getBoundingClientRect();"
        "return box.height > 0 && box.top >= Math.max(0, around.top)"
        " && box.bottom <= Math.min(innerHeight, around.bottom)"
    )
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 10).until(lambda b: b.execute_script(is_shown, target) and b.execute_script(in_view, target))


def test_a_link_from_elsewhere_opens_the_row_too(show):
    browser = show(360, target="result-0")
    assert browser.execute_script("return document.getElementById('result-0').checkVisibility()")


def test_everything_that_can_be_used_can_be_reached_by_keyboard(show):
    browser = show(1600)
    unreachable = browser.execute_script(
        "return [...document.querySelectorAll('a, summary, .scroll')].filter(e => e.tabIndex < 0).length"
    )
    assert unreachable == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(show, scheme):
    browser = show(1600, scheme)
    browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    contrasts = browser.execute_script(CONTRASTS)
    assert len(contrasts) > 20
    assert {name: value for name, value in contrasts.items() if value < 4.5} == {}
    is_dark = browser.execute_script("return getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert is_dark == (scheme == "dark")


def test_names_and_messages_stay_text(show):
    browser = show(1600)
    assert browser.title.startswith("15 of ")
    assert browser.execute_script("return document.querySelectorAll('img').length") == 0
    assert "<script>document.title='pwned'</script>" in browser.execute_script("return document.body.innerText")


def test_no_errors_and_no_requests(show, page):
    browser = show(1600)
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requests = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert requests == [page.as_uri()]


def test_no_script_but_its_own_may_run(show):
    """The content security policy holds even if something gets past the escaping."""
    browser = show(1600)
    browser.execute_script(
        "const s = document.createElement('script'); s.textContent = 'window.injected = 1'; document.body.append(s)"
    )
    assert browser.execute_script("return window.injected") is None
