"""The first pages are there in other languages: the English code, figures and exercises, with paragraphs translated."""

import re
import shutil
from collections import Counter
from html import unescape
from urllib.parse import urlsplit

import pytest
from babel.messages.pofile import read_po

from _ext.languages import ENGLISH, LANGUAGES, PAGES, SINCE
from tests.docs.conftest import ROOT, build
from tests.docs.test_in_a_browser import SCROLLING

pytestmark = pytest.mark.same_on_newest  # no framework takes part

OTHERS = [language for language in LANGUAGES if language != ENGLISH]
ALL = [(language, page) for language in OTHERS for page in PAGES]
CATALOGS = ROOT / "docs" / "locales"


def code_of(page):
    return re.findall(r"<pre.*?</pre>", page.read_text(), re.DOTALL)


def links_of(text):
    return re.findall(r'(?:href|src)="([^"]*)"', text)


@pytest.mark.parametrize(("language", "page"), ALL)
def test_a_page_says_its_language_has_the_english_code_and_leads_to_what_is_there(site, language, page):
    path = site / language / f"{page}.html"
    text = path.read_text()
    assert f'<html class="no-js" lang="{language}"' in text
    assert code_of(path) == code_of(site / f"{page}.html")
    for link in links_of(text):
        at = urlsplit(link)
        if at.scheme:
            assert at.scheme in {"https", "data"}, link  # who made the theme; parts of figures
            continue
        target = (path.parent / unescape(at.path)).resolve() if at.path else path
        assert target.is_file(), link
        if at.fragment and target.suffix == ".html":
            assert f'id="{at.fragment}"' in target.read_text(), link


@pytest.mark.parametrize("page", PAGES)
def test_a_page_leads_to_itself_in_every_language(site, page):
    for language in LANGUAGES:
        path = site / ("" if language == ENGLISH else language) / f"{page}.html"
        tags = re.findall(r"<(?:a|link)\b[^>]*hreflang[^>]*>", path.read_text())
        places = [(path.parent / links_of(tag)[0]).resolve().relative_to(site.resolve()).as_posix() for tag in tags]
        others = [f"{page}.html", *(f"{one}/{page}.html" for one in OTHERS)]
        assert places == [*others, *others]  # in the head, and to see
    assert "hreflang" not in (site / "masks.html").read_text()
    assert all(f'href="{one}/{PAGES[0]}.html"' in (site / "index.html").read_text() for one in OTHERS)


@pytest.mark.parametrize("language", OTHERS)
def test_a_translation_keeps_code_formulas_numbers_and_links(language):
    with (CATALOGS / language / "LC_MESSAGES" / "pages.po").open("rb") as file:
        messages = [message for message in read_po(file) if message.id and message.string]
    assert len(messages) > 140
    for message in messages:
        for kept in (r"(?:\{math\})?`[^`]*`", r"\]\(([^)]*)\)", r'href="([^"]*)"', r"\d+\.\d+|\([\d, ]+\)"):
            found, expected = (Counter(re.findall(kept, text)) for text in (message.string, message.id))
            assert found == expected, message.string


@pytest.mark.nightly("a changed paragraph is marked in each language", every=2)  # each is a build of its own
@pytest.mark.parametrize("language", OTHERS)
def test_a_changed_paragraph_is_marked_and_named(tmp_path, language):
    """In a copy of the site where one English paragraph reads otherwise, and which has these pages alone."""
    for folder in ("docs", "lessons"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("mha", "mha_core", "conformance", "backends"):
        (tmp_path / name).symlink_to(ROOT / name)
    start = tmp_path / "docs" / "start.md"
    start.write_text(start.read_text().replace("nothing of attention.", "and nothing of *attention*."))
    done = build(tmp_path / "docs", tmp_path / "site", "-D", f"language={language}")
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    assert line.startswith(f"{language}, start: has changed in English since it was translated: 'This course answers")
    text = (tmp_path / "site" / "start.html").read_text()
    [paragraph] = re.findall(
        r"<p[^>]*>(?:(?!</p>).)*</p>", text.partition("</h1>")[2].partition("<table")[0], re.DOTALL
    )
    assert '<p lang="en">This course answers' in paragraph
    assert f'<span class="since" lang="{language}">{SINCE[language]}</span>' in paragraph
    assert all("since" not in (tmp_path / "site" / f"{page}.html").read_text() for page in PAGES[1:])


FOUND = "return [...document.querySelectorAll('#search-results li > a')].map(e => e.getAttribute('href'))"


@pytest.mark.parametrize(
    ("language", "asked", "first"),
    [
        ("ja", "マルチヘッドアテンション", "heads-lesson.html"),
        ("ja", "注意機構", "attention.html"),
        ("ja", "遅延", "layer-in-code.html"),
        ("id", "perhatian multi-kepala", "heads-lesson.html"),
        ("id", "kueri", "attention.html"),
    ],
)
def test_a_search_finds_a_lesson_in_its_language(browser, site, language, asked, first):
    browser.open(f"{(site / language / 'search.html').as_uri()}?q={asked}", 1440)
    browser.wait(f"{FOUND}.length > 0")
    found = [link.partition("?")[0].partition("#")[0] for link in browser.run(FOUND)]
    assert first in found[:2], found


@pytest.mark.parametrize(("language", "page"), ALL)
def test_a_page_fits_can_be_read_asks_nobody_and_is_short_in_print(browser, site, language, page):
    path = site / language / f"{page}.html"
    for width, scheme in ((1440, "light"), (390, "dark")):
        browser.open(path, width, scheme)
        assert browser.overflowing(SCROLLING) == [], (width, scheme)
        assert browser.low_contrasts() == {}, (width, scheme)
        assert browser.console() == [], (width, scheme)
        asked = [address for address in browser.requests() if not address.startswith((f"file://{site}", "data:"))]
        assert [address for address in asked if address != "about:blank"] == []
    assert 1 <= browser.printed_pages() <= 6
