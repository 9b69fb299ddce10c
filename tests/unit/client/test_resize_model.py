"""The producer across resizes, in a model of brokers, under faults in every order that hypothesis finds."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anabranch.client.cluster import TopicInfo
from anabranch.client.errors import OutcomeUnknownError
from anabranch.client.producer.accumulator import Accumulator
from anabranch.client.producer.partition_queue import PartitionQueue
from anabranch.client.producer.placement_while_resized import TopicPlacement
from anabranch.client.producer.producer_batch import ProducerBatch
from anabranch.client.producer.unwritten_records_placed_again import Placing, Replaced
from anabranch.protocol.key_placement import place, positive_hash
from tests.support.client.replaced_records import replace_records
from tests.unit.client.resize_model import INITIAL, NODES, ProducerModel

KEYS = [b"k%d" % n for n in range(8)]


def wander(model: ProducerModel, rng: random.Random, steps: int, sizes: Sequence[int] = (0,)) -> None:
    """Take that many random steps, and send values of these sizes.

    Then stop all faults until every record is acknowledged or failed.
    """
    for _ in range(steps):
        node = rng.randrange(NODES)
        choice = rng.randrange(26)
        if choice < 6:
            model.send(rng.choice(KEYS), size=rng.choice(sizes))
            model.pump()
        elif choice < 9:
            model.arrive(node)
        elif choice < 12:
            model.answer(node)
        elif choice == 12:
            model.cut(node)
        elif choice == 13:
            model.haunt()
        elif choice == 14:
            model.read_metadata(rng.randrange(len(model.snapshots)))
        elif choice in (15, 21):
            model.resize(rng.randint(2, 7))
        elif choice == 16 or choice >= 22:
            model.step_resize()
        elif choice == 17:
            model.remove_drained()
        elif choice == 20:
            model.cancel()
        elif choice == 18:
            model.now_s += rng.choice([0.005, 0.05, 0.5])
        else:
            model.read_metadata()
        model.pump()
    model.settle()


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32), st.integers(20, 250))
def test_no_key_is_reordered_and_no_record_is_lost_or_duplicated(seed: int, steps: int) -> None:
    rng = random.Random(seed)
    model = ProducerModel(rng)
    wander(model, rng, steps)
    model.check()
    model.check_routing()


# ---------------------------------------------------------------- one scripted fault each


def key_in(partition: int, undeleted: int) -> bytes:
    """Return a key that belongs in this partition while ``undeleted`` partitions exist."""
    return next(k for k in (b"%d" % n for n in range(1000)) if place(positive_hash(k), INITIAL, undeleted) == partition)


def exchange(model: ProducerModel, node: int) -> None:
    """Send, and let one request arrive and be answered."""
    model.pump()
    model.arrive(node)
    model.answer(node)


def lost_answer_before_a_grow(model: ProducerModel) -> None:
    """Hole 17: the batch is written and its response is lost. The key's partition changes in the new layout."""
    model.send(key_in(2, 4))
    model.pump()
    model.arrive(0)
    model.cut(0)
    model.finish_resize(4)
    model.read_metadata()
    model.now_s += 1
    exchange(model, 0)
    [again] = model.requests[-1].topic_data
    assert (again.undeleted_partition_count, again.layout_version) == (2, 0), (
        "the retry has the layout of the first request"
    )
    assert model.handles[0][2].partition == 0


def lost_answer_before_a_removal(model: ProducerModel) -> None:
    """Hole 14: the partition is removed, with or without the record."""
    model.finish_resize(4)
    model.read_metadata()
    handle = model.send(key_in(3, 4))
    model.pump()
    model.arrive(1)
    model.cut(1)
    model.finish_resize(2)
    model.remove(3)
    model.remove(2)
    model.read_metadata()
    model.settle()
    batch, _ = handle._locate()
    assert isinstance(batch.error, OutcomeUnknownError) and "may or may not have been written" in batch.error.message


def lost_answer_before_a_partition_is_created_again(model: ProducerModel) -> None:
    """Holes 14 and 20: a recreated partition refuses a batch that the earlier incarnation may have. Metadata lags."""
    model.finish_resize(4)
    model.read_metadata()
    handle = model.send(key_in(3, 4))
    model.pump()
    model.arrive(1)
    model.cut(1)
    model.finish_resize(2)
    marked = len(model.snapshots) - 1
    model.remove(3)
    model.remove(2)
    model.finish_resize(4)
    model.read_metadata(marked)
    model.now_s += 1
    exchange(model, 1)
    model.pump()
    model.settle()
    batch, _ = handle._locate()
    assert isinstance(batch.error, OutcomeUnknownError)


