"""The data of each page, by path. A page is rendered completely once. Its live part is rendered again and again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from anabranch import ConfigEntry, KafkaError, LogDirDescription, TopicDescription
from anabranch.client.admin.types import ALL_BROKERS
from anabranch.command_error import UsageError
from anabranch.console.behind import reasons, summary, verdict
from anabranch.console.charts import Chart, chart_of
from anabranch.console.furthest import Behind, furthest_behind
from anabranch.console.history import History, Plot
from anabranch.console.problems import find_problems
from anabranch.console.query import BadQueryError, Query
from anabranch.console.records import (
    BY_SCHEMA,
    DOWNLOAD_BYTES,
    FORMATS,
    SIDES,
    Downloaded,
    FoundRecords,
    Texts,
    WantedRecords,
    browse,
    is_number,
    parse_partitions,
    places_of,
    whole,
)
from anabranch.console.rows import BrokerRow, ConfigRow, GroupRow, PartitionRow, TopicRow
from anabranch.console.sections import MOST_LINKED, Section, outcome_of, pinned, section_of, ways_on
from anabranch.console.sorting import ROWS, containing, in_order, order_of, page_of
from anabranch.console.tables import (
    BY_RATE_OR_LAG,
    OF_BROKERS,
    OF_CONFIGS,
    OF_GROUPS,
    OF_PARTITIONS,
    OF_READ_PARTITIONS,
    OF_RECORDS,
    OF_TOPICS,
)
from anabranch.console.waits import graph_of
from anabranch.console.watch import MOST_RATED, RANKED_S, NotThereError, Seen, Watch, by_broker
from anabranch.console.watched import REBALANCES
from anabranch.protocol.addresses import join_address
from anabranch.protocol.plurals import counted
from anabranch.view.configs import source_name
from anabranch.view.unread import lag_of, uncommitted_text

FAR_BEHIND, MOST_BEHIND = 1_000, 5
"""The cluster page names at most ``MOST_BEHIND`` groups, with a lag of at least ``FAR_BEHIND`` records."""
MOST_RECORDS = 500
RATE = "Records written a second"


Values: TypeAlias = dict[str, Any]
"""The values of a template, by their names in it."""


class Rendered(NamedTuple):
    template: str
    values: Values


Page = Callable[[Watch, Mapping[str, str], Query], Awaitable[Rendered]]


def _freshness(*seen: Seen[Any]) -> Values:
    """The first error among a page's responses, and the longest interval at which one of them is requested."""
    return {"error": next((one.error for one in seen if one.error), None), "every_s": max(one.every_s for one in seen)}


async def cluster(watch: Watch, _path: Mapping[str, str], query: Query) -> Rendered:
    order = order_of(query, OF_BROKERS)
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
        BrokerRow(
            id=broker,
            address=join_address(live[broker].host, live[broker].port) if broker in live else None,
            bytes=used.get(broker),
            free=_free(dirs.value.get(broker, ())),
            release=releases.get(broker),
            rate=rates.get(broker),
            leads=counts[broker].leads if broker in counts else 0,
            hosts=counts[broker].hosts if broker in counts else 0,
        )
        for broker in sorted({*live, *counts})
    ]
    values = {
        "cluster": seen.value,
        "order": order,
        "brokers": in_order(brokers, order, OF_BROKERS),
        "problems": find_problems(seen.value, topics.value.values(), lost, in_rebalance.value.values()),
        "topics": len(topics.value),
        "partitions": sum(len(topic.partitions) for topic in topics.value.values()),
        "groups": len(groups.value),
        "behind": behind[:MOST_BEHIND],
        "also_behind": len(behind[MOST_BEHIND:]),
        "rate": sum(rates.values()) if rates else None,
        "draining": [t.name for t in topics.value.values() if t.partition_count < len(t.partitions)],
        "features": await _features(watch),
        **_charts_of_all(watch.history),
        **_freshness(seen, topics),
    }
    return Rendered("cluster", values)


