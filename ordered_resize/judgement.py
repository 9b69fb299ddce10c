"""Whether a topic may be changed: one list of rules for requests and for edits.

A request, an edit of the topic's znode, an edit made while no controller was active, and a queued count pose the same
question: may the known topic become the requested topic? There are three answers: accept, with the znode to write;
refuse, with a reason; freeze, with a reason, if the znodes contradict each other. A frozen topic is served but not
resized, until an edit ends the contradiction.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from anabranch.ordered_resize import next_step
from anabranch.ordered_resize.consistency import contradictions
from anabranch.ordered_resize.delete_when_drained import Marked, of_compacted
from anabranch.ordered_resize.explain import states_unreadable
from anabranch.ordered_resize.next_step import Assign
from anabranch.ordered_resize.snapshot import Snapshot
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.plurals import named, one_or_many
from anabranch.zk_schemas.partition_state import LineageEntry
from anabranch.zk_schemas.topic import TopicZnode
from anabranch.zk_schemas.znode import MAX_EPOCH, MAX_PARTITIONS, MAX_TIME_MS


class VerdictKind(enum.Enum):
    """The decision on a request or an edit."""

    ACCEPT = "the topic's znode is to be ``topic``"
    REFUSE = "nothing changes; an edit is undone, which ``topic`` does"
    FREEZE = "the znodes contradict each other: the topic is served, but not resized"


class Verdict(NamedTuple):
    """A decision. ``topic``: the znode to write; None if the stored znode stays as it is."""

    outcome: VerdictKind
    topic: TopicZnode | None = None
    why: str = ""
    """One sentence: the reason for a refusal, or the part that is not done; empty if everything is done."""
    code: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class ResizeLimits:
    """Limits on the result of one resize."""

    max_partitions: int = MAX_PARTITIONS
    max_state_bytes: int = 256 * 1024
    """The largest state znode of a partition that gains keys; ZooKeeper accepts 1 MiB."""
    max_topic_bytes: int = 512 * 1024


@dataclass(frozen=True, slots=True)
class Setting:
    """The facts besides the topic's znodes that decide about a resize."""

    assign: Assign = field(default=lambda new: {})
    """Chooses replicas for new partitions. Raises if there are too few brokers at the moment."""
    limits: ResizeLimits = field(default_factory=ResizeLimits)
    is_internal: bool = False
    is_compacted: bool = False
    marked: Marked = Marked.EXPIRED
    """How long partitions that are marked for deletion are kept."""
    is_ordered: bool = True
    """``enable.ordered.delivery``. The first resize fixes its value."""
    not_now: str = ""
    """The reason why no topic can be resized, such as a feature that is not finalized; empty if there is none."""


@dataclass(frozen=True)
class Case:
    """``known``: the topic before; ``asked``: its requested znode."""

    known: Snapshot
    asked: TopicZnode
    setting: Setting

    @property
    def before(self) -> int:
        return self.known.topic.undeleted_partition_count

    @property
    def count(self) -> int:
        """The requested count, including partitions that were added to the assignment."""
        added = len(self.asked.partitions) > len(self.known.topic.partitions)
        return len(self.asked.partitions) if added else self.asked.undeleted_partition_count

    @property
    def uncounted(self) -> Snapshot:
        """The known topic with all requested changes except the count."""
        return dataclasses.replace(self.known, topic=self.asked.replace(undeleted_partition_count=self.before))

    @cached_property
    def begun(self) -> TopicZnode:
        """The write that would begin the resize at once."""
        topic = next_step.begun(self.uncounted, self.count, self.setting.assign)
        return topic.replace(
            ordered_delivery=self.setting.is_ordered if topic.ordered_delivery is None else topic.ordered_delivery
        )

    @property
    def queued(self) -> TopicZnode:
        """The write that queues the count. Replicas of new partitions are chosen when the resize begins."""
        return self.uncounted.topic.replace(wanted=self.count, partitions=self.known.topic.partitions)


# ---------------------------------------------------------------- requests and edits


