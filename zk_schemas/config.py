"""``/config/topics|brokers/<name>``: overrides; ``/config/changes/config_change_<n>``: notifications of changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from anabranch.zk_schemas import paths
from anabranch.zk_schemas.znode import MalformedZnodeError, ZnodeReader, encode_fields


@dataclass(frozen=True, slots=True)
class ConfigZnode:
    """The overrides of one topic or broker, as text; ``topic_keys`` and ``broker_keys`` define the keys."""

    config: dict[str, str]
    version: int = 1
    extra: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def topic_path(topic: str) -> str:
        return paths.topic_config(topic)

    @staticmethod
    def broker_path(broker: int | None) -> str:
        """The path of a broker's overrides; for ``None`` the path of the default for all brokers."""
        return paths.broker_config(broker)

    @classmethod
    def decode(cls, path: str, data: bytes) -> ConfigZnode:
        """Raises ``MalformedZnodeError``."""
        reader = ZnodeReader.parse(path, data)
        version = reader.integer("version", 1, low=1)
        return cls(config=reader.text_map("config"), version=version, extra=reader.rest())

    def encode(self) -> bytes:
        return encode_fields({"version": self.version, "config": self.config}, self.extra)


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """A notification: read ``/config/<entity_path>`` again. ``entity_path`` is like ``topics/t`` or ``brokers/1``."""

    entity_path: str
    version: int = 2
    extra: dict[str, Any] = field(default_factory=dict)

    PREFIX = paths.CONFIG_CHANGE_PREFIX

    @property
    def entity_type(self) -> str:
        return self.entity_path.partition("/")[0]

    @property
    def entity_name(self) -> str:
        return self.entity_path.partition("/")[2]

    @classmethod
    def decode(cls, path: str, data: bytes) -> ConfigChange:
        """Raises ``MalformedZnodeError``."""
        reader = ZnodeReader.parse(path, data)
        version = reader.integer("version", low=1)
        if version == 1:
            entity_path = f"{reader.text('entity_type')}/{reader.text('entity_name')}"
        else:
            entity_path = reader.text("entity_path")
        if "/" not in entity_path.strip("/"):
            raise MalformedZnodeError(path, "entity_path", f"{entity_path!r} is not <type>/<name>")
        return cls(entity_path=entity_path, version=2, extra=reader.rest())

    def encode(self) -> bytes:
        return encode_fields({"version": self.version, "entity_path": self.entity_path}, self.extra)
