"""The page of `mha view` as a browser shows it: what it says is what NumPy says, by pointer and by keys."""

import re

import numpy as np
import pytest

from conformance.bounds.precision import Precision
from conformance.judging.expected import answer
from mha.view.data import Sources, see
from mha.view.labels import Labels
from mha.view.page import About, write_page
from mha.view.plan import plan
from mha_core.backend import load
from tests.mha.view.sample import TOKENS, perturbed, two_layers

pytestmark = pytest.mark.same_on_newest  # a page in a browser

READY = "return document.documentElement.dataset.ready"
MINUS = "\N{MINUS SIGN}"

FOCUS = "return document.activeElement.getAttribute('aria-label')"

MOVE = """
document.querySelector(`#grid button[data-layer="${arguments[0]}"][data-slot="${arguments[1]}"]`).click();
const box = document.getElementById("cells").getBoundingClientRect();
const [rows, columns] = [7, 7], width = (box.width - 2) / columns, height = (box.height - 2) / rows;
const where = {
  clientX: box.left + 1 + (arguments[3] + 0.5) * width, clientY: box.top + 1 + (arguments[2] + 0.5) * height,
  bubbles: true,
};
document.getElementById("cells").dispatchEvent(new MouseEvent("mousemove", where));
return document.getElementById("readout").textContent;
"""

CHOOSE = """
const select = document.getElementById(arguments[0]);
select.value = arguments[1];
select.dispatchEvent(new Event("change", { bubbles: true }));
"""


@pytest.fixture(scope="module")
def frameworks(backend_names):
    """Two backends; one and the same where only one is under test."""
    return tuple(
        load(name) for name in (["torch", "jax"] if {"torch", "jax"} <= {*backend_names} else backend_names)[:2]
    )


def page_of(recording, folder, sources):
    parts = plan(recording)
    path = folder / "view.html"
    labels = Labels(parts, recording.tokens, "tokens")
    write_page(path, see(recording, parts, sources), About("mine", "mine 1.0"), sources, labels)
    return path


@pytest.fixture(scope="module")
def page(tmp_path_factory, frameworks):
    return page_of(two_layers(), tmp_path_factory.mktemp("view"), Sources(frameworks))


@pytest.fixture
def shown(browser, page):
    """Opens the page at a width, in a colour scheme."""

    def at(width=1400, scheme="light"):
        browser.open(page, width, scheme)
        browser.wait(READY)
        return browser

    return at


def number(text):
    return float(text.replace(MINUS, "-"))


def test_fifty_cells_say_what_numpy_says(shown, frameworks):
    browser, recording = shown(), two_layers()
    if len(frameworks) < 2:
        pytest.skip("one framework is under test: there is no difference to show")
    rng, checked = np.random.default_rng(0), 0
    for layer, item in [(0, 0), (0, 1), (1, 0), (1, 1)]:
        browser.run(CHOOSE, "sheet", str(item))
        problem = recording.problems[layer]
        wanted = answer(problem, Precision.of("float32"))
        one, other = (
            backend.prepare(problem.config, problem.weights, dtype="float32")(wanted.problem.inputs).weights[item]
            for backend in frameworks
        )
        allowed = sum(
            answer(
                problem, Precision.of("float32").with_kernel(backend.softmax_kernel("cpu", backend.paths()[0]))
            ).allowed_error["weights"][item]
            for backend in frameworks
        )
        for _ in range(13):
            head, q, k = (int(rng.integers(size)) for size in one.shape)
            said = browser.run(MOVE, layer, head, q, k)
            query, key = TOKENS.keys[item][q], TOKENS.keys[item][k]
            assert said.startswith(f"query “{query}” ({q}) to key “{key}” ({k}): "), said
            if not wanted.where[item, head, q, k]:
                assert said.endswith("may not attend")
                continue
            about, weight, share = re.search(r"\): (about )?(\S+) .*; \w+ differs by (\S+)", said).groups()
            assert bool(about) == (0 < number(weight) < 6.2e-5)
            tolerance = {"abs": 1e-7, "rel": 0.5} if number(weight) < 6.2e-5 else {"rel": 6e-3}
            assert number(weight) == pytest.approx(one[head, q, k], **tolerance)
            difference = float(other[head, q, k]) - float(one[head, q, k])
            exact = difference / allowed[head, q, k] if difference else 0.0
            assert number(share) == pytest.approx(np.sign(exact) * max(abs(exact), 1e-3 * bool(exact)), rel=0.15)
            checked += 1
    assert checked >= 30


def test_it_opens_with_its_first_head_and_its_text(shown):
    """Nothing has been clicked: the head has its name, its words stand there, and the page is at its top."""
    browser = shown()
    assert browser.run("return document.getElementById('head-title').textContent").startswith("Layer 0 head 0")
    assert browser.run("return document.getElementById('cells').checkVisibility() && scrollY === 0")
    assert browser.run("return document.getElementById('text').innerText") == f"Text: {' '.join(TOKENS.keys[0])}"
    assert browser.run("return document.activeElement === document.body")
    browser.run(CHOOSE, "sheet", "1")
    assert browser.run("return document.getElementById('text').innerText") == f"Text: {' '.join(TOKENS.keys[1])}"