def judge_request(
    snapshot: Snapshot, count: int, setting: Setting, assigned: Mapping[int, list[int]] | None = None
) -> Verdict:
    """Decide on a request for a count, with or without replicas for the new partitions."""
    if snapshot.frozen:
        return _refused(ErrorCode.POLICY_VIOLATION, f"The topic is frozen: {snapshot.frozen}.")
    if unreadable := sorted(snapshot.unreadable):
        return _refused(ErrorCode.POLICY_VIOLATION, _states_unreadable(unreadable))
    topic = snapshot.topic
    if count == topic.undeleted_partition_count:
        if topic.wanted is None and next_step.is_over(snapshot):
            return _refused(ErrorCode.INVALID_PARTITIONS, f"Topic already has {count} partitions.")
        return Verdict(VerdictKind.ACCEPT, topic.replace(wanted=None))
    asked = topic.replace(undeleted_partition_count=count, partitions={**topic.partitions, **(assigned or {})})
    verdict = _judge(Case(snapshot, asked, setting))
    if assigned and verdict.topic is not None and verdict.topic.wanted == count:
        return _refused(
            ErrorCode.POLICY_VIOLATION,
            "The resize has to wait until the leaders have acknowledged the present layout. Only a count can be queued:"
            " send the request without replica assignments, or repeat it later.",
        )
    return verdict


def advice(known: TopicZnode, asked: TopicZnode, setting: Setting) -> str:
    """A note on an accepted resize of a compacted topic, about the partitions that the resize marks for deletion.

    Empty if the resize marks no partition, for example because it cancels a grow.
    """
    counted, after = asked.undeleted_partition_count, asked.wanted or asked.undeleted_partition_count
    is_cancelled = asked.wanted is None and asked.previous_undeleted_partition_count == counted
    if not setting.is_compacted or is_cancelled or after >= known.undeleted_partition_count:
        return ""
    return of_compacted(range(after, known.undeleted_partition_count), setting.marked)


def judge_edit(snapshot: Snapshot, edited: TopicZnode, setting: Setting) -> Verdict:
    """Decide on an edit of the topic's znode that the active controller sees. Dropped fields keep their values."""
    if snapshot.frozen:
        return judge_found(dataclasses.replace(snapshot, topic=edited), setting)
    return _judge_edit(snapshot, edited, setting)


def judge_found(snapshot: Snapshot, setting: Setting) -> Verdict:
    """Decide on a topic as a newly elected controller finds it. An edit may have been made without a controller."""
    known = proven(snapshot)
    if found := contradictions(known):
        return Verdict(VerdictKind.FREEZE, why=found[0])
    if known.topic == snapshot.topic:
        return Verdict(VerdictKind.ACCEPT)
    return _judge_edit(known, snapshot.topic, setting)


def judge_wanted(snapshot: Snapshot, setting: Setting) -> Verdict | None:
    """Decide on the queued count. None if no count is queued, the topic is frozen, or the resize may not begin yet.

    A refusal with a topic drops an impossible count. After a refusal without a topic, the count stays queued.
    """
    wanted = snapshot.topic.wanted
    if wanted is None or snapshot.frozen or not next_step.may_begin(snapshot, wanted):
        return None
    dropped = snapshot.topic.replace(wanted=None)
    case = Case(snapshot, dropped.replace(undeleted_partition_count=wanted), setting)
    if wanted == snapshot.topic.undeleted_partition_count:
        return Verdict(VerdictKind.ACCEPT, dropped)
    if refused := _refusal(case, RULES):
        return refused._replace(topic=dropped)
    return _refusal(case, MOMENTS) or Verdict(VerdictKind.ACCEPT, case.begun)


def proven(snapshot: Snapshot) -> Snapshot:
    """The topic with the facts that the states of its partitions prove.

    The count is the one that the states store with the topic's layout version. Partitions at the end of the assignment
    that have no state are left out. A state that cannot be read counts as a state. All other facts come from the
    topic's znode, and ``contradictions`` compares them with the states.
    """
    topic, states = snapshot.topic, snapshot.states
    led = max({*snapshot.unreadable, *(p for p, state in states.items() if not state.never_led)}, default=-1) + 1
    stored = {layout for p in states if (layout := snapshot.stored(p)) is not None}
    counts = {layout.undeleted_partition_count for layout in stored if layout.layout_version == topic.layout_version}
    if topic.layout_version == 0 and stored <= {(topic.initial_partition_count, 0)}:
        if not led:  # the topic was created just now
            return snapshot
        initial = led if "initial_partition_count" in topic.absent else topic.initial_partition_count
        counts = {initial}
        topic = topic.replace(initial_partition_count=initial)
    if len(counts) == 1:
        topic = topic.replace(undeleted_partition_count=counts.pop())
    kept = max(led, topic.undeleted_partition_count)
    partitions = {p: replicas for p, replicas in topic.partitions.items() if p < kept}
    return dataclasses.replace(snapshot, topic=topic.replace(partitions=partitions))


