"""The site is whole: every page stands in it, nothing on it asks another host, and it is built alike each time."""

import fnmatch
import re
from pathlib import Path

import pytest

from tests.docs.conftest import ROOT, build

pytestmark = pytest.mark.same_on_newest  # no framework takes part

LARGEST_PAGE = 300_000
"""Bytes of one page."""

PAGES = sorted(path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md"))


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_page_stands_in_the_toctree():
    lists = re.findall(r"^```\{toctree\}\n(.*?)^```", (ROOT / "docs/index.md").read_text(), re.DOTALL | re.MULTILINE)
    entries = [line for block in lists for line in block.splitlines() if line and not line.startswith(":")]
    pages = [str(page.with_suffix("")) for page in PAGES if str(page) != "index.md"]
    assert sorted(page for entry in entries for page in fnmatch.filter(pages, entry) or [entry]) == sorted(pages)


def test_pages_are_small_and_ask_no_other_host(site):
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert len(text.encode()) <= LARGEST_PAGE, page.name
        # What a browser loads by itself; a link that is followed by a person may lead anywhere.
        for tag in re.findall(r"<(?:script|img|iframe|source|link|object|embed)\b[^>]*>", text):
            assert not re.search(r"""(?:src|href|data)=["'](?:https?:)?//""", tag), f"{page.name}: {tag}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*['\"]?(?:https?:)?//", sheet.read_text()), sheet.name


@pytest.mark.nightly("the site is the same from the same sources")
def test_the_second_build_gives_the_same_bytes(tmp_path):
    """Both are built here: between that of all tests and a second one, Pyodide may have come, which pages hold then."""
    for name in ("first", "again"):
        done = build(ROOT / "docs", tmp_path / name)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [f"The site is there: open {tmp_path / name / 'index.html'}"]
    first, again = files(tmp_path / "first"), files(tmp_path / "again")
    assert sorted(first) == sorted(again)
    assert [name for name in first if first[name] != again[name]] == []


GONE = {
    "symbol": ("```{symbols} ops/heads.py split_headz\n```", "Object named 'split_headz' not found in include file"),
    "page": ("[there](nowhere.md)", "nowhere.md"),
    "formula": ("```{math}\n\\nonsense{x}\n```", r"no MathML of '\\nonsense{x}'"),
}
"""A page that names a symbol of a backend, a page or a command of a formula that is not there; and what is said."""


@pytest.mark.nightly("pages show what commands print")
def test_what_is_gone_stops_the_build(tmp_path):
    """One build meets all of them: each is a warning of its page, and with `-W` any warning stops it."""
    source = tmp_path / "docs"
    source.mkdir()
    (tmp_path / "backends").symlink_to(ROOT / "backends")
    for name in ("conf.py", "_data", "_ext", "_static", "_templates"):
        (source / name).symlink_to(ROOT / "docs" / name)
    for name, (page, _) in GONE.items():
        (source / f"{name}.md").write_text(f"# A page\n\n{page}\n")
    (source / "index.md").write_text("# All\n\n```{toctree}\n" + "\n".join(GONE) + "\n```\n")
    done = build(source, tmp_path / "site")
    assert done.returncode == 1
    for name, (_, message) in GONE.items():
        said = [line for line in done.stderr.splitlines() if line.startswith(f"{source}/{name}.md") and message in line]
        assert said, (name, done.stderr)
        assert all(": WARNING: " in line for line in said), said
