"""The errors for names of confluent-kafka that are not here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.blocking.admin import Admin
from anabranch.client.other_libraries import METHODS, PAGE

_NO_TRANSACTIONS = "there are no transactions yet"
_NO_SECURITY = "there is no security yet"
_NO_SERIALIZERS = "serialize before produce(), and deserialize message.value()"
_OTHER_ADMIN = "anabranch.sync.Admin has the calls for it"

_METHODS: Mapping[str, Mapping[str, str]] = {
    "Producer": {
        **{name: text for name, text in METHODS["Producer"].items() if "transaction" in name},
        "purge": "close() waits for the records",
        "produce_batch": "call produce() for each record",
        "set_sasl_credentials": _NO_SECURITY,
        "cluster_id": "use list_topics().cluster_id",
    },
    "Consumer": {
        "consumer_group_metadata": _NO_TRANSACTIONS,
        "set_sasl_credentials": _NO_SECURITY,
        "cluster_id": "use list_topics().cluster_id",
    },
    "AdminClient": {
        "set_sasl_credentials": _NO_SECURITY,
        "cluster_id": "use list_topics().cluster_id",
        "list_consumer_groups": "use list_groups() of anabranch.sync.Admin",
        "describe_consumer_groups": "use describe_groups() of anabranch.sync.Admin",
        "delete_consumer_groups": "use delete_groups() of anabranch.sync.Admin",
        "list_consumer_group_offsets": "use list_group_offsets() of anabranch.sync.Admin",
        "alter_consumer_group_offsets": "use alter_group_offsets() of anabranch.sync.Admin",
    },
}
"""By class: methods that are missing, and what to do instead."""

_NAMES: Mapping[str, str] = {
    "SerializingProducer": _NO_SERIALIZERS,
    "DeserializingConsumer": _NO_SERIALIZERS,
    "ShareConsumer": "there are no share groups",
    "DeserializingShareConsumer": "there are no share groups",
    "TopicCollection": _OTHER_ADMIN,
    "ConsumerGroupTopicPartitions": _OTHER_ADMIN,
    "ConsumerGroupState": _OTHER_ADMIN,
    "ConsumerGroupType": _OTHER_ADMIN,
    "ElectionType": _OTHER_ADMIN,
    "IsolationLevel": _OTHER_ADMIN,
    "OffsetSpec": _OTHER_ADMIN,
    "AlterConfigOpType": _OTHER_ADMIN,
    "AclBinding": _NO_SECURITY,
    "AclBindingFilter": _NO_SECURITY,
    "ScramMechanism": _NO_SECURITY,
}
"""Names of its modules that are missing, and what to do instead."""


def missing(kind: str, name: str) -> str:
    """The text of the error for a method that a class does not have."""
    instead = _METHODS[kind].get(name)
    if instead is None and kind == "AdminClient" and not name.startswith("_") and hasattr(Admin, name):
        instead = f"use {name}() of anabranch.sync.Admin"
    return f"{kind} has no {name}" + ("" if instead is None else f": {instead}, see {PAGE}")


def missing_in_module(module: str, name: str) -> Any:
    """Raise the error for a name that a module does not have.

    It is an ImportError for a name of confluent-kafka, because an import replaces the text of an AttributeError.
    """
    if name in _NAMES:
        raise ImportError(f"{module} has no {name}: {_NAMES[name]}, see {PAGE}", name=name)
    raise AttributeError(f"module {module!r} has no attribute {name!r}")
