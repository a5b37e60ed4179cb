"""A browser for the whole run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from semistream.testing.browser import BrowserMissingError, chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium; where it is not installed, the tests that need it are skipped."""
    try:
        with chromium() as opened:
            yield opened
    except BrowserMissingError as error:
        pytest.skip(str(error))
