"""Judges the arguments that users give to the clients' methods. No IO.

A rule takes a parameter's name and the value given, and returns the value in the type that the client computes with, or
raises: ``TypeError`` for a value of another kind, ``ValueError`` for one out of range. The error names the parameter,
the value and what is allowed. So no value reaches a background task that cannot be sent.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
import reprlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from enum import IntEnum
from numbers import Real
from operator import index
from typing import Any, TypeVar

from anabranch.client.other_libraries import MILLISECONDS, PARAMETERS, POSITIONS
from anabranch.protocol.types import TopicPartition

Rule = Callable[[str, Any], Any]
T = TypeVar("T")
E = TypeVar("E", bound=IntEnum)
F = TypeVar("F", bound=Callable[..., Any])

INT16_MAX = 2**15 - 1
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
MAX_TEXT_BYTES = INT16_MAX
"""The longest string that every version of every request can carry."""

_short = reprlib.Repr()
_short.maxstring = _short.maxlong = _short.maxother = 80


def shown(value: object) -> str:
    """A value as text of bounded length, for an error."""
    try:
        return _short.repr(value[:80] if isinstance(value, bytes | bytearray) else value)
    except Exception:  # the user's own class, or a number with more digits than Python writes
        return f"a value of {type(value).__name__}"


def refused(kind: type[Exception], name: str, value: object, allowed: str) -> Exception:
    """The error for a value that is not ``allowed``."""
    return kind(f"{name} {shown(value)} is not {allowed}")


# ---------------------------------------------------------------- single values


def whole(low: int, high: int) -> Rule:
    """Whole numbers of any integer type, such as numpy's, but not bool."""
    allowed = f"a whole number from {low} to {high}"

    def rule(name: str, value: Any) -> int:
        if type(value) is int and low <= value <= high:
            return value
        if isinstance(value, bool) or not hasattr(type(value), "__index__"):
            raise refused(TypeError, name, value, allowed)
        try:
            number = index(value)
        except TypeError:  # an array of numbers has the method, too
            raise refused(TypeError, name, value, allowed) from None
        if not low <= number <= high:
            raise refused(ValueError, name, value, allowed)
        return number

    return rule


def duration(name: str, value: Any) -> float:
    """A time span, which may have a fraction, and may be infinite."""
    if type(value) is float and value >= 0:
        return value
    allowed = "a number from 0 on"
    if isinstance(value, bool):
        raise refused(TypeError, name, value, allowed)
    number = math.nan
    with suppress(OverflowError):  # more than a float can hold
        try:
            number = float(value if isinstance(value, Real) else index(value))
        except TypeError:
            raise refused(TypeError, name, value, allowed) from None
    if number >= 0:
        return number
    raise refused(ValueError, name, value, allowed)


def function(name: str, value: Any) -> Any:
    if callable(value):
        return value
    raise refused(TypeError, name, value, "a function")


