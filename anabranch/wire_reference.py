"""Writes ``docs/wire.md`` from the tables of the protocol: ``python -m anabranch.wire_reference`` (``make gen``)."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from anabranch.broker.net.dispatch import HANDLERS as BROKER_HANDLERS
from anabranch.controller.admin.dispatch import HANDLERS as CONTROLLER_HANDLERS
from anabranch.protocol import messages
from anabranch.protocol.api_keys import API, ApiKey
from anabranch.protocol.own_tags import is_own
from anabranch.protocol.schema import LATEST, Field, MessageSchema, Versions

TARGET = Path(__file__).resolve().parents[1] / "docs" / "wire.md"
INTRODUCTION = """# Wire protocol
Written by `make gen` from the tables in `protocol/messages`.

Messages are Kafka's, in the versions below. A server lists the APIs that it serves in its response to ApiVersions.
Anabranch adds two things, which other clients need not know:

- **Tagged fields** with tags from 10253 on ([KIP-482](https://cwiki.apache.org/confluence/x/OhMyBw)). A broker sends
  them only in answers to requests that ask for them: the header of such a request has tag 10287 without a value, and no
  other tagged field. A server that does not know this tag skips it. Anabranch's own clients and tools ask in every
  request.
- **APIs** with keys from 25300 on.

If the version of a request is not in its range, the server closes the connection without an answer, as Kafka does.
Only ApiVersions is answered: with UNSUPPORTED_VERSION (35) in version 0, and its range.
"""
ON_TAGS = """Two responses are sent without these tags although their version is flexible: Metadata 9, and OffsetFetch 6
and 7. Old versions of librdkafka use them and cannot skip a tag
([ADR 19](adr/0019-tags-in-versions-that-old-librdkafka-does-not-use.md)).
"""
ALSO = {ApiKey.API_VERSIONS, ApiKey.DESCRIBE_CONFIGS}
"""APIs that controllers serve without an entry in their table of handlers."""


def render() -> str:
    """The text of the whole page."""
    parts = [INTRODUCTION, "## APIs", ""]
    parts += ["| key | API | versions | flexible from | served by |", "|---|---|---|---|---|"]
    for key, api in sorted(API.items()):
        flexible = "" if api.flexible_from is None else str(api.flexible_from)
        versions = version_range(Versions(api.min_version, api.max_version))
        parts.append(f"| {key.value} | [{api.name}](#{api.name.lower()}) | {versions} | {flexible} | {servers(key)} |")
    parts += ["", "## Tagged fields of Anabranch", ON_TAGS]
    parts += ["| tag | message | field | type | versions |", "|---|---|---|---|---|"]
    for tag, message, path, found in sorted(own_tags(), key=lambda row: row[:3]):
        parts.append(f"| {tag} | {message} | `{path}` | {found.type} | {version_range(found.versions)} |")
    parts += ["", "## Notes on each API", ""]
    for key, api in sorted(API.items()):
        parts += [f"### {api.name}", _notes(_module(key.name.lower())), ""]
    return "\n".join(parts).rstrip() + "\n"


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{messages.__name__}.{name}")


def version_range(versions: Versions) -> str:
    """The versions as text: ``3``, ``3-5`` or ``3+``."""
    if versions.last == LATEST:
        return f"{versions.first}+"
    return str(versions.first) if versions.first == versions.last else f"{versions.first}-{versions.last}"


def servers(key: ApiKey) -> str:
    """The kinds of processes that serve an API, separated by commas; ``none`` if none does."""
    on_broker, on_controller = key in BROKER_HANDLERS, key in CONTROLLER_HANDLERS or key in ALSO
    return ", ".join(["broker"] * on_broker + ["controller"] * on_controller) or "none"


def _notes(module: ModuleType) -> str:
    return inspect.cleandoc(module.__doc__ or "").replace("``", "`")


def own_tags() -> Iterator[tuple[int, str, str, Field]]:
    """(tag, message, path of the field, field) of every tagged field that is not Kafka's."""
    for info in pkgutil.iter_modules(messages.__path__):
        for value in vars(_module(info.name)).values():
            if isinstance(value, MessageSchema):
                yield from _tags_in(value.name, value.fields, "")


def _tags_in(message: str, fields: tuple[Field, ...], prefix: str) -> Iterator[tuple[int, str, str, Field]]:
    for found in fields:
        path = f"{prefix}{found.name}"
        if is_own(found):
            assert found.tag is not None
            yield found.tag, message, path, found
        yield from _tags_in(message, found.fields, f"{path}.")


if __name__ == "__main__":
    TARGET.write_text(render())
