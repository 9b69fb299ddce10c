"""Rules about the code that no linter checks."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[2]
PURE = ["protocol", "zk_schemas", "ordered_resize"]
PACKAGES = [*PURE, "runtime", "broker", "controller", "client", "audit", "anabranch", "sim"]
IMPURE_MODULES = {"trio", "anyio", "asyncio", "kazoo", "os", "time", "random", "socket", "threading", "subprocess"}
PURE_EXEMPT = {"protocol/generate.py"}  # it writes files, and no other module imports it
WITH_CONNECTIONS = ("anabranch.client.net.", "anabranch.runtime.")
MAX_FILE_LINES = 700
MAX_FUNCTION_LINES = 80
CLOCK_CALLS = re.compile(
    r"\btime\.(time|time_ns|monotonic|sleep)\(|\bdatetime\.(now|utcnow)\(|\brandom\.(random|randint|choice)\("
)

PRIVATE = re.compile(r"(^|\.)_(?!(_init__|replace|asdict|fields|make)$)")
PRIVATE_ATTRIBUTE = re.compile(r"_(?!_)")
MUTATED = ("sim", "property", "history", "support")
"""The folders of tests that switch rules off to show that the rules are needed. They use no module's private names."""
ASSERTED_CALLERS = {
    "runtime/metrics.py": "len(labels) == len(self.label_names)",
    "client/producer/partition_queue.py": "self.may_adopt",
}
"""Conditions that callers in this code must meet, by file. No such condition checks data from a socket or a file."""

AWAITING = {
    f"controller/{name}.py"
    for name in (
        *("active", "carry_out", "config_writes", "state_writes", "store"),  # read and write ZooKeeper for handlers
        *("__main__", "controller_election", "events", "process", "registration", "senders", "server"),  # the process
        *("resize/draining", "resize/unread_expiry", "resize/readers"),  # ask brokers beside the queue
    )
}
"""The files of the controller that await, apart from ``controller/reads``."""
SHARED_CLASS_NAMES = {
    *("Admin", "Consumer", "Producer", "Client", "Cluster", "RecordHandle"),  # once for each way to call the client
    *(
        "ConfigEntry",
        "KafkaError",
        "Message",
        "NewTopic",
        "ResourceType",
        "TopicPartition",
    ),  # as confluent-kafka has it
    "Node",  # a broker's parts, and a broker's address in the client's public names
}
"""The names that public classes of several files have."""


def tracked_text() -> list[Path]:
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    text_suffixes = {".py", ".md", ".toml", ".yml", ".yaml", ".sh", ".cfg", ".tla", ".java", ".go", ".js", ".xml", ""}
    return [ROOT / name for name in names if Path(name).suffix in text_suffixes and (ROOT / name).is_file()]


def sources(*packages: str) -> list[Path]:
    return sorted(
        path for package in packages for path in (ROOT / package).rglob("*.py") if "generated" not in path.parts
    )


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file, the module first."""
    return tuple(ast.walk(ast.parse(path.read_text())))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def bound_names(path: Path) -> frozenset[str]:
    """The names that a module binds; empty without a file."""
    return frozenset(_bound(nodes(path)[0])) if path.exists() else frozenset()


def _bound(parent: ast.AST) -> Iterator[str]:
    """The names that the statements in ``parent`` bind, without those inside of functions and classes."""
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        else:
            yield from _bound(node)


def called_name(call: ast.Call) -> str | None:
    """The last part of the name that a call names: ``c`` for ``a.b.c()`` and for ``c()``."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else None


def imported_roots(path: Path) -> set[str]:
    roots = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            roots.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            roots.add(node.module.split(".")[0])
    return roots


