"""Golden scripts: lines of events, each followed by its outcomes.

An event line is ``verb argument... name=value...``; indented lines below it are outcomes: ``-> token response`` for a
response, ``=> record`` for a committed record, ``.. state`` when the group's state changed. ``run`` keeps comments and
events, and replaces the outcomes by the actual ones. A script is right if ``run`` returns it unchanged.
"""

from __future__ import annotations

from typing import Any

from anabranch.broker.coordinator.config import GroupConfig
from anabranch.broker.coordinator.durable import CoordinatorRecord, OffsetRecord
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.delete_groups import DeletableGroupResult
from anabranch.protocol.generated.heartbeat import HeartbeatResponse
from anabranch.protocol.generated.join_group import JoinGroupResponse
from anabranch.protocol.generated.leave_group import LeaveGroupResponse
from anabranch.protocol.generated.offset_commit import OffsetCommitResponse
from anabranch.protocol.generated.offset_delete import OffsetDeleteResponse
from anabranch.protocol.generated.sync_group import SyncGroupResponse
from tests.unit.coordinator.driver import GROUP, Driver


def run(text: str) -> str:
    """Return the script with its actual outcomes."""
    runner = _Runner()
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("  "):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines.extend(f"  {outcome}" for outcome in runner.run(line))
    return "\n".join(lines) + "\n"


class _Runner:
    def __init__(self) -> None:
        self.driver = Driver()
        self.state = "Dead"
        self.shown = 0
        self.logged = 0

    def run(self, line: str) -> list[str]:
        verb, *words = line.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        arguments = [word for word in words if "=" not in word]
        getattr(self, f"do_{verb}")(*arguments, **options)
        return self._outcomes()

    def _outcomes(self) -> list[str]:
        driver = self.driver
        found = [f"-> {token} {_response(driver.replies[token])}" for token in driver.order[self.shown :]]
        found += [f"=> {_record(record)}" for record in driver.log[self.logged :]]
        self.shown, self.logged = len(driver.order), len(driver.log)
        state = driver.state()
        if state != self.state:
            found.append(f".. {state}")
            self.state = state
        return found

    # ------------------------------------------------------------ verbs

    def do_config(self, **values: str) -> None:
        self.driver = Driver(GroupConfig(**{name: int(value) for name, value in values.items()}))

    def do_join(self, token: str, member: str = "", **options: str) -> None:
        known: dict[str, Any] = {"v": 3, **options}
        for name in ("v", "session_ms", "rebalance_ms"):
            if name in known:
                known[name] = int(known[name])
        if "protocols" in known:
            known["protocols"] = tuple(known["protocols"].split(","))
        self.driver.join(member, token=token, metadata=known.pop("metadata", "").encode(), **known)

    def do_sync(self, token: str, member: str, generation: str, *assignments: str, **options: str) -> None:
        pairs = dict(pair.split(":", 1) for pair in assignments)
        known: dict[str, Any] = dict(options)
        self.driver.sync(member, int(generation), {m: a.encode() for m, a in pairs.items()}, token=token, **known)

    def do_heartbeat(self, member: str, generation: str, **options: str) -> None:
        self.driver.heartbeat(member, int(generation), **options)

    def do_leave(self, *members: str, v: str = "4") -> None:
        pairs = [member.partition("/") for member in members]
        self.driver.leave(*[(member, instance or None) for member, _, instance in pairs], v=int(v))

    def do_commit(self, token: str, partition: str, offset: str, member: str = "", generation: str = "-1") -> None:
        topic, index = partition.rsplit("-", 1)
        self.driver.commit({(topic, int(index)): int(offset)}, member, int(generation), token=token)

    def do_delete_group(self, token: str) -> None:
        self.driver.delete_group(token=token)

    def do_delete_offsets(self, partition: str) -> None:
        topic, index = partition.rsplit("-", 1)
        self.driver.delete_offsets((topic, int(index)))

    def do_advance(self, ms: str) -> None:
        self.driver.advance(int(ms))

    def do_expire(self) -> None:
        self.driver.expire()

    def do_hold(self) -> None:
        """Let writes wait for ``settle`` or ``fail`` from now on."""
        self.driver.auto_commit = False

    def do_settle(self) -> None:
        self.driver.settle()

    def do_fail(self, error: str) -> None:
        self.driver.settle(ErrorCode[error])

    def do_overdue(self) -> None:
        """Let the oldest write take longer than ``offsets.commit.timeout.ms``."""
        self.driver.overdue()

    def do_restart(self) -> None:
        """Let a new coordinator load the log."""
        self.driver = self.driver.restarted()
        self.shown = 0


def _response(response: Any) -> str:
    return _SHOWN[type(response)](response)


def _error(code: int) -> str:
    return ErrorCode(code).name


def _join(response: JoinGroupResponse) -> str:
    if response.error_code != ErrorCode.NONE:
        member = f" member={response.member_id}" if response.member_id else ""
        return f"join {_error(response.error_code)}{member}"
    members = ",".join(m.member_id for m in response.members)
    return (
        f"join generation={response.generation_id} protocol={response.protocol_name} leader={response.leader} "
        f"member={response.member_id}" + (f" members={members}" if members else "")
    )


def _sync(response: SyncGroupResponse) -> str:
    if response.error_code != ErrorCode.NONE:
        return f"sync {_error(response.error_code)}"
    return f"sync assignment={response.assignment.decode() or '(empty)'}"


def _leave(response: LeaveGroupResponse) -> str:
    members = [f"{m.member_id or m.group_instance_id}:{_error(m.error_code)}" for m in response.members]
    return " ".join(["leave", _error(response.error_code), *members])


def _partitions(response: OffsetCommitResponse | OffsetDeleteResponse) -> str:
    return " ".join(
        f"{topic.name}-{partition.partition_index}:{_error(partition.error_code)}"
        for topic in response.topics
        for partition in topic.partitions
    )


_SHOWN: dict[type, Any] = {
    JoinGroupResponse: _join,
    SyncGroupResponse: _sync,
    HeartbeatResponse: lambda response: f"heartbeat {_error(response.error_code)}",
    LeaveGroupResponse: _leave,
    OffsetCommitResponse: lambda response: f"commit {_partitions(response)}",
    OffsetDeleteResponse: lambda response: f"delete_offsets {_error(response.error_code)} {_partitions(response)}",
    DeletableGroupResult: lambda response: f"delete_group {_error(response.error_code)}",
}


def _record(record: CoordinatorRecord) -> str:
    assert record.group_id == GROUP
    if isinstance(record, OffsetRecord):
        shown = "tombstone" if record.value is None else str(record.value.offset)
        return f"offset {record.partition.topic}-{record.partition.partition} {shown}"
    value = record.value
    if value is None:
        return "group tombstone"
    members = " ".join(f"{m.member_id}:{m.assignment.decode() or '(empty)'}" for m in value.members.values())
    leader = "" if value.leader_id is None else f" leader={value.leader_id}"
    return f"group generation={value.generation_id}{leader} {members or '(no members)'}"
