"""The console's requests to the cluster: which are repeated, and which responses are used again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import trio
from trio.testing import MockClock

from anabranch.console import watch as watch_module
from anabranch.console.history import STEP_S
from anabranch.console.watch import COST_FACTOR, NotThereError, Watch, pause_s

pytestmark = pytest.mark.trio


class Listed(NamedTuple):
    name: str


class FakeAdmin:
    """Knows topics by name, and counts the requests for all topics."""

    def __init__(self, *names: str) -> None:
        self.names, self.asked = list(names), 0
        self.silent_since: float | None = None

    def outage(self, least_s: float) -> str | None:
        is_silent = self.silent_since is not None and trio.current_time() - self.silent_since >= least_s
        return "no broker answers at a:9092" if is_silent else None

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


def watch_in_virtual_time(monkeypatch: pytest.MonkeyPatch) -> tuple[Watch, Any]:
    """A watch that reads trio's clock, and its admin client, which knows the topic ``t``."""
    monkeypatch.setattr(watch_module, "time", SimpleNamespace(monotonic=trio.current_time))
    admin: Any = FakeAdmin("t")
    reader: Any = None
    return Watch(admin, reader), admin


async def test_a_page_that_was_shown_waits_for_a_silent_cluster_for_a_second(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, admin = watch_in_virtual_time(monkeypatch)
    shown = (await watch.topics()).value
    admin.list_topics = trio.sleep_forever
    admin.silent_since = trio.current_time()
    await trio.sleep(1)  # virtual time: the shown topics are not fresh any more
    began = trio.current_time()
    seen = await watch.topics()
    assert (seen.value, seen.error) == (shown, "REQUEST_TIMED_OUT: no broker answers at a:9092")
    assert trio.current_time() - began < 1.5


async def test_a_slow_answer_is_waited_for_while_brokers_answer(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, admin = watch_in_virtual_time(monkeypatch)
    await watch.topics()

    async def slow() -> list[Listed]:
        await trio.sleep(4)  # virtual time: longer than the wait for a silent cluster
        return [Listed("new")]

    admin.list_topics = slow
    await trio.sleep(1)  # virtual time: the shown topics are not fresh any more
    seen = await watch.topics()
    assert (list(seen.value), seen.error) == (["new"], None)


@pytest.mark.parametrize("took_s", [0.1, 0.51, 3.0, 20.0])
@pytest.mark.parametrize("busy_share", [0.1, 0.5, 1.0])
async def test_samples_for_charts_leave_a_core_to_others_and_a_slow_cluster_is_sampled_less(
    took_s: float, busy_share: float
) -> None:
    pause = pause_s(took_s, took_s * busy_share)
    assert took_s * busy_share / (took_s + pause) < 0.05
    assert pause >= COST_FACTOR * took_s
    assert took_s + pause >= STEP_S


async def test_a_short_sample_is_taken_in_each_step() -> None:
    assert 0.25 + pause_s(0.25, 0.25) == STEP_S
