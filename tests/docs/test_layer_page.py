"""The page of five dialects: its rows, its numbers, and how it is read."""

import re
import shutil
from html import unescape

import pytest

from tests.docs.conftest import ROOT, build
from tests.lessons.test_plain import EXPRESSED

pytestmark = pytest.mark.same_on_newest  # the site is built with the tested set


@pytest.fixture(scope="module")
def plain(site):
    """The package behind the page, found as the build finds it."""
    import _ext.pages.parallel
    import _ext.plain.marks
    import _ext.plain.rows

    return _ext


@pytest.fixture(scope="module")
def text(site):
    return (site / "layer.html").read_text()


@pytest.mark.nightly("pages show what commands print")
def test_every_step_stands_there(plain, text):
    assert re.findall(r'id="step-(\w+)">', text) == [row.name for row in plain.plain.rows.steps()]


def test_the_code_is_that_of_the_files(plain, text):
    cells = [
        unescape(re.sub(r"<[^>]+>", "", cell))
        for cell in re.findall(r"<code>(<span class=\"line\">.*?)</code>", text, re.DOTALL)
    ]
    wanted = [cell.source for row in plain.plain.rows.steps() for cell in row.cells.values()]
    assert [cell.rstrip("\n") for cell in cells] == wanted
    assert f"each of the {EXPRESSED}\ncases" in text or f"each of the {EXPRESSED} cases" in text.replace("\n", " ")


def test_marks_are_what_another_dialect_writes_otherwise(plain):
    others = {"numpy": "x = np.where(a, 0, b)", "jax": "x = tf.where(a, 1, b)"}
    html = plain.plain.marks.to_html("x = tf.where(a, 0, b)  # no", others)
    marked = re.findall(r'<mark class="(.*?)">(.*?)</mark>', html)
    assert [(name, re.sub("<[^>]+>", "", part)) for name, part in marked] == [("from-numpy", "tf"), ("from-jax", "0")]
    assert "<mark" not in plain.plain.marks.to_html("x = 1  # one", {"numpy": "x = 1  # two"})
    both = plain.plain.marks.to_html("x = a.b", {"numpy": "x = c.b", "jax": "x = d.b"})
    assert re.findall(r"<mark .*?>", both) == ['<mark class="from-numpy from-jax">']


@pytest.fixture
def folder(tmp_path):
    """A copy of the five files, to be changed."""
    shutil.copytree(ROOT / "lessons", tmp_path / "lessons", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "lessons/plain"


def changed(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("merged", "folded", "in_tf.py: step 15 is 'folded', where in_numpy.py has 'merged'"),
        (
            "    heads = ",
            "    heads: tf.Tensor = ",
            "in_tf.py, line 36: a step assigns one name, defines a function, or returns",
        ),
        ("def multi_head_attention", "def layer", "in_tf.py has no function multi_head_attention"),
    ],
)
def test_other_rows_are_refused(plain, folder, old, new, message):
    changed(folder / "in_tf.py", old, new)
    with pytest.raises(ValueError, match=re.escape(message)):
        plain.plain.rows.steps(folder)


@pytest.mark.nightly("pages show what commands print")
def test_a_renamed_variable_stops_the_build(folder, tmp_path):
    changed(folder / "in_jax.py", "has_key", "has_a_key")
    source = tmp_path / "docs"
    source.mkdir()
    for name in ("conf.py", "_data", "_ext", "_static"):
        (source / name).symlink_to(ROOT / "docs" / name)
    (source / "index.md").write_text("# A page\n\n```{parallel}\n```\n")
    done = build(source, tmp_path / "site")
    assert done.returncode != 0
    assert "in_jax.py: step 11 is 'has_a_key', where in_numpy.py has 'has_key'" in done.stderr


SHOWN = "[...document.querySelectorAll('.parallel tr.code:nth-child(2) td')].filter(e => e.checkVisibility())"


