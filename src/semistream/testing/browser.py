"""A real browser for tests and pictures: the system's Chromium, without a window."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from semistream.core.errors import SemiStreamError

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome")


class BrowserMissingError(SemiStreamError):
    """No Chromium is installed, or nothing that drives it."""


def find_chromium() -> str:
    """The path of the system's Chromium."""
    for name in NAMES:
        found = shutil.which(name)
        if found is not None:
            return found
    raise BrowserMissingError(
        "no Chromium is installed", hint="on Debian run: sudo apt-get install chromium"
    )


@contextmanager
def chromium() -> Iterator[Browser]:
    """Chromium, driven by Playwright, until the context is left."""
    path = find_chromium()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise BrowserMissingError(
            "Playwright, which drives Chromium, is not installed", hint="pip install playwright"
        ) from error
    # Chromium's sandbox refuses to run as root, as in a container; it sees only pages of ours.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            yield browser
        finally:
            browser.close()