def _charts_of_all(history: History | None) -> Values:
    if history is None:
        return {"charts": [], "left_out": []}
    left_out = (counted(history.topics_left_out, "topic"), counted(history.groups_left_out, "group"))
    return {
        "charts": _charts((RATE, history.rate()), ("Records that all groups have to read", history.lag())),
        "left_out": [text for text in left_out if not text.startswith("0 ")],
    }


def _charts(*plots: tuple[str, Plot | None]) -> list[tuple[str, Chart]]:
    """The charts with their titles, without those that have nothing to draw."""
    return [(title, chart) for title, plot in plots if (chart := chart_of(plot)) is not None]


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


async def topics(watch: Watch, _path: Mapping[str, str], query: Query) -> Rendered:
    seen = await watch.topics()
    internal = "internal" in query
    names = containing((name for name, topic in seen.value.items() if internal or not topic.internal), query)
    matching = [seen.value[name] for name in sorted(names)]
    order = order_of(query, OF_TOPICS, () if _is_rated(matching) else BY_RATE_OR_LAG)
    sizes = await watch.sizes()
    rows = [_row_of(topic, sizes) for topic in matching]
    if order.column in BY_RATE_OR_LAG:
        rows = await _with_rates(watch, matching, rows)
    paged = page_of(in_order(rows, order, OF_TOPICS), query)
    shown = [seen.value[row.name] for row in paged.rows]
    is_rated = _is_rated(shown)
    rows = await _with_rates(watch, shown, paged.rows) if is_rated else paged.rows
    values = {"rows": rows, "order": order, "internal": internal, "rated": is_rated, "q": query.get("q", "")}
    return Rendered("topics", {**paged.values, **values, **_freshness(seen)})


def _is_rated(topics: Iterable[TopicDescription]) -> bool:
    return sum(len(topic.partitions) for topic in topics) <= MOST_RATED


def _row_of(topic: TopicDescription, sizes: Mapping[str, int]) -> TopicRow:
    """A row of the list of topics, still without its rate and its lag."""
    return TopicRow(
        name=topic.name,
        in_use=topic.partition_count,
        marked=len(topic.partitions) - topic.partition_count,
        replicas=max((len(p.replicas) for p in topic.partitions), default=0),
        not_in_sync=sum(len(p.isr) < len(p.replicas) for p in topic.partitions),
        leaderless=sum(p.leader < 0 for p in topic.partitions),
        bytes=sizes.get(topic.name),
        ordered=topic.ordered_delivery,
    )


async def _with_rates(watch: Watch, topics: Iterable[TopicDescription], rows: Iterable[TopicRow]) -> list[TopicRow]:
    by_name = {topic.name: topic for topic in topics}
    lags = await watch.worst_lags(by_name.values())
    return [row._replace(rate=watch.rate(by_name[row.name]), lag=lags.get(row.name)) for row in rows]


async def topic(watch: Watch, path: Mapping[str, str], query: Query) -> Rendered:
    described = await watch.existing_topic(path["topic"])
    seen = await watch.topic(described.name)
    described_rows = seen.value.partitions
    rows = [PartitionRow(row, watch.partition_rate(described.name, row.partition)) for row in described_rows]
    order = order_of(query, OF_PARTITIONS, () if len(rows) <= ROWS else ("hottest",))
    if order.column == "hottest":
        rows = await _with_hottest(watch, described.name, rows)
    paged = page_of(in_order(rows, order, OF_PARTITIONS), query)
    shown = await _with_hottest(watch, described.name, paged.rows)
    most = max((row.rate or 0 for row in shown), default=0)
    shown = [row._replace(heat=round(10 * (row.rate or 0) / most) if most else 0) for row in shown]
    lags: dict[str, int] = {}
    ends = {row.partition: row.high_watermark for row in described_rows if row.high_watermark is not None}
    starts = {row.partition: row.log_start_offset or 0 for row in described_rows}
    committed_by_group = await watch.lags()
    for group, committed in committed_by_group.value.items():
        of_topic = {tp.partition: at for tp, at in committed.items() if tp.topic == described.name}
        if of_topic:
            lags[group] = sum(lag_of(at, starts[p], ends[p]) for p, at in of_topic.items() if p in ends)
    values = {
        **paged.values,
        "topic": described,
        "described": seen.value,
        "rows": shown,
        "order": order,
        "tree": await watch.tree(described),
        "lags": sorted(lags.items(), key=lambda item: -item[1]),
        "charts": _charts(
            (RATE, watch.history.rate(described.name)),
            ("Records to read, group furthest behind", watch.history.largest_lag(described.name)),
        )
        if watch.history is not None
        else [],
        "rate": watch.rate(described),
        **_freshness(seen, committed_by_group),
    }
    return Rendered("topic", values)