def refused_by_a_broker_that_is_behind(model: ProducerModel) -> None:
    """Hole 10: an earlier copy of the batch may still be written at the broker that refused the batch."""
    key = key_in(3, 4)
    model.finish_resize(4)
    model.begin_resize(3, late=1)  # metadata shows the merge before partition 1 has the new layout
    model.read_metadata()
    model.send(key)
    model.pump()
    model.cut(1, ghosts=True)
    model.now_s += 1
    exchange(model, 1)
    model.finish_resize(3)
    model.haunt()
    model.remove(3)
    model.finish_resize(4)
    model.read_metadata()


def metadata_that_goes_backwards(model: ProducerModel) -> None:
    """Hole 10: a batch in a new partition does not count as lost when old metadata without the partition arrives."""
    model.finish_resize(4)
    model.read_metadata()
    model.send(key_in(3, 4))
    model.pump()
    model.cut(1)
    model.read_metadata(0)
    model.pump()
    assert model.topic.layout.layout_version == 1


def refused_before_the_broker_knows_the_producer(model: ProducerModel) -> None:
    """A broker accepts any first sequence of a producer.

    So it accepts even the sequence after a batch that it has just refused.
    """
    key = key_in(0, 4)
    model.finish_resize(4)
    model.begin_resize(3, late=0)  # the producer sees the merge before partition 0 has the new layout
    model.read_metadata()
    queue = model.accumulator.queue("t", 0)
    for _ in range(2):
        model.send(key)
        queue.waiting[-1].full = True
    model.pump()
    model.pump()
    model.arrive(0)
    model.finish_resize(3)
    model.arrive(0)
    for _ in range(2):
        model.answer(0)


def closed_and_revived_while_an_answer_is_lost(model: ProducerModel) -> None:
    """Grow while draining: the log of partition 3 continues, with its producer state."""
    key = key_in(3, 4)
    model.finish_resize(4)
    model.read_metadata()
    model.send(key)
    model.pump()
    model.arrive(1)
    model.cut(1)  # the batch was written
    model.finish_resize(2)
    model.finish_resize(4)
    assert 3 in model.partitions and not model.removed
    model.read_metadata()
    model.now_s += 1
    exchange(model, 1)
    [again] = model.requests[-1].topic_data
    assert again.layout_version == 1, "the retry has the layout of the first request, two layouts later"
    model.send(key)
    model.settle()
    assert [number for _, number, _ in model.partitions[3].log] == [0, 1]


def closed_and_revived_between_two_batches(model: ProducerModel) -> None:
    """The producer follows each layout, and its sequence in partition 3 continues."""
    key = key_in(3, 4)
    for count in (4, 2, 4):
        model.finish_resize(count)
        model.read_metadata()
        model.send(key)
        model.settle()
    assert [(number, version) for _, number, version in model.partitions[3].log] == [(0, 1), (2, 3)]
    assert model.partitions[3].producers[7] == (0, 2), "no new producer epoch, and no gap"


def cancelled_after_a_partition_lost_keys(model: ProducerModel) -> None:
    """The version rises by two, and the key stays in its partition."""
    model.late = 1
    model.resize(4)  # partition 0 loses keys to 2, and partition 1 to 3
    model.step_resize()
    model.publish()
    model.read_metadata()
    model.send(key_in(2, 4))
    model.pump()
    model.cancel()
    assert (model.undeleted, model.version) == (2, 2)
    while model.plan is not None:
        model.step_resize()
    model.read_metadata()
    model.send(key_in(2, 4))
    model.settle()
    assert [(number, version) for _, number, version in model.partitions[0].log] == [(0, 2), (1, 2)]


def announce_a_resize_only_when_a_partition_has_it(model: ProducerModel) -> None:
    """A batch that is sent before a partition has the new layout is accepted."""
    model.resize(4)
    model.publish()
    model.read_metadata()
    assert model.snapshots[-1].layout == (INITIAL, 2)
    model.send(key_in(2, 4))
    exchange(model, 0)
    assert [version for _, _, version in model.partitions[0].log] == [0]


SCRIPTS = [
    lost_answer_before_a_grow,
    lost_answer_before_a_removal,
    lost_answer_before_a_partition_is_created_again,
    refused_by_a_broker_that_is_behind,
    metadata_that_goes_backwards,
    refused_before_the_broker_knows_the_producer,
    closed_and_revived_while_an_answer_is_lost,
    closed_and_revived_between_two_batches,
    cancelled_after_a_partition_lost_keys,
    announce_a_resize_only_when_a_partition_has_it,
]


