"""A member's heartbeat."""

from __future__ import annotations

from anabranch.client.config import ConsumerConfig
from anabranch.client.errors import KafkaError, error_for
from anabranch.client.group.coordinator_link import CoordinatorLink
from anabranch.client.group.group_member import Reaction
from anabranch.client.group.standing import MemberStanding
from anabranch.protocol.generated.heartbeat import HeartbeatRequest, HeartbeatResponse


async def beat(
    config: ConsumerConfig, link: CoordinatorLink, standing: MemberStanding, *, polls_positions: bool
) -> KafkaError | None:
    """Send one heartbeat, and note its error, which is returned. ``polls_positions``: see ``GroupMembership``."""
    member = standing.member
    generation_id = member.generation_id
    request = HeartbeatRequest(
        group_id=link.group_id,
        generation_id=generation_id,
        member_id=member.member_id,
        group_instance_id=config.group_instance_id,
        polls_positions=polls_positions,
    )
    try:
        response: HeartbeatResponse = await link.request(
            request, timeout_ms=min(config.session_timeout_ms, config.request_timeout_ms)
        )
        error = error_for(response.error_code) if response.error_code else None
    except KafkaError as failed:
        error = failed
    if error is None or not standing.is_stable_in(generation_id):
        return None  # an error of an earlier generation does not concern the present generation
    if standing.note_error(error) is Reaction.FAIL:
        standing.fail(error)
    return error
