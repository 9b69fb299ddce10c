"""The last known owners of partitions: a broker reports no assignment of a group that rebalances."""

from __future__ import annotations

from typing import Any, NamedTuple

from anabranch.console.behind import REBALANCES

MOST_GROUPS = 2_000
"""The largest number of groups whose owners are kept."""


class Owner(NamedTuple):
    name: str
    """The client id; the member id if the client id is empty."""
    host: str


class Assignment(NamedTuple):
    seen_ms: int
    owners: dict[tuple[str, int], Owner]
    """By topic and partition."""


class LastOwners:
    """Keeps the partition owners of each group, as last seen outside a rebalance."""

    def __init__(self) -> None:
        self._seen: dict[str, Assignment] = {}

    def note(self, group: dict[str, Any], now_ms: int) -> None:
        """Keep the owners in the data of ``Watch.group``. During a rebalance, add the earlier owners to the data.

        ``was`` of a row is the earlier owner, or None. ``owners_seen_ms`` is the time of the earlier assignment, or
        None. A partition without a commit is in the data only while it is assigned. If such a partition had an owner, a
        row is added for it.
        """
        rows, name = group["partitions"], group["group"]
        before = None
        if group["state"] in REBALANCES:
            before = self._seen.get(name)
        else:
            self._seen.pop(name, None)  # the newest groups are at the end
            owners = {
                (row["topic"], row["partition"]): Owner(row["client_id"] or row["member"], row["host"])
                for row in rows
                if row["member"]
            }
            self._seen[name] = Assignment(now_ms, owners)
            while len(self._seen) > MOST_GROUPS:
                del self._seen[next(iter(self._seen))]
        owned = {} if before is None else before.owners
        listed = {(row["topic"], row["partition"]) for row in rows}
        rows += [_row(*place) for place in sorted(owned.keys() - listed)]
        for row in rows:
            row["was"] = owned.get((row["topic"], row["partition"]))
        group["owners_seen_ms"] = None if before is None else before.seen_ms


def _row(topic: str, partition: int) -> dict[str, Any]:
    """The row of a partition without a commit and without an owner."""
    empty = dict.fromkeys(
        (
            "committed_offset",
            "high_watermark",
            "lag",
            "member",
            "client_id",
            "log_start_offset",
            "expired",
            "uncommitted",
        )
    )
    return {"topic": topic, "partition": partition, "host": "", **empty}
