"""``anabranch cluster``, ``brokers``, ``log-dirs``, ``delete-records``: the brokers and their disks."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from cyclopts import Parameter

from anabranch import Admin, TopicPartition
from anabranch.cli.admin import absent_topic, existing_topics, with_admin
from anabranch.cli.errors import report_some
from anabranch.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, JsonFlag, Natural, Offset, TsvFlag
from anabranch.cli.output import RED, coloured, print_json, print_rows, print_table
from anabranch.command_error import CommandError, UsageError
from anabranch.protocol.plurals import counted
from anabranch.view.amounts import size
from anabranch.view.cluster import LogDirUse, broker_counts, cluster_counts, log_dir_uses
from anabranch.view.times import milliseconds


def cluster(*, bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP, json_: JsonFlag = False) -> int:
    """Show the numbers of brokers, topics and partitions, and of partitions without a leader or under-replicated."""

    found = with_admin(bootstrap_server, cluster_counts)
    if json_:
        print_json(found)
        return 0
    controllers = f"controller {'none' if found.controller is None else found.controller}"
    if found.standby_controllers is not None:
        controllers += f", standby {', '.join(map(str, found.standby_controllers)) or 'none'}"
    print(f"cluster {found.cluster_id}, {controllers}")
    print(f"{counted(len(found.brokers), 'broker')}: {', '.join(map(str, found.brokers))}")
    print(f"{counted(found.topics, 'topic')} with {counted(found.partitions, 'partition')}")
    for count, words in ((found.without_leader, "without a leader"), (found.under_replicated, "under-replicated")):
        print(coloured(f"{counted(count, 'partition')} {words}", RED if count else ""))
    return 0


def brokers(*, bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP, json_: JsonFlag = False, tsv: TsvFlag = False) -> int:
    """List the brokers with their addresses, and the number of partitions that each leads and has."""

    columns = ["broker", "host", "port", "rack", "leaders", "replicas", "in_sync"]
    print_rows(with_admin(bootstrap_server, broker_counts), columns, as_json=json_, as_tsv=tsv)
    return 0


def log_dirs(
    *topics: str, bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP, json_: JsonFlag = False, tsv: TsvFlag = False
) -> int:
    """Show the size of each log directory of each broker, and the free space of its file system.

    Parameters
    ----------
    topics
        Only the replicas of these topics.
    """

    async def work(admin: Admin) -> tuple[list[LogDirUse], list[str]]:
        known, absent = await existing_topics(admin, topics)
        return [] if absent and not known else await log_dir_uses(admin, known), absent

    rows, absent = with_admin(bootstrap_server, work)
    columns = ["broker", "directory", "replicas", "size_bytes", "total_bytes", "usable_bytes", "error"]
    if absent and not rows:
        pass
    elif json_ or tsv:
        print_rows(rows, columns, as_json=json_, as_tsv=tsv)
    else:
        print_table(
            ["broker", "directory", "replicas", "size", "free", "error"],
            [
                [row.broker, row.directory, row.replicas, size(row.size_bytes), size(row.usable_bytes), row.error]
                for row in rows
            ],
        )
    return report_some(absent_topic(name) for name in absent)


class DeletedRecords(NamedTuple):
    """The records of a partition that are deleted: those from ``from_`` until before ``to``."""

    topic: str
    partition: int
    from_: int
    to: int
    records: int


def delete_records(
    topic: str,
    *,
    partition: Annotated[list[Natural] | None, Parameter(negative=(), consume_multiple=False)] = None,
    before_offset: Offset | None = None,
    before_timestamp: str | None = None,
    all_: Annotated[bool, Parameter(name="--all", negative=())] = False,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json_: JsonFlag = False,
    tsv: TsvFlag = False,
) -> int:
    """Delete the oldest records of a topic for good. Give exactly one of --before-offset --before-timestamp --all.

    Parameters
    ----------
    topic
        Its name.
    partition
        Only this partition; may be given many times.
    before_offset
        Delete the records before this offset; needs exactly one --partition.
    before_timestamp
        Delete the records before the first one at or after this time: 2026-01-31T12:00:00Z, or milliseconds since
        1970.
    all_
        Delete every record that exists now.
    dry_run
        Delete nothing; show the offsets that would be deleted.
    """
    if sum((before_offset is not None, before_timestamp is not None, all_)) != 1:
        raise UsageError("give exactly one of --before-offset --before-timestamp --all")
    if before_offset is not None and len(partition or ()) != 1:
        raise UsageError("--before-offset needs exactly one --partition")
    time_ms = None if before_timestamp is None else milliseconds("--before-timestamp", before_timestamp)

    async def work(admin: Admin) -> list[DeletedRecords]:
        existing = [info.partition for info in (await admin.describe_topics([topic]))[topic].partitions]
        if absent := sorted(set(partition or ()) - set(existing)):
            raise CommandError(f"topic {topic} has partitions {existing[0]} to {existing[-1]}, not {absent[0]}")
        tps = [TopicPartition(topic, p) for p in sorted(partition or existing)]
        first = await admin.list_offsets(dict.fromkeys(tps, "earliest"))
        end = await admin.list_offsets(dict.fromkeys(tps, "latest"))
        target = {tp: end[tp].offset for tp in tps}
        if before_offset is not None:
            if before_offset > target[tps[0]]:
                raise CommandError(f"--before-offset {before_offset}: {tps[0]} ends at offset {target[tps[0]]}")
            target = {tps[0]: before_offset}
        elif time_ms is not None:
            at_time = await admin.list_offsets(dict.fromkeys(tps, time_ms))
            target |= {tp: found.offset for tp, found in at_time.items() if found.offset >= 0}
        target = {tp: max(offset, first[tp].offset) for tp, offset in target.items()}
        if not dry_run:
            target |= await admin.delete_records({tp: at for tp, at in target.items() if at > first[tp].offset})
        return [
            DeletedRecords(topic, tp.partition, first[tp].offset, target[tp], target[tp] - first[tp].offset)
            for tp in tps
        ]

    rows = with_admin(bootstrap_server, work)
    print_rows(rows, ["partition", "from", "to", "records"], as_json=json_, as_tsv=tsv)
    if not (json_ or tsv):
        deleted = counted(sum(row.records for row in rows), "offset")
        print(f"{'would delete' if dry_run else 'deleted'} {deleted} of {topic}")
    return 0
