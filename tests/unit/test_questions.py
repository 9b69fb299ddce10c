"""A function with the name of a question (``is_...``, ``has_...``, ``may_...``) answers, and changes nothing."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable

import pytest

from tests.unit.test_tidy import PACKAGES, called_name, nodes, relative, sources

QUESTION = re.compile(
    "_{0,2}(is|are|was|were|has|have|had|can|could|may|might|must|should|will"
    "|awaits|begins|closes|contains|covers|drops|holds|keeps|knows|needs|repeats|waits)_"
)
DECISIONS = "ordered_resize"
"""In the package of the rules of order, every function that returns a bool or an int is a question."""
CHANGES = re.compile(
    "add|append|appendleft|clear|discard|extend|insert|pop|popitem|popleft|put|remove|setdefault|update"
)
"""Methods of collections and queues that change them."""
CACHES = {
    "broker/coordinator/position_owners.py: _has_news": "the owners of a generation",
    "broker/coordinator/position_owners.py: awaits_report": "the owners of a generation",
    "broker/replication/throttle.py: is_throttled": "the bytes for which the time until now has paid",
    "ordered_resize/withheld_from_stock_consumers.py: is_open_to_any_group": "the requirements of a facts' version",
}
"""Questions that keep what they computed. The answer is the same without it."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def inside(function: Function) -> tuple[ast.AST, ...]:
    """The nodes of a function that can change something, or name a part of an argument."""
    kinds = ast.Assign | ast.Await | ast.AsyncFor | ast.AsyncWith | ast.Attribute | ast.Subscript | ast.Call
    return tuple(node for node in ast.walk(function) if isinstance(node, kinds))


def is_question(path: str, function: Function) -> bool:
    """Whether the function's name or its place says that it only answers."""
    if any(ast.unparse(decorator).endswith(".setter") for decorator in function.decorator_list):
        return False
    returns = ast.unparse(function.returns) if function.returns is not None else ""
    is_decision = path.startswith(f"{DECISIONS}/") and returns in ("bool", "int")
    return QUESTION.match(function.name) is not None or is_decision


def root_of(expression: ast.expr) -> str | None:
    """The name with which an expression like ``name.a[b].get(c).d`` begins."""
    while True:
        if isinstance(expression, ast.Attribute | ast.Subscript):
            expression = expression.value
        elif isinstance(expression, ast.Call) and called_name(expression) in ("get", "setdefault"):
            expression = expression.func
        else:
            return expression.id if isinstance(expression, ast.Name) else None


def given_names(function: Function) -> set[str]:
    """The names of the arguments, and of the variables that stand for a part of an argument."""
    arguments = function.args
    names = {each.arg for each in arguments.posonlyargs + arguments.args + arguments.kwonlyargs}
    for node in inside(function):
        if isinstance(node, ast.Assign) and root_of(node.value) in names and not isinstance(node.value, ast.Name):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def is_change(call: ast.Call, given: set[str], changing: set[str]) -> bool:
    """Whether a call changes a part of an argument, or calls a function in ``changing`` with an argument."""
    if not isinstance(call.func, ast.Attribute):
        return called_name(call) in changing and any(root_of(argument) in given for argument in call.args)
    of = call.func.value
    if CHANGES.fullmatch(call.func.attr):
        return not isinstance(of, ast.Name) and root_of(of) in given
    return call.func.attr in changing and isinstance(of, ast.Name) and of.id == "self"


def changes(function: Function, changing: set[str]) -> set[str]:
    """What a function does besides answering. ``changing``: the functions of the module that change an argument."""
    given, found = given_names(function), set[str]()
    for node in inside(function):
        if isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith):
            found.add("await")
        elif isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            if root_of(node) in given:
                found.add(ast.unparse(node))
        elif isinstance(node, ast.Call) and is_change(node, given, changing):
            found.add(ast.unparse(node.func))
    return found


def acting_questions(path: str, nodes: Iterable[ast.AST]) -> dict[str, set[str]]:
    """The questions of a file that do something, each with what it does."""
    functions = [node for node in nodes if isinstance(node, Function)]
    if not any(is_question(path, each) for each in functions):
        return {}
    changing: set[str] = set()
    while (found := {each.name for each in functions if changes(each, changing)}) != changing:
        changing = found
    acting = {each.name: changes(each, changing) for each in functions if is_question(path, each)}
    return {f"{path}: {name}": what for name, what in acting.items() if what}


def test_questions_change_nothing() -> None:
    acting: dict[str, set[str]] = {}
    for path in sources(*PACKAGES):
        acting |= acting_questions(relative(path), nodes(path))
    assert {where: what for where, what in acting.items() if where not in CACHES} == {}
    assert CACHES.keys() <= acting.keys()


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("def is_over(topic): topic.announcement = None", {"topic.announcement"}),
        ("def is_over(self): self.counts['a'] += 1", {"self.counts['a']"}),
        ("def _has_room(self): del self.full[0]", {"self.full[0]"}),
        ("def begins_at_ms(groups): groups.since.setdefault('a', {})", {"groups.since.setdefault"}),
        ("def can_go(self):\n  held = self.held[0]\n  held.cap = 1", {"held.cap"}),
        ("def can_go(self):\n  held = self.held.get(0)\n  held.cap = 1", {"held.cap"}),
        ("async def is_mine(zk): return await zk.exists('a')", {"await"}),
        ("def note(known): known['a'] = 1\ndef is_new(self): note(self.known)", {"note"}),
        ("class A:\n def note(self): self.a = 1\n def is_new(self): self.note()", {"self.note"}),
        ("def is_over(self):\n  found = []\n  found.append(self.a)\n  return found[0]", set()),
        ("def is_over(self): return self.at_least(self.known)", set()),
        ("class A:\n @is_broken.setter\n def is_broken(self, value): self.broken = value", set()),
        ("def note(self): self.a = 1", set()),
        ("def isolate(self): self.a = 1", set()),
    ],
)
def test_a_question_that_acts_is_found(source: str, what: set[str]) -> None:
    assert set().union(*acting_questions("broker/a.py", ast.walk(ast.parse(source))).values()) == what


def test_a_number_of_the_rules_of_order_is_a_question() -> None:
    nodes = list(ast.walk(ast.parse("def cap(held) -> int: held.revoke = True")))
    assert acting_questions(f"{DECISIONS}/gate.py", nodes) and not acting_questions("broker/a.py", nodes)
