"""The console's requests to the cluster: which are repeated, and which responses are used again."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from anabranch.console.watch import NotThereError, Watch

pytestmark = pytest.mark.trio


class Listed(NamedTuple):
    name: str


class FakeAdmin:
    """Knows topics by name, and counts the requests for all topics."""

    def __init__(self, *names: str) -> None:
        self.names, self.asked = list(names), 0

    async def list_topics(self) -> list[Listed]:
        self.asked += 1
        return [Listed(name) for name in self.names]

    async def describe_topics(self, names: list[str]) -> dict[str, Any]:
        return {name: Listed(name) for name in names}


async def test_a_topic_that_is_newer_than_the_last_answer_is_found() -> None:
    admin: Any = FakeAdmin("old")
    reader: Any = None
    watch = Watch(admin, reader)
    assert (await watch.existing_topic("old")).name == "old"
    admin.names.append("new")
    assert (await watch.existing_topic("new")).name == "new"
    assert admin.asked == 2
    assert (await watch.existing_topic("old")).name == "old"
    assert admin.asked == 2, "the response is used again"
    with pytest.raises(NotThereError, match="topic none does not exist"):
        await watch.existing_topic("none")
