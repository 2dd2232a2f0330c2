"""What tests of several folders share; and `pytest --cost FILE`, which says how much processor time each test takes."""

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cost",
        type=Path,
        metavar="FILE",
        help="append a line for each test: the processor seconds that it and its fixtures took in this process, those"
        " of processes that ended meanwhile, and its name. What else the machine does changes them less than times",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    path = item.config.getoption("--cost")
    before = os.times()
    done = yield
    if path is not None:
        spent = [after - at for after, at in zip(os.times(), before, strict=True)]  # ours, then that of children
        with path.open("a") as file:  # a line at once: workers of xdist share the file
            file.write(f"{spent[0] + spent[1]:8.2f} {spent[2] + spent[3]:8.2f} {item.nodeid}\n")
    return done


@pytest.fixture(scope="session")
def browser(tmp_path_factory) -> Iterator:
    """The one browser of all tests: a `tests.browser.driver.Browser`."""
    from tests.browser.driver import Browser

    own = Browser(tmp_path_factory.mktemp("profile"))
    yield own
    own.quit()
