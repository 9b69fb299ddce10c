"""A headless Chromium for tests of pages: overflow, requests, and contrast of texts."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from selenium.webdriver import Chrome, ChromeOptions, ChromeService

SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
OVERFLOWING = """return [...document.querySelectorAll("body *")].filter(e => {
  const box = e.getBoundingClientRect()
  return box.right > innerWidth + 0.5 && !e.matches(".skip, .scroll *")
}).map(e => e.outerHTML.slice(0, 80))"""
LOW_CONTRAST = """
  const luminance = color => {
    const [r, g, b] = color.match(/[\\d.]+/g).map(x => x / 255).map(
      c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
  }
  const behind = e => {
    const color = e ? getComputedStyle(e).backgroundColor : "rgb(255, 255, 255)"
    return color === "rgba(0, 0, 0, 0)" ? behind(e.parentElement) : color
  }
  return [...document.querySelectorAll(arguments[0])].map(e => {
    const [low, high] = [getComputedStyle(e).color, behind(e)].map(luminance).sort((x, y) => x - y)
    return [(high + 0.05) / (low + 0.05), e.outerHTML.slice(0, 80)]
  }).filter(([ratio]) => ratio < 4.5)"""
"""Finds low contrast: WCAG AA requires 4.5 between a text and its background. The argument selects the text."""


class Browser:
    """One Chromium for many pages."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def size(self, size: str) -> None:
        width, height = SIZES[size]
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def scheme(self, scheme: str) -> None:
        """Set the colour scheme, light or dark."""
        features = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", features)

    def open(self, url: str) -> None:
        self.driver.get_log("performance")
        self.driver.get(url)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def requests(self) -> list[str]:
        """The requests since the page was opened, including the page itself."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]


@contextmanager
def chromium() -> Iterator[Browser]:
    """A running Chromium. Skips the test when Debian's packages are missing."""
    program, driver_program = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver_program is None:
        pytest.skip("needs the Debian packages chromium and chromium-driver")
    options = ChromeOptions()
    options.binary_location = str(Path(program))
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # The browser leaves files in the temporary directory, also after it has quit.
    with TemporaryDirectory(prefix="anabranch-chromium-", ignore_cleanup_errors=True) as scratch:
        driver = Chrome(options, ChromeService(driver_program, env={**os.environ, "TMPDIR": scratch}))
        try:
            yield Browser(driver)
        finally:
            driver.quit()
