"""A config znode as the controller keeps it: the text with its version, and what the text means. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from anabranch.zk_schemas import paths
from anabranch.zk_schemas.config import ConfigZnode
from anabranch.zk_schemas.config_def import ConfigError
from anabranch.zk_schemas.config_keys import BROKER_CONFIGS, TOPIC_CONFIGS
from anabranch.zk_schemas.znode import MalformedZnodeError

UNCLEAN: Final = "unclean.leader.election.enable"


@dataclass(frozen=True, slots=True)
class StoredConfig:
    """``znode``: the overrides as text, None where it is malformed. ``version``: its zkVersion, -1: there is none."""

    znode: ConfigZnode | None
    version: int
    values: Mapping[str, Any] = field(default_factory=dict)
    """The overrides, parsed; none where one of them cannot be used."""
    unclean: bool | None = None
    """``unclean.leader.election.enable``, None: not said. Where it cannot be read it is false."""
    problem: str = ""
    """What is wrong with the znode; empty: nothing."""

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
    """It is read by itself: another key that cannot be used changes nothing of it."""
    value = znode.config.get(UNCLEAN)
    try:
        return None if value is None else bool(TOPIC_CONFIGS[UNCLEAN].parse(value))
    except ConfigError:
        return False


NO_CONFIG: Final = StoredConfig(ConfigZnode({}), -1)
