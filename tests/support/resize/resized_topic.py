"""A topic whose resizes follow the steps of ``ordered_resize``, with leaders that acknowledge at once."""

from __future__ import annotations

import uuid
from collections.abc import Collection

from anabranch.ordered_resize import next_step
from anabranch.ordered_resize.judgement import Setting, judge_request
from anabranch.ordered_resize.next_step import Step
from anabranch.ordered_resize.snapshot import Snapshot
from anabranch.protocol.sentinels import NO_TIMESTAMP
from anabranch.zk_schemas.partition_state import Before, PartitionLayout, PartitionState
from anabranch.zk_schemas.topic import TopicZnode

TOPIC_ID, NEXT_ID = uuid.UUID(int=1), uuid.UUID(int=2)


class Topic:
    """Carries out all due steps, like a controller whose leaders acknowledge at once."""

    def __init__(self, initial: int, count: int | None = None) -> None:
        count = initial if count is None else count
        self.topic = TopicZnode.new(TOPIC_ID, {p: [1, 2] for p in range(count)}).replace(
            initial_partition_count=initial
        )
        self.states = {p: PartitionState(3, 1, 0, [1, 2]) for p in range(count)}
        self.electable = {p: [2, 1] for p in range(200)}
        self.now_ms = NO_TIMESTAMP

    @classmethod
    def split(cls, initial: int, count: int) -> Topic:
        """A topic that was split once, so long ago that no partition has a lineage any more."""
        topic = cls(initial, count)
        topic.topic = topic.topic.replace(layout_version=1, finished_layout_version=1)
        topic.states = {p: state.replace(layout=PartitionLayout(count, 1)) for p, state in topic.states.items()}
        return topic

    def snapshot(
        self,
        *,
        silent: Collection[int] = (),
        drained: Collection[int] = (),
        deleted: dict[int, int] | None = None,
    ) -> Snapshot:
        return Snapshot(
            self.topic,
            dict(self.states),
            controller_epoch=4,
            answered=self.states.keys() - set(silent),
            electable=self.electable,
            drained=drained,
            deleted=deleted or {},
            now_ms=self.now_ms,
            new_topic_id=NEXT_ID,
        )

    def write(self, step: Step) -> None:
        self.states.update(step.states)
        self.topic = step.topic or self.topic
        for p in step.deleted:
            del self.states[p]

    def ask(self, count: int, *, silent: Collection[int] = ()) -> None:
        setting = Setting(lambda new: {p: [2, 1] for p in new})
        self.write(Step("ask", topic=judge_request(self.snapshot(silent=silent), count, setting).topic))

    def carry_out(self, **given: Collection[int]) -> None:
        while steps := next_step.next_steps(self.snapshot(**given)):
            self.write(steps[0])

    def layout(self, p: int) -> tuple[int, PartitionLayout | None, Before | None]:
        return self.states[p].leader_epoch, self.states[p].layout, self.states[p].before
