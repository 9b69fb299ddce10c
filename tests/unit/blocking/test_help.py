"""The help of the blocking classes, and the errors for calls of other libraries."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import pydoc
import re
from pathlib import Path
from typing import Any

import anyio
import pytest

import anabranch
from anabranch import ConsumerRecord, sync
from anabranch.client.other_libraries import KEYS, METHODS, NAMES, PAGE

ROOT = Path(__file__).resolve().parents[3]
CLASSES = [("Producer", sync.Producer), ("Consumer", sync.Consumer), ("Admin", sync.Admin)]


@pytest.mark.parametrize(("name", "blocking"), CLASSES)
def test_the_help_has_every_method_of_the_async_class(name: str, blocking: Any) -> None:
    original = getattr(anabranch, name)
    methods = {name for name, _ in inspect.getmembers(original, inspect.isfunction) if not name.startswith("_")}
    assert len(methods) > 8 and methods <= {*dir(blocking)}
    text = pydoc.render_doc(blocking, renderer=pydoc.plaintext)  # type: ignore[attr-defined]
    described = set(re.findall(r"^ \|  (\w+)\(", text, re.MULTILINE))
    assert methods - described == set()
    assert [method for method in methods if not getattr(blocking, method).__doc__] == []
    assert "async with" not in text and " |  async " not in text
    for method in methods - {"start", "stop", "close", "batches", "getone", "poll", "send_many"}:
        here, there = (inspect.signature(getattr(each, method)) for each in (blocking, original))
        assert (method, here) == (method, there)


@pytest.mark.parametrize("module", [anabranch, sync])
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in METHODS.items() for name in names])
def test_a_call_of_another_library_names_the_call_to_use(module: Any, kind: str, name: str) -> None:
    client = getattr(module, kind)()
    if hasattr(type(client), name):
        assert (module, name) == (sync, "wakeup")
        return
    with pytest.raises(AttributeError) as caught:
        getattr(client, name)
    assert str(caught.value) == f"{kind} has no {name}: {METHODS[kind][name]}, see {PAGE}"
    assert (ROOT / PAGE).is_file()
    for call in re.findall(r"(\w+)\(", METHODS[kind][name]):
        assert callable(getattr(client, call))


@pytest.mark.parametrize("module", ["anabranch", "anabranch.sync"])
@pytest.mark.parametrize("name", NAMES)
def test_an_import_of_a_name_of_another_library_names_what_to_use(module: str, name: str) -> None:
    with pytest.raises(ImportError) as caught:
        exec(f"from {module} import {name}")
    assert str(caught.value) == f"{module} has no {name}: {NAMES[name]}, see {PAGE}"
    for call in re.findall(r"(?<![.\w])([a-z_]+)\(", NAMES[name]):
        assert any(hasattr(blocking, call) for _, blocking in CLASSES), call
    for kind in re.findall(r"\b(?:[A-Z][a-z]+){2,}\b|\b(?:Admin|Consumer|Producer)\b", NAMES[name]):
        assert kind in anabranch.__all__


@pytest.mark.parametrize("key", [*KEYS, "sasl_mechanism", "ssl.ca.location", "enable.partition.eof"])
def test_a_key_of_another_library_names_what_to_use(key: str) -> None:
    with pytest.raises(anabranch.ConfigError, match=rf"^{re.escape(key)}: there is no such key: \w+"):
        sync.Consumer(**{key: "x"})


def test_a_record_stands_for_no_error() -> None:
    record = ConsumerRecord("t", 0, 5, 0, 0, 0, None, None, ())
    with pytest.raises(AttributeError, match=rf"^a ConsumerRecord has no error: .* raised, see {PAGE}$"):
        record.error()  # type: ignore[attr-defined]
    assert not hasattr(record, "other") and record._replace(offset=6).offset == 6


@pytest.mark.parametrize(("arguments", "names"), [((5,), {}), ((), {"offset": 5}), ((5, ""), {})])
def test_a_partition_has_no_offset(arguments: Any, names: Any) -> None:
    with pytest.raises(TypeError, match=r"no offset: use seek\(tp, offset\)|takes .* positional arguments"):
        anabranch.TopicPartition("t", 0, *arguments, **names)
    tp = anabranch.TopicPartition(partition=1, topic="t")
    assert (tp, [*inspect.signature(type(tp)).parameters]) == (("t", 1), ["topic", "partition"])
    assert pickle.loads(pickle.dumps(tp)) == copy.copy(tp) == tp and type(pickle.loads(pickle.dumps(tp))) is type(tp)


@pytest.mark.parametrize("module", [anabranch, sync])
@pytest.mark.parametrize("name", ["Producer", "Consumer", "Admin"])
def test_the_help_of_a_class_has_its_keys_and_their_defaults(module: Any, name: str) -> None:
    kind = getattr(module, name)
    text = pydoc.render_doc(kind, renderer=pydoc.plaintext)  # type: ignore[attr-defined]
    config = kind(bootstrap_servers="127.0.0.1:9092").config
    for key in dataclasses.fields(config):
        assert f" {key.name} = " in text
        if key.name not in ("bootstrap_servers", "receive_message_max_bytes"):
            assert f" {key.name} = {getattr(config, key.name)!r}\n" in text
    assert " bootstrap_servers = '127.0.0.1:9092'\n" in text and "docs/configuration.md" in text


def test_an_unknown_name_is_named() -> None:
    with pytest.raises(AttributeError, match=r"^Producer has no sned$"):
        sync.Producer().sned
    assert not hasattr(sync.Consumer(), "__len__")


T0 = anabranch.TopicPartition("t", 0)
WRONG_CALLS: list[tuple[str, str, tuple[Any, ...], dict[str, Any], str]] = [
    ("Producer", "flush", (10,), {}, r"too many positional arguments: .* delivery_timeout_ms"),
    ("Producer", "flush", (), {"timeout": 10}, r"argument 'timeout': .* delivery_timeout_ms"),
    ("Producer", "send", ("t",), {"callback": print}, r"argument 'callback': use on_delivery="),
    ("Producer", "send", ("t",), {"timestamp": 1}, r"argument 'timestamp': use timestamp_ms="),
    ("Producer", "close", (10,), {}, r"too many positional arguments: use timeout_ms="),
    ("Consumer", "close", (), {"timeout": 10}, r"argument 'timeout': use timeout_ms="),
    ("Consumer", "getmany", (), {"timeout": 1}, r"argument 'timeout': use timeout_ms="),
    ("Consumer", "poll", (), {"timeout_ms": 1}, r"argument 'timeout_ms': use timeout=, in seconds"),
    ("Admin", "create_topics", ([],), {"timeout": 1}, r"argument 'timeout': use timeout_ms="),
    ("Consumer", "subscribe", (["t"],), {"on_assign": print}, "argument 'on_assign': use listener="),
    ("Consumer", "subscribe", (["t"],), {"on_lost": print}, "argument 'on_lost': use listener="),
    ("Consumer", "subscribe", (["t"], print), {}, "too many positional arguments: use listener="),
    ("Consumer", "commit", (), {"message": None}, r"argument 'message': use offsets=\{tp: message\.offset \+ 1\}$"),
    ("Consumer", "commit", (), {"asynchronous": False}, "argument 'asynchronous': the call waits"),
    ("Consumer", "committed", (T0,), {"timeout": 1}, "argument 'timeout': the configuration"),
    ("Consumer", "seek", (T0,), {"of": 1}, "missing a required argument: 'offset'$"),
    ("Consumer", "seek", (T0, 1), {"of": 1}, "got an unexpected keyword argument 'of'$"),
    ("Admin", "create_topics", ([],), {"operation_timeout": 30}, "'operation_timeout': use timeout_ms="),
    (
        "Admin",
        "list_topics",
        ("t",),
        {},
        r"too many positional arguments: its arguments are \(include_internal=True\)$",
    ),
]


@pytest.mark.parametrize(("kind", "method", "arguments", "names", "error"), WRONG_CALLS)
def test_wrong_arguments_name_the_method_and_the_argument_to_use(
    kind: str, method: str, arguments: Any, names: Any, error: str
) -> None:
    async def call() -> None:
        result = getattr(getattr(anabranch, kind)(bootstrap_servers="h:1"), method)(*arguments, **names)
        if inspect.isawaitable(result):
            await result

    client = getattr(sync, kind)(bootstrap_servers="h:1")
    for act in (lambda: getattr(client, method)(*arguments, **names), lambda: anyio.run(call)):
        with pytest.raises(TypeError, match=rf"^{kind}\.{method}\(\) .*{error}"):
            act()
    client.close()


@pytest.mark.parametrize(
    ("kind", "method", "argument", "error"),
    [
        ("Consumer", "committed", [T0], "^partition .* is not a TopicPartition: give one partition"),
        ("Consumer", "position", [T0], "^partition .* is not a TopicPartition: give one partition"),
        ("Consumer", "seek_to_end", {T0}, r"is a set: use Consumer\.seek_to_end\(\*partitions\)$"),
        ("Consumer", "pause", [T0], r"is a list: use Consumer\.pause\(\*partitions\)$"),
        ("Consumer", "resume", [T0], r"is a list: use Consumer\.resume\(\*partitions\)$"),
        ("Consumer", "offsets_for_times", [T0], r"^timestamps .* is not a mapping: use \{tp: milliseconds\}$"),
        ("Consumer", "assign", T0, r"^partitions TopicPartition.* is not a list, as in \[TopicPartition.*\]$"),
        ("Consumer", "end_offsets", T0, r"^partitions TopicPartition.* is not a list, as in \[TopicPartition.*\]$"),
        ("Admin", "create_partitions", [("t", 3)], r"^counts .* is not a mapping: use \{topic: count\}$"),
        ("Admin", "list_offsets", [T0], r'^specs .* is not a mapping: use \{tp: "latest"\}$'),
        ("Admin", "delete_records", [T0], r"^before .* is not a mapping: use \{tp: offset\}$"),
    ],
)
def test_a_list_where_another_form_is_due_names_the_form(kind: str, method: str, argument: Any, error: str) -> None:
    client = getattr(sync, kind)(bootstrap_servers="h:1")
    with pytest.raises(TypeError, match=error):
        getattr(client, method)(argument)
    client.close()


@pytest.mark.parametrize("name", ["config", "topic_configs"])
def test_a_new_topic_names_the_argument_for_its_configuration(name: str) -> None:
    with pytest.raises(TypeError, match=rf"^NewTopic\(\) got an unexpected keyword argument '{name}': use configs="):
        anabranch.NewTopic("t", 1, 1, **{name: {}})
    topic = anabranch.NewTopic("t", 1, 1, {"retention.ms": "1"})
    assert dataclasses.replace(topic, name="u") == anabranch.NewTopic("u", 1, 1, configs={"retention.ms": "1"})


def test_a_listener_that_is_a_function_is_shown_as_it_was_given() -> None:
    consumer = sync.Consumer(bootstrap_servers="h:1", group_id="g")
    for name in ("listener", "partition_key_listener"):
        with pytest.raises(TypeError, match=rf"^{name} <built-in function print> is not an object with one of"):
            consumer.subscribe(["t"], **{name: print})
    consumer.close()


@pytest.mark.parametrize("module", [anabranch, sync])
@pytest.mark.parametrize("name", ["Producer", "Consumer", "Admin"])
def test_a_dictionary_of_configuration_is_refused(module: Any, name: str) -> None:
    with pytest.raises(TypeError, match=rf"^{name} takes no mapping.* {name}\(\*\*config\).*anabranch\.confluent"):
        getattr(module, name)({"bootstrap.servers": "h:1"})
    with pytest.raises(TypeError, match=r"\(\) too many .*: give the configuration as key|use Consumer\(\*topics\)"):
        getattr(module, name)(["h:1"])


def test_the_offsets_of_a_commit_are_no_record_and_no_list() -> None:
    record = ConsumerRecord("t", 0, 5, 0, 0, 0, None, None, ())
    consumer = sync.Consumer(bootstrap_servers="h:1", group_id="g")
    for given in (record, [record], ("t", 0)):
        with pytest.raises(TypeError, match=r"^offsets .* is not a mapping: use \{tp: offset \+ 1\}"):
            consumer.commit(given)  # type: ignore[arg-type]
    consumer.close()


def test_the_blocking_module_has_the_names_of_the_async_one() -> None:
    """So that one import is enough, also one of all names: two of them would mix both kinds of classes."""
    names: dict[str, Any] = {}
    exec("from anabranch.sync import *", names)
    assert {name for name in names if name != "__builtins__"} == {*anabranch.__all__}
    blocking = {name for name in anabranch.__all__ if names[name] is not getattr(anabranch, name)}
    assert blocking == {"Admin", "Consumer", "Producer", "RecordHandle"}
    assert all(names[name].__module__.startswith("anabranch.blocking.") for name in blocking)
    with pytest.raises(AttributeError, match=r"module 'anabranch\.sync' has no attribute 'Nothing'"):
        _ = sync.Nothing  # type: ignore[attr-defined]