def imported_from_anabranch(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names by which a file uses modules of Anabranch. The names of modules are in lower case."""
    imports = (node for node in nodes if isinstance(node, ast.ImportFrom) and node.module)
    names = (alias for node in imports if str(node.module).startswith("anabranch") for alias in node.names)
    return {alias.asname or alias.name for alias in names if alias.name.islower()}


def test_pure_packages_import_no_module_with_io_clocks_or_randomness() -> None:
    offenders = {
        relative(path): found
        for path in sources(*PURE)
        if relative(path) not in PURE_EXEMPT and (found := imported_roots(path) & IMPURE_MODULES)
    }
    assert offenders == {}


def test_no_modules_import_each_other_in_a_cycle() -> None:
    graph = grimp.build_graph("anabranch")
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    files = {name: found for name, found in imports.items() if not graph.find_children(name)}
    graphlib.TopologicalSorter(files).prepare()  # CycleError names the files of a cycle


def test_files_of_the_client_without_io_use_no_network() -> None:
    """The docstring of such a file says "No IO". It uses no module with connections, not even indirectly."""
    graph = grimp.build_graph("anabranch")
    without_io = {
        "anabranch." + ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sources("client")
        if "no io" in (ast.get_docstring(nodes(path)[0]) or "").lower() and path.stem != "__init__"
    }
    assert len(without_io) >= 20
    offenders = {
        name: found
        for name in without_io
        if (found := {m for m in graph.find_upstream_modules(name) if m.startswith(WITH_CONNECTIONS)})
    }
    assert offenders == {}


def test_only_runtime_reads_clocks_and_global_randomness() -> None:
    offenders = [
        f"{relative(path)}:{number}: {line.strip()}"
        for path in sources("protocol", "zk_schemas", "ordered_resize", "broker", "controller", "client")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if CLOCK_CALLS.search(line)
    ]
    assert offenders == []


def test_files_and_functions_have_a_limited_length() -> None:
    offenders = []
    for path in sources(*PACKAGES):
        if (lines := path.read_text().count("\n")) > MAX_FILE_LINES:
            offenders.append(f"{relative(path)}: {lines} lines")
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    offenders.append(f"{relative(path)}:{node.lineno} {node.name}: {length} lines")
    assert offenders == []


def narrows_a_type(condition: ast.expr) -> bool:
    """Whether the expression is ``x is not None``, ``isinstance(x, T)``, or several of these joined by ``and``."""
    if isinstance(condition, ast.BoolOp):
        return isinstance(condition.op, ast.And) and all(map(narrows_a_type, condition.values))
    if isinstance(condition, ast.Compare):
        return isinstance(condition.ops[0], ast.IsNot) and ast.unparse(condition.comparators[0]) == "None"
    return isinstance(condition, ast.Call) and ast.unparse(condition.func) == "isinstance"


def test_asserts_only_narrow_types() -> None:
    """Asserts only narrow types: bad input of another process or a file raises an error that names the input."""
    offenders = [
        f"{relative(path)}:{node.lineno}: {shown}"
        for path in sources(*PACKAGES)
        for node in nodes(path)
        if isinstance(node, ast.Assert) and not narrows_a_type(node.test)
        if (shown := ast.unparse(node.test)) != ASSERTED_CALLERS.get(relative(path))
    ]
    assert offenders == []


def test_decisions_of_the_controller_get_an_image_and_await_nothing() -> None:
    """A function that returns ``Effects`` can neither write nor send (docs/adr/0045-decisions-return-effects.md)."""
    decisions = [
        (f"{relative(path)}: {node.name}", node)
        for path in sources("controller")
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.returns is not None
        and "Effects" in ast.unparse(node.returns)
        and "Decisions" not in ast.unparse(node.returns)
    ]
    assert len(decisions) > 20
    for where, node in decisions:
        given = {ast.unparse(arg.annotation) for arg in node.args.args + node.args.kwonlyargs if arg.annotation}
        assert isinstance(node, ast.FunctionDef) and "Context" not in given, where


def test_no_handler_of_the_controller_awaits() -> None:
    """Reads, decisions and writes are separate: handlers yield effects (docs/adr/0045-decisions-return-effects.md)."""
    awaiting = {
        relative(path)
        for path in sources("controller")
        for node in nodes(path)
        if isinstance(node, ast.AsyncFunctionDef)
    }
    assert {path for path in awaiting if not path.startswith("controller/reads/")} == AWAITING


def test_tasks_beside_the_queue_of_the_controller_change_no_object() -> None:
    """They report to the queue by events: an object of the image may be an old one when an answer comes."""
    assigned = [
        f"{name}.py:{node.lineno} {ast.unparse(node)}"
        for name in ("draining", "unread_expiry", "readers")
        for node in nodes(ROOT / "controller" / "resize" / f"{name}.py")
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) and ast.unparse(node.value) != "self"
    ]
    assert assigned == []


def test_a_class_has_a_name_of_its_own() -> None:
    files: dict[str, list[str]] = {}
    for path in sources(*PACKAGES):
        for node in nodes(path):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files.setdefault(node.name, []).append(relative(path))
    shared = {name: found for name, found in files.items() if len(found) > 1}
    assert {name: found for name, found in shared.items() if name not in SHARED_CLASS_NAMES} == {}
    assert shared.keys() >= SHARED_CLASS_NAMES, "a name that is unique now"


def test_every_package_has_a_readme_and_is_typed() -> None:
    missing = [
        f"{package}/{name}"
        for package in PACKAGES
        for name in ("README.md", "py.typed")
        if not (ROOT / package / name).exists()
    ]
    assert missing == []


def test_no_file_has_machine_paths_or_unfinished_marks() -> None:
    forbidden = re.compile(
        "|".join(
            ["/" + "work/", "/" + "root/", "/tmp/" + "venv", r"\bTO" + "DO\\b", r"\bFIX" + "ME\\b", r"\bXX" + "X\\b"]
        )
    )
    offenders = [
        f"{relative(path)}:{number}: {line.strip()[:100]}"
        for path in tracked_text()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if forbidden.search(line)
    ]
    assert offenders == []


def test_tests_do_not_sleep_to_synchronise() -> None:
    pattern = re.compile(r"\b(time|trio|anyio|asyncio)\.sleep\(")
    allowed = re.compile(r"#\s*(polls|virtual time|pause):")
    offenders = [
        f"{relative(path)}:{number}: {line.strip()}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line) and not allowed.search(line) and path != Path(__file__)
    ]
    assert offenders == []


def assigned_privately(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield each private attribute of another object that is assigned or deleted, or leads to such an attribute."""
    for node in nodes:
        if not isinstance(node, ast.Attribute | ast.Subscript) or isinstance(node.ctx, ast.Load):
            continue
        target: ast.expr = node
        while isinstance(target, ast.Attribute | ast.Subscript):
            is_private = isinstance(target, ast.Attribute) and PRIVATE_ATTRIBUTE.match(target.attr)
            if is_private and ast.unparse(target.value) not in ("self", "cls"):
                yield node.lineno, ast.unparse(target)
            target = target.value


def replaced_privately(nodes: Collection[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield the private names that the nodes of a file replace or delete, in code or by ``setattr`` and ``delattr``.

    Also yield each private attribute of its first argument that a replacement function uses.
    """
    yield from assigned_privately(nodes)
    calls = [node for node in nodes if isinstance(node, ast.Call) and called_name(node) in ("setattr", "delattr")]
    for call in calls:
        names = [str(argument.value) for argument in call.args[:2] if isinstance(argument, ast.Constant)]
        yield from ((call.lineno, name) for name in names if PRIVATE.search(name))
    new = [node for call in calls for argument in call.args[2:] for node in ast.walk(argument)]
    names_of_new = {node.id for node in new if isinstance(node, ast.Name)}
    functions = [node for node in new if isinstance(node, ast.Lambda)]
    functions += [
        node
        for parent in (nodes if names_of_new else ())
        if not isinstance(parent, ast.ClassDef)
        for node in ast.iter_child_nodes(parent)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in names_of_new
    ]
    for function in functions:
        first = next((argument.arg for argument in function.args.posonlyargs + function.args.args), None)
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and PRIVATE.search(node.attr) and ast.unparse(node.value) == first:
                yield node.lineno, ast.unparse(node)


def test_rules_are_switched_off_by_public_names() -> None:
    """Tests replace public names only: renaming a replaced name then changes an interface, not a private detail."""
    found = []
    for path in sources("tests"):
        text = path.read_text()
        if "._" not in text and "attr(" not in text:
            continue
        in_file = tuple(ast.walk(ast.parse(text)))
        names = list(replaced_privately(in_file))
        if path.relative_to(ROOT / "tests").parts[0] in MUTATED:
            modules = imported_from_anabranch(in_file)
            names += [
                (node.lineno, ast.unparse(node))
                for node in in_file
                if isinstance(node, ast.Attribute) and PRIVATE.search(node.attr) and ast.unparse(node.value) in modules
            ]
        found += [f"{relative(path)}:{line} {name}" for line, name in names]
    assert found == []


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("patch.setattr(module, '_rule', None)", ["_rule"]),
        ("patch.setattr('anabranch.module._rule', None)", ["anabranch.module._rule"]),
        ("def new(self): self._rule = None\npatch.setattr(Class, 'rule', new)", ["self._rule"]),
        ("patch.setattr(Class, 'rule', lambda group: group._rule)", ["group._rule"]),
        ("def get(self): return self._rule\npatch.setattr(Class, 'rule', property(get))", ["self._rule"]),
        ("group._rule = None", ["group._rule"]),
        ("group.member._count += 1", ["group.member._count"]),
        ("a, group._rules['a'] = 1, 2", ["group._rules"]),
        ("group._member.rule = None", ["group._member"]),
        ("self.group._rule = None", ["self.group._rule"]),
        ("del group._rule", ["group._rule"]),
        ("with opened() as group._rule: pass", ["group._rule"]),
        ("patch.delattr(module, '_rule')", ["_rule"]),
        ("self._rule = cls._rules['a'] = None", []),
        ("group.rules[group._rule] = group._rule", []),
        ("new.__name__ = 'rule'", []),
        ("def new(self): self.rule = None\npatch.setattr(Class, 'rule', new)", []),
    ],
)
def test_a_private_name_is_found_in_a_replaced_attribute_and_in_its_replacement(source: str, names: list[str]) -> None:
    assert [name for _line, name in replaced_privately(tuple(ast.walk(ast.parse(source))))] == names


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("anabranch.runtime", {"trio", "kazoo", "anyio"}),
        ("anabranch.runtime.env", {"trio", "kazoo", "anyio"}),
        ("anabranch", {"trio", "kazoo", "pyspark"}),
        ("anabranch.client", {"trio", "kazoo"}),
    ],
)
def test_importing_a_library_brings_in_no_foreign_event_loop(module: str, forbidden: set[str]) -> None:
    code = f"import sys, {module}; print(' '.join(sorted({{m.split('.')[0] for m in sys.modules}} & {forbidden!r})))"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.split()
    assert found == []


def test_the_names_that_tests_import_from_one_another_exist() -> None:
    """A test that cannot be imported is found only when it runs, which may be long after its file was changed."""
    missing = []
    for path in sources("tests"):
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("tests", "bench"):
                folder = ROOT / str(node.module).replace(".", "/")
                known = bound_names(folder.with_suffix(".py")) | bound_names(folder / "__init__.py")
                inside = {each.stem for each in folder.iterdir()} if folder.is_dir() else set()
                wrong = [alias.name for alias in node.names if alias.name not in known | inside]
                missing += [f"{relative(path)}:{node.lineno}: {node.module}.{name}" for name in wrong]
    assert missing == []
