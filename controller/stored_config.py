"""A config znode in the controller's image: its text, its version and its parsed values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from anabranch.zk_schemas import paths
from anabranch.zk_schemas.broker_keys import BROKER_CONFIGS
from anabranch.zk_schemas.config import ConfigZnode
from anabranch.zk_schemas.config_def import ConfigError
from anabranch.zk_schemas.topic_keys import TOPIC_CONFIGS
from anabranch.zk_schemas.znode import MalformedZnodeError

UNCLEAN: Final = "unclean.leader.election.enable"


@dataclass(frozen=True, slots=True)
class StoredConfig:
    """One config znode. ``znode`` has the overrides as text, None if malformed; ``version`` is its zkVersion or -1."""

    znode: ConfigZnode | None
    version: int
    values: Mapping[str, Any] = field(default_factory=dict)
    """The parsed overrides; empty if some override cannot be used."""
    unclean: bool | None = None
    """``unclean.leader.election.enable``; None if it is not set, false if it cannot be read."""
    problem: str = ""
    """The error in the znode; empty if there is none."""

    @classmethod
    def decode(cls, path: str, data: bytes, version: int) -> StoredConfig:
        try:
            znode = ConfigZnode.decode(path, data)
        except MalformedZnodeError as error:
            return cls(None, version, unclean=False, problem=str(error))
        table = BROKER_CONFIGS if path.startswith(f"{paths.BROKER_CONFIGS}/") else TOPIC_CONFIGS
        try:
            return cls(znode, version, table.parse_given(znode.config), _unclean(znode))
        except ConfigError as error:
            return cls(znode, version, unclean=_unclean(znode), problem=str(error))


def _unclean(znode: ConfigZnode) -> bool | None:
    """Parse this key alone, so that an error in another key does not affect it."""
    value = znode.config.get(UNCLEAN)
    try:
        return None if value is None else bool(TOPIC_CONFIGS[UNCLEAN].parse(value))
    except ConfigError:
        return False


NO_CONFIG: Final = StoredConfig(ConfigZnode({}), -1)
