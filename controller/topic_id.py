"""New topic ids."""

from __future__ import annotations

import random
import uuid

from anabranch.zk_schemas.znode import format_id


def new_topic_id(rng: random.Random) -> uuid.UUID:
    """A random topic id whose text does not begin with a dash, so that it can stand on a command line."""
    while True:
        topic_id = uuid.UUID(int=rng.getrandbits(128), version=4)
        if not format_id(topic_id).startswith("-"):
            return topic_id
