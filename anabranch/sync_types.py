"""Writes ``sync.pyi``, the signatures of ``anabranch.sync``, and the keyword arguments in ``client/options.py``.

The signatures are those of the async classes, the keyword arguments those of ``client/config.py``. Run it as
``python -m anabranch.sync_types``. The files are formatted with ruff.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import anabranch
from anabranch.client.config import AdminConfig, ClientConfig, ConsumerConfig, ProducerConfig

HERE = Path(__file__).parent
STUB = HERE / "sync.pyi"
OPTIONS = HERE / "client" / "options.py"
KEYWORDS = {
    ClientConfig: ("TypedDict", "The keyword arguments of every client."),
    ProducerConfig: ("ClientOptions", "The keyword arguments of ``Producer``, besides the serializers."),
    ConsumerConfig: ("ClientOptions", "The keyword arguments of ``Consumer``, besides the deserializers."),
    AdminConfig: ("ClientOptions", "The keyword arguments of ``Admin``."),
}
ASYNC_ONLY = {"start", "stop", "batches"}
CLIENTS = {
    "Producer": ("producer/producer.py", "Generic[SentKey, SentValue]", ""),
    "Consumer": (
        "consumer/consumer.py",
        "Generic[Key, Value]",
        "def wakeup(self) -> None: ...\n"
        "    def __iter__(self) -> Iterator[ConsumerRecord[Key, Value]]: ...\n"
        "    def batches(self, *, max_records: int | None = None) -> Iterator[Records[Key, Value]]: ...",
    ),
    "Admin": ("admin/admin.py", "", ""),
}
HANDLE = """
class RecordHandle:
    def done(self) -> bool: ...
    def result(self, timeout: float | None = None) -> RecordMetadata: ...
    def get(self, timeout: float | None = None) -> RecordMetadata: ...
    def exception(self, timeout: float | None = None) -> KafkaError | None: ...
    def add_done_callback(self, callback: Callable[[RecordHandle], object]) -> None: ...
"""
CLOSING = """
    @property
    def config(self) -> {config}: ...
    def close(self, *, timeout_ms: float | None = None) -> None: ...
    def start(self) -> Self: ...
    def stop(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None: ...
"""


def stub() -> str:
    """The text of ``sync.pyi`` before it is formatted."""
    imports: dict[str, str] = {"Iterator": "from collections.abc import Iterator"}
    aliases: list[str] = []
    body = [HANDLE]
    for name, (file, base, more) in CLIENTS.items():
        module = ast.parse((HERE / "client" / file).read_text())
        for node in module.body:
            if isinstance(node, ast.ImportFrom) and node.module != "__future__":
                imports |= {alias.name: f"from {node.module} import {alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                imports |= {alias.name: f"import {alias.name}" for alias in node.names}
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("Headers", "Offsets"):
                aliases.append(ast.unparse(node))
        (client,) = (node for node in module.body if isinstance(node, ast.ClassDef) and node.name == name)
        methods = "\n".join(f"    {line}" for line in _signatures(client))
        extra = f"    {more}\n" if more else ""
        body.append(
            f"class {name}{f'({base})' if base else ''}:\n{methods}\n{extra}{CLOSING.format(config=f'{name}Config')}"
        )
    text = "\n".join([*dict.fromkeys(aliases), *body])
    shared = sorted({*anabranch.__all__} - CLIENTS.keys() - {"RecordHandle"})
    imports |= {name: f"from anabranch import {name} as {name}" for name in shared}
    imports |= {"TracebackType": "from types import TracebackType", "Self": "from typing import Self"}
    used = [
        line
        for symbol, line in imports.items()
        if symbol not in CLIENTS
        and symbol != "RecordHandle"
        and (symbol in shared or re.search(rf"\b{symbol}\b", text))
    ]
    return "\n".join([*sorted(set(used)), "", text]) + "\n"


def _signatures(client: ast.ClassDef) -> Iterator[str]:
    for node in client.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name in ASYNC_ONLY:
            continue
        if node.name.startswith("_") and node.name != "__init__":
            continue
        arguments = node.args
        if arguments.kwarg is not None and arguments.kwarg.arg == "unknown":  # what the method refuses
            arguments.kwarg = None
        if node.name == "__init__":
            kept = [
                pair for pair in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if pair[0].arg != "env"
            ]
            backend = (ast.arg("backend", ast.Name("str")), ast.Constant("asyncio"))
            arguments.kwonlyargs = [argument for argument, _ in (backend, *kept)]
            arguments.kw_defaults = [default for _, default in (backend, *kept)]
        result = ast.unparse(node.returns) if node.returns is not None else "None"
        yield f"def {node.name}({ast.unparse(arguments)}) -> {result}: ..."


def options(text: str) -> str:
    """The text of ``options.py`` with the keys of the config classes, before it is formatted."""
    parts = [text.partition("class ClientOptions(")[0]]
    for config, (base, doc) in KEYWORDS.items():
        own = config.__annotations__
        keys = [
            f"    {key.name}: {key.metadata['accepts']}"
            for key in fields(config)
            if key.name in own and "accepts" in key.metadata
        ]
        name = config.__name__.replace("Config", "Options")
        parts.append("\n".join([f"class {name}({base}, total=False):", f'    """{doc}"""', "", *keys, "", ""]))
    return "\n".join(parts)


def formatted(text: str, path: Path = STUB) -> str:
    """The text formatted as ``make check`` requires."""
    for command in (["check", "--fix", "--exit-zero", "--quiet"], ["format", "--quiet"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        text = done.stdout
    return text


if __name__ == "__main__":
    OPTIONS.write_text(formatted(options(OPTIONS.read_text()), OPTIONS))
    STUB.write_text(formatted(stub()))
