"""`anabranch features` and the command with Kafka's options: their requests and their output (KIP-584)."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import pytest

from anabranch.cli import feature_changes as plan
from anabranch.cli import features, kafka_features
from anabranch.client.admin.types import FeatureMetadata, FeatureUpdate, LevelRange
from anabranch.command_error import CommandError
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.request_kinds import UpgradeType

KNOWN = FeatureMetadata(
    supported={"groups": LevelRange(1, 3), "schema": LevelRange(1, 1)},
    finalized={"groups": LevelRange(1, 2), "gone": LevelRange(1, 4)},
    epoch=7,
)


def test_features_are_described_in_the_format_of_the_kip() -> None:
    assert plan.description(KNOWN) == [
        "Feature: gone\tSupportedMinVersion: -\tSupportedMaxVersion: -"
        "\tFinalizedMinVersionLevel: 1\tFinalizedMaxVersionLevel: 4\tEpoch: 7",
        "Feature: groups\tSupportedMinVersion: 1\tSupportedMaxVersion: 3"
        "\tFinalizedMinVersionLevel: 1\tFinalizedMaxVersionLevel: 2\tEpoch: 7",
        "Feature: schema\tSupportedMinVersion: 1\tSupportedMaxVersion: 1"
        "\tFinalizedMinVersionLevel: -\tFinalizedMaxVersionLevel: -\tEpoch: 7",
    ]


def test_upgrade_all_raises_and_adds_and_downgrade_all_lowers_and_deletes() -> None:
    release = {"groups": 3, "schema": 1}
    assert plan.upgrade_all(KNOWN, release) == [plan.Change("groups", 2, 3), plan.Change("schema", None, 1)]
    assert plan.downgrade_all(KNOWN, release) == [plan.Change("gone", 4, None)]
    assert plan.downgrade_all(KNOWN, {"groups": 1, "gone": 4}) == [plan.Change("groups", 2, 1)]


def test_outcomes_name_the_operation_and_the_error() -> None:
    lines = [
        plan.outcome(change, None, dry_run=False)
        for change in plan.changes(KNOWN, {"groups": 3, "schema": 1, "gone": 1}, ["other"])
    ]
    assert [line.split()[0] for line in lines] == ["[Downgrade]", "[Upgrade]", "[Delete]", "[Add]"]
    assert lines[3] == (
        "      [Add] Feature: schema\tExistingFinalizedMaxVersion: -\tNewFinalizedMaxVersion: 1\tResult: OK"
    )
    refused = plan.outcome(plan.Change("groups", 2, 3), KafkaError(ErrorCode.FEATURE_UPDATE_FAILED, "no"), dry_run=True)
    assert refused.endswith("Result: FEATURE_UPDATE_FAILED: no")
    assert plan.outcome(plan.Change("groups", 2, 3), None, dry_run=True).endswith("Result: would be OK")


def test_only_downgrades_and_deletions_have_a_downgrade_type() -> None:
    wanted = [plan.Change("a", None, 1), plan.Change("b", 2, 1), plan.Change("c", 2, None)]
    assert plan.updates(wanted, UpgradeType.UNSAFE_DOWNGRADE) == {
        "a": FeatureUpdate(1, UpgradeType.UPGRADE),
        "b": FeatureUpdate(1, UpgradeType.UNSAFE_DOWNGRADE),
        "c": FeatureUpdate(0, UpgradeType.UNSAFE_DOWNGRADE),
    }
    assert plan.question(wanted[1:]).splitlines()[1:] == [
        "1. b from v2 (existing) to v1 (new)",
        "2. c from v2 (existing) to deleted",
    ]


@pytest.mark.parametrize("entry", ["groups", "groups=", "=1", "groups=0", "groups=x", "groups=40000"])
def test_a_feature_level_is_a_number_of_at_least_1(entry: str) -> None:
    with pytest.raises(CommandError, match="FEATURE=LEVEL"):
        plan.parse_levels([entry], "=")


class Asked:
    """Replaces the commands and records how they are called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        for name in ("describe", "upgrade", "downgrade", "disable"):
            monkeypatch.setattr(features, name, self._command(name))

    def _command(self, name: str) -> Callable[..., int]:
        def command(**given: Any) -> int:
            assert given.pop("bootstrap_server") == "b:1"
            self.calls.append((name, given))
            return 0

        return command


