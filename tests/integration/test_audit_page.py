"""The audit's page in Chromium, as wide as a desktop and as a phone: nothing overflows, nothing is fetched."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jinja2", reason="the audit needs the extra [audit]")
pytest.importorskip("selenium", reason="drives Chromium")

from selenium.webdriver import ActionChains, Chrome, ChromeOptions, ChromeService, Keys

from anabranch.audit.page import render_page
from anabranch.audit.report import Check, HotKey
from tests.audit_histories import report, topic, violation

pytestmark = pytest.mark.integration

SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
HOSTILE = b"<script>document.title = 'run'</script><img src=http://example.com/x>" + b"\xf0\x9f\x8c\x8a" * 99
OVERFLOWING = """return [...document.querySelectorAll("body *")].filter(e => {
  const box = e.getBoundingClientRect()
  return box.right > innerWidth + 0.5 && !e.matches(".skip, .scroll *")
}).map(e => e.outerHTML.slice(0, 80))"""
OVERLAPPING = """return [...document.querySelectorAll(".lanes, .facts, tr")].flatMap(row => {
  const boxes = [...row.children].map(e => e.getBoundingClientRect()).filter(box => box.width)
  return boxes.flatMap((one, i) => boxes.slice(i + 1).filter(other => one.left < other.right - 0.5
    && other.left < one.right - 0.5 && one.top < other.bottom - 0.5 && other.top < one.bottom - 0.5))
})"""


SCROLLING = """return [...document.querySelectorAll(".scroll")].filter(e => e.scrollWidth > e.clientWidth)
  .map(e => e.getAttribute("aria-label"))"""


class Browser:
    """One Chromium for all pages."""

    def __init__(self, driver: Chrome, directory: Path) -> None:
        self.driver, self._directory = driver, directory

    def open(self, page: str, size: str) -> None:
        width, height = SIZES[size]
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        path = self._directory / "page.html"
        path.write_text(page)
        self.driver.get_log("performance")
        self.driver.get(path.as_uri())

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def requests(self) -> list[str]:
        """What was asked for since the page was opened, itself included."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        pytest.skip("needs the Debian packages chromium and chromium-driver")
    options = ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options, ChromeService(chromedriver))
    yield Browser(driver, tmp_path_factory.mktemp("pages"))
    driver.quit()


def page_of(kind: str) -> str:
    if kind == "whole":
        manifests, checks = [topic([4, 6, 9, 6, 4, 8, 4])], [Check("key order", 1000), Check("crc", 100)]
    elif kind == "broken":
        manifests = [topic([4, 6, 4], "a_topic.with_a_long_name" * 9)]
        found = [violation(4, n, HOSTILE.decode(), manifests[0].topic) for n in range(10)]
        checks = [Check("key order", 1000, 12_345, found), Check("placement", 0, unknown="the layout is not known")]
    else:
        manifests, checks = [topic([10, 10_000, 9_000]), topic([3], "other")], [Check("key order", 10**12)]
    name = manifests[0].topic
    keys = [HotKey(name, HOSTILE, 10**12), *(HotKey(name, b"key-%d" % n, 9) for n in range(9))]
    found = report(manifests, checks, keys)
    return render_page(found, manifests)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["whole", "broken", "large"])
def test_the_page_fits_and_stands_alone(browser: Browser, kind: str, size: str) -> None:
    browser.open(page_of(kind), size)
    browser.run("document.querySelectorAll('details').forEach(e => { e.open = true })")
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    assert browser.run(OVERFLOWING) == []
    assert browser.run(OVERLAPPING) == []
    assert browser.run(SCROLLING) == []
    assert [url.rpartition("/")[2] for url in browser.requests()] == ["page.html"]
    assert browser.driver.get_log("browser") == []
    assert "anabranch audit" in browser.driver.title, "no script of a key has run"


@pytest.mark.parametrize("size", SIZES)
def test_the_first_screen_answers_where_the_order_broke(browser: Browser, size: str) -> None:
    browser.open(page_of("broken"), size)
    bottom = "return document.querySelector(arguments[0]).getBoundingClientRect().bottom <= innerHeight"
    for selector in ("h1", ".places li"):
        assert browser.driver.execute_script(bottom, selector), selector


def test_everything_is_reached_by_keyboard(browser: Browser) -> None:
    browser.open(page_of("whole"), "desktop")
    wanted = browser.run("return document.querySelectorAll('a[href], summary, .scroll').length")
    assert wanted > 10
    reached = set()
    for _ in range(wanted):
        ActionChains(browser.driver).send_keys(Keys.TAB).perform()
        focused = browser.driver.switch_to.active_element
        if focused.tag_name == "summary":
            focused.send_keys(Keys.ENTER)
            assert browser.run("return document.querySelector('details').open")
        reached.add(focused.id)
    assert len(reached) == wanted


def test_light_and_dark_have_enough_contrast(browser: Browser) -> None:
    """WCAG AA asks for 4.5 between text and what is behind it."""
    contrast = """
      const luminance = color => {
        const [r, g, b] = color.match(/[\\d.]+/g).map(x => x / 255).map(
          c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b
      }
      const behind = e => {
        const color = getComputedStyle(e).backgroundColor
        return color === "rgba(0, 0, 0, 0)" ? behind(e.parentElement) : color
      }
      const text = "h1, p, dt, a, b, small, .mark, .muted, .about, .cell span, td, th, li"
      return [...document.querySelectorAll(text)].map(e => {
        const [low, high] = [getComputedStyle(e).color, behind(e)].map(luminance).sort((x, y) => x - y)
        return [(high + 0.05) / (low + 0.05), e.outerHTML.slice(0, 80)]
      }).filter(([ratio]) => ratio < 4.5)"""
    for scheme in ("light", "dark"):
        features = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", features)
        browser.open(page_of("broken"), "desktop")
        assert browser.run(contrast) == [], scheme