def test_the_measures_of_every_head_are_in_its_name(shown):
    browser, recording = shown(), two_layers()
    names = browser.run("return [...document.querySelectorAll('#grid button')].map(b => b.getAttribute('aria-label'))")
    assert len(names) == 7
    assert names[3].startswith("layer 1 head 0, key head 0, entropy ")
    weights = answer(recording.problems[0], Precision.of("float32")).trace.weights[0, 2]
    entropy = -(weights * np.log2(weights)).sum(axis=-1).mean()
    assert number(re.search(r"layer 0 head 2, entropy ([\d.]+),", names[2])[1]) == pytest.approx(entropy, rel=6e-3)


def test_the_grid_is_one_stop_and_arrows_walk_it(shown):
    browser = shown()
    stops = "return [...document.querySelectorAll('#grid button')].filter(b => b.tabIndex === 0).length"
    assert browser.run(stops) == 1
    browser.run("document.querySelector('#grid button[tabindex=\"0\"]').focus()")
    walk = {
        "ARROW_RIGHT": "layer 0 head 1,", "ARROW_DOWN": "layer 1 head 1,", "END": "layer 1 head 3,",
        "ARROW_UP": "layer 0 head 2,", "ARROW_LEFT": "layer 0 head 1,", "HOME": "layer 0 head 0,",
    }  # fmt: skip
    for key, name in walk.items():
        browser.press(key)
        assert browser.run(FOCUS).startswith(name), key
        assert browser.run(stops) == 1
    browser.press("ARROW_RIGHT", "ENTER")
    assert browser.run("return document.activeElement.textContent") == "Layer 0 head 1"
    browser.press("TAB")
    assert browser.run("return document.activeElement.id") == "matrix"
    browser.press("ARROW_DOWN", "ARROW_DOWN", "ARROW_RIGHT")
    assert "(2) to key “the” (1)" in browser.run("return document.getElementById('readout').textContent")
    browser.press("ENTER")
    assert browser.run("return document.activeElement.id") == "pair-title"
    products = browser.run(
        "return [...document.querySelectorAll('#channels tbody tr')].map(r => r.cells[3].textContent)"
    )
    trace = answer(two_layers().problems[0], Precision.of("float32")).trace
    np.testing.assert_allclose(
        [number(one) for one in products], trace.queries[0, 1, 2] * trace.keys[0, 1, 1], rtol=0.05, atol=0.04
    )


def test_differences_are_told_by_number_and_sign(shown, frameworks):
    browser = shown()
    browser.run(CHOOSE, "mode", "shares")
    values = browser.run("return [...document.querySelectorAll('#grid .value')].map(e => e.textContent)")
    assert all(re.fullmatch(rf"0|[+{MINUS}][\d.e-]+", value) for value in values), values
    browser.run("document.querySelector('#grid button').click()")
    title, first = browser.run(
        "return [document.getElementById('table-title').textContent,"
        " document.querySelector('#strongest tbody button').textContent]"
    )
    assert title.startswith(f"Largest differences: {frameworks[-1].name} minus")
    assert re.search(rf" (0 \(the same bits\)|[+{MINUS}][\d.]+( or less)?)$", first), first


def test_a_script_as_a_token_stays_text(shown):
    browser = shown()
    browser.run("document.querySelector('#grid button').click()")
    assert browser.driver.title == "Attention heads of mine"
    assert "<script>document.title='pwned'</script>" in browser.run("return document.body.innerText")
    assert "&lt;" in browser.run("return document.body.innerText")
    browser.run(
        "const s = document.createElement('script'); s.textContent = 'window.injected = 1'; document.body.append(s)"
    )
    assert browser.run("return window.injected") is None


def test_it_asks_for_nothing(shown, page):
    browser = shown()
    browser.run("document.querySelector('#grid button').click()")
    assert browser.console() == []
    assert browser.requests() == [page.as_uri()]


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (390, "dark"), (1400, "dark"), (1400, "light")])
def test_it_fits_and_can_be_read(shown, width, scheme):
    browser = shown(width, scheme)
    browser.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    browser.run(MOVE, 1, 2, 3, 1)
    browser.run("document.getElementById('matrix').focus()")
    browser.press("ENTER")
    assert browser.run("return !document.getElementById('pair').hidden")
    assert browser.overflowing() == []
    assert browser.low_contrasts() == {}


def test_without_scripts_the_measures_can_be_read(browser, page):
    browser.open(page, 1400, scripts=False)
    text = browser.run("return document.body.innerText")
    assert "What you see is what the layers used" in text
    assert "Without scripts" in text
    values = browser.run("return [...document.querySelectorAll('#grid .value')].map(e => Number(e.textContent))")
    assert len(values) == 7
    assert all(0 < value < 3 for value in values)


def test_a_wrong_recording_is_said_on_top(browser, tmp_path):
    browser.open(page_of(perturbed(two_layers()), tmp_path, Sources()), 1400)
    browser.wait(READY)
    verdict = browser.run("return document.getElementById('verdict').textContent")
    assert verdict.startswith("✗ What you see is NOT what the layers used: in 1 of 2 layers")
    assert "got" in browser.run("return document.querySelector('details').innerText")