@pytest.mark.parametrize(
    ("line", "name", "given"),
    [
        ("--describe", "describe", {}),
        ("describe", "describe", {}),
        ("--upgrade-all --dry-run", "upgrade", {"all_": True, "dry_run": True}),
        ("--downgrade-all --yes", "downgrade", {"all_": True, "dry_run": False, "yes": True}),
        ("upgrade --feature a=1 --feature b=2", "upgrade", {"feature": ["a=1", "b=2"], "dry_run": False}),
        (
            "downgrade --feature a=1 --unsafe --dry-run",
            "downgrade",
            {"feature": ["a=1"], "force": True, "yes": False, "dry_run": True},
        ),
        (
            "disable --feature a --yes",
            "disable",
            {"feature": ["a"], "force": False, "yes": True, "dry_run": False},
        ),
    ],
)
def test_both_generations_of_kafkas_options_are_accepted(
    monkeypatch: pytest.MonkeyPatch, line: str, name: str, given: dict[str, Any]
) -> None:
    asked = Asked(monkeypatch)
    assert kafka_features.kafka_features("--bootstrap-server", "b:1", *line.split()) == 0
    assert asked.calls == [(name, given)]


@pytest.mark.parametrize(("line", "error"), [("", "name a command"), ("upgrade --metadata 3.3", "metadata.version")])
def test_a_missing_command_and_a_metadata_version_are_refused(
    monkeypatch: pytest.MonkeyPatch, line: str, error: str
) -> None:
    asked = Asked(monkeypatch)
    with pytest.raises(CommandError, match=error):
        kafka_features.kafka_features("--bootstrap-server", "b:1", *line.split())
    assert asked.calls == []


def test_a_command_and_an_option_of_the_other_generation_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch)
    with pytest.raises(CommandError, match="either"):
        kafka_features.kafka_features("--bootstrap-server", "b:1", "--upgrade-all", "describe")
    assert asked.calls == []


# ---------------------------------------------------------------- the commands, against a cluster with KNOWN


