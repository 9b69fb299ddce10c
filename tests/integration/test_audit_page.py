"""The audit's page in Chromium, at the width of a desktop and of a phone: nothing overflows, nothing is fetched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("jinja2", reason="the audit needs the extra [audit]")
pytest.importorskip("selenium", reason="drives Chromium")

from selenium.webdriver import ActionChains, Keys

from anabranch.audit.page import render_page
from anabranch.audit.report import Check, HotKey
from tests.support.audit.histories import report, topic, violation
from tests.support.seen.chromium import LOW_CONTRAST, OVERFLOWING, SIZES, Browser, chromium

pytestmark = pytest.mark.integration

HOSTILE = b"<script>document.title = 'run'</script><img src=http://example.com/x>" + b"\xf0\x9f\x8c\x8a" * 99
OVERLAPPING = """return [...document.querySelectorAll(".lanes, .facts, tr")].flatMap(row => {
  const boxes = [...row.children].map(e => e.getBoundingClientRect()).filter(box => box.width)
  return boxes.flatMap((one, i) => boxes.slice(i + 1).filter(other => one.left < other.right - 0.5
    && other.left < one.right - 0.5 && one.top < other.bottom - 0.5 && other.top < one.bottom - 0.5))
})"""


SCROLLING = """return [...document.querySelectorAll(".scroll")].filter(e => e.scrollWidth > e.clientWidth)
  .map(e => e.getAttribute("aria-label"))"""


class Pages:
    """Pages of the audit, one after the other, in one browser."""

    def __init__(self, browser: Browser, directory: Path) -> None:
        self._browser, self._path = browser, directory / "page.html"
        self.driver, self.run, self.requests = browser.driver, browser.run, browser.requests
        self.scheme = browser.scheme

    def open(self, page: str, size: str) -> None:
        self._browser.size(size)
        self._path.write_text(page)
        self._browser.open(self._path.as_uri())


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    with chromium() as browser:
        yield Pages(browser, tmp_path_factory.mktemp("pages"))


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
def test_the_page_fits_the_screen_and_loads_nothing_else(browser: Pages, kind: str, size: str) -> None:
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
def test_the_first_screen_answers_where_the_order_broke(browser: Pages, size: str) -> None:
    browser.open(page_of("broken"), size)
    bottom = "return document.querySelector(arguments[0]).getBoundingClientRect().bottom <= innerHeight"
    for selector in ("h1", ".places li"):
        assert browser.driver.execute_script(bottom, selector), selector


def test_everything_is_reached_by_keyboard(browser: Pages) -> None:
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


def test_light_and_dark_have_enough_contrast(browser: Pages) -> None:
    text = "h1, p, dt, a, b, small, .mark, .muted, .about, .cell span, td, th, li"
    for scheme in ("light", "dark"):
        browser.scheme(scheme)
        browser.open(page_of("broken"), "desktop")
        assert browser.run(LOW_CONTRAST, text) == [], scheme
