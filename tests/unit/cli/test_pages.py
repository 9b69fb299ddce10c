"""Golden pages (``tests/golden/cli``): running a page against a fake admin client returns it unchanged.

A page has blocks: ``# rule``, then commands as ``> state: command line``, each followed by what it printed, indented.
``status`` is the exit status unless it is 0, ``!`` begins a line on stderr, and ``=`` a change that was requested or
validated. JSON has one line a field or row. ``STATES`` has the topic of each state. ``features.txt`` is of KIP-584.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anabranch import ErrorCode, KafkaError, TopicPartition
from anabranch.cli import features
from anabranch.client.admin.types import (
    FeatureMetadata,
    LevelRange,
    MemberDescription,
    ResizeGoal,
    RetainedOnReplica,
    WithheldFor,
    WithheldPartition,
)
from anabranch.view import group_lag
from tests.unit.cli.conftest import Run
from tests.unit.cli.fake_admin import SHRUNK, FakeAdmin

NOW_S = 1_000_000.0


def refused(code: ErrorCode, why: str) -> KafkaError:
    return KafkaError(code, why)


def member(name: str, *partitions: int, **more: Any) -> MemberDescription:
    owned = tuple(TopicPartition("t", partition) for partition in partitions)
    return MemberDescription(f"m-{name}", None, name, "/127.0.0.1", owned, **more)


KNOWN = FeatureMetadata(
    supported={"groups": LevelRange(1, 3), "schema": LevelRange(1, 1)},
    finalized={"groups": LevelRange(1, 2), "gone": LevelRange(1, 4)},
    epoch=7,
)
UNFIT = refused(ErrorCode.FEATURE_UPDATE_FAILED, "broker 2 supports no level of it")
BEGUN: dict[str, Any] = {"groups": {"g": {0: 3}}, "ends": dict.fromkeys(range(4), (2, 10))}
GROWN = {"undeleted": 6, "total": 6, "version": 1}
COMPACTED = {**GROWN, "configs": {"cleanup.policy": "compact"}}
NEVER_EXPIRES = refused(ErrorCode.POLICY_VIOLATION, "t: Its records never expire; set delete.records.when.drained=true")
KEPT = RetainedOnReplica(20, 120, 4096, 1_700_000_000_000, 1_700_086_400_000, "slow")
WAITS = {"ordered.delivery.retention.waits": "true"}
SLOW = WithheldFor("slow", 5, 0, 40, 20, 12_400, is_let_go=False)
MUTE = WithheldFor("mute", 5, 0, -1, -1, 300_000, is_let_go=True)
WITHHELD: dict[str, Any] = {
    **SHRUNK,
    "configs": {"ordered.delivery.stock.consumers": "withhold"},
    "groups": {"slow": {5: 20}, "mute": {}},
}
FAR = 9_000_000_000_000_000
BLOCKED: dict[str, Any] = {**SHRUNK, "positions": {0: 80, 1: 150, 4: 30, 5: 25}}
STATES: dict[str, dict[str, Any]] = {
    "plain": {},
    "unordered": {"ordered": False},
    "grown": GROWN,
    "shrunk": SHRUNK,
    "read": {**SHRUNK, "groups": {"g": {4: 10, 5: 10}}, "ends": {4: (0, 10), 5: (0, 10)}},
    "grown-read-in-part": {**GROWN, "groups": {"g": {4: 3, 5: 0}}, "ends": {4: (0, 10), 5: (2, 12)}},
    "grown-unordered": {**GROWN, "version": 0, "ordered": False, "ends": {4: (0, 10), 5: (2, 12)}},
    "behind": {
        "groups": {"g": {0: 3, 1: 12, 2: 0}, "new": {}},
        "members": (member("c", 1),),
        "ends": {0: (0, 10), 1: (2, 12), 2: (0, 9)},
    },
    "shrunk-refused": {
        **SHRUNK,
        "refusal": refused(ErrorCode.POLICY_VIOLATION, "t: cannot grow while partitions 4, 5 are marked"),
    },
    "never-expires": {**GROWN, "configs": {"retention.ms": "-1"}, "refusal": NEVER_EXPIRES},
    "unfinished": {**GROWN, "refusal": refused(ErrorCode.POLICY_VIOLATION, "t: Another resize is unfinished")},
    "unknown": {"refusal": refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "t")},
    "impossible": {**GROWN, "refusal": refused(ErrorCode.INVALID_PARTITIONS, "t: never")},
    "internal": {**GROWN, "refusal": refused(ErrorCode.INVALID_REQUEST, "t: never")},
    "marked-refused": {
        **GROWN,
        "refusal": refused(
            ErrorCode.POLICY_VIOLATION, "t: partitions 4, 5 are marked; they go with delete.records.when.drained=true"
        ),
    },
    "replaced": {"goal": ResizeGoal(4, 12)},
    "dropped": {"goal": ResizeGoal(4, None)},
    "exceeded": {"goal": ResizeGoal(8, None)},
    "begun": {"goal": ResizeGoal(6, None)},
    "queued": {"goal": ResizeGoal(4, 6)},
    "followed": {"goal": ResizeGoal(6, 12)},
    "splits-one": {**GROWN, "version": 3, "entries": {**SHRUNK["entries"], 4: [(0, {0: 0}), (2, {0: 2})]}},
    "has-count": {
        **SHRUNK,
        "refusal": refused(ErrorCode.INVALID_PARTITIONS, "t: Topic already has 4 partitions."),
        "groups": {"g": {4: 0, 5: 10}},
        "ends": {4: (0, 10), 5: (0, 10)},
    },
    "compacted-plainly": COMPACTED,
    "objected": {
        "objection": refused(
            ErrorCode.POLICY_VIOLATION,
            "t: Producers wrote to t. `anabranch topics alter --force` resizes all the same.",
        ),
        "advice": {"t": "Producers wrote to t."},
    },
    "advised": {"advice": {"t": "Producers that do not know ordered resize wrote to t."}},
    "compacted": {
        **COMPACTED,
        "advice": {
            "t": "The topic is compacted: partitions 4, 5 stay, because they ..."
            " delete.latest.values.when.drained=true removes them ...\nProducers wrote to t."
        },
    },
    "one-or-two": {"initial": 1, "undeleted": 2, "total": 2},
    "one": {
        "initial": 1,
        "undeleted": 1,
        "total": 2,
        "version": 2,
        "leader_epochs": {0: 2, 1: 1},
        "ends": {1: (29, 30)},
        "entries": {0: [(2, {1: 0})], 1: [(0, {0: 0})]},
    },
    "draining": {
        **SHRUNK,
        "groups": {"g": {4: 30, 5: 25}, "late": {0: 1}, "new": {}},
        "members": (member("c", 5),),
        "times_ms": {1: {2: 7_200_000}, 4: {0: 3_599_999}},
    },
    "new-partition": {**GROWN, "without_leader": frozenset({5})},
    "unknown-end": {
        **SHRUNK,
        "entries": {**SHRUNK["entries"], 1: []},
        "ends": {5: (-1, -1)},
        "groups": {"g": {5: 1}},
    },
    "waiting": {**SHRUNK, "advice": {"t": "5 partitions come next; the leader of 0 has not answered"}},
    "frozen": {
        **SHRUNK,
        "refusal": refused(ErrorCode.POLICY_VIOLATION, "The topic is frozen: partition 1 names itself."),
    },
    "settled": {**SHRUNK, "refusal": refused(ErrorCode.INVALID_PARTITIONS, "Topic already has 4 partitions.")},
    "retained": {**SHRUNK, "configs": WAITS, "retained": {1: KEPT, 4: replace(KEPT, group="")}},
    "retained-silent": {**SHRUNK, "configs": WAITS, "retained": None},
    "retained-unwanted": {**SHRUNK, "retained": {1: KEPT}},
    "withheld": {
        **WITHHELD,
        "found_holds": {0: WithheldPartition(2, 2, []), 1: WithheldPartition(2, 1, [MUTE, SLOW])},
    },
    "withheld-before": {**WITHHELD, "found_holds": {1: WithheldPartition(2, 2, [MUTE])}},
    "withheld-unwanted": {**WITHHELD, "configs": {}, "found_holds": {1: WithheldPartition(2, 1, [SLOW])}},
    "withheld-unresized": {**WITHHELD, "version": 0, "found_holds": {1: WithheldPartition(2, 1, [SLOW])}},
    "withheld-unknown": {**WITHHELD, "found_holds": refused(ErrorCode.UNSUPPORTED_VERSION, "an older broker")},
    "blocked": {**BLOCKED, "groups": {"g": {1: 140, 5: 20}}, "members": (member("reader-1", 5),)},
    "commit-ahead": {**BLOCKED, "groups": {"g": {1: 140, 5: 38}}, "kept_from": {5: 26}},
    "awaited-member": {
        "groups": {"g": {1: 140}},
        "members": (member("app-3", awaited_ms=45_000, wait_left_ms=255_000), member("app-4")),
    },
    "without-leader": {
        "groups": {"g": {1: 2, 3: 5, 4: 7}},
        "ends": {1: (0, 10)},
        "without_leader": frozenset({3}),
    },
    "far": {
        "groups": {"g": {0: FAR, 1: FAR - 20, 2: 5}},
        "members": (member("reader-1-" + "0" * 36, 0, 1),),
        "without_leader": frozenset({2}),
        "ends": {0: (0, FAR), 1: (0, FAR)},
        "written_at": {1: int(NOW_S * 1000) - 12_000},
    },
    "automatic": {"configs": {"autoscale.enable": "true"}},
    "offline": {"without_leader": frozenset({3})},
    "idle": BEGUN,
    "busy": {**BEGUN, "members": (member("c"),)},
    "positions-unknown": {
        **SHRUNK,
        "groups": {"g": {1: 140, 5: 20}},
        "positions": {5: 40},
        "knows_positions": False,
    },
    "features": {"features": KNOWN},
    "features-refused": {"features": KNOWN, "update_refusals": {"schema": UNFIT}},
    "features-no-controller": {"features": KNOWN, "controller": -1},
    "expired": {"groups": {"g": {0: 7}}, "ends": {0: (100, 100), 1: (0, 500), 2: (0, 0)}},
}

PAGES = sorted((Path(__file__).parents[2] / "golden" / "cli").glob("*.txt"))


def blocks() -> Iterator[Any]:
    for page in PAGES:
        for block in page.read_text().split("\n\n"):
            rule, _, steps = block.strip().partition("\n")
            yield pytest.param(steps.splitlines(), id=f"{page.stem}: {rule.removeprefix('# ')}")


def fields(found: Any) -> Iterator[str]:
    """The fields of a command's JSON, one a line; the rows of a field one a line, too."""
    for name, value in (found[0] if isinstance(found, list) else found).items():
        rows = value if isinstance(value, list) and value and isinstance(value[0], dict) else None
        yield f"{name}: {json.dumps(value)}" if rows is None else f"{name}:"
        yield from (f"  {json.dumps(row)}" for row in rows or ())


