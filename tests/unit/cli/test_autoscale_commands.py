"""``topics alter --partitions auto``, and its state in ``topics describe``, with a fake admin client."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from anabranch.client.admin.types import ConfigEntry, ConfigSource
from anabranch.ordered_resize.autoscale import Measured
from tests.unit.cli.conftest import Run
from tests.unit.cli.fake_admin import FakeAdmin

ON = {"autoscale.enable": "true"}


class AutoAdmin(FakeAdmin):
    """A topic with the given configs and with measurements."""

    measured = Measured(10 << 20, 2_000, 5_000)

    async def describe_configs(self, *, topics: Iterable[str], keys: Any = None) -> dict[str, dict[str, ConfigEntry]]:
        source = ConfigSource.DYNAMIC_TOPIC_CONFIG
        entries = {name: ConfigEntry(name, value, source, False, False) for name, value in self.configs.items()}
        return dict.fromkeys(topics, entries)

    async def measured_appends(self, topic: str) -> Measured:
        return self.measured


ALTER = ("topics", "alter", "t", "--partitions")


def test_a_dry_run_shows_the_next_count_its_reason_and_its_waits(run: Run) -> None:
    admin = AutoAdmin()
    status, out, _ = run(admin, *ALTER, "auto", "--dry-run")
    assert status == 0
    assert out.splitlines()[:4] == [
        "autoscale: 5242880 bytes/s in 2.0 s: 1310720 bytes/s for each of 4 partitions are above "
        "autoscale.target.bytes.per.second=1048576",
        "next count: 8",
        "waits for the cool-down: 5.0 of 600 s (autoscale.cooldown.ms)",
        "waits for the window: 2.0 of 60 s (autoscale.window.ms)",
    ]
    assert "t: 4 -> 8 partitions" in out
    assert admin.calls == [("configs", {"t": ON}, True), ("partitions", {"t": 8}, True)]


def test_a_dry_run_applies_the_configs_of_the_command(run: Run) -> None:
    arguments = ("auto", "--dry-run", "--json", "--config", "autoscale.target.bytes.per.second=1310720")
    status, out, _ = run(AutoAdmin(), *ALTER, *arguments)
    answer = json.loads(out)
    assert (status, answer["resize"], answer["autoscale"]["next_count"]) == (0, None, None)
    assert answer["autoscale"]["bytes_per_second_of_partition"] == 1310720


def test_auto_sets_the_key_and_asks_for_no_count(run: Run) -> None:
    admin = AutoAdmin()
    status, out, _ = run(admin, *ALTER, "auto", "--config", "autoscale.max.partitions=8")
    assert (status, out.splitlines()[0]) == (0, "altered t")
    assert admin.calls == [("configs", {"t": {"autoscale.max.partitions": "8", **ON}}, False)]


def test_a_count_ends_autoscaling_and_reports_it(run: Run) -> None:
    admin = AutoAdmin(configs=ON)
    status, _, err = run(admin, *ALTER, "8")
    assert (status, err) == (0, "t: autoscale.enable=false was set, so that the controller does not change the count\n")
    assert ("configs", {"t": {"autoscale.enable": "false"}}, False) in admin.calls
    assert admin.calls[-1] == ("partitions", {"t": 8}, False)


def test_the_present_count_ends_autoscaling_without_a_resize(run: Run) -> None:
    admin = AutoAdmin(configs=ON)
    status, out, _ = run(admin, *ALTER, "4")
    assert (status, out) == (0, "altered t\nt has 4 partitions\n")
    assert admin.calls == [("configs", {"t": {"autoscale.enable": "false"}}, False)]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [(("auto", "--wait"), "--wait needs a count"), (("many",), "neither a whole number nor auto")],
)
def test_auto_with_wait_and_an_invalid_count_are_refused(run: Run, arguments: tuple[str, ...], expected: str) -> None:
    admin = AutoAdmin()
    status, out, err = run(admin, *ALTER, *arguments)
    assert status != 0
    assert expected in " ".join((out + err).split())
    assert admin.calls == []


def test_describe_shows_autoscaling_only_where_it_is_enabled(run: Run) -> None:
    _, out, _ = run(AutoAdmin(configs=ON), "topics", "describe", "t")
    assert "next count: 8" in out
    _, out, _ = run(AutoAdmin(), "topics", "describe", "t")
    assert "autoscale" not in out
