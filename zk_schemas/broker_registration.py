"""``/brokers/ids/<id>`` (ephemeral): a live broker, its endpoints and its supported features."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from anabranch.protocol.addresses import join_address
from anabranch.protocol.sentinels import NO_TIMESTAMP
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.znode import MalformedZnodeError, ZnodeReader, encode_fields

PLAINTEXT = "PLAINTEXT"


class Endpoint(NamedTuple):
    """A listener's address."""

    listener: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.listener}://{join_address(self.host, self.port)}"

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """``LISTENER://host:port``. Raises ``ValueError``."""
        listener, separator, address = text.partition("://")
        split = urlsplit(f"//{address}")
        if not separator or not listener or not split.hostname or split.port is None or split.path:
            raise ValueError(f"{text!r} is not LISTENER://host:port")
        # ``split_address`` accepts an empty host, and an IPv6 host without brackets: both are errors here. ``urlsplit``
        # returns the host name in lower case, but here it is kept as written.
        host = split.hostname if address.startswith("[") else address.rpartition(":")[0]
        return cls(listener.upper(), host, split.port)


class VersionRange(NamedTuple):
    """The levels of a feature that a broker supports (KIP-584)."""

    min_version: int
    max_version: int


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A broker's registration; the znode's czxid is the broker epoch.

    ``security_protocols`` maps a listener's name to its protocol; without an entry, the listener's name is also the
    protocol.
    """

    endpoints: list[Endpoint]
    security_protocols: dict[str, str] = field(default_factory=dict)
    rack: str | None = None
    features: dict[str, VersionRange] = field(default_factory=dict)
    timestamp_ms: int = NO_TIMESTAMP
    jmx_port: int = -1
    version: int = 5
    extra: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def path(broker: int) -> str:
        return paths.broker_id(broker)

    def endpoint(self, listener: str) -> Endpoint | None:
        """The endpoint of a listener by name."""
        return next((endpoint for endpoint in self.endpoints if endpoint.listener == listener), None)

    @classmethod
    def decode(cls, path: str, data: bytes) -> BrokerRegistration:
        """Raises ``MalformedZnodeError``."""
        reader = ZnodeReader.parse(path, data)
        endpoints = []
        for text in reader.texts("endpoints"):
            try:
                endpoints.append(Endpoint.parse(text))
            except ValueError as error:
                raise MalformedZnodeError(path, "endpoints", str(error)) from None
        if not endpoints:
            raise MalformedZnodeError(path, "endpoints", "a broker needs at least one")
        features = {
            name: VersionRange(nested.integer("min_version", low=0), nested.integer("max_version", low=0))
            for name, nested in reader.objects("features").items()
        }
        for name, supported in features.items():
            if supported.min_version > supported.max_version:
                raise MalformedZnodeError(
                    path,
                    f"features.{name}",
                    f"min_version is above max_version: {supported.min_version} > {supported.max_version}",
                )
        reader.optional_text("host")  # written for old readers only: the endpoints have the same address
        reader.integer("port", -1, low=-1)
        return cls(
            endpoints=endpoints,
            security_protocols=reader.text_map("listener_security_protocol_map", {}),
            rack=reader.optional_text("rack"),
            features=features,
            timestamp_ms=reader.number_text("timestamp", -1, low=-1),
            jmx_port=reader.integer("jmx_port", -1, low=-1),
            version=reader.integer("version", 5, low=1),
            extra=reader.rest(),
        )

    def encode(self) -> bytes:
        plain = next(
            (e for e in self.endpoints if self.security_protocols.get(e.listener, e.listener) == PLAINTEXT), None
        )
        fields: dict[str, Any] = {
            "version": self.version,
            "host": plain.host if plain else None,
            "port": plain.port if plain else -1,
            "jmx_port": self.jmx_port,
            "timestamp": str(self.timestamp_ms),
            "endpoints": [str(endpoint) for endpoint in self.endpoints],
            "listener_security_protocol_map": self.security_protocols,
            "features": {name: supported._asdict() for name, supported in self.features.items()},
        }
        if self.rack is not None:
            fields["rack"] = self.rack
        return encode_fields(fields, self.extra)