CUT = """
const cut = [];
for (const pre of document.querySelectorAll(".parallel pre")) {
  if (!pre.checkVisibility()) continue;
  const inside = pre.getBoundingClientRect();
  for (const name of pre.querySelectorAll("span[class^=n], span[class^=k]")) {
    const boxes = name.getClientRects();
    if (boxes.length !== 1 || boxes[0].right > inside.right || boxes[0].left < inside.left) cut.push(name.textContent);
  }
}
return cut;
"""
"""Names and keywords of the code that is shown which are broken over two lines, or stick out of their box."""


@pytest.mark.parametrize("width", [390, 1440])
def test_it_begins_with_two_columns_and_no_name_is_cut(browser, site, width):
    browser.open(site / "layer.html", width)
    shown = browser.run(f"return [...new Set({SHOWN}.map(e => e.className))]")
    assert shown == ["in-numpy", "in-torch"]
    first = browser.run("return document.querySelector('.parallel tr.code').getBoundingClientRect().top")
    assert first < 900, "the first step stands on the first screen"
    assert browser.run(CUT) == []
    for name in ("tf", "jax", "mxnet"):
        browser.run(f"document.getElementById('to-{name}').click()")
        assert browser.run(CUT) == [], name
    browser.run("document.getElementById('all-five').click()")
    assert browser.run(CUT) == []


def test_five_columns_are_read_side_by_side(browser, site):
    browser.open(site / "layer.html", 1920)
    browser.run("document.getElementById('all-five').click()")
    columns = browser.run(f"return {SHOWN}.slice(0, 5).map(e => [e.className, e.getBoundingClientRect().width])")
    assert [name for name, _ in columns] == [f"in-{name}" for name in ("numpy", "torch", "tf", "jax", "mxnet")]
    assert min(width for _, width in columns) > 290
    assert browser.overflowing(".sidebar-drawer") == []


@pytest.mark.parametrize("width", [390, 1920])
def test_columns_are_chosen_by_key_without_a_script(browser, site, width):
    def evaluate(expression):
        asked = {"expression": expression, "returnByValue": True}
        return browser.driver.execute_cdp_cmd("Runtime.evaluate", asked)["result"].get("value")

    browser.open(site / "layer.html", width, scripts=False)
    boxes = f"{SHOWN}.slice(0, 2).map(e => [e.className, e.getBoundingClientRect()])"
    across = f"{boxes}.sort((a, b) => a[1].left - b[1].left || a[1].top - b[1].top).map(e => e[0]).join(' ')"
    marks = "[...document.querySelectorAll('.parallel mark')].filter(e => e.checkVisibility() "
    marks += "&& getComputedStyle(e).textDecorationLine === 'underline').map(e => e.closest('td').className)"
    assert evaluate(across) == "in-numpy in-torch"
    assert evaluate(f"[...new Set({marks})].join(' ')") == "in-torch"
    evaluate("document.getElementById('from-numpy').focus()")
    for _ in range(3):
        browser.press("ARROW_RIGHT")  # JAX
    assert evaluate(across) == "in-jax in-torch"
    assert evaluate(f"[...new Set({marks})].join(' ')") == "in-torch"
    assert evaluate("document.documentElement.scrollWidth <= innerWidth")
    tops = evaluate(f"{SHOWN}.slice(0, 2).map(e => Math.round(e.getBoundingClientRect().top))")
    assert (tops[0] == tops[1]) is (width == 1920)


def test_rows_and_columns_have_names_for_screen_readers(browser, site):
    browser.open(site / "layer.html", 1920)
    browser.run("document.getElementById('to-tf').click()")
    tree = browser.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    said = {(node["role"]["value"], node.get("name", {}).get("value", "")) for node in tree if not node["ignored"]}
    assert ("columnheader", "TensorFlow") in said
    assert any(role == "rowheader" and name.startswith("scores") for role, name in said)
    assert ("radio", "JAX") in said
