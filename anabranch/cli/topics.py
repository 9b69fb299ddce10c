"""``anabranch topics``: create, list, describe, alter, delete, elect leaders, move replicas."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from cyclopts import App, Parameter

from anabranch import (
    Admin,
    ElectionType,
    ErrorCode,
    KafkaError,
    NewTopic,
    PartitionReassignment,
    TopicPartition,
)
from anabranch.cli import progress
from anabranch.cli.admin import absent_topic, each, existing_topics, parse_configs, with_admin
from anabranch.cli.autoscale import AUTO, Count, autoscale_lines, stop_choosing
from anabranch.cli.errors import failures, report_deleted, report_some
from anabranch.cli.exit_status import DONE, FAILED
from anabranch.cli.options import (
    BROKERS_CHOOSE,
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    JsonFlag,
    Natural,
    NewTopicCount,
    TsvFlag,
)
from anabranch.cli.output import plain, print_json, print_rows, print_tsv
from anabranch.cli.resize_plan import print_plan
from anabranch.cli.topic_view import FIELDS, print_topic
from anabranch.client.admin.types import CreatedTopic
from anabranch.command_error import UsageError
from anabranch.ordered_resize.delete_when_drained import DRAIN_KEY, LOSS_KEY
from anabranch.protocol.plurals import counted
from anabranch.view.autoscale import Autoscaling, autoscaling
from anabranch.view.cluster import UnhealthyPartition, all_topics, unhealthy
from anabranch.view.resize import (
    LOSS_FLAG,
    ResizePlan,
    begin_resize,
    check_loss,
    check_resize,
    named_partitions,
    plan_resize,
    wait_until_drained,
    wait_until_resized,
)
from anabranch.view.topics import DescribedTopic, describe_topics
from anabranch.zk_schemas.topic_keys import AUTOSCALE_KEY
from anabranch.zk_schemas.znode import format_id

app = App(name="topics", help="Create, list, describe, alter, move, delete topics.")

Partitions = Annotated[list[Natural] | None, Parameter(name="--partition", negative=(), consume_multiple=False)]
Configs = Annotated[list[str] | None, Parameter(name="--config", negative=(), consume_multiple=False)]


@app.command
def create(
    topic: str,
    *,
    partitions: NewTopicCount = BROKERS_CHOOSE,
    replication_factor: NewTopicCount = BROKERS_CHOOSE,
    config: Configs = None,
    if_not_exists: bool = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json_: JsonFlag = False,
) -> int:
    """Create a topic.

    Parameters
    ----------
    topic
        Its name.
    partitions
        How many; by default the brokers' num.partitions.
    replication_factor
        How many copies; by default the brokers' default.replication.factor.
    config
        A topic config as key=value; may be given many times.
    if_not_exists
        A topic that exists already is no error.
    """
    new = NewTopic(topic, partitions, replication_factor, parse_configs(config))

    async def work(admin: Admin) -> CreatedTopic | None:
        try:
            return (await admin.create_topics([new]))[topic]
        except KafkaError as error:
            if if_not_exists and error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                return None
            raise

    created = with_admin(bootstrap_server, work)
    counts = (None, None) if created is None else (created.num_partitions, created.replication_factor)
    if json_:
        print_json(
            {
                "topic": topic,
                "created": created is not None,
                "partitions": counts[0],
                "replication_factor": counts[1],
            }
        )
    elif created is None:
        print(f"{topic} exists already")
    else:
        print(f"created {topic}: {counted(created.num_partitions, 'partition')}, replication factor {counts[1]}")
    return 0


@app.command(name="list")
def list_(
    *,
    exclude_internal: bool = False,
    under_replicated: Annotated[bool, Parameter(negative=())] = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json_: JsonFlag = False,
    tsv: TsvFlag = False,
) -> int:
    """List topics by name.

    Parameters
    ----------
    exclude_internal
        Leave out topics such as __consumer_offsets.
    under_replicated
        List instead the partitions that have replicas out of sync, or no leader.
    """
    if under_replicated:
        rows = with_admin(bootstrap_server, _under_replicated)
        rows = [row for row in rows if not (exclude_internal and row.topic.startswith("__"))]
        columns = ["topic", "partition", "leader", "replicas", "isr"]
        print_rows(rows, columns, as_json=json_, as_tsv=tsv, none="every replica is in sync")
        return 0
    topics = with_admin(bootstrap_server, lambda admin: admin.list_topics(include_internal=not exclude_internal))
    if json_:
        print_json([{"name": t.name, "topic_id": format_id(t.topic_id), "internal": t.internal} for t in topics])
    else:
        for topic in topics:
            print(topic.name)
    return 0


async def _under_replicated(admin: Admin) -> list[UnhealthyPartition]:
    return unhealthy(await all_topics(admin))


@app.command
def describe(
    *topics: str,
    every_partition: Annotated[bool, Parameter(negative=())] = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json_: JsonFlag = False,
    tsv: TsvFlag = False,
) -> int:
    """Show the partitions of topics with their leaders and offsets, and the configs that were set.

    A resized topic also has a tree of its splits. It shows the partition that each one was split from or is merged
    into. For partitions marked for deletion it shows the records that each group has yet to read. With
    ordered.delivery.retention.waits there is a line for records that stay after retention.ms: the group that they are
    kept for, and the time limit.

    Parameters
    ----------
    topics
        Their names; all by default.
    every_partition
        A line for each partition also where a topic has 200 or more.
    """

    async def work(admin: Admin) -> tuple[list[DescribedTopic], list[str]]:
        known, absent = await existing_topics(admin, topics)
        return await describe_topics(admin, known) if known or not topics else [], absent

    described, absent = with_admin(bootstrap_server, work)
    if json_:
        print_json([_topic_json(topic) for topic in described])
    elif tsv:
        rows = [(topic.name, row) for topic in described for row in topic.partitions]
        print_tsv(["topic", *FIELDS], [[name, *(getattr(row, field) for field in FIELDS)] for name, row in rows])
    else:
        for topic in described:
            print_topic(topic, every_partition=every_partition)
    return report_some(absent_topic(name) for name in absent)


def _topic_json(topic: DescribedTopic) -> dict[str, Any]:
    """The topic as JSON; what is in the topic does not name it again."""
    found: dict[str, Any] = plain(topic)
    for records in found["withheld"]:
        del records["topic"]
    return found


@app.command
def alter(
    topic: str,
    *,
    partitions: Count | None = None,
    config: Configs = None,
    delete_config: Annotated[list[str] | None, Parameter(negative=(), consume_multiple=False)] = None,
    delete_records_when_drained: Annotated[bool, Parameter(negative=())] = False,
    delete_latest_values_when_drained: Annotated[bool, Parameter(negative=())] = False,
    force: Annotated[bool, Parameter(negative=())] = False,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    wait: Annotated[bool, Parameter(negative=())] = False,
    wait_drained: Annotated[bool, Parameter(negative=())] = False,
    timeout_ms: Natural = 120_000,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json_: JsonFlag = False,
) -> int:
    """Change a topic's partition count or configs.

    A higher count splits partitions, a lower count merges them; the records of every key keep their order.

    Parameters
    ----------
    topic
        Its name.
    partitions
        The new count; not below the count at the topic's creation. With auto the controller doubles or halves the count
        to suit the rate of written bytes (configs autoscale.*), until a count is set.
    config
        A config to set, key=value; may be given many times.
    delete_config
        A config to set back to its default; may be given many times.
    delete_records_when_drained
        Set delete.records.when.drained=true first: partitions that are merged away are deleted when every group has
        read them, not only when their records have expired.
    delete_latest_values_when_drained
        Set delete.latest.values.when.drained=true first: partitions of a compacted topic that are merged away are
        deleted when every group has read them. The latest values of their keys are lost with them, and older values in
        other partitions may come back. Otherwise these partitions stay.
    force
        Resize also if producers that do not know ordered resize wrote lately and cannot follow the count. Brokers then
        refuse some of their records.
    dry_run
        Change nothing; print which partitions would be split or merged, and why the resize would be refused. With auto,
        print the measured rate and the next count; a topic without autoscale.enable is measured from the first dry run
        on.
    wait
        Wait until the partitions have been split, or merged into others. Without --wait the command fails if this takes
        more than 20 s; the resize continues.
    wait_drained
        As --wait, and then until the partitions that were merged away are deleted.
    timeout_ms
        How long to wait with --wait or --wait-drained after the controller's answer. The resize continues after that.
    """
    loses = delete_latest_values_when_drained
    changes: dict[str, str | None] = {**parse_configs(config), **dict.fromkeys(delete_config or [])}
    flags = {DRAIN_KEY: delete_records_when_drained, LOSS_KEY: loses}
    changes |= {key: "true" for key, is_given in flags.items() if is_given}
    wait = wait or wait_drained
    if partitions == AUTO and (loses or wait):
        raise UsageError(f"{LOSS_FLAG if loses else '--wait'} needs a count, not --partitions {AUTO}")
    if partitions == AUTO:
        return _alter_auto(bootstrap_server, topic, {**changes, AUTOSCALE_KEY: "true"}, dry_run=dry_run, as_json=json_)
    if partitions is None and not changes:
        raise UsageError("nothing to change: give --partitions, --config or --delete-config")
    if partitions is None and wait:
        raise UsageError("--wait and --wait-drained need --partitions")
    if dry_run:
        return _dry_run(bootstrap_server, topic, partitions, changes, loses=loses, force=force, as_json=json_)

    async def work(admin: Admin) -> list[int] | None:
        marked = await _alter(admin, topic, partitions, changes, timeout_ms if wait else None, loses=loses, force=force)
        if marked and wait_drained:
            return await wait_until_drained(admin, topic, timeout_ms, progress.update)
        return marked

    _print_altered(topic, changes, partitions, with_admin(bootstrap_server, work), as_json=json_)
    return 0


def _print_altered(
    topic: str,
    changes: Mapping[str, str | None],
    partitions: int | None,
    marked: Sequence[int] | None,
    *,
    as_json: bool,
) -> None:
    if as_json:
        print_json(
            {
                "topic": topic,
                "configs": changes,
                "partitions": partitions,
                "is_resized": marked is not None,
                "draining": marked,
            }
        )
        return
    if partitions is not None and marked is None:
        print(
            f"{topic} is being resized to {counted(partitions, 'partition')}: "
            f"anabranch topics describe {topic} shows it"
        )
        return
    print(f"altered {topic}")
    if partitions is not None:
        print(f"{topic} has {counted(partitions, 'partition')}")
    if marked:
        print(f"{named_partitions(marked, 'takes', 'take')} no records any more")


async def _alter(
    admin: Admin,
    topic: str,
    partitions: int | None,
    changes: dict[str, str | None],
    wait_ms: int | None,
    *,
    loses: bool,
    force: bool,
) -> list[int] | None:
    """Change configs and count. Returns the partitions left to drain; None when the command does not wait."""
    count = partitions
    if count is not None and await stop_choosing(admin, topic, changes):
        described = (await admin.describe_topics([topic]))[topic]
        count = None if described.partition_count == count else count
    is_repeated = False
    if count is not None and wait_ms is not None:
        is_repeated = (await admin.describe_topics([topic]))[topic].partition_count == count
    if count is not None and (changes or not force) and not is_repeated:
        await check_resize(admin, topic, count, changes, force=force)
    if count is not None and loses:
        await admin.incremental_alter_configs(topics={topic: changes}, validate_only=True)
        if not is_repeated:
            await check_loss(admin, topic, count)
    if changes:
        await admin.incremental_alter_configs(topics={topic: changes})
    if changes.get(AUTOSCALE_KEY) == "false":
        print(
            f"{topic}: {AUTOSCALE_KEY}=false was set, so that the controller does not change the count", file=sys.stderr
        )
    if count is None:
        return None if partitions is None else []
    for warning in await begin_resize(admin, topic, count, changes, waits=wait_ms is not None):
        print(warning, file=sys.stderr)
    return None if wait_ms is None else await wait_until_resized(admin, topic, count, wait_ms, progress.update)


def _alter_auto(
    bootstrap_server: str, topic: str, changes: Mapping[str, str | None], *, dry_run: bool, as_json: bool
) -> int:
    async def work(admin: Admin) -> tuple[Autoscaling, ResizePlan | None]:
        await admin.incremental_alter_configs(topics={topic: changes}, validate_only=dry_run)
        described = (await admin.describe_topics([topic]))[topic]
        row = await autoscaling(admin, described, (await admin.describe_configs(topics=[topic]))[topic], changes)
        count = row.next_count if dry_run else None
        return row, None if count is None else await plan_resize(admin, topic, count, changes)

    row, plan = with_admin(bootstrap_server, work)
    if as_json:
        print_json({"topic": topic, "configs": dict(changes), "autoscale": row, "resize": plan})
        return 0
    if not dry_run:
        print(f"altered {topic}")
    for line in autoscale_lines(row):
        print(line)
    if plan is not None:
        print_plan(plan)
    return 0


def _dry_run(
    bootstrap_server: str,
    topic: str,
    partitions: int | None,
    changes: dict[str, str | None],
    *,
    loses: bool,
    force: bool,
    as_json: bool,
) -> int:
    async def work(admin: Admin) -> ResizePlan | None:
        if partitions is not None:
            await stop_choosing(admin, topic, changes)
        if changes:
            await admin.incremental_alter_configs(topics={topic: changes}, validate_only=True)
        if partitions is not None and loses:
            await check_loss(admin, topic, partitions)
        return None if partitions is None else await plan_resize(admin, topic, partitions, changes, force=force)

    plan = with_admin(bootstrap_server, work)
    if as_json:
        print_json({"configs": dict(changes), "resize": plan})
    else:
        for name, value in changes.items():
            print(f"{name}: would be {'its default' if value is None else value}")
        if plan is not None:
            print_plan(plan)
    return FAILED if plan is not None and plan.refused else DONE


@app.command
def delete(*topics: str, bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP, json_: JsonFlag = False) -> int:
    """Delete topics with all their records.

    Parameters
    ----------
    topics
        Their names.
    """
    if not topics:
        raise UsageError("name a topic: anabranch topics delete TOPIC")
    refused = with_admin(bootstrap_server, lambda admin: each(topics, lambda name: admin.delete_topics([name])))
    return report_deleted(topics, refused, as_json=json_)


@app.command
def elect_leaders(
    *topics: str,
    partition: Partitions = None,
    unclean: bool = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json_: JsonFlag = False,
) -> int:
    """Elect the preferred (first) replica of each partition as its leader.

    Parameters
    ----------
    topics
        The topics of the partitions; all by default.
    partition
        Only this partition; may be given many times.
    unclean
        Elect any live replica for partitions without a leader. Records that only other replicas have are lost.
    """
    election_type = ElectionType.UNCLEAN if unclean else ElectionType.PREFERRED

    async def work(admin: Admin) -> dict[TopicPartition, KafkaError | None]:
        wanted = await _partitions(admin, topics, partition) if topics else None
        return await admin.elect_leaders(election_type, wanted)

    if partition and not topics:
        raise UsageError("--partition needs a topic: anabranch topics elect-leaders TOPIC --partition N")
    elected = with_admin(bootstrap_server, work)
    refused = {tp: error for tp, error in elected.items() if error and error.code is not ErrorCode.ELECTION_NOT_NEEDED}
    done = [tp for tp, error in elected.items() if error is None]
    return _report(done, refused, f"elected {counted(len(done), 'leader')}", as_json=json_)


@app.command
def reassign(
    topic: str,
    *,
    partition: Partitions = None,
    replicas: str | None = None,
    cancel: bool = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json_: JsonFlag = False,
) -> int:
    """Move partitions to other brokers, cancel moves, or show the moves in progress.

    Parameters
    ----------
    topic
        Its name.
    partition
        Only this partition; may be given many times.
    replicas
        Ids of the brokers that are to have the partitions, the preferred leader first: 2,3,1.
    cancel
        Cancel the moves in progress; the partitions return to their previous replicas.
    """
    if replicas is not None and cancel:
        raise UsageError("give --replicas or --cancel, not both")
    if replicas is None and not cancel:
        moving = with_admin(bootstrap_server, lambda admin: _reassignments(admin, topic, partition))
        _print_reassignments(moving, as_json=json_)
        return 0
    try:
        target = None if replicas is None else [_broker(one) for one in replicas.split(",")]
    except ValueError:
        raise UsageError(f"--replicas {replicas}: expected broker ids, e.g. --replicas 2,3,1") from None

    async def work(admin: Admin) -> dict[TopicPartition, KafkaError | None]:
        if target is None and not partition:
            wanted = list(await _reassignments(admin, topic, None))
        else:
            wanted = await _partitions(admin, [topic], partition)
        return await admin.alter_partition_reassignments(dict.fromkeys(wanted, target))

    results = with_admin(bootstrap_server, work)
    begun = [tp for tp, error in results.items() if error is None]
    summary = f"{'moving' if target is not None else 'cancelled moves'}: {counted(len(begun), 'partition')} of {topic}"
    return _report(begun, {tp: error for tp, error in results.items() if error is not None}, summary, as_json=json_)


def _broker(text: str) -> int:
    broker = int(text)
    if not 0 <= broker < 1 << 31:
        raise ValueError
    return broker


async def _partitions(admin: Admin, topics: Sequence[str], only: list[int] | None) -> list[TopicPartition]:
    described = await admin.describe_topics(topics)
    return [
        TopicPartition(name, index)
        for name in topics
        for index in only or [partition.partition for partition in described[name].partitions]
    ]


async def _reassignments(
    admin: Admin, topic: str, only: list[int] | None
) -> dict[TopicPartition, PartitionReassignment]:
    return await admin.list_partition_reassignments(await _partitions(admin, [topic], only))


class MovingPartition(NamedTuple):
    topic: str
    partition: int
    replicas: list[int]
    adding: list[int]
    removing: list[int]


def _print_reassignments(moving: Mapping[TopicPartition, PartitionReassignment], *, as_json: bool) -> None:
    rows = [
        MovingPartition(
            tp.topic, tp.partition, list(move.replicas), list(move.adding_replicas), list(move.removing_replicas)
        )
        for tp, move in sorted(moving.items())
    ]
    columns = ["topic", "partition", "replicas", "adding", "removing"]
    print_rows(rows, columns, as_json=as_json, as_tsv=False, none="no partition is being moved")


def _report(
    done: Iterable[TopicPartition], refused: Mapping[TopicPartition, KafkaError], summary: str, *, as_json: bool
) -> int:
    """Print the successes and the refusals. Returns the exit status."""
    if as_json:
        failed = failures({str(tp): error for tp, error in refused.items()})
        print_json({"done": [str(tp) for tp in done], "failed": failed})
    else:
        print(summary)
        for tp, error in refused.items():
            print(f"{tp}: {error.code.name}: {error.message}")
    return FAILED if refused else DONE
