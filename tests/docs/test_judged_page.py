"""Exercises are judged on the page of a lesson, by Pyodide, with the words of `mha learn`."""

import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from zipfile import ZipFile

import pytest

from _data import pyodide
from _ext.lessons import judged
from _ext.lessons.course import COURSE
from mha.learn.exercise import NUMPY
from mha.learn.exercises import exercise
from mha.learn.handout.folder import answered, code_of
from mha.learn.handout.sources import answer
from mha.learn.hints import hint
from mha.learn.running.here import written
from mha.learn.running.workshop import too_long
from tests.docs.conftest import ROOT, build
from tests.mha.learn.test_in_browser import TEXTBOOK

pytestmark = [
    pytest.mark.same_on_newest,  # a page in a browser
    pytest.mark.nightly("a page judges as the command does, and stays alive whatever somebody writes"),
    pytest.mark.timeout(600),
]

SECONDS = 300.0
"""That a verdict may take on a machine that does much else."""

PAGES = {
    one.page: [name for name in (*one.exercises, *one.extra) if exercise(name).dialect == NUMPY]
    for one in COURSE
    if one.exercises or one.extra
}

FOLD = "const fold = document.querySelector(`[data-name=${arguments[0]}]`), code = fold.querySelector('textarea');"
WRITE = f"{FOLD} fold.open = true; code.value = arguments[1]; code.dispatchEvent(new Event('input'))"
PRESS = f"{FOLD} [...fold.querySelectorAll('button')].find(one => one.textContent === arguments[1]).click()"
JUDGED = f"{FOLD} return fold.querySelector('button').textContent === 'Judge' && !fold.querySelector('.said').hidden"
SAID = f"{FOLD} return [fold.querySelector('.said').dataset.status, fold.querySelector('.said').textContent]"
SEEN = f"{FOLD} return [code, ...fold.querySelectorAll('.given, button')].map(e => e.checkVisibility()).slice(0, 3)"

LOOP = "def softmax(scores):\n    while True:\n        pass\n"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None:
        """Say nothing of requests."""


@pytest.fixture(scope="module")
def judging_site(tmp_path_factory):
    """A site that was built with Pyodide, which is fetched from its registries where it is not here."""
    if not pyodide.TARGET.is_dir():
        subprocess.run([sys.executable, pyodide.__file__], check=True)
    folder = tmp_path_factory.mktemp("judging") / "site"
    done = build(ROOT / "docs", folder)
    assert done.returncode == 0, done.stderr[-5000:]
    return folder


@pytest.fixture(scope="module")
def address(judging_site):
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=judging_site))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def shown(browser, address):
    """Opens a lesson, with nothing written yet."""

    def at(page, width=1440, scheme="light", **others):
        browser.open(f"{address}/{page}.html", width, scheme, **others)
        browser.run("localStorage.clear()")
        browser.open(f"{address}/{page}.html", width, scheme, **others)
        return browser

    return at


def said(browser, name, text, button="Judge"):
    """Status and words of what the page says of a text."""
    browser.run(WRITE, name, text)
    browser.run(PRESS, name, button)
    browser.wait(JUDGED, name, seconds=SECONDS)
    return browser.run(SAID, name)


def of_command(name, text, level=1):
    with written(exercise(name), text) as folder:
        return hint(exercise(name), folder, level, "numpy").text


def test_code_is_compiled_once_and_where_nothing_can_each_browser_does(judging_site, monkeypatch):
    served = judging_site / "_judge"
    own, library = (ZipFile(served / name).namelist() for name in (judged.CODE, "python_stdlib.zip"))
    assert {"mha/learn/judge.py", "mha/learn/__pycache__/judge.cpython-312.pyc"} <= {*own}
    assert "numpy/__pycache__/__init__.cpython-312.pyc" in own
    assert ("dataclasses.pyc" in library, "dataclasses.py" in library, "turtle.py" in library) == (True, False, False)
    monkeypatch.setattr(judged.shutil, "which", lambda name: None)
    assert {*judged.made_here.__wrapped__()} == {*judged.ARCHIVES}


@pytest.mark.parametrize("page", PAGES)
def test_every_right_answer_is_right(shown, address, page):
    browser = shown(page)
    assert browser.run("return document.querySelectorAll('textarea').length") == len(PAGES[page])
    for name in PAGES[page]:
        whole = answered(exercise(name))
        status, words = said(browser, name, whole.partition('\n"""\n\n')[2])
        assert (status, words.partition("\n")[0]) == ("right", of_command(name, whole)), words
    assert browser.console() == []
    foreign = [one for one in browser.requests() if not one.startswith((address, "data:", "blob:", "about:"))]
    assert foreign == []


