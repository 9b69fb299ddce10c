"""The controller's configuration: its keys, checked as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from anabranch.protocol.message_limits import RequestLimits
from anabranch.zk_schemas.config_def import ConfigError
from anabranch.zk_schemas.controller_keys import CONTROLLER_CONFIGS, FIRST_CONTROLLER_ID, ControllerKeys

__all__ = ["CONTROLLER_CONFIGS", "FIRST_CONTROLLER_ID", "ControllerConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig(ControllerKeys):
    """A controller's values."""

    @property
    def host(self) -> str:
        return _address(self.controller_listener)[0]

    @property
    def port(self) -> int:
        return _address(self.controller_listener)[1]

    @property
    def request_limits(self) -> RequestLimits:
        """The sizes of a request, before it is decoded."""
        return super(ControllerConfig, self).request_limits._replace(bulk_apis=frozenset())

    @classmethod
    def parse(cls, given: Mapping[str, object]) -> ControllerConfig:
        """Parse keys given as text or Python values. Raises ``ConfigError``."""
        config = cls.of(CONTROLLER_CONFIGS.parse(given))
        _address(config.controller_listener)
        return config


def _address(listener: str) -> tuple[str, int]:
    try:
        split = urlsplit(listener)
        host, port = split.hostname, split.port
    except ValueError as error:
        raise ConfigError("controller.listener", f"{listener!r}: {error}") from None
    if split.scheme.upper() != "PLAINTEXT" or not host or port is None:
        raise ConfigError("controller.listener", f"{listener!r} is not PLAINTEXT://host:port")
    return host, port
