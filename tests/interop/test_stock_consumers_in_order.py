"""Unmodified, deliberately slow consumers of all libraries read one topic through 4 -> 8 -> 16 -> 8 partitions.

With ``ordered.delivery.stock.consumers=withhold`` every record is processed once and each key in order. ``accept``, the
default, is the control: newer records overtake older ones, and a group that begins at the latest offset skips some
records.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple

import pytest

from anabranch.testing.cluster import Cluster
from tests.interop.java_programs import java_command
from tests.interop.slow_groups import COUNTS, Load, Verdict, run_groups
from tests.interop.test_other_clients import go_program

pytestmark = pytest.mark.interop


def python_command(library: str) -> list[str]:
    return [sys.executable, "-m", "tests.interop.slow_members", library]


LIBRARIES: Mapping[str, Callable[[], list[str]]] = {
    "librdkafka": lambda: python_command("librdkafka"),
    "kafka-python": lambda: python_command("kafka-python"),
    "aiokafka": lambda: python_command("aiokafka"),
    "Java": lambda: java_command("SlowMembers", 4),
    "franz-go": lambda: [go_program(), "franz-go", "slow"],
    "sarama": lambda: [go_program(), "sarama", "slow"],
}


class Tried(NamedTuple):
    verdicts: dict[tuple[str, str], Verdict]
    load: Load
    missing: dict[str, str]
    """By library: the reason why the library was not tried."""

    def of(self, library: str, reset: str) -> Verdict:
        if library in self.missing:
            pytest.skip(self.missing[library])
        return self.verdicts[library, reset]


def tried(cluster: Cluster, topic: str, mode: str) -> Tried:
    commands, missing = {}, {}
    for library, command in LIBRARIES.items():
        try:
            commands[library] = command()
        except pytest.skip.Exception as reason:
            missing[library] = str(reason)
    configs = {} if mode == "accept" else {"ordered.delivery.stock.consumers": mode}
    verdicts, load = run_groups(cluster.bootstrap, topic, commands, configs, overtakes=mode == "accept")
    return Tried(verdicts, load, missing)


@pytest.fixture(scope="module")
def accepted(cluster: Cluster, fresh_name: Callable[[str], str]) -> Tried:
    return tried(cluster, fresh_name("accepted"), "accept")


@pytest.mark.parametrize("library", LIBRARIES)
def test_accept_gives_slow_groups_newer_records_first(accepted: Tried, library: str) -> None:
    """In each resize newer records overtake, or the run would not end. No record is lost or read twice."""
    verdict = accepted.of(library, "earliest")
    assert (verdict.stuck, verdict.skipped, verdict.twice) == ("", [], [])
    assert len(verdict.overtaking) >= len(COUNTS)
    assert verdict.late


@pytest.mark.parametrize("library", LIBRARIES)
def test_accept_skips_records_of_new_partitions_for_a_group_with_latest(accepted: Tried, library: str) -> None:
    verdict = accepted.of(library, "latest")
    assert not verdict.stuck
    assert verdict.skipped


@pytest.fixture(scope="module")
def held(cluster: Cluster, fresh_name: Callable[[str], str]) -> Tried:
    return tried(cluster, fresh_name("held"), "withhold")


@pytest.mark.parametrize("reset", ["earliest", "latest"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_withhold_gives_slow_groups_every_record_once_and_each_key_in_order(
    held: Tried, library: str, reset: str
) -> None:
    verdict = held.of(library, reset)
    assert (verdict.stuck, verdict.skipped, verdict.twice) == ("", [], [])
    assert (verdict.late, verdict.overtaking) == ([], [])
    assert verdict.records