def flag(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise refused(TypeError, name, value, "True or False")


def text(name: str, value: Any) -> str:
    allowed = f"text of at most {MAX_TEXT_BYTES} bytes in UTF-8"
    if not isinstance(value, str):
        raise refused(TypeError, name, value, allowed)
    try:
        fits = len(value.encode()) <= MAX_TEXT_BYTES
    except UnicodeEncodeError:  # half of a surrogate pair
        fits = False
    if not fits:
        raise refused(ValueError, name, value, allowed)
    return value


def topic(name: str, value: Any) -> str:
    """A topic's name. Brokers decide which characters they allow."""
    if not text(name, value):
        raise refused(ValueError, name, value, "the name of a topic")
    return value  # type: ignore[no-any-return]


def topic_partition(name: str, value: Any) -> TopicPartition:
    if not isinstance(value, tuple) or len(value) != 2:
        many = ": give one partition, not several" if isinstance(value, list | set | frozenset | Mapping) else ""
        raise refused(TypeError, name, value, f"a TopicPartition{many}")
    return TopicPartition(topic(f"{name}.topic", value[0]), partition(f"{name}.partition", value[1]))


def blob(name: str, value: Any) -> bytes | None:
    """Bytes or None. They are copied from a buffer that the caller may use again."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"{name} {shown(value)} is {type(value).__name__}, not bytes; set {name}_serializer")


def pattern(name: str, value: Any) -> re.Pattern[str]:
    """A regular expression of text, compiled or not."""
    if isinstance(value, re.Pattern):
        if isinstance(value.pattern, str):
            return value
        raise refused(TypeError, name, value, "a regular expression of text")
    try:
        return re.compile(text(name, value))
    except (re.error, RecursionError, OverflowError) as error:
        raise refused(ValueError, name, value, f"a regular expression: {error}") from None


partition = whole(0, INT32_MAX)
broker = whole(0, INT32_MAX)
broker_or_all = whole(-1, INT32_MAX)
leader_epoch = whole(-1, INT32_MAX)
offset = whole(0, INT64_MAX)
timestamp = whole(0, INT64_MAX)
timeout_ms = whole(0, INT32_MAX)
count = whole(-(2**63), INT64_MAX)
"""A number of partitions or replicas, whose range has an error code of its own."""


# ---------------------------------------------------------------- made of other rules


def optional(rule: Rule) -> Rule:
    return lambda name, value: None if value is None else rule(name, value)


def instance(kind: type[T]) -> Callable[[str, Any], T]:
    def rule(name: str, value: Any) -> T:
        if not isinstance(value, kind):
            raise refused(TypeError, name, value, f"a {kind.__name__}")
        return value

    return rule


def items(name: str, value: Any, allowed: str) -> Iterator[Any]:
    """The items of an iterable, but of no string and of no mapping."""
    if not isinstance(value, str | bytes | bytearray | Mapping):
        with suppress(TypeError):
            return iter(value)
    raise refused(TypeError, name, value, allowed)


def each(rule: Rule) -> Rule:
    """A list of the items of an iterable; of a mapping, of its keys. One string is no list of strings."""

    def all_items(name: str, value: Any) -> list[Any]:
        given = value.keys() if isinstance(value, Mapping) else value
        if isinstance(value, TopicPartition | str):
            raise refused(TypeError, name, value, f"a list, as in [{value!r}]")
        return [rule(f"{name}[{at}]", item) for at, item in enumerate(items(name, given, "a list"))]

    return all_items


def mapping(key_rule: Rule, value_rule: Rule, form: str = "") -> Rule:
    """A mapping; ``form`` shows in the error how one is written."""
    allowed = "a mapping" + (f": use {form}" if form else "")

    def all_items(name: str, value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise refused(TypeError, name, value, allowed)
        judged_items: dict[Any, Any] = {}
        for key, item in value.items():
            judged_items[key_rule(f"a key of {name}:", key)] = value_rule(f"{name}[{shown(key)}]", item)
        return judged_items

    return all_items


def member(kind: type[E]) -> Callable[[str, Any], E]:
    """A member of an enum of numbers, or its number."""

    def rule(name: str, value: Any) -> E:
        if isinstance(value, kind):
            return value
        allowed = " or ".join(f"{kind.__name__}.{one.name}" for one in kind)
        if isinstance(value, bool) or not isinstance(value, int):
            raise refused(TypeError, name, value, allowed)
        try:
            return kind(value)
        except ValueError:
            raise refused(ValueError, name, value, allowed) from None

    return rule


def listener(*methods: str) -> Rule:
    """None, or an object that has one of these methods."""

    def rule(name: str, value: Any) -> Any:
        found = [method for method in methods if getattr(value, method, None) is not None]
        if value is not None and not (found and all(callable(getattr(value, method)) for method in found)):
            raise refused(TypeError, name, value, f"an object with one of the methods {', '.join(methods)}")
        return value

    return rule


# ---------------------------------------------------------------- methods


def by_itself(name: str, value: Any) -> Any:
    """For parameters that the method judges itself, because it is called for each record."""
    return value


def judged(rules: Mapping[str, Mapping[str, Rule]]) -> Callable[[type[T]], type[T]]:
    """Judge the arguments of each call of a class's public methods by the rules of the method's parameters.

    Raises ``TypeError`` at once if a parameter of a public method has no rule, or a rule has no parameter.
    """

    def decorate(kind: type[T]) -> type[T]:
        missing = dict(rules)
        for name, method in [*vars(kind).items()]:
            if name.startswith("_") or not inspect.isfunction(method):
                continue
            parameters = [*inspect.signature(method).parameters.values()][1:]
            given = missing.pop(name, {})
            if {parameter.name for parameter in parameters} != given.keys():
                raise TypeError(f"{method.__qualname__}{inspect.signature(method)} has rules for {[*given]}")
            if not given or any(rule is not by_itself for rule in given.values()):
                setattr(kind, name, judging(given)(method))
        if missing:
            raise TypeError(f"{kind.__name__} has no method {', '.join(missing)}")
        return kind

    return decorate


def judging(given: Mapping[str, Rule]) -> Callable[[F], F]:
    """Judge the arguments of a method by the rules of its parameters, and explain a call that does not fit it."""
    return lambda method: _judging(method, given)  # type: ignore[return-value]


def constructing(init: F) -> F:
    """Explain a call of a client's class that does not fit it, such as one with a dictionary of configuration."""
    judged_init = _judging(init, {})

    @functools.wraps(init)
    def construct(self: Any, *args: Any, **config: Any) -> None:
        if args and isinstance(args[0], Mapping):
            kind = type(self).__name__
            raise TypeError(
                f"{kind} takes no mapping: give the keys as keyword arguments, with _ for dots, as in"
                f" {kind}(**config), or use anabranch.confluent for dictionaries with dots"
            )
        judged_init(self, *args, **config)

    return construct  # type: ignore[return-value]


def explains_unknown(method: F) -> F:
    """For a method that is called for each record: its ``**unknown``, which it refuses, is not in its signature."""
    signature = inspect.signature(method)
    known = [parameter for name, parameter in signature.parameters.items() if name != "unknown"]
    method.__signature__ = signature.replace(parameters=known)  # type: ignore[attr-defined]
    return method


def unknown_argument(method: str, unknown: Mapping[str, Any]) -> TypeError:
    """The error for keyword arguments that ``Class.method`` does not have."""
    name = next(iter(unknown))
    return TypeError(f"{method}() got an unexpected keyword argument {name!r}{_instead_of(method, name)}")


def _instead_of(method: str, name: str, known: Collection[str] = ()) -> str:
    instead = PARAMETERS.get(f"{method.rpartition('.')[2]}.{name}", PARAMETERS.get(name))
    if name in ("timeout", "request_timeout") and "timeout_ms" in known:
        instead = MILLISECONDS
    return "" if instead is None else f": {instead}"


def _judging(method: Callable[..., Any], given: Mapping[str, Rule]) -> Callable[..., Any]:
    signature = inspect.signature(method)
    is_class = method.__name__ == "__init__"
    several = next((n for n, p in signature.parameters.items() if p.kind is inspect.Parameter.VAR_POSITIONAL), None)
    rules = {name: each(rule) if name == several else rule for name, rule in given.items()}

    def called(args: tuple[Any, ...]) -> str:
        return type(args[0]).__name__ + ("" if is_class else f".{method.__name__}")

    def bound(args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
        try:
            call = signature.bind(*args, **kwargs)
        except TypeError as error:
            name_of_call = called(args)
            unknown = next((name for name in kwargs if name not in signature.parameters), "")
            instead = _instead_of(name_of_call, unknown, signature.parameters) if unknown else ""
            if not instead and str(error).startswith("too many positional"):
                known = [*signature.parameters.values()][1:]
                written = ", ".join(str(p.replace(annotation=inspect.Parameter.empty)) for p in known)
                by_position = POSITIONS.get(name_of_call.rpartition(".")[2])
                instead = f": {by_position or f'its arguments are ({written})'}"
            raise TypeError(f"{name_of_call}() {error}{instead}") from None
        one_by_one: tuple[Any, ...] = call.arguments.get(several, ()) if several is not None else ()
        if len(one_by_one) == 1 and isinstance(one_by_one[0], list | set | frozenset):
            kind = type(one_by_one[0]).__name__
            raise TypeError(f"{several} {shown(one_by_one[0])} is a {kind}: use {called(args)}(*{several})")
        for name in call.arguments.keys() & rules.keys():
            call.arguments[name] = rules[name](name, call.arguments[name])
        return call

    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def judge_and_await(*args: Any, **kwargs: Any) -> Any:
            call = bound(args, kwargs)
            return await method(*call.args, **call.kwargs)

        return judge_and_await

    @functools.wraps(method)
    def judge_and_call(*args: Any, **kwargs: Any) -> Any:
        call = bound(args, kwargs)
        return method(*call.args, **call.kwargs)

    return judge_and_call
