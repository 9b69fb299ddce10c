"""`anabranch features` and the command with Kafka's options: their requests and their output (KIP-584)."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from anabranch.cli import feature_changes as plan
from anabranch.cli import features, kafka_features
from anabranch.client.admin.types import ClusterDescription, FeatureMetadata, FeatureUpdate, LevelRange
from anabranch.command_error import CommandError, UsageError
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
    assert plan.upgrade_all(KNOWN, release) == [plan.LevelChange("groups", 2, 3), plan.LevelChange("schema", None, 1)]
    assert plan.downgrade_all(KNOWN, release) == [plan.LevelChange("gone", 4, None)]
    assert plan.downgrade_all(KNOWN, {"groups": 1, "gone": 4}) == [plan.LevelChange("groups", 2, 1)]


def test_outcomes_name_the_operation_and_the_error() -> None:
    lines = [
        plan.outcome(change, None, dry_run=False)
        for change in plan.changes(KNOWN, {"groups": 3, "schema": 1, "gone": 1}, ["other"])
    ]
    assert [line.split()[0] for line in lines] == ["[Downgrade]", "[Upgrade]", "[Delete]", "[Add]"]
    assert lines[3] == (
        "      [Add] Feature: schema\tExistingFinalizedMaxVersion: -\tNewFinalizedMaxVersion: 1\tResult: OK"
    )
    refused = plan.outcome(
        plan.LevelChange("groups", 2, 3), KafkaError(ErrorCode.FEATURE_UPDATE_FAILED, "no"), dry_run=True
    )
    assert refused.endswith("Result: FEATURE_UPDATE_FAILED: no")
    assert plan.outcome(plan.LevelChange("groups", 2, 3), None, dry_run=True).endswith("Result: would be OK")


def test_only_downgrades_and_deletions_have_a_downgrade_type() -> None:
    wanted = [plan.LevelChange("a", None, 1), plan.LevelChange("b", 2, 1), plan.LevelChange("c", 2, None)]
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


def kafka_tool(line: str) -> int:
    return kafka_features.kafka_features("--bootstrap-server", "b:1", *line.split())


# ---------------------------------------------------------------- the commands, against a cluster with KNOWN


class FakeAdmin:
    """A cluster with ``KNOWN`` that records each request and refuses the features in ``refusals``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[Mapping[str, FeatureUpdate], bool]] = []
        self.refusals: dict[str, KafkaError] = {}
        self.described: list[int | None] = []
        self.controller = 3
        monkeypatch.setattr(features, "with_admin", self._run)

    def _run(self, _server: str, work: Callable[[FakeAdmin], Awaitable[Any]]) -> Any:
        return anyio.run(work, self)

    async def describe_cluster(self) -> ClusterDescription:
        return ClusterDescription("c", self.controller, ())

    async def describe_features(self, *, broker: int | None = None) -> FeatureMetadata:
        self.described.append(broker)
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
    ],
    ids=["downgrade", "downgrade --all", "disable"],
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
    assert kafka_tool("update --upgrade schema:1 --downgrade groups:1 --delete gone") == 1
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


# ---------------------------------------------------------------- the options of Kafka's tool


SAFE, UNSAFE = UpgradeType.SAFE_DOWNGRADE, UpgradeType.UNSAFE_DOWNGRADE
RAISED = FeatureUpdate(3, UpgradeType.UPGRADE)


@pytest.mark.parametrize(
    ("line", "updates", "is_dry"),
    [
        ("--upgrade-all --dry-run", {"groups": RAISED}, True),
        ("--downgrade-all", {"gone": FeatureUpdate(0, SAFE)}, False),
        ("upgrade --feature groups=3 --feature schema=1", {"groups": RAISED, "schema": FeatureUpdate(1)}, False),
        ("downgrade --feature groups=1 --unsafe --dry-run", {"groups": FeatureUpdate(1, UNSAFE)}, True),
        ("downgrade --feature groups=1 --yes", {"groups": SAFE_DOWNGRADE}, False),
        (
            "downgrade --feature groups=1 --feature gone=0",
            {"groups": SAFE_DOWNGRADE, "gone": FeatureUpdate(0, SAFE)},
            False,
        ),
        ("disable --feature groups --unsafe", {"groups": FeatureUpdate(0, UNSAFE)}, False),
        ("update --upgrade groups:3", {"groups": RAISED}, False),
        (
            "update --upgrade schema:1 --downgrade groups:1 --delete gone --dry-run",
            {"schema": FeatureUpdate(1), "groups": SAFE_DOWNGRADE, "gone": FeatureUpdate(0, SAFE)},
            True,
        ),
    ],
)
def test_the_options_of_kafkas_tools_and_of_the_kip_are_accepted_without_a_question(
    admin: FakeAdmin,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    updates: dict[str, FeatureUpdate],
    is_dry: bool,
) -> None:
    """Options of 2.7, commands of 3.x, and the KIP's ``update``. Kafka's tools ask nothing."""
    monkeypatch.setattr(features, "RELEASE", {"groups": 3, "schema": 1} if "downgrade" in line else {"groups": 3})
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    assert kafka_tool(line) == 0
    assert admin.asked == [(updates, is_dry)]


