"""The data of each page, by path. A page is rendered completely once. Its live part is rendered again and again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from anabranch import ConfigEntry, KafkaError, LogDirDescription, TopicDescription
from anabranch.cli.configs import source_name
from anabranch.cli.groups import left_of_wait, wait_sentences
from anabranch.cli.unread import lag_of, uncommitted_text
from anabranch.client.admin.types import ALL_BROKERS
from anabranch.command_error import UsageError
from anabranch.console.behind import REBALANCES, reasons, summary, verdict
from anabranch.console.furthest import Behind, furthest_behind
from anabranch.console.problems import find_problems
from anabranch.console.records import (
    BY_SCHEMA,
    FORMATS,
    Texts,
    browse,
    follow,
    is_number,
    parse_partitions,
    places_of,
)
from anabranch.console.sections import MOST_LINKED, outcome_of, section_of, ways_on
from anabranch.console.waits import graph_of
from anabranch.console.watch import MOST_RATED, RANKED_S, NotThereError, Seen, Watch, by_broker
from anabranch.protocol.addresses import join_address

FAR_BEHIND, MOST_BEHIND = 1_000, 5
"""The cluster page names at most ``MOST_BEHIND`` groups, with a lag of at least ``FAR_BEHIND`` records."""
ROWS = 50
"""The largest number of rows of a table on one page."""
MOST_RECORDS = 500
ORDERS = BY_LAG, BY_NAME = "lag", "name"
"""The orders of the list of groups."""


class Query(Mapping[str, str]):
    """The query string of a URL; each name has one value."""

    def __init__(self, text: str) -> None:
        self._values = {name: values[-1] for name, values in parse_qs(text, keep_blank_values=True).items()}

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Any:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def number(self, name: str, default: int, most: int = 2**31) -> int:
        """A number from 0 to ``most``. Raises ``BadQueryError``."""
        text = self.get(name) or str(default)
        if not is_number(text) or int(text) > most:
            raise BadQueryError(f"{name} is {text!r}: a number from 0 to {most:,} is needed")
        return int(text)


class BadQueryError(Exception):
    """A query that makes no sense; the message gives the reason."""


class Rendered(NamedTuple):
    template: str
    values: dict[str, Any]


Page = Callable[[Watch, Mapping[str, str], Query], Awaitable[Rendered]]


def _freshness(*seen: Seen[Any]) -> dict[str, Any]:
    """The first error among a page's responses, and the longest interval at which one of them is requested."""
    return {"error": next((one.error for one in seen if one.error), None), "every_s": max(one.every_s for one in seen)}


async def cluster(watch: Watch, _path: Mapping[str, str], _query: Query) -> Rendered:
    seen, topics, dirs = await watch.cluster(), await watch.topics(), await watch.log_dirs()
    counts = by_broker(topics.value)
    lost = {b: [d.path for d in found if d.error is not None] for b, found in dirs.value.items()}
    used = {b: sum(r.size_bytes for d in found for r in d.partitions.values()) for b, found in dirs.value.items()}
    releases = (await watch.releases()).value
    live = {node.id: node for node in seen.value.nodes}
    groups = await watch.cached("groups", watch.admin.list_groups)
    rebalancing = [group.group_id for group in groups.value if group.state in REBALANCES][:MOST_BEHIND]
    in_rebalance = await watch.cached("in rebalance", lambda: watch.admin.describe_groups(rebalancing))
    behind = await _furthest_behind(watch, topics.value, {group.group_id: group.state for group in groups.value})
    rates = _rates_by_leader(watch, topics.value.values())
    brokers = [
        {
            "id": broker,
            "address": join_address(live[broker].host, live[broker].port) if broker in live else None,
            "bytes": used.get(broker),
            "free": _free(dirs.value.get(broker, ())),
            "release": releases.get(broker),
            "rate": rates.get(broker),
            **counts.get(broker, {"leads": 0, "hosts": 0}),
        }
        for broker in sorted({*live, *counts})
    ]
    values = {
        "cluster": seen.value,
        "brokers": brokers,
        "problems": find_problems(seen.value, topics.value.values(), lost, in_rebalance.value.values()),
        "topics": len(topics.value),
        "partitions": sum(len(topic.partitions) for topic in topics.value.values()),
        "groups": len(groups.value),
        "behind": behind[:MOST_BEHIND],
        "also_behind": len(behind[MOST_BEHIND:]),
        "rate": sum(rates.values()) if rates else None,
        "draining": [t.name for t in topics.value.values() if t.partition_count < len(t.partitions)],
        "features": await _features(watch),
        **_freshness(seen, topics),
    }
    return Rendered("cluster", values)