class FakeAdmin:
    """A cluster with ``KNOWN`` that records each request and refuses the features in ``refusals``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[Mapping[str, FeatureUpdate], bool]] = []
        self.refusals: dict[str, KafkaError] = {}
        monkeypatch.setattr(features, "with_admin", self._run)

    def _run(self, _server: str, work: Callable[[FakeAdmin], Awaitable[Any]]) -> Any:
        return anyio.run(work, self)

    async def describe_features(self) -> FeatureMetadata:
        return KNOWN

    async def update_features(
        self, updates: Mapping[str, FeatureUpdate], *, validate_only: bool
    ) -> dict[str, KafkaError | None]:
        self.asked.append((updates, validate_only))
        return {name: self.refusals.get(name) for name in updates}


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    return FakeAdmin(monkeypatch)


def answering(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    """Put a user at a terminal who gives this answer to each question."""
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _prompt: answer)


SAFE_DOWNGRADE = FeatureUpdate(1, UpgradeType.SAFE_DOWNGRADE)


@pytest.mark.parametrize("answer", ["", "y", "Yes"])
def test_a_downgrade_is_confirmed_first(
    admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: str
) -> None:
    answering(monkeypatch, answer)
    assert features.downgrade(feature=["groups=1"]) == 0
    assert admin.asked == [({"groups": SAFE_DOWNGRADE}, False)]
    assert capsys.readouterr().out.splitlines() == [
        "Please confirm before downgrading the following features:",
        "1. groups from v2 (existing) to v1 (new)",
        "[Downgrade] Feature: groups\tExistingFinalizedMaxVersion: 2\tNewFinalizedMaxVersion: 1\tResult: OK",
    ]


@pytest.mark.parametrize(
    "command",
    [
        lambda: features.downgrade(feature=["groups=1"]),
        lambda: features.downgrade(all_=True),
        lambda: features.disable(feature=["groups"]),
        lambda: features.update(upgrade="schema:1", downgrade="groups:1"),
        lambda: features.update(delete="groups"),
        lambda: kafka_features.kafka_features("--bootstrap-server", "b:1", "--downgrade-all"),
    ],
    ids=["downgrade", "downgrade --all", "disable", "update --downgrade", "update --delete", "--downgrade-all"],
)
def test_no_downgrade_or_deletion_happens_without_confirmation(
    admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch, command: Callable[[], int]
) -> None:
    answering(monkeypatch, "n")
    with pytest.raises(CommandError, match="nothing was changed"):
        command()
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    with pytest.raises(CommandError, match="--yes"):
        command()
    assert admin.asked == []


def test_yes_and_a_dry_run_ask_no_question_and_an_upgrade_needs_none(
    admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, "n")
    monkeypatch.setattr("builtins.input", lambda _prompt: pytest.fail("the command asked for confirmation"))
    assert features.downgrade(feature=["groups=1"], yes=True, force=True) == 0
    assert features.downgrade(feature=["groups=1"], dry_run=True) == 0
    assert features.upgrade(feature=["groups=3"]) == 0
    assert admin.asked == [
        ({"groups": FeatureUpdate(1, UpgradeType.UNSAFE_DOWNGRADE)}, False),
        ({"groups": SAFE_DOWNGRADE}, True),
        ({"groups": FeatureUpdate(3, UpgradeType.UPGRADE)}, False),
    ]


def test_an_update_is_one_request_and_its_lines_come_in_the_kips_order(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lines are in the order added or raised, lowered, deleted.

    A refusal shows on its line and in the exit status.
    """
    admin.refusals["schema"] = KafkaError(ErrorCode.FEATURE_UPDATE_FAILED, "broker 2 supports no level of it")
    assert features.update(upgrade="schema:1", downgrade="groups:1", delete="gone", yes=True) == 1
    [(updates, validate_only)] = admin.asked
    assert not validate_only and set(updates) == {"schema", "groups", "gone"}
    lines = [line for line in capsys.readouterr().out.splitlines() if "Feature:" in line]
    assert [line.split("\t")[0].strip() for line in lines] == [
        "[Add] Feature: schema",
        "[Downgrade] Feature: groups",
        "[Delete] Feature: gone",
    ]
    assert [line.split("\t")[-1] for line in lines] == [
        "Result: FEATURE_UPDATE_FAILED: broker 2 supports no level of it",
        "Result: OK",
        "Result: OK",
    ]


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (lambda: features.upgrade(feature=["groups=1"]), "use `features downgrade`"),
        (lambda: features.downgrade(feature=["nope=1"]), "there is no feature nope: `features describe` lists them"),
        (lambda: features.downgrade(feature=["groups=3"]), "use `features upgrade`"),
        (lambda: features.update(upgrade="groups:1"), "--downgrade"),
        (lambda: features.update(upgrade="groups:3", delete="groups"), "named twice"),
        (lambda: features.update(), "name a feature"),
        (lambda: features.disable(), "name a feature"),
        (lambda: features.upgrade(), "--all"),
        (lambda: features.upgrade(feature=["groups=3"], all_=True), "--all"),
    ],
)
def test_a_command_that_contradicts_itself_or_the_cluster_sends_no_request(
    admin: FakeAdmin, command: Callable[[], int], problem: str
) -> None:
    with pytest.raises(CommandError, match=problem):
        command()
    assert admin.asked == []