# ---------------------------------------------------------------- the rules


def _judge_edit(known: Snapshot, edited: TopicZnode, setting: Setting) -> Verdict:
    """Decide on an edit. Fields that a tool dropped keep their values, and a refused edit is undone."""
    optional = (
        "last_offsets",
        "ordered_delivery",
        "previous_undeleted_partition_count",
        "finished_layout_version",
        "wanted",
    )
    dropped = {*edited.absent, *(name for name in optional if getattr(edited, name) in (None, {}))}
    asked = edited.replace(**{name: getattr(known.topic, name) for name in dropped}, absent=frozenset())
    verdict = _judge(Case(known, asked, setting))
    return verdict._replace(topic=known.topic) if verdict.outcome is VerdictKind.REFUSE else verdict


def _judge(case: Case) -> Verdict:
    """Decide whether a resize begins, is cancelled or is queued.

    Of ``MOMENTS``, only ``REASSIGNED`` counts for a resize that cannot begin now.
    """
    if refused := _refusal(case, EDITS):
        return refused
    if case.count == case.before:
        return Verdict(VerdictKind.ACCEPT, case.asked)
    if case.count == case.known.topic.previous_undeleted_partition_count and next_step.may_cancel(case.known):
        return Verdict(VerdictKind.ACCEPT, next_step.cancelled(case.uncounted))
    if refused := _refusal(case, RULES):
        return refused
    if next_step.may_begin(case.known, case.count):
        return _refusal(case, MOMENTS) or Verdict(VerdictKind.ACCEPT, case.begun)
    if refused := _refusal(case, (REASSIGNED,)):
        return refused
    is_assigned = case.asked.partitions != case.known.topic.partitions
    later = (
        f"The resize to {case.count} partitions is queued. The assigned replicas are not used: the controller chooses"
        " replicas when the resize begins."
    )
    return Verdict(VerdictKind.ACCEPT, case.queued, later if is_assigned else "")


class ResizeRule(NamedTuple):
    """A rule. ``why`` returns a sentence about its violation, or None."""

    code: ErrorCode
    why: Callable[[Case], str | None]


def _refusal(case: Case, rules: Sequence[ResizeRule]) -> Verdict | None:
    for rule in rules:
        if why := rule.why(case):
            return _refused(rule.code, why)
    return None


def _refused(code: ErrorCode, why: str) -> Verdict:
    return Verdict(VerdictKind.REFUSE, why=why, code=code)


FIXED: Final = (
    "topic_id",
    "initial_partition_count",
    "layout_version",
    "previous_undeleted_partition_count",
    "finished_layout_version",
    "wanted",
    "last_leader_epochs",
    "last_offsets",
    "ordered_delivery",
    "adding_replicas",
    "removing_replicas",
)
"""Fields of the topic's znode that the controller alone writes."""


def _fixed(case: Case) -> str | None:
    changed = [name for name in FIXED if getattr(case.asked, name) != getattr(case.known.topic, name)]
    return f"Only the controller may change {changed[0]} of the topic's znode." if changed else None


def _replicas(case: Case) -> str | None:
    known, asked = case.known.topic.partitions, case.asked.partitions
    if len(asked) < len(known):
        return (
            f"An edit cannot shorten the assignment from {len(known)} to {len(asked)} partitions: to shrink the topic,"
            " lower undeleted_partition_count."
        )
    moved = [p for p in known if known[p] != asked[p]]
    if moved:
        return f"Only AlterPartitionReassignments can change the replicas of partition {moved[0]}."
    factor = min(len(replicas) for replicas in known.values())
    uneven = [p for p in asked if p not in known and len(asked[p]) != factor]
    if uneven:
        return f"Partition {uneven[0]} must have {factor} replicas, as the others have, not {len(asked[uneven[0]])}."
    return None