def test_a_command_takes_the_server_and_a_config_file_before_and_after_it(admin: FakeAdmin, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text("request.timeout.ms=5000\nsecurity.protocol=PLAINTEXT\n")
    assert kafka_features.kafka_features("update", "--bootstrap-server", "b:1", "--upgrade", "groups:3") == 0
    assert kafka_tool(f"--command-config {config} describe") == 0
    assert len(admin.asked) == 1


@pytest.mark.parametrize(
    ("line", "asked"), [("--describe", None), ("describe", None), ("--describe --from-controller", 3)]
)
def test_features_are_described_by_any_broker_or_by_the_controller(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str], line: str, asked: int | None
) -> None:
    assert kafka_tool(line) == 0
    assert admin.described == [asked]
    assert capsys.readouterr().out.splitlines() == plan.description(KNOWN)


def test_features_are_not_described_by_a_controller_if_none_is_active(admin: FakeAdmin) -> None:
    admin.controller = -1
    with pytest.raises(CommandError, match="no controller is active"):
        kafka_tool("--describe --from-controller")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("", "take exactly one of"),
        ("--upgrade-all --downgrade-all", "take exactly one of"),
        ("--describe --upgrade-all", "take exactly one of"),
        ("--describe --dry-run", "--dry-run goes only with"),
        ("--upgrade-all --from-controller", "--from-controller goes only with --describe"),
        ("--upgrade-all describe", "do not go with a command"),
        ("--dry-run upgrade --feature groups=3", "do not go with a command"),
        ("upgrade --metadata 3.3", "metadata.version"),
        ("upgrade", "name at least one feature to upgrade"),
        ("upgrade --feature groups=0", "FEATURE=LEVEL"),
        ("downgrade --feature groups=1 --feature groups=0", "named twice"),
        ("disable --feature groups --feature groups", "named twice"),
        ("update", "name a feature"),
        ("update --upgrade groups:3 --delete groups", "named twice"),
        ("update --upgrade groups", "FEATURE:LEVEL"),
        ("--command-config /nonexistent describe", "/nonexistent.*No such file"),
    ],
)
def test_combinations_that_kafkas_tool_refuses_are_refused(admin: FakeAdmin, line: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        kafka_tool(line)
    assert (admin.asked, admin.described) == ([], [])


def test_an_update_lowers_no_level_that_it_is_to_raise(admin: FakeAdmin) -> None:
    with pytest.raises(UsageError, match="level 1 of groups is a downgrade: name it with --downgrade"):
        kafka_tool("update --upgrade groups:1")
    assert admin.asked == []


@pytest.mark.parametrize("line", ["describe --dry-run", "upgrade --feature a=1 --unsafe", "--unsafe --downgrade-all"])
def test_an_option_that_kafkas_tool_does_not_have_is_refused(admin: FakeAdmin, line: str) -> None:
    with pytest.raises(SystemExit) as ended:
        kafka_tool(line)
    assert (ended.value.code, admin.asked) == (2, [])


def test_a_missing_server_and_a_config_file_with_security_are_refused(admin: FakeAdmin, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text("security.protocol=SSL\n")
    with pytest.raises(UsageError, match=r"security\.protocol=SSL, but no listener has security"):
        kafka_tool(f"--command-config {config} describe")
    with pytest.raises(UsageError, match="--bootstrap-server is missing"):
        kafka_features.kafka_features("--describe")
