"""The audit's page escapes all foreign text, fetches nothing, and reports what it leaves out."""

from __future__ import annotations

import dataclasses
from html.parser import HTMLParser

import pytest

from anabranch.audit.history import PageLimits, topic_history
from anabranch.audit.page import compact, lines, render_page, shown, size_text, time_text, verdict
from anabranch.audit.report import Check, HotKey
from tests.support.audit.histories import report, topic, violation

HOSTILE = """"'><script>alert(1)</script><img src=http://example.com/x onerror=alert(2)>{{ 7 * 7 }}<!--"""
VOID = {"meta", "link", "br", "wbr", "img", "path"}


class Page(HTMLParser):
    """Collects tags with their attributes and the text between them; fails on tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag in VOID or self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] != "style":
            self.text += data


def hostile_page() -> Page:
    manifest = topic([2, 3], HOSTILE)
    checks = [
        Check("key order", 10, 2, [violation(2, 7, HOSTILE, HOSTILE)]),
        Check("crc", 10, unknown=HOSTILE, promise=HOSTILE),
    ]
    keys = [HotKey(HOSTILE, HOSTILE.encode(), 9), HotKey(HOSTILE, b"\xff\x00\xe2\x80\xae", 8)]
    found = dataclasses.replace(report([manifest], checks, keys), directory=HOSTILE)
    return Page(render_page(found, [manifest]))


def test_html_in_keys_and_names_is_shown_as_text() -> None:
    page = hostile_page()
    tags = {tag for tag, _ in page.tags}
    assert tags.isdisjoint({"script", "img", "iframe", "object", "form"}), tags
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert page.text.count("<script>alert(1)</script>") >= 5, "in the topic, key, message, file and directory"
    assert "{{ 7 * 7 }}" in page.text
    assert "\\xff\\x00\\u202e" in page.text


def test_nothing_is_fetched_and_no_script_may_run() -> None:
    page = hostile_page()
    targets = [
        value or "" for _, attributes in page.tags for name, value in attributes.items() if name in ("href", "src")
    ]
    assert targets and all(target.startswith("#") or target == "data:," for target in targets)
    identifiers = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    assert {target[1:] for target in targets if target.startswith("#")} <= identifiers
    policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and "default-src 'none'" in policy and "script-src" not in policy


@pytest.mark.parametrize(
    ("checks", "tone", "title"),
    [
        ([Check("key order", 5), Check("crc", 5)], "ok", "Every key is in order"),
        ([Check("key order", 0, unknown="no order-by"), Check("crc", 5)], "unknown", "order of keys was not decided"),
        ([Check("key order", 5, unknown="1 batch")], "unknown", "order of keys was not decided"),
        ([Check("crc", 5)], "unknown", "order of keys was not decided"),
        ([Check("key order", 5, 1, [violation(0, 1)])], "bad", "Keys are out of order at 1 place"),
        ([Check("crc", 5, 3), Check("key order", 5, 1200)], "bad", "Keys are out of order at 1,200 places"),
        ([Check("key order", 5), Check("crc", 5, 3)], "bad", "1 check found violations: crc"),
    ],
)
def test_the_verdict_answers_whether_the_order_is_kept(checks: list[Check], tone: str, title: str) -> None:
    found = verdict(report([topic([2])], checks))
    assert found.tone == tone
    assert title in found.title


def test_the_first_screen_names_where_the_order_broke() -> None:
    manifest = topic([2, 3])
    checks = [Check("crc", 5, 1, [violation(1, 9, "CRC")]), Check("key order", 5, 1, [violation(2, 7, "3 after 7")])]
    text = Page(render_page(report([manifest], checks), [manifest])).text
    first = text[: text.index("Checks decided")]
    assert "3 after 7" in first and "partition 2, offset 7" in first and "byte 4,096" in first
    assert first.index("3 after 7") < first.index("CRC")


def test_undecided_checks_are_reported_first() -> None:
    manifest = topic([2])
    checks = [Check("key order", 5), Check("placement", 0, unknown="the layout is not known")]
    text = Page(render_page(report([manifest], checks), [manifest])).text
    assert "1 of 2" in text[: text.index("How events")]
    assert "the layout is not known" in text[: text.index("How events")]


def test_each_omission_names_the_option_that_shows_it() -> None:
    manifests = [topic([2, 40, 2, 40], "large"), *(topic([1], f"topic-{n}") for n in range(4))]
    checks = [Check("crc", 1000, 1234, [violation(0, 1, name="large")])]
    found = report(manifests, checks)
    text = Page(render_page(found, manifests, PageLimits(lanes=4, rows=3))).text
    for sentence in (
        "The first 1 of 1,234 are named. --first",
        "Checked and not shown: 2 further topics. --html-rows",
        "Not shown: 1 earlier layout. --html-rows",
        "A box stands for 10 partitions from its number on. --html-lanes",
        "Not shown: 31 further merges. --html-rows",
        "37 more",
        "Not shown: 81 further leader epochs. --html-rows",
    ):
        assert sentence in " ".join(text.split()), sentence


def test_the_size_of_a_page_is_bounded() -> None:
    """The limit is the same for a topic with 4,000 partitions as for one with 400."""
    small, large = topic([4, 400, 4]), topic([4, 4000, 4])
    sizes = [len(render_page(report([manifest]), [manifest])) for manifest in (small, large)]
    assert sizes[1] < 1.1 * sizes[0] < 300_000


def test_lines_between_layouts_show_splits_and_merges() -> None:
    manifest = topic([1, 2, 1])
    grown, shrunk = topic_history(manifest, report([manifest])).changes
    assert [(line.kind, line.path) for line in lines(grown)] == [
        ("stays", "M5 0V40"),
        ("split", "M5 0C5 20 15 20 15 40"),
    ]
    assert [(line.kind, line.path) for line in lines(shrunk)] == [
        ("stays", "M5 0V40"),
        ("merge", "M15 0C15 20 5 20 5 40"),
    ]


def test_numbers_sizes_and_times_are_formatted_for_people() -> None:
    assert [compact(n) for n in (0, 999, 1000, 1234, 34_567, 999_499, 999_999, 1_234_567, 10**13)] == [
        "0", "999", "1k", "1.2k", "34.6k", "999k", "1M", "1.2M", "10T"
    ]  # fmt: skip
    assert [size_text(n) for n in (0, 999, 1000, 123_456, 10**12)] == [
        "0\u00a0B", "999\u00a0B", "1\u00a0KB", "123\u00a0KB", "1\u00a0TB"
    ]  # fmt: skip
    assert time_text(1_700_000_000_123) == "2023-11-14 22:13:20.123"
    assert time_text(-1) == time_text(None) == "without a time"
    assert time_text(2**62) == f"{2**62} ms"
    assert shown("x" * 90, 80) == "x" * 80 + "… (10 more characters)"
    assert shown("a\x1b[31m\u200b\ud800") == "a\\x1b[31m\\u200b\\ud800"