def test_a_wrong_answer_is_told_as_the_command_tells_it(shown):
    browser = shown("masks")
    assert said(browser, "empty-row", TEXTBOOK) == ["wrong", of_command("empty-row", TEXTBOOK)]
    for level, button in ((2, "What is wrong?"), (3, "What to change?"), (4, "Show an answer")):
        status, words = said(browser, "empty-row", TEXTBOOK, button)
        assert (status, words) == ("wrong" if level < 4 else "", of_command("empty-row", TEXTBOOK, level))
    browser.run(PRESS, "empty-row", "Start anew")
    browser.run(PRESS, "empty-row", "Judge")
    browser.wait(JUDGED, "empty-row", seconds=SECONDS)
    assert browser.run(SAID, "empty-row") == ["to do", "empty-row: to do, write/empty_row.py is as it was given out"]


def test_the_page_lives_through_a_loop_much_print_and_an_import(shown):
    browser = shown("softmax")
    browser.run(WRITE, "softmax", LOOP)
    browser.run(PRESS, "softmax", "Judge")
    browser.run("window.drawn = 0; (function draw() { drawn++; requestAnimationFrame(draw); })()")
    browser.wait(JUDGED, "softmax", seconds=SECONDS)
    assert browser.run(SAID, "softmax") == ["no answer", f"softmax: no answer, {too_long(10)}"]
    assert browser.run("return drawn") > 50
    right = f"import numpy as np\n{answer(exercise('softmax'))}\n"
    status, words = said(browser, "softmax", f"print('x' * 50_000_000)\n{right}")
    assert (status, "the first 2000 characters are kept" in words, len(words) < 2000) == ("right", True, True)
    status, words = said(browser, "softmax", f"import torch\n{right}")
    line = "softmax: no answer, importing it raised ModuleNotFoundError: No module named 'torch' (line 1)"
    assert (status, words) == ("no answer", line)
    assert said(browser, "softmax", right)[0] == "right"


def test_what_runs_can_be_stopped(shown):
    browser = shown("softmax")
    assert said(browser, "softmax", f"import numpy as np\n{answer(exercise('softmax'))}")[0] == "right"
    browser.run(WRITE, "softmax", LOOP)
    browser.run(PRESS, "softmax", "Judge")
    assert said(browser, "softmax", LOOP, "Stop") == ["no answer", "softmax: no answer, you stopped it"]


def test_the_editor_is_used_by_keys_and_keeps_its_text(shown):
    browser = shown("softmax")
    browser.run(f"{FOLD} fold.open = true; code.focus(); code.select()", "softmax")
    browser.press(*"def f(x):", "ENTER", *"return x", "ENTER", *"y", "TAB", *"z")
    text = "def f(x):\n    return x\n    y    z"
    assert browser.run(f"{FOLD} return code.value", "softmax") == text
    browser.press("ESCAPE", "TAB")
    assert browser.run("return document.activeElement.textContent") == "Judge"
    browser.driver.refresh()
    assert browser.run(f"{FOLD} return code.value", "softmax") == text


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (390, "dark"), (1440, "dark"), (1440, "light")])
def test_it_fits_and_can_be_read(shown, tmp_path, width, scheme):
    browser = shown("masks", width, scheme)
    said(browser, "empty-row", TEXTBOOK)
    said(browser, "empty-row", TEXTBOOK, "What is wrong?")
    assert browser.overflowing(".highlight, .table-wrapper, .formula, .sidebar-drawer, .toc-drawer") == []
    assert browser.low_contrasts() == {}
    browser.picture(tmp_path / f"{width}-{scheme}.png")


def test_the_editor_is_printed_as_the_code_in_it(shown):
    browser = shown("masks")
    browser.run(WRITE, "empty-row", TEXTBOOK)
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert browser.run(SEEN, "empty-row") == [False, True, False]
        assert (
            browser.run(f"{FOLD} return fold.querySelector('.given').innerText", "empty-row").strip()
            == TEXTBOOK.strip()
        )
        assert browser.run(SEEN, "causal") == [False, False, False]  # nobody opened it
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_without_scripts_and_from_disk_the_page_says_the_command(browser, judging_site, shown):
    shown("softmax")
    for page, scripts in ((judging_site / "softmax.html", True), (f"{browser.run('return location.href')}", False)):
        browser.open(page, 1440, scripts=scripts)
        browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
        browser.run("document.querySelector('[data-name=softmax]').open = true")
        text = browser.run("return document.querySelector('[data-name=softmax]').innerText")
        assert "Judge it:  mha learn check softmax" in text
        assert code_of(exercise("softmax")) in text
        assert browser.run("return document.querySelector('textarea')") is None