async def _with_hottest(watch: Watch, topic: str, rows: Iterable[PartitionRow]) -> list[PartitionRow]:
    rows = list(rows)
    ends = {row.of.partition: row.of.high_watermark for row in rows if row.of.high_watermark is not None}
    found = await watch.hottest(topic, ends)
    return [row._replace(hottest=found.get(row.of.partition)) for row in rows]


async def groups(watch: Watch, _path: Mapping[str, str], query: Query) -> Rendered:
    seen = await watch.cached("groups", watch.admin.list_groups)
    by_name = {group.group_id: group for group in seen.value}
    committed = await watch.lags()
    ranks = await watch.ranks()
    order = order_of(query, OF_GROUPS, () if ranks is not None else ("lag",))
    places = ranks or {}
    names = containing(by_name, query)
    rows = [
        GroupRow(
            name,
            by_name[name].state,
            sorted({tp.topic for tp in committed.value.get(name, {})}),
            -places[name] if name in places else None,
        )
        for name in sorted(names, key=lambda name: (places.get(name, len(places)), name))
    ]
    paged = page_of(in_order(rows, order, OF_GROUPS), query)
    lags = await watch.lags_in_all([row.name for row in paged.rows])
    rows = [row._replace(lag=lags.get(row.name)) for row in paged.rows]
    values = {"rows": rows, "rebalances": REBALANCES, "order": order, "is_ranked": ranks is not None}
    return Rendered(
        "groups",
        {**paged.values, **values, "q": query.get("q", ""), "ranked_s": RANKED_S, **_freshness(seen, committed)},
    )


async def group(watch: Watch, path: Mapping[str, str], query: Query) -> Rendered:
    listed = {g.group_id for g in (await watch.cached("groups", watch.admin.list_groups)).value}
    if path["group"] not in listed and not path["group"]:
        return await groups(watch, path, query)
    if path["group"] not in listed:
        raise NotThereError(f"group {path['group']} does not exist")
    seen = await watch.group(path["group"])
    found = seen.value
    rows = sorted(found.partitions, key=lambda row: (-(row.lag or row.at_most or 0), row.topic, row.partition))
    order = order_of(query, OF_READ_PARTITIONS)
    paged = page_of(in_order(rows, order, OF_READ_PARTITIONS), query)
    blocked = {(wait.topic, wait.partition) for wait in found.waits if wait.blocked}
    totals = summary(found)
    former = {
        (row.topic, row.partition): f"was {row.was.name}" for row in rows if row.was is not None and row.member is None
    }
    is_rebalance = found.state in REBALANCES
    values = {
        **paged.values,
        "group": found,
        "rows": paged.rows,
        "order": order,
        "blocked": blocked,
        "nobody": "unknown until the rebalance ends" if is_rebalance else "nobody reads it",
        "former": former,
        "uncommitted": uncommitted_text(found.uncommitted.values(), "'To read'"),
        "reasons": reasons(found),
        "summary": totals,
        "verdict": verdict(totals, seen.error),
        "charts": _charts(("Records to read", watch.history.lag(path["group"], {row.topic for row in rows})))
        if watch.history is not None
        else [],
        "waits": found.waits[:ROWS],
        "wait_count": len(found.waits),
        "graph": graph_of(found.waits, ROWS, "the group rebalances" if is_rebalance else "nobody reads it", former),
        **_freshness(seen),
    }
    return Rendered("group", values)


