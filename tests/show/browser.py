"""Debian's Chromium, for the tests of pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

CHROMIUM = shutil.which("chromium")
PHONE, NARROW, DESKTOP = (390, 844), (420, 900), (1280, 800)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Give Debian's Chromium: one worker runs the tests that use it (`tests.schedule`)."""
    if CHROMIUM is None:
        pytest.skip("there is no chromium (apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()
