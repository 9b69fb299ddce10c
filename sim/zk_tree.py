"""The znodes of a simulated ZooKeeper: a tree with versions and transactions. ``zk`` has the sessions."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from anabranch.runtime.env import (
    BadVersionError,
    CheckOp,
    CreateOp,
    DeleteOp,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SetOp,
    ZkError,
    ZkOp,
    Znode,
)

ROOT = "/"
T = TypeVar("T")


class WatchedChange(enum.Enum):
    """The changes that a watch may wait for."""

    DATA = "data"
    """The znode was created, written or deleted."""
    CHILDREN = "children"


class WatchEvent(NamedTuple):
    change: WatchedChange
    path: str


class _Node:
    __slots__ = ("children", "czxid", "data", "ephemeral_owner", "mzxid", "next_sequence", "version")

    def __init__(self, data: bytes, zxid: int, ephemeral_owner: int) -> None:
        self.data = data
        self.version = 0
        self.czxid = zxid
        self.mzxid = zxid
        self.ephemeral_owner = ephemeral_owner
        self.children: dict[str, None] = {}
        self.next_sequence = 0


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or ROOT


def check_path(path: str) -> None:
    """Raise ``ZkError`` for a path that ZooKeeper refuses."""
    if path != ROOT and (not path.startswith("/") or path.endswith("/") or "//" in path or "\0" in path):
        raise ZkError(path, "is not a valid path")


class ZnodeTree:
    """All znodes. A write is one transaction with one zxid: it is applied whole, or raises and changes nothing."""

    def __init__(self) -> None:
        self.zxid = 0
        self._nodes: dict[str, _Node] = {ROOT: _Node(b"", 0, 0)}
        self._undo: list[Callable[[], object]] = []
        self._events: list[WatchEvent] = []

    def read(self, path: str) -> Znode:
        """The znode at ``path``. Raises ``NoNodeError``."""
        node = self._node(path)
        return Znode(node.data, node.version, node.czxid, node.mzxid, node.ephemeral_owner)

    def find(self, path: str) -> Znode | None:
        return self.read(path) if path in self._nodes else None

    def children(self, path: str) -> list[str]:
        """The names of the children, sorted. Raises ``NoNodeError``."""
        return sorted(self._node(path).children)

    def ephemerals(self, session_id: int) -> list[str]:
        return [path for path, node in self._nodes.items() if node.ephemeral_owner == session_id]

    def create(
        self, path: str, data: bytes, owner: int, *, sequence: bool, make_parents: bool
    ) -> tuple[str, list[WatchEvent]]:
        """Create a znode, and return its path and the events for watches. ``owner`` is an ephemeral's session, or 0."""

        def body() -> str:
            check_path(path)
            if make_parents:
                self._make_parents(parent_of(path), path)
            return self._create(path, data, owner, sequence)

        return self._transaction(body)

    def multi(self, ops: Sequence[ZkOp], session_id: int) -> tuple[list[int], list[WatchEvent]]:
        """Apply all ops; returns their new versions (0 for create, -1 for delete and check) and the watches' events."""
        return self._transaction(lambda: [self._apply(op, session_id) for op in ops])

    def _transaction(self, body: Callable[[], T]) -> tuple[T, list[WatchEvent]]:
        self.zxid += 1
        self._undo, self._events = [], []
        try:
            return body(), self._events
        except ZkError:
            for undo in reversed(self._undo):
                undo()
            raise

    def _node(self, path: str) -> _Node:
        check_path(path)
        try:
            return self._nodes[path]
        except KeyError:
            raise NoNodeError(path) from None

    def _versioned(self, path: str, version: int) -> _Node:
        node = self._node(path)
        if version not in (-1, node.version):
            raise BadVersionError(path, f"has version {node.version}, not {version}")
        return node

    def _apply(self, op: ZkOp, session_id: int) -> int:
        match op:
            case CreateOp(path, data, ephemeral):
                check_path(path)
                self._create(path, data, session_id if ephemeral else 0, False)
                return 0
            case SetOp(path, data, version):
                return self._set(path, data, version)
            case DeleteOp(path, version):
                self._delete(path, version)
                return -1
            case CheckOp(path, version):
                self._versioned(path, version)
                return -1

    def _make_parents(self, path: str, wanted: str) -> None:
        """Create ``path`` and its missing parents; an error names ``wanted``, the requested path."""
        if path not in self._nodes:
            self._make_parents(parent_of(path), wanted)
            try:
                self._create(path, b"", 0, False)
            except ZkError as error:
                raise type(error)(wanted, str(error)) from None

    def _create(self, path: str, data: bytes, owner: int, sequence: bool) -> str:
        parent_path = parent_of(path)
        parent = self._nodes.get(parent_path)
        if parent is None:
            raise NoNodeError(path, f"{parent_path} does not exist")
        if parent.ephemeral_owner:
            raise ZkError(path, f"{parent_path} is ephemeral and cannot have children")
        created = f"{path}{parent.next_sequence:010d}" if sequence else path
        if created in self._nodes:
            raise NodeExistsError(path)
        name = created.rpartition("/")[2]
        parent.next_sequence += 1  # as in ZooKeeper, it grows with every child and never decreases
        parent.children[name] = None
        self._nodes[created] = _Node(data, self.zxid, owner)

        def undo() -> None:
            parent.next_sequence -= 1
            del parent.children[name], self._nodes[created]

        self._undo.append(undo)
        self._events += [WatchEvent(WatchedChange.DATA, created), WatchEvent(WatchedChange.CHILDREN, parent_path)]
        return created

    def _set(self, path: str, data: bytes, version: int) -> int:
        node = self._versioned(path, version)
        before = (node.data, node.version, node.mzxid)

        def restore() -> None:
            node.data, node.version, node.mzxid = before

        self._undo.append(restore)
        node.data, node.version, node.mzxid = data, node.version + 1, self.zxid
        self._events.append(WatchEvent(WatchedChange.DATA, path))
        return node.version

    def _delete(self, path: str, version: int) -> None:
        node = self._versioned(path, version)
        if node.children:
            raise NotEmptyError(path)
        if path == ROOT:
            raise ZkError(path, "the root cannot be deleted")
        parent_path, name = parent_of(path), path.rpartition("/")[2]
        siblings = self._nodes[parent_path].children
        del self._nodes[path], siblings[name]
        self._undo += [lambda: siblings.__setitem__(name, None), lambda: self._nodes.__setitem__(path, node)]
        self._events += [
            WatchEvent(WatchedChange.DATA, path),
            WatchEvent(WatchedChange.CHILDREN, path),
            WatchEvent(WatchedChange.CHILDREN, parent_path),
        ]