def run_script(script: Callable[[ProducerModel], None], **changes: bool) -> None:
    model = ProducerModel(random.Random(1), **changes)
    script(model)
    model.settle()
    model.check()
    model.check_routing()


@pytest.mark.parametrize("script", SCRIPTS)
def test_faults_around_a_resize_break_no_guarantee(script: Callable[[ProducerModel], None]) -> None:
    run_script(script)


# ---------------------------------------------------------------- each rule switched off


def _retry_with_the_newest_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch off the rule ``retrycount``."""
    take = Accumulator.take

    def newest(acc: Accumulator, queue: PartitionQueue) -> ProducerBatch:
        batch = take(acc, queue)
        batch.layout = (queue.topic.next or queue.topic.info).named_layout
        return batch

    monkeypatch.setattr(Accumulator, "take", newest)


def _no_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch off the rule ``nohold``: unsent records do not wait for sent records."""

    def replace(acc: Accumulator, topic: TopicPlacement, placing: Placing) -> Replaced | None:
        after = topic.next
        if after is None:
            return None
        never_sent: list[list[ProducerBatch]] = []
        for queue in acc.queues_of(topic):
            never_sent.append([b for b in queue.waiting if b not in queue.outstanding])
            for batch in never_sent[-1]:
                queue.waiting.remove(batch)
        replaced = replace_records(topic.info, after, never_sent, placing)
        topic.advance(after)
        for partition, batches in replaced.batches.items():
            acc.queue(topic.name, partition).waiting.extend(batches)
        for batch, moved in replaced.sources:
            batch.resolve(moved=moved)
        return replaced

    monkeypatch.setattr(Accumulator, "replace", replace)


def _follow_older_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TopicInfo, "is_older_than", lambda info, other: False)


def _place_records_of_removed_partitions_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch off the rule ``failgone``."""

    def refused(acc: Accumulator, topic: TopicPlacement) -> int:
        for queue in acc.queues_of(topic):
            for batch in queue.outstanding:
                if not batch.in_flight and topic.is_gone(queue.tp.partition, batch.incarnation):
                    batch.is_unwritten = True
        return 0

    monkeypatch.setattr(Accumulator, "give_up_gone", refused)


def _trust_a_refusal_by_a_lagging_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse = TopicPlacement.refuse

    def at_once(topic: TopicPlacement, batch: ProducerBatch, now_ms: float) -> bool:
        batch.lost = False
        return refuse(topic, batch, now_ms)

    monkeypatch.setattr(TopicPlacement, "refuse", at_once)


def _trust_metadata_from_before_the_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TopicPlacement, "confirmed", True)


def _send_many_before_the_first_is_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionQueue, "is_established", property(lambda _: True, lambda _, established: None))


@pytest.mark.parametrize(
    ("rule_off", "script"),
    [
        (_retry_with_the_newest_layout, lost_answer_before_a_grow),
        (_follow_older_metadata, metadata_that_goes_backwards),
        (_place_records_of_removed_partitions_again, lost_answer_before_a_removal),
        (_trust_metadata_from_before_the_refusal, lost_answer_before_a_partition_is_created_again),
        (_trust_a_refusal_by_a_lagging_broker, refused_by_a_broker_that_is_behind),
        (_send_many_before_the_first_is_acknowledged, refused_before_the_broker_knows_the_producer),
    ],
)
def test_the_model_notices_a_producer_without_one_of_its_rules(
    monkeypatch: pytest.MonkeyPatch,
    rule_off: Callable[[pytest.MonkeyPatch], None],
    script: Callable[[ProducerModel], None],
) -> None:
    """Each rule belongs to hole 10, 14 or 17, and has a script of its fault. Without the rule the script fails."""
    run_script(script)
    rule_off(monkeypatch)
    with pytest.raises(AssertionError):
        run_script(script)


def test_the_model_notices_a_broker_that_checks_the_layout_before_duplicates() -> None:
    """Hole 17 on the broker's side (``dupafter``): the retry is refused, and the record is written twice."""
    with pytest.raises(AssertionError):
        run_script(lost_answer_before_a_grow, check_layout_first=True)


def test_the_model_notices_a_producer_that_does_not_hold_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """``nohold``: a key's newer records go to the new partition before its older records are acknowledged."""
    _no_hold(monkeypatch)

    def wanders(seed: int) -> bool:
        rng = random.Random(seed)
        model = ProducerModel(rng)
        try:
            wander(model, rng, 200)
            model.check()
            model.check_routing()
        except AssertionError:
            return True
        return False

    assert any(wanders(seed) for seed in range(50))
