"""The methods that a blocking class takes over from its async class."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


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