def _free(directories: Iterable[LogDirDescription]) -> list[tuple[str, int, int]]:
    """(path, free bytes, bytes) of each log directory whose broker reports the size of the file system (KIP-827)."""
    return [
        (d.path, d.usable_bytes, d.total_bytes)
        for d in directories
        if d.usable_bytes is not None and d.total_bytes is not None
    ]


async def _furthest_behind(
    watch: Watch, topics: Mapping[str, TopicDescription], states: Mapping[str, str]
) -> list[Behind]:
    """The groups furthest behind; empty in a cluster with very many partitions."""
    if sum(len(topic.partitions) for topic in topics.values()) > MOST_RATED:
        return []
    lags = await watch.group_lags([topic for topic in topics.values() if not topic.internal])
    return furthest_behind(lags, states, watch.committing(), FAR_BEHIND)


def _rates_by_leader(watch: Watch, topics: Iterable[TopicDescription]) -> dict[int, float]:
    """By broker, the sum of the known write rates, in records a second, of the partitions that the broker leads."""
    rates: dict[int, float] = {}
    for topic in topics:
        for p in topic.partitions:
            rate = watch.partition_rate(topic.name, p.partition)
            if rate is not None and p.leader >= 0:
                rates[p.leader] = rates.get(p.leader, 0.0) + rate
    return rates


async def _features(watch: Watch) -> dict[str, str]:
    try:
        found = (await watch.cached("features", watch.admin.describe_features, 10)).value
    except Exception:  # the broker has no features, as in Kafka before 2.7
        return {}
    return {name: f"{level.min}-{level.max}" for name, level in sorted(found.finalized.items())}


