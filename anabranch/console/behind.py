"""The reasons why a group is behind, partition by partition, with their remedies. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from anabranch.console.problems import LONG_MS
from anabranch.console.rates import READ_LEAST_S, outlook
from anabranch.console.watched import REBALANCES, WatchedGroup, WatchedPartition
from anabranch.ordered_resize.explain import waits_for
from anabranch.protocol.plurals import counted
from anabranch.view.amounts import duration
from anabranch.view.groups import AwaitedMember, GroupWait

NAMED = 8
"""The largest number of partitions or members that a sentence names."""
KEEPS_UP_S = 3.0
"""A member whose lag is below this time keeps up, whatever the present rates are."""


class Reason(NamedTuple):
    """A reason and its remedy. ``level`` is ``warning`` if the reason passes by itself, else ``error``."""

    level: str
    text: str
    todo: str


def reasons(group: WatchedGroup) -> list[Reason]:
    """The reasons in the data of ``Watch.group``; empty for a group that has read everything."""
    rows = group.partitions
    waits = [wait for wait in group.waits if wait.blocked]
    found = []
    if group.state in REBALANCES:
        # No member owns partitions until the rebalance is over, so any other reason would be obsolete at once.
        return [_rebalance(group.awaited_members)]
    lag = sum(row.lag or 0 for row in rows)
    if lag and not group.members:
        found.append(
            Reason(
                "error",
                f"No consumer reads: the group has no members, and has {counted(lag, 'record', form=',')} to read.",
                "Start its consumers.",
            )
        )
    found += [_wait(wait, rows) for wait in _roots(waits)]
    waiting = {(wait.topic, wait.partition) for wait in waits}
    slow: dict[tuple[str, str], list[WatchedPartition]] = {}
    for row in rows:
        place = (row.topic, row.partition)
        if row.high_watermark is None:
            found.append(
                Reason(
                    "error",
                    f"{_name(*place)} has no leader that answers, or was removed.",
                    "The cluster page shows which brokers are down.",
                )
            )
        elif row.lag and group.members and row.member is None:
            left = f"{counted(row.lag, 'record', form=',')} {'is' if row.lag == 1 else 'are'} left"
            found.append(
                Reason(
                    "warning",
                    f"No member of the group reads {_name(*place)}: {left}.",
                    "Its members do not subscribe to the topic, or have yet to notice the partition "
                    "(metadata.max.age.ms).",
                )
            )
        elif row.lag and place not in waiting and row.member is not None:
            slow.setdefault((row.topic, row.member), []).append(row)
    spare = len(rows) > group.members
    return found + [reason for some in slow.values() if (reason := _slow(some, spare=spare)) is not None]


def _rebalance(awaited: Sequence[AwaitedMember]) -> Reason:
    """The reason for a rebalance. ``awaited``: members that have not joined again, if the broker names them."""
    text = "The group rebalances: no member gets records until all have joined again."
    if not awaited:
        return Reason(
            "warning",
            text,
            "This ends within seconds. If it lasts, a member has not joined again, because it still processes records."
            " The group waits until this member polls, at most for the member's max.poll.interval.ms. Or a member joins"
            " and leaves repeatedly. Look at the members' logs.",
        )
    names = [f"{row.client_id or row.member} on {row.host}" for row in awaited]
    named = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    has, polls, it = ("has", "it polls", "it") if len(names) == 1 else ("have", "they poll", "them")
    waited_ms = max(row.awaited_ms for row in awaited)
    left_ms = max(row.wait_left_ms or 0 for row in awaited)
    is_long = waited_ms >= LONG_MS
    they = "it" if len(names) == 1 else "they"
    cause = "processes records" if len(names) == 1 else "process records"
    return Reason(
        "error" if is_long else "warning",
        f"{text} {named} {has} not joined again for {duration(waited_ms / 1000)}.",
        (f"Look at {named}: {they} still {cause}. If that lasts, restart {it}. " if is_long else "")
        + f"The group continues when {polls}, or without {it} in {duration(left_ms / 1000)} (max.poll.interval.ms, the"
        " rebalance timeout).",
    )


def _slow(rows: Sequence[WatchedPartition], *, spare: bool) -> Reason | None:
    """The reason why a member is behind in a topic; None if the member keeps up, or if the rates are unknown.

    ``spare``: there are more partitions than members.
    """
    written_rates = [row.written_rate for row in rows if row.written_rate is not None]
    read_rates = [row.read_rate for row in rows if row.read_rate is not None]
    if min(len(written_rates), len(read_rates)) < len(rows):
        return None
    written, read = sum(written_rates), sum(read_rates)
    if read > written or all((row.lag_s or 0) < KEEPS_UP_S for row in rows):
        return None
    member = rows[0].client_id or rows[0].member
    numbers = [str(row.partition) for row in sorted(rows, key=lambda row: row.partition)]
    named = ", ".join(numbers[:NAMED]) + (f" and {len(numbers) - NAMED} more" if len(numbers) > NAMED else "")
    lag = sum(row.lag or 0 for row in rows)
    some = "partition" if len(rows) == 1 else "partitions"
    text = f"{member} {outlook(lag, written, read)}, in {rows[0].topic} {some} {named}."
    if read <= 0:
        todo = f"Look at {member} on {rows[0].host}: it does not finish a record, is paused, or does not commit."
        return Reason("error", text, todo)
    if spare:
        todo = f"Find out why {member} is slow, or add members: there are enough partitions for them."
    else:
        todo = (
            f"Find out why {member} is slow. More members need more partitions: resize the topic. Each new partition"
            " then waits until the older records of its keys are read."
        )
    return Reason("warning", text, todo)


def _roots(waits: Sequence[GroupWait]) -> list[GroupWait]:
    """The waits for partitions that do not wait themselves. All other waits end after these waits."""
    blocked = {(wait.topic, wait.partition) for wait in waits}
    roots = [wait for wait in waits if (wait.topic, wait.waits_for) not in blocked]
    return roots or list(waits)


def _wait(wait: GroupWait, rows: Sequence[WatchedPartition]) -> Reason:
    topic, partition, on = wait.topic, wait.partition, wait.waits_for
    left = wait.left
    records = "records" if left is None else counted(left, "record", form=",")
    hold = "holds" if left == 1 else "hold"
    text = f"{waits_for(_name(topic, partition), left, _name(topic, on))}, which {hold} older changes of its keys."
    row = next((r for r in rows if (r.topic, r.partition) == (topic, on)), None)
    member = wait.client_id or wait.member
    if member is None:
        return Reason(
            "error",
            text + f" No member of the group reads partition {on}.",
            f"Start a consumer that reads it. If you set the group's offset of partition {on} to the end instead, the"
            f" group skips the unread {records} and never gets {'it' if left == 1 else 'them'}.",
        )
    read = row.read_rate if row is not None else None
    pace = ""
    if left and read:
        pace = f" At {read:,.0f} records/s this takes {duration(left / read)}."
    elif left and read is not None:
        pace = f" {member} makes no progress."
    host = f" on {row.host}" if row is not None and row.host else ""
    return Reason(
        "error" if left and read is not None and read <= 0 else "warning",
        f"{text} {member}{host} reads {'it' if left == 1 else 'them'}.{pace}",
        f"Look at {member}: when it has processed the older changes in partition {on}, partition {partition} continues"
        " by itself." + (" Retention removes some of these records within ten minutes." if wait.expiring else ""),
    )


class Summary(NamedTuple):
    """The totals of a group."""

    lag: int | None
    lag_s: float | None
    expired: int
    waiting: int
    """Partitions that deliver nothing before another one is read."""
    may_be_unread: bool
    """Whether a partition without a commit has records, or may have some."""
    is_measured: bool


def summary(group: WatchedGroup) -> Summary:
    rows = group.partitions
    lags = [row.lag for row in rows if row.lag is not None]
    seconds = [row.lag_s for row in rows if row.lag_s is not None]
    return Summary(
        lag=sum(lags) if lags else None,
        lag_s=max(seconds, default=None),
        expired=sum(row.expired or 0 for row in rows),
        waiting=len({(wait.topic, wait.partition) for wait in group.waits if wait.blocked}),
        may_be_unread=any(records != 0 for records in group.uncommitted.values()),
        is_measured=all(row.read_rate is not None for row in rows if row.lag),
    )


def verdict(totals: Summary, error: str | None = None) -> tuple[str, str]:
    """The class and the text of the note about a group without reasons. ``totals``: its ``summary``.

    ``error``: the reason why the totals are out of date.
    """
    if error is not None:
        return "", "Not known. At the last answer, no problem was found."
    if totals.lag is None and totals.may_be_unread:
        return "", "It has committed no offset, so it is not known whether it is behind."
    if not totals.lag:
        if totals.may_be_unread:
            return "", "It has read everything of the partitions with a commit."
        return "ok", "It is not behind: it has read everything."
    if totals.is_measured:
        return "ok", "It keeps up, or catches up: no problem is found."
    behind = "" if totals.lag_s is None else f" by {duration(totals.lag_s)}"
    return "", f"It is behind{behind}. The reason is not known yet: its rate is measured for {READ_LEAST_S:.0f} s."


def _name(topic: str, partition: int) -> str:
    return f"{topic} partition {partition}"
