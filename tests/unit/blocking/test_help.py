"""The help of the blocking classes, and the errors for calls of other libraries."""

from __future__ import annotations

import inspect
import pydoc
import re
from pathlib import Path
from typing import Any

import pytest

import anabranch
from anabranch import ConsumerRecord, sync
from anabranch.blocking.methods import INSTEAD, PAGE

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


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in INSTEAD.items() for name in names])
def test_a_call_of_another_library_names_the_call_to_use(kind: str, name: str) -> None:
    client = getattr(sync, kind)()
    with pytest.raises(AttributeError) as caught:
        getattr(client, name)
    assert str(caught.value) == f"{kind} has no {name}: {INSTEAD[kind][name]}, see {PAGE}"
    assert (Path(__file__).resolve().parents[3] / PAGE).is_file()
    for call in re.findall(r"(\w+)\(", INSTEAD[kind][name]):
        assert callable(getattr(client, call))


def test_an_unknown_name_is_named() -> None:
    with pytest.raises(AttributeError, match=r"^Producer has no sned$"):
        sync.Producer().sned
    assert not hasattr(sync.Consumer(), "__len__")


@pytest.mark.parametrize(
    ("method", "given", "error"),
    [
        ("subscribe", {"topics": ["t"], "on_assign": print}, "unexpected keyword argument 'on_assign': use listener="),
        ("subscribe", {"topics": ["t"], "on_lost": print}, "unexpected keyword argument 'on_lost': use listener="),
        ("commit", {"message": None}, r"argument 'message': use offsets=\{tp: message\.offset \+ 1\}$"),
        ("commit", {"asynchronous": False}, "unexpected keyword argument 'asynchronous': the call waits"),
        ("committed", {"partition": ("t", 0), "timeout": 1}, "argument 'timeout': the configuration"),
        ("seek", {"partition": ("t", 0), "of": 1}, "missing a required argument: 'offset'$"),
        ("seek", {"partition": ("t", 0), "offset": 1, "of": 1}, "got an unexpected keyword argument 'of'$"),
    ],
)
def test_wrong_arguments_name_the_method_and_the_argument_to_use(method: str, given: Any, error: str) -> None:
    consumer = sync.Consumer(bootstrap_servers="h:1", group_id="g")
    with pytest.raises(TypeError, match=rf"^Consumer\.{method}\(\) .*{error}"):
        getattr(consumer, method)(**given)
    consumer.close()


@pytest.mark.parametrize(("name", "blocking"), CLASSES)
def test_a_dictionary_of_configuration_is_refused(name: str, blocking: Any) -> None:
    with pytest.raises(TypeError, match=rf"^{name} takes no mapping.* {name}\(\*\*config\).*anabranch\.confluent"):
        blocking({"bootstrap.servers": "h:1"})


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
