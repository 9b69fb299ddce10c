"""The methods that a blocking class takes over from its async class, and the errors for names of other libraries."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
PAGE = "docs/from-other-clients.md"
_ITSELF = "no such call is needed: the client sends by itself"
_NO_TRANSACTIONS = "there are no transactions yet"
INSTEAD: Mapping[str, Mapping[str, str]] = {
    "Producer": {
        "produce": "use send(topic, value, key)",
        "poll": _ITSELF,
        "list_partitions": "use partitions_for(topic)",
        **dict.fromkeys(
            (
                "init_transactions",
                "begin_transaction",
                "commit_transaction",
                "abort_transaction",
                "send_offsets_to_transaction",
            ),
            _NO_TRANSACTIONS,
        ),
    },
    "Consumer": {
        "consume": "use getmany(max_records=, timeout_ms=)",
        "consumer_group_metadata": _NO_TRANSACTIONS,
        "commit_async": "use commit()",
        "unassign": "use unsubscribe() or assign([])",
    },
    "Admin": {
        "poll": _ITSELF,
        "list_consumer_groups": "use list_groups()",
        "describe_consumer_groups": "use describe_groups()",
        "delete_consumer_groups": "use delete_groups()",
        "list_consumer_group_offsets": "use list_group_offsets()",
        "alter_consumer_group_offsets": "use alter_group_offsets()",
    },
}
"""By class: calls of other libraries, and what to do here."""


def missing(kind: str, name: str) -> str:
    """The text of the error for a name that a class does not have."""
    instead = INSTEAD.get(kind, {}).get(name)
    return f"{kind} has no {name}" + ("" if instead is None else f": {instead}, see {PAGE}")


def like(original: Callable[..., Any]) -> Callable[[F], F]:
    """Give a method the signature and the text of ``original``, before its own text."""

    def decorate(method: F) -> F:
        method.__doc__ = "\n\n".join(inspect.cleandoc(each.__doc__ or "") for each in (original, method)).strip()
        method.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
        return method

    return decorate


def take_over(blocking: type, original: type) -> None:
    """Give ``blocking`` a method for each public method of ``original`` that it does not define."""
    for name, method in inspect.getmembers(original, inspect.isfunction):
        if not name.startswith("_") and not hasattr(blocking, name):
            setattr(blocking, name, _forwarding(blocking, name, method))


def _forwarding(blocking: type, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._forward(name, args, kwargs)

    call.__qualname__, call.__module__ = f"{blocking.__name__}.{name}", blocking.__module__
    return call
