"""``anabranch groups``: the members of groups, their positions and lags, and resets of committed offsets."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from cyclopts import App, Parameter

from anabranch import Admin
from anabranch.cli.admin import each, with_admin
from anabranch.cli.errors import report_deleted, report_some
from anabranch.cli.group_view import FIELDS, print_group
from anabranch.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Int, JsonFlag, Natural, Offset, TsvFlag
from anabranch.cli.output import print_json, print_rows, print_tsv
from anabranch.command_error import CommandError, UsageError
from anabranch.view.group_lag import with_lag_seconds
from anabranch.view.groups import describe_groups
from anabranch.view.resets import Reset, Where, apply_reset, plan_reset
from anabranch.view.times import milliseconds

app = App(name="groups", help="List, describe, reset, delete consumer groups.")


class ListedGroup(NamedTuple):
    group: str
    protocol_type: str
    state: str


@app.command(name="list")
def list_(*, bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP, json_: JsonFlag = False, tsv: TsvFlag = False) -> int:
    """List groups and their states."""
    groups = with_admin(bootstrap_server, lambda admin: admin.list_groups())
    print_rows(
        [ListedGroup(g.group_id, g.protocol_type, g.state) for g in groups],
        ["group", "protocol_type", "state"],
        as_json=json_,
        as_tsv=tsv,
    )
    return 0


@app.command
def describe(
    *groups: str, bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP, json_: JsonFlag = False, tsv: TsvFlag = False
) -> int:
    """Show each partition of the topics that a group reads: offset, lag, member; and the waits of a resize.

    A partition without a commit and a member is left out if it has no records.
    The lag counts records that can still be read. "expired unread" counts records that were removed before the group
    committed them. "behind" is the age of the first readable record that is not committed. A topic's total shows the
    highest age. A wait is expiring if retention removes unread records of the awaited partition within ten minutes.

    Parameters
    ----------
    groups
        Their ids.
    """
    if not groups:
        raise UsageError("name a group: anabranch groups describe GROUP")
    described, absent = with_admin(bootstrap_server, lambda admin: describe_groups(admin, list(groups)))
    described = with_lag_seconds(bootstrap_server, described)
    status = report_some(absent_group(group) for group in absent)
    if json_:
        print_json(described)
        return status
    if tsv:
        rows = [(group.group, row) for group in described for row in group.partitions]
        print_tsv(["group", *FIELDS], [[name, *(getattr(row, field) for field in FIELDS)] for name, row in rows])
        return status
    for group in described:
        print_group(group)
        if group.withheld:
            print("partitions withheld from stock consumers because of this group:")
            for records in group.withheld:
                print(f"  {records.topic}: {records.sentence}")
        if group.waits:
            print("partitions that wait for others across a resize:")
            for wait in group.waits:
                print(f"  {wait.sentence}")
    return status


def absent_group(group: str) -> CommandError:
    return CommandError(f"group {group} does not exist; anabranch groups list shows those that do")


@app.command(name="reset-offsets")
def reset_offsets(
    group: str,
    *,
    topic: str,
    partition: Annotated[list[Natural] | None, Parameter(negative=(), consume_multiple=False)] = None,
    to_earliest: Annotated[bool, Parameter(negative=())] = False,
    to_latest: Annotated[bool, Parameter(negative=())] = False,
    to_offset: Offset | None = None,
    to_datetime: str | None = None,
    shift_by: Int | None = None,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json_: JsonFlag = False,
    tsv: TsvFlag = False,
) -> int:
    """Set the committed offsets of a group without members. Give exactly one of the --to options or --shift-by.

    Parameters
    ----------
    group
        Its id.
    topic
        The topic to reset.
    partition
        Only this partition; may be given many times; all by default.
    to_earliest
        The log start offset of each partition.
    to_latest
        The end of each partition.
    to_offset
        This offset, or the nearest one in the log of the partition.
    to_datetime
        The first record at or after this time: 2026-01-31T12:00:00Z (local time when it has no zone), or milliseconds
        since 1970.
    shift_by
        This many offsets forward, or back if the number is negative.
    dry_run
        Set nothing; show the new offsets.
    """
    choices = [to_earliest or None, to_latest or None, to_offset, to_datetime, shift_by]
    if sum(choice is not None for choice in choices) != 1:
        raise UsageError("give exactly one of --to-earliest --to-latest --to-offset --to-datetime --shift-by")
    to_ms = None if to_datetime is None else milliseconds("--to-datetime", to_datetime)

    where = Where(to_earliest, to_latest, to_offset, to_ms, shift_by)

    async def work(admin: Admin) -> list[Reset]:
        rows = await plan_reset(admin, group, topic, partition, where)
        if not dry_run:
            await apply_reset(admin, group, rows)
        return rows

    rows = with_admin(bootstrap_server, work)
    print_rows(
        rows,
        ["topic", "partition", "from", "to"],
        as_json=json_,
        as_tsv=tsv,
    )
    return 0


@app.command
def delete(*groups: str, bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP, json_: JsonFlag = False) -> int:
    """Delete groups that have no members, with their committed offsets.

    Parameters
    ----------
    groups
        Their ids.
    """
    if not groups:
        raise UsageError("name a group: anabranch groups delete GROUP")
    refused = with_admin(bootstrap_server, lambda admin: each(groups, lambda group: admin.delete_groups([group])))
    return report_deleted(groups, refused, as_json=json_)
