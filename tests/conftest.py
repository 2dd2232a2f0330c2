"""What tests of several folders share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def browser(tmp_path_factory) -> Iterator:
    """The one browser of all tests: a `tests.browser.driver.Browser`."""
    from tests.browser.driver import Browser

    own = Browser(tmp_path_factory.mktemp("profile"))
    yield own
    own.quit()