def unboxed(err: str) -> list[str]:
    """The lines of standard error, or the sentence in the box that the parser of arguments draws."""
    lines = [line.strip("│ ") for line in err.splitlines() if line[:1] not in ("╭", "╰")]
    return [" ".join(lines)] if "╭" in err else err.splitlines()


def shown(run: Run, line: str) -> list[str]:
    """Run one command line ``> state: command``, and return it with what it printed."""
    state, _, command = line.removeprefix("> ").partition(": ")
    admin = FakeAdmin(**STATES[state])
    status, out, err = run(admin, *shlex.split(command))
    lines = [f"status {status}"] if status else []
    if "--json" in command and out.strip() not in ("", "[]"):
        out = "\n".join(fields(json.loads(out)))
    lines += out.splitlines() + [f"! {text}" for text in unboxed(err)]
    lines += [f"= {kind} {values}{' (validated)' if validated else ''}" for kind, values, validated in admin.calls]
    return [line, *(f"  {text}".rstrip() for text in lines)]


@pytest.mark.parametrize("steps", list(blocks()))
def test_a_command_prints_its_page(run: Run, monkeypatch: pytest.MonkeyPatch, steps: list[str]) -> None:
    monkeypatch.setattr(group_lag.time, "time", lambda: NOW_S)
    monkeypatch.setattr(features, "RELEASE", {"groups": 3, "schema": 1})
    assert [text for line in steps if line.startswith("> ") for text in shown(run, line)] == steps
