"""Changes of the cluster: a change is first shown with the equivalent command line, and made when it is confirmed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import quote

from anabranch import KafkaError, Producer
from anabranch.command_error import CommandError
from anabranch.console.query import BadQueryError, Query
from anabranch.console.records import is_number, parse_partitions
from anabranch.console.watch import Watch
from anabranch.protocol.plurals import counted
from anabranch.view.resets import Reset, Where, apply_reset, plan_reset
from anabranch.view.resize import ResizePlan, begin_resize, plan_resize
from anabranch.view.times import milliseconds

PLACES = ("earliest", "latest", "offset", "time")


class Plan(NamedTuple):
    """A requested change that is not made yet. The browser sends ``form`` back to confirm the change.

    ``refused`` is the reason why the change cannot be made.
    """

    title: str
    back: str
    command: str
    form: dict[str, str]
    refused: str | None
    resize: ResizePlan | None = None
    resets: Sequence[Reset] = ()


class Change(NamedTuple):
    plan: Callable[[Watch, Query, str], Awaitable[Plan]]
    make: Callable[[Watch, Plan, str], Awaitable[str]]
    """Makes the change, and returns a sentence about it. Raises ``KafkaError`` or ``CommandError``."""


async def plan_of_resize(watch: Watch, query: Query, bootstrap: str) -> Plan:
    topic = await watch.existing_topic(query.get("topic", ""))
    count = query.number("count", topic.partition_count)
    refused = f"{topic.name} has {counted(count, 'partition')} already" if count == topic.partition_count else None
    planned = None
    if refused is None:
        planned = await plan_resize(watch.admin, topic.name, count, {})
        refused = planned.refused
    command = _command("topics", "alter", topic.name, "--partitions", str(count), "--wait", bootstrap=bootstrap)
    form = {"topic": topic.name, "count": str(count)}
    title = f"Resize {topic.name} to {counted(count, 'partition')}"
    return Plan(title, _path("topics", topic.name), command, form, refused, planned)


async def resize(watch: Watch, plan: Plan, _bootstrap: str) -> str:
    name, count = plan.form["topic"], int(plan.form["count"])
    await begin_resize(watch.admin, name, count, (), waits=False)
    return f"{name} is being resized to {counted(count, 'partition')}."


async def plan_of_reset(watch: Watch, query: Query, bootstrap: str) -> Plan:
    group = query.get("group", "")
    if not group:
        raise BadQueryError("group is empty: the name of a group is needed")
    topic = await watch.existing_topic(query.get("topic", ""))
    to, value = query.get("to") or "latest", query.get("value", "").strip()
    try:
        there = [p.partition for p in topic.partitions]
        partitions = parse_partitions(query.get("partitions", ""), there) if query.get("partitions") else None
        where, option = _where(to, value)
    except ValueError as error:
        raise BadQueryError(str(error)) from None
    refused: str | None = None
    rows: list[Reset] = []
    try:
        rows = await plan_reset(watch.admin, group, topic.name, partitions, where)
        if (await watch.admin.describe_groups([group]))[group].members:
            refused = f"{group} has members: its offsets can be set when all members have left"
    except (CommandError, KafkaError) as error:
        refused = str(error)
    chosen = [part for p in partitions or () for part in ("--partition", str(p))]
    command = _command("groups", "reset-offsets", group, "--topic", topic.name, *option, *chosen, bootstrap=bootstrap)
    form = {"group": group, "topic": topic.name, "to": to, "value": value, "partitions": query.get("partitions", "")}
    title = f"Set the offsets of {group} in {topic.name}"
    return Plan(title, _path("groups", group), command, form, refused, resets=rows)


def _where(to: str, value: str) -> tuple[Where, list[str]]:
    if to == "earliest":
        return Where(to_earliest=True), ["--to-earliest"]
    if to == "latest":
        return Where(to_latest=True), ["--to-latest"]
    if to == "offset":
        if not is_number(value):
            raise ValueError(f"offset is {value!r}: a number is needed")
        return Where(to_offset=int(value)), ["--to-offset", value]
    if to != "time":
        raise ValueError(f"to is {to!r}: one of {', '.join(PLACES)} is needed")
    at_ms = milliseconds("time", value, UTC)
    try:
        at = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"time is {value}: it is outside the years 1 to 9999") from None
    return Where(to_ms=at_ms), ["--to-datetime", at.isoformat()]


async def reset(watch: Watch, plan: Plan, _bootstrap: str) -> str:
    await apply_reset(watch.admin, plan.form["group"], plan.resets)
    return f"The offsets of {plan.form['group']} are set."


async def plan_of_produce(watch: Watch, query: Query, bootstrap: str) -> Plan:
    topic = await watch.existing_topic(query.get("topic", ""))
    key, value = query.get("key", ""), query.get("value", "")
    record = {"key": key, "value": value} if key else {"value": value}
    text = f"echo {shlex.quote(json.dumps(record))} | "
    command = text + _command("produce", topic.name, "--format", "json", bootstrap=bootstrap)
    form = {"topic": topic.name, "key": key, "value": value}
    back = _path("topics", topic.name) + "/messages"
    return Plan(f"Write a record to {topic.name}", back, command, form, None)


async def produce(watch: Watch, plan: Plan, bootstrap: str) -> str:
    form = plan.form
    async with Producer(bootstrap_servers=bootstrap, client_id="anabranch-console") as producer:
        key = form["key"].encode() or None
        written = await producer.send_and_wait(form["topic"], form["value"].encode(), key)
    return f"Written to partition {written.partition} at offset {written.offset}."


CHANGES: Mapping[str, Change] = {
    "resize": Change(plan_of_resize, resize),
    "reset": Change(plan_of_reset, reset),
    "produce": Change(plan_of_produce, produce),
}
"""The changes, by the last part of the path ``/change/...``."""


def _command(*words: str, bootstrap: str) -> str:
    return shlex.join(["anabranch", *words, "--bootstrap-server", bootstrap])


def _path(kind: str, name: str) -> str:
    return f"/{kind}/{quote(name)}"
