"""The effects that begin the deletion of a topic: decided from an image, and carried out."""

from __future__ import annotations

import pytest

from anabranch.controller.deletion import decide_deletion
from anabranch.controller.effects import Effects, TopicDeletion, carry_out
from anabranch.controller.states import PartitionStatus, ReplicaStatus
from anabranch.protocol.generated.stop_replica import StopReplicaRequest
from tests.support.controller.decisions import T0, T1, cluster, context_of, state

STARTED, INELIGIBLE = ReplicaStatus.DELETION_STARTED, ReplicaStatus.DELETION_INELIGIBLE


def test_every_live_broker_deletes_its_replicas_and_the_others_are_waited_for() -> None:
    image = cluster(state(1, [1, 3]), None, replicas=[[1, 3], [3, 2]], brokers=[1, 2])
    replicas = {(0, 1): STARTED, (0, 3): INELIGIBLE, (1, 3): INELIGIBLE, (1, 2): STARTED}
    assert decide_deletion(image, image.topics["t"], 70) == Effects(
        "t", deletion=TopicDeletion(70, replicas), stops=[(1, T0), (2, T1)], metadata=[T0, T1]
    )
    assert image == cluster(state(1, [1, 3]), None, replicas=[[1, 3], [3, 2]], brokers=[1, 2]), "nothing is changed"


@pytest.mark.trio
async def test_a_topic_is_offline_once_its_deletion_begins() -> None:
    image = cluster(state(1, [1, 2]), replicas=[[1, 2]], brokers=[1])
    context, topic = context_of(image), image.topics["t"]
    effects = decide_deletion(image, topic, 70)
    await carry_out(context, effects)
    assert context.store.multis == []
    assert (topic.deletion_zxid, topic.partitions[0].status) == (70, PartitionStatus.OFFLINE)
    assert image.deletions == {"t": {(0, 1): STARTED, (0, 2): INELIGIBLE}}
    (stop,) = [request for request in context.batch.build()[1] if isinstance(request, StopReplicaRequest)]
    assert [(t.topic_name, [p.delete_partition for p in t.partition_states]) for t in stop.topic_states] == [
        ("t", [True])
    ]
