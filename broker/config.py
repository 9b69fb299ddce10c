"""A broker's static configuration, checked as a whole: ``server.properties``, environment overrides, ``--set``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from anabranch.protocol.addresses import split_address
from anabranch.protocol.message_limits import RequestLimits
from anabranch.zk_schemas.broker_keys import BROKER_CONFIGS, BrokerKeys
from anabranch.zk_schemas.broker_registration import PLAINTEXT
from anabranch.zk_schemas.config_def import ConfigError


class ListenerAddress(NamedTuple):
    """One entry of ``listeners`` or ``advertised.listeners``; an empty host means every interface."""

    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """A broker's configuration at its start. ``values`` has every key; ``given`` has the set keys, as text."""

    values: BrokerKeys
    given: Mapping[str, str]
    listeners: tuple[ListenerAddress, ...]
    advertised: Mapping[str, ListenerAddress]
    security_protocols: Mapping[str, str]
    inter_broker_listener: str
    log_dirs: tuple[str, ...]
    host_name: str = "localhost"
    """The host to advertise for a listener without a host."""

    @property
    def broker_id(self) -> int:
        return self.values.broker_id

    @property
    def request_limits(self) -> RequestLimits:
        """The sizes of a request, before it is decoded."""
        return self.values.request_limits._replace(
            max_controller_elements=self.values.controller_request_max_elements,
            max_fetch_elements=self.values.fetch_request_max_elements,
        )

    @classmethod
    def from_given(cls, given: Mapping[str, str], host_name: str = "localhost") -> BrokerConfig:
        """Check all keys, one by one and together. ``host_name`` is advertised for a listener without a host.

        Raises ``ConfigError``.
        """
        values = BrokerKeys.of(BROKER_CONFIGS.parse(given))
        protocols = _security_protocols(values.listener_security_protocol_map)
        listeners = _addresses("listeners", values.listeners, protocols)
        advertised = _advertised(values.advertised_listeners or values.listeners, protocols, host_name)
        if unknown := sorted(advertised.keys() - {entry.name for entry in listeners}):
            raise ConfigError("advertised.listeners", f"listener {unknown[0]} is not in listeners")
        inter_broker = values.inter_broker_listener_name or listeners[0].name
        if inter_broker not in advertised:
            raise ConfigError("inter.broker.listener.name", f"{inter_broker} is not an advertised listener")
        log_dirs = tuple(values.log_dirs or [values.log_dir])
        if repeated := [path for path in log_dirs if log_dirs.count(path) > 1]:
            raise ConfigError("log.dirs", f"directory {repeated[0]} is named twice")
        return cls(values, dict(given), listeners, advertised, protocols, inter_broker, log_dirs, host_name)

    def advertised_as(self, entries: list[str] | None) -> Mapping[str, ListenerAddress]:
        """The listeners to advertise if ``advertised.listeners`` is ``entries``. Raises ``ConfigError``.

        The listeners' names stay the same: only their addresses may change while the broker runs.
        """
        if not entries or entries == self.values.advertised_listeners:
            return self.advertised
        found = _advertised(entries, self.security_protocols, self.host_name)
        if found.keys() != self.advertised.keys():
            names = ", ".join(self.advertised)
            raise ConfigError("advertised.listeners", f"has to name the listeners that are advertised now: {names}")
        return found


def _security_protocols(entries: Iterable[str]) -> dict[str, str]:
    protocols = {}
    for entry in entries:
        name, separator, protocol = entry.partition(":")
        if not separator or not name or not protocol:
            raise ConfigError("listener.security.protocol.map", f"{entry!r} is not NAME:PROTOCOL")
        protocols[name.upper()] = protocol.upper()
    return protocols


def _advertised(entries: list[str], protocols: Mapping[str, str], host_name: str) -> dict[str, ListenerAddress]:
    found = _addresses("advertised.listeners", entries, protocols)
    for entry in found:
        if entry.host in ("0.0.0.0", "::"):
            what = f"listener {entry.name}: clients cannot connect to the wildcard address {entry.host}: name a host"
            raise ConfigError("advertised.listeners", what)
    return {entry.name: entry._replace(host=entry.host or host_name) for entry in found}


def _addresses(key: str, entries: Iterable[str], protocols: Mapping[str, str]) -> tuple[ListenerAddress, ...]:
    found: dict[str, ListenerAddress] = {}
    for entry in entries:
        name, _, address = entry.partition("://")
        name = name.upper()
        try:
            host, port = split_address(address)
        except ValueError:
            raise ConfigError(key, f"{entry!r} is not NAME://host:port") from None
        if name not in protocols:
            raise ConfigError(key, f"listener {name} has no entry in listener.security.protocol.map")
        if protocols[name] != PLAINTEXT:
            raise ConfigError(key, f"listener {name}: {protocols[name]} is not supported, only {PLAINTEXT} is")
        if name in found:
            raise ConfigError(key, f"listener {name} is named twice")
        found[name] = ListenerAddress(name, host, port)
    if not found:
        raise ConfigError(key, "needs at least one listener")
    return tuple(found.values())