def _paged(names: list[str], query: Query) -> dict[str, Any]:
    """One page of the names that contain ``q``, and the values for the links to other pages."""
    wanted = query.get("q", "").strip()
    chosen = [name for name in names if wanted.lower() in name.lower()]
    pages = max(1, -(-len(chosen) // ROWS))
    number = min(max(query.number("page", 1), 1), pages)
    return {
        "q": wanted,
        "names": chosen[(number - 1) * ROWS : number * ROWS],
        "matching": len(chosen),
        "page": number,
        "pages": pages,
    }


async def topics(watch: Watch, _path: Mapping[str, str], query: Query) -> Rendered:
    seen = await watch.topics()
    internal = "internal" in query
    names = sorted(name for name, topic in seen.value.items() if internal or not topic.internal)
    paged = _paged(names, query)
    shown = [seen.value[name] for name in paged["names"]]
    is_rated = sum(len(topic.partitions) for topic in shown) <= MOST_RATED
    lags = await watch.worst_lags(shown) if is_rated else {}
    sizes = await watch.sizes()
    rows = [
        {
            "name": topic.name,
            "in_use": topic.partition_count,
            "marked": len(topic.partitions) - topic.partition_count,
            "replicas": max((len(p.replicas) for p in topic.partitions), default=0),
            "not_in_sync": sum(len(p.isr) < len(p.replicas) for p in topic.partitions),
            "leaderless": sum(p.leader < 0 for p in topic.partitions),
            "bytes": sizes.get(topic.name),
            "rate": watch.rate(topic) if is_rated else None,
            "lag": lags.get(topic.name),
            "ordered": topic.ordered_delivery,
        }
        for topic in shown
    ]
    return Rendered("topics", {**paged, "rows": rows, "internal": internal, "rated": is_rated, **_freshness(seen)})


async def topic(watch: Watch, path: Mapping[str, str], query: Query) -> Rendered:
    described = await watch.existing_topic(path["topic"])
    seen = await watch.topic(described.name)
    partitions = seen.value["partitions"]
    paged = _paged([str(row["partition"]) for row in partitions], query)
    shown = {int(name) for name in paged["names"]}
    rows = [
        {
            **row,
            "rate": watch.partition_rate(described.name, row["partition"]),
            "records": None
            if row["high_watermark"] is None or row["log_start_offset"] is None
            else row["high_watermark"] - row["log_start_offset"],
        }
        for row in partitions
        if row["partition"] in shown
    ]
    led = {row["partition"]: row["high_watermark"] for row in rows if row["high_watermark"] is not None}
    hottest = await watch.hottest(described.name, led)
    most = max((row["rate"] or 0 for row in rows), default=0)
    for row in rows:
        row["hottest"] = hottest.get(row["partition"])
        row["heat"] = round(10 * (row["rate"] or 0) / most) if most else 0
    lags: dict[str, int] = {}
    ends = {row["partition"]: row["high_watermark"] for row in partitions if row["high_watermark"] is not None}
    starts = {row["partition"]: row["log_start_offset"] or 0 for row in partitions}
    committed_by_group = await watch.lags()
    for group, committed in committed_by_group.value.items():
        of_topic = {tp.partition: at for tp, at in committed.items() if tp.topic == described.name}
        if of_topic:
            lags[group] = sum(lag_of(at, starts[p], ends[p]) for p, at in of_topic.items() if p in ends)
    values = {
        **paged,
        "topic": described,
        "row": seen.value,
        "rows": rows,
        "tree": await watch.tree(described),
        "lags": sorted(lags.items(), key=lambda item: -item[1]),
        "rate": watch.rate(described),
        **_freshness(seen, committed_by_group),
    }
    return Rendered("topic", values)


async def groups(watch: Watch, _path: Mapping[str, str], query: Query) -> Rendered:
    order = query.get("order") or BY_LAG
    if order not in ORDERS:
        raise BadQueryError(f"order is {order!r}: one of {', '.join(ORDERS)} is needed")
    seen = await watch.cached("groups", watch.admin.list_groups)
    by_name = {group.group_id: group for group in seen.value}
    committed = await watch.lags()
    ranks = await watch.ranks() if order == BY_LAG else None
    places = ranks or {}
    paged = _paged(sorted(by_name, key=lambda name: (places.get(name, len(places)), name)), query)
    lags = await watch.lags_in_all(paged["names"])
    rows = [
        {
            "name": name,
            "state": by_name[name].state,
            "topics": sorted({tp.topic for tp in committed.value.get(name, {})}),
            "lag": lags.get(name),
        }
        for name in paged["names"]
    ]
    values = {"rows": rows, "rebalances": REBALANCES, "order": order, "is_ranked": ranks is not None}
    return Rendered("groups", {**paged, **values, "ranked_s": RANKED_S, **_freshness(seen, committed)})


async def group(watch: Watch, path: Mapping[str, str], query: Query) -> Rendered:
    listed = {g.group_id for g in (await watch.cached("groups", watch.admin.list_groups)).value}
    if path["group"] not in listed:
        raise NotThereError(f"group {path['group']} does not exist")
    seen = await watch.group(path["group"])
    found = seen.value
    rows = sorted(
        found["partitions"], key=lambda row: (-(row["lag"] or row["at_most"] or 0), row["topic"], row["partition"])
    )
    paged = _paged([f"{row['topic']}-{row['partition']}" for row in rows], query)
    shown = set(paged["names"])
    blocked = {(wait["topic"], wait["partition"]) for wait in found["waits"] if wait["blocked"]}
    totals = summary(found)
    former = {
        (row["topic"], row["partition"]): f"was {row['was'].name}"
        for row in rows
        if row["was"] is not None and row["member"] is None
    }
    is_rebalance = found["state"] in REBALANCES
    values = {
        **paged,
        "group": found,
        "rows": [row for row in rows if f"{row['topic']}-{row['partition']}" in shown],
        "blocked": blocked,
        "nobody": "unknown until the rebalance ends" if is_rebalance else "nobody reads it",
        "former": former,
        "uncommitted": uncommitted_text(found["uncommitted"].values(), "'To read'"),
        "reasons": reasons(found),
        "summary": totals,
        "verdict": verdict(totals, seen.error),
        "waits": [
            (wait, left_of_wait(wait), sentence)
            for wait, sentence in zip(found["waits"][:ROWS], wait_sentences(found["waits"][:ROWS]), strict=True)
        ],
        "wait_count": len(found["waits"]),
        "graph": graph_of(found["waits"], ROWS, "the group rebalances" if is_rebalance else "nobody reads it", former),
        **_freshness(seen),
    }
    return Rendered("group", values)


async def messages(watch: Watch, path: Mapping[str, str], query: Query) -> Rendered:
    name = (await watch.existing_topic(path["topic"])).name
    described = (await watch.admin.describe_topics([name]))[name]  # fresh, because keys may have moved a moment ago
    numbers = [p.partition for p in described.partitions if p.leader >= 0]
    formats = FORMATS if watch.registry is None else (*FORMATS, BY_SCHEMA)
    values: dict[str, Any] = {"topic": described, "query": query, "formats": formats, "found": None, "wrong": None}
    how = query.get("format") or ("text" if watch.registry is None else BY_SCHEMA)
    count = query.number("count", 50, MOST_RECORDS)
    if how == BY_SCHEMA and watch.registry is None:
        raise BadQueryError("format is 'schema': this console was started without --schema-registry")
    if how not in formats:
        raise BadQueryError(f"format is {how!r}: one of {', '.join(formats)} is needed")
    values["how"], texts = how, Texts(how, watch.registry)
    try:
        partitions = parse_partitions(query.get("partitions", ""), numbers)
        otherwise = "beginning" if query.get("key") or query.get("contains") else "end"
        where, before = query.get("from") or otherwise, query.get("before", "")
        section = await section_of(watch.admin, described.name, partitions, where, before, count)
    except (ValueError, UsageError) as error:
        values["wrong"] = str(error)
        return Rendered("messages", values)
    try:
        if key := query.get("key"):
            values["places"] = places_of(key.encode(), described)
            found = await follow(
                watch.reader, described, section.ranges, key.encode(), count, texts, newest=section.newest
            )
        else:
            has = query.get("contains", "").encode()
            found = await browse(watch.reader, described.name, section.ranges, count, texts, has, newest=section.newest)
        values |= {"found": found, "section": section, "ways": ways_on(section, found)}
        values["outcome"] = outcome_of(section, found)
        values["is_linked"] = len(section.ranges) <= MOST_LINKED
    except KafkaError as error:
        values["wrong"] = str(error)
    return Rendered("messages", values)


async def configs(watch: Watch, path: Mapping[str, str], query: Query) -> Rendered:
    kind, name = path["kind"], path["name"]
    if kind == "topic":
        described = await watch.existing_topic(name)
        entries = (await watch.admin.describe_configs(topics=[described.name]))[described.name]
    elif kind != "broker":
        raise NotThereError(f"{kind} is neither topic nor broker")
    elif name == "all" or is_number(name):
        broker = ALL_BROKERS if name == "all" else int(name)
        if broker != ALL_BROKERS and broker not in {node.id for node in (await watch.cluster()).value.nodes}:
            raise NotThereError(f"broker {name} is not in the cluster")
        entries = (await watch.admin.describe_configs(brokers=[broker]))[broker]
    else:
        raise NotThereError(f"{name} is no broker's id")
    wanted = query.get("q", "").lower()
    rows = [
        {"entry": entry, "source": _source(entry.source), "otherwise": _otherwise(entry)}
        for key, entry in sorted(entries.items())
        if wanted in key.lower() and ("set" not in query or not entry.is_default)
    ]
    return Rendered(
        "configs", {"kind": kind, "name": name, "rows": rows, "q": query.get("q", ""), "only_set": "set" in query}
    )


def _source(source: int) -> str:
    return source_name(source).lower().replace("_", " ")


def _otherwise(entry: ConfigEntry) -> list[str]:
    """The values that apply if the present value is removed, each with its source. The last value is the default."""
    if entry.is_default or entry.sensitive:
        return []
    return [f"{'-' if one.value is None else one.value} ({_source(one.source)})" for one in entry.synonyms[1:]]


PAGES: dict[str, Page] = {
    "/": cluster,
    "/topics": topics,
    "/topics/{topic}": topic,
    "/topics/{topic}/messages": messages,
    "/groups": groups,
    "/groups/{group:text}": group,
    "/configs/{kind}/{name}": configs,
}
"""The pages by path, in Starlette's form."""
LIVE = ("/", "/topics", "/topics/{topic}", "/groups", "/groups/{group:text}")
"""Pages that change while they are open."""