def _one_count(case: Case) -> str | None:
    counted, added = case.asked.undeleted_partition_count, len(case.asked.partitions)
    is_added = added > len(case.known.topic.partitions)
    if is_added and counted not in (case.before, added):
        return f"The assignment has {added} partitions, but undeleted_partition_count is {counted}: make them equal."
    return None


def _internal(case: Case) -> str | None:
    return "The topic is internal: its partition count cannot be changed." if case.setting.is_internal else None


def _count(case: Case) -> str | None:
    initial, largest = case.known.topic.initial_partition_count, case.setting.limits.max_partitions
    if case.count < 1:
        return f"A topic has at least one partition; {case.count} were asked for."
    if case.count < initial:
        return f"The topic was created with {initial} partitions and cannot have fewer; {case.count} were asked for."
    if case.count > largest:
        return f"The topic cannot have {case.count} partitions: the largest count is {largest}."
    return None


def _emptied(case: Case) -> str | None:
    """Refuse a shrink if its marked partitions would never get empty. A compacted topic may keep such partitions."""
    stays = case.setting.marked is Marked.FOR_EVER and not case.setting.is_compacted
    if case.count < case.before and stays:
        return (
            "The topic's records never expire, so partitions marked for deletion would never get empty. With"
            " delete.records.when.drained=true a partition is emptied when every group has read it."
        )
    return None


def _size(case: Case) -> str | None:
    limits, replicas = case.setting.limits, case.known.topic.partitions[0]
    topic = next_step.begun(case.uncounted, case.count, lambda new: dict.fromkeys(new, replicas))
    begun = dataclasses.replace(case.known, topic=topic)
    if (size := len(begun.topic.encode())) > limits.max_topic_bytes:
        return f"The topic's znode would have {size} bytes, more than {limits.max_topic_bytes}."
    for p, losers in begun.moves.losers_of.items():
        state = begun.states.get(p)
        if state is None:
            continue
        entry = LineageEntry(MAX_EPOCH, dict.fromkeys(losers, MAX_EPOCH))
        times = {**state.lineage_times, MAX_EPOCH: MAX_TIME_MS}
        size = len(state.replace(lineage=(*state.lineage, entry), lineage_times=times).encode())
        if size > limits.max_state_bytes:
            return (
                f"The znode of partition {p} would have {size} bytes, more than {limits.max_state_bytes}"
                " (partition.state.max.bytes). Its lineage gets shorter when partitions marked for deletion are"
                " removed."
            )
    return None


def _not_now(case: Case) -> str | None:
    return case.setting.not_now or None


def _reassigned(case: Case) -> str | None:
    moving = sorted({*case.known.topic.adding_replicas, *case.known.topic.removing_replicas})
    if not moving:
        return None
    return f"{named('Partition', moving)} {one_or_many(len(moving), 'is', 'are')} being reassigned."


def _unreadable(case: Case) -> str | None:
    return _states_unreadable(sorted(case.known.unreadable)) if case.known.unreadable else None


def _states_unreadable(partitions: Sequence[int]) -> str:
    sentence = states_unreadable(partitions)
    return f"{sentence[0].upper()}{sentence[1:]}."


EDITS: Final = (
    ResizeRule(ErrorCode.INVALID_REQUEST, _fixed),
    ResizeRule(ErrorCode.INVALID_REQUEST, _replicas),
    ResizeRule(ErrorCode.INVALID_REQUEST, _one_count),
    ResizeRule(ErrorCode.INVALID_REQUEST, _internal),
)
"""Rules for every request and edit."""
RULES: Final = (
    ResizeRule(ErrorCode.INVALID_PARTITIONS, _count),
    ResizeRule(ErrorCode.POLICY_VIOLATION, _emptied),
    ResizeRule(ErrorCode.INVALID_PARTITIONS, _size),
)
"""Rules for a resize, whenever it begins."""
REASSIGNED: Final = ResizeRule(ErrorCode.REASSIGNMENT_IN_PROGRESS, _reassigned)
"""A topic is either reassigned or resized, also while the leaders have not answered the reassignment."""
MOMENTS: Final = (
    ResizeRule(ErrorCode.POLICY_VIOLATION, _not_now),
    REASSIGNED,
    ResizeRule(ErrorCode.POLICY_VIOLATION, _unreadable),
)
"""Rules for a resize that would begin at once. A queued resize waits until these rules are met."""
