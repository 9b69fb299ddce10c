"""The download of the records on a page, and the filter of the messages page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pytest

from anabranch import TopicPartition
from anabranch.console import records
from anabranch.console.app import Console, ConsoleConfig
from anabranch.console.records import WantedRecords
from anabranch.console.watch import Watch
from anabranch.view.record_text import parse_json
from tests.unit.cli.fake_admin import FakeAdmin
from tests.unit.console.test_http import HOSTILE, Answer, ask

pytestmark = pytest.mark.trio
VALUES = [b'{"a": 1}', b"plain", HOSTILE.encode(), b"\xff\x00", None, b"x" * 50_000]


class Topic(FakeAdmin):
    """The records of partition 0; a fetch returns two of them."""

    values = VALUES
    fetches = 0

    async def list_offsets(self, specs: Mapping[TopicPartition, Any], **_: Any) -> Any:
        return {
            tp: SimpleNamespace(offset=len(self.values) if spec == "latest" and tp.partition == 0 else 0)
            for tp, spec in specs.items()
        }

    async def fetch(self, tp: TopicPartition, offset: int) -> Any:
        Topic.fetches += 1
        found = [
            SimpleNamespace(offset=at, timestamp=at, key=b"k%d" % at, value=value, headers=[(HOSTILE, b"\xff")])
            for at, value in list(enumerate(self.values))[offset : offset + 2]
        ]
        batch = SimpleNamespace(records=lambda: found, partition_leader_epoch=3)
        return SimpleNamespace(batches=[(batch, True)], next_offset=offset + len(found), is_end=not found)


async def get(where: str, **query: Any) -> Answer:
    admin: Any = Topic()
    app = Console(Watch(admin, admin), ConsoleConfig("localhost:9092")).app()
    return await ask(app, f"/topics/t/messages{where}?{urlencode(query)}")


async def test_a_download_has_the_shown_records_whole_and_can_be_produced_again() -> None:
    answer = await get("/download", before="0:6")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/x-ndjson")
    assert answer.headers["content-disposition"] == 'attachment; filename="t-6-records.jsonl"'
    assert answer.headers["x-content-type-options"] == "nosniff"
    lines = answer.text.splitlines()
    assert [parse_json(line.encode()).value for line in lines] == VALUES
    first = json.loads(lines[0])
    assert {name: first[name] for name in ("topic", "partition", "offset", "leader_epoch", "key")} == {
        "topic": "t", "partition": 0, "offset": 0, "leader_epoch": 3, "key": "k0",
    }  # fmt: skip


async def test_a_download_ends_at_its_limit_and_its_name_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "DOWNLOAD_BYTES", 20)
    monkeypatch.setattr(Topic, "fetches", 0)
    answer = await get("/download", before="0:6")
    assert 'filename="t-3-records-of-6.jsonl"' in answer.headers["content-disposition"]
    assert len(answer.text.splitlines()) == 3
    assert Topic.fetches == 3 + 2, "the search, and then two records a fetch up to the limit"


@pytest.mark.parametrize(
    ("query", "status", "expected"),
    [
        ({"count": "x"}, 400, "count is"),
        ({"in": "head"}, 400, "one of key or value, key, value is needed"),
        ({"from": "yesterday"}, 400, "yesterday"),
        ({"partitions": "7"}, 400, "partition 7 does not exist"),
    ],
)
async def test_a_download_that_makes_no_sense_is_a_page_with_the_reason(
    query: dict[str, str], status: int, expected: str
) -> None:
    answer = await get("/download", **query)
    assert (answer.status, expected in answer.text) == (status, True), answer.text


async def test_the_page_indents_json_escapes_names_and_links_to_its_download() -> None:
    page = (await get("")).text
    assert "{\n  &#34;a&#34;: 1\n}" in page and ">plain<" in page and HOSTILE not in page
    assert 'href="/topics/t/messages/download?before=0%3A6' in page
    assert "… 48,000 more bytes" in page, "the page cuts values, the download does not"


async def test_a_text_is_searched_in_the_key_the_value_or_both() -> None:
    for within, shown in (("key or value", ["k1", "k5"]), ("key", ["k1"]), ("value", ["k5"])):
        wanted = WantedRecords(b"1", within)
        rows = [(b"k1", b"v"), (b"k5", b"1"), (b"k6", None), (None, b"v")]
        found = [k for k, v in rows if wanted.matches(SimpleNamespace(key=k, value=v))]  # type: ignore[arg-type]
        assert found == [name.encode() for name in shown]
    keyed = WantedRecords(b"v", "value", b"k1")
    assert [keyed.matches(SimpleNamespace(key=k, value=b"v")) for k in (b"k1", b"k2")] == [True, False]  # type: ignore[arg-type]


async def test_the_records_of_a_page_are_sorted_by_its_query() -> None:
    page = (await get("", sort="-offset")).text
    assert page.index(">k5<") < page.index(">k0<") and 'aria-sort="descending"' in page