async def messages(watch: Watch, path: Mapping[str, str], query: Query) -> Rendered:
    described, how = await _topic_of_records(watch, path["topic"]), _format_of(watch, query)
    formats = FORMATS if watch.registry is None else (*FORMATS, BY_SCHEMA)
    order = order_of(query, OF_RECORDS)
    values = {"topic": described, "query": query, "formats": formats, "how": how, "order": order, "sides": SIDES}
    values |= {"found": None, "wrong": None, "download_bytes": DOWNLOAD_BYTES}
    try:
        section, found = await _search(watch, described, query, how)
    except (ValueError, UsageError, KafkaError) as error:
        return Rendered("messages", {**values, "wrong": str(error)})
    if key := query.get("key"):
        values["places"] = places_of(key.encode(), described)
    values |= {"found": found, "rows": in_order(found.records, order, OF_RECORDS)}
    values |= {"ways": ways_on(section, found), "outcome": outcome_of(section, found)}
    values["is_linked"] = len(section.ranges) <= MOST_LINKED
    values["pinned"] = pinned(section) if values["is_linked"] else {"from": query.get("from", "")}
    rest = {name: query[name] for name in ("partitions", "contains", "in", "key", "format", "count") if name in query}
    values["asked"] = lambda place: rest | place
    return Rendered("messages", values)


async def _topic_of_records(watch: Watch, name: str) -> TopicDescription:
    """A fresh description: keys may have moved a moment ago."""
    name = (await watch.existing_topic(name)).name
    return (await watch.admin.describe_topics([name]))[name]


def _format_of(watch: Watch, query: Query) -> str:
    how = query.get("format") or (FORMATS[0] if watch.registry is None else BY_SCHEMA)
    if how == BY_SCHEMA and watch.registry is None:
        raise BadQueryError("format is 'schema': this console was started without --schema-registry")
    if how not in (*FORMATS, BY_SCHEMA):
        raise BadQueryError(f"format is {how!r}: one of {', '.join(FORMATS)} is needed")
    return how


async def _search(watch: Watch, topic: TopicDescription, query: Query, how: str) -> tuple[Section, FoundRecords]:
    """The records that a query asks for. Raises ``ValueError`` or ``UsageError`` for one that makes no sense."""
    count = query.number("count", 50, MOST_RECORDS)
    within = query.get("in") or SIDES[0]
    if within not in SIDES:
        raise BadQueryError(f"in is {within!r}: one of {', '.join(SIDES)} is needed")
    wanted = WantedRecords(query.get("contains", "").encode(), within, query.get("key", "").encode() or None)
    partitions = parse_partitions(query.get("partitions", ""), [p.partition for p in topic.partitions if p.leader >= 0])
    where = query.get("from") or ("beginning" if wanted.contains or wanted.key else "end")
    section = await section_of(watch.admin, topic.name, partitions, where, query.get("before", ""), count)
    texts = Texts(how, watch.registry)
    return section, await browse(watch.reader, topic, section.ranges, count, texts, wanted, newest=section.newest)


async def download(watch: Watch, path: Mapping[str, str], query: Query) -> Downloaded:
    """The records that the messages page shows for this query, whole. Raises as a page does."""
    described = await _topic_of_records(watch, path["topic"])
    try:
        _, found = await _search(watch, described, query, "hex")
    except (ValueError, UsageError) as error:
        raise BadQueryError(str(error)) from None
    return await whole(watch.reader, described.name, found.records)


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
        ConfigRow(entry, _source(entry.source), _otherwise(entry))
        for key, entry in sorted(entries.items())
        if wanted in key.lower() and ("set" not in query or not entry.is_default)
    ]
    order = order_of(query, OF_CONFIGS)
    values = {"kind": kind, "name": name, "rows": in_order(rows, order, OF_CONFIGS), "order": order}
    return Rendered("configs", {**values, "q": query.get("q", ""), "only_set": "set" in query})


def _source(source: int) -> str:
    return source_name(source).lower().replace("_", " ")


def _otherwise(entry: ConfigEntry) -> list[str]:
    """The values that apply if the present value is removed, each with its source. The last value is the default."""
    if entry.is_default or entry.sensitive:
        return []
    return [
        f"{one.name}={'-' if one.value is None else one.value} ({_source(one.source)})" for one in entry.synonyms[1:]
    ]


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
