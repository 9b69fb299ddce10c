"""The active controller's writes: every write is a multi that checks the controller epoch's version (KAFKA-6082).

A replaced controller fails on this check, even if it has not noticed that it was replaced. If the response to a write
is lost, the store reads the znodes before it does anything else.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import TypeVar

import trio

from anabranch.runtime.env import (
    BadVersionError,
    CheckOp,
    CreateOp,
    DeleteOp,
    NodeExistsError,
    NoNodeError,
    SessionState,
    SetOp,
    Watch,
    ZkConnectionError,
    ZkError,
    ZkOp,
    ZkSessionExpiredError,
    ZkStore,
    Znode,
)
from anabranch.runtime.zk_requests import check_fits, operation_bytes
from anabranch.zk_schemas import paths

MAX_OPERATIONS = 256
MAX_BYTES = 512 * 1024
"""Limits of one multi: the bytes are half of ZooKeeper's default limit."""
CONCURRENT_READS = 64
MAX_ATTEMPTS = 5
"""The number of attempts at a write, if the connection is lost each time before the write is applied."""

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class ControllerMovedError(Exception):
    """Another controller took over, or the session is lost. This controller may not decide anything any more."""


class WriteGivenUpError(ZkError):
    """A write was sent ``MAX_ATTEMPTS`` times, and each time the connection was lost and nothing was written.

    The server may refuse the write by closing the connection, or may not be up yet. Only the second cause is temporary.
    """

    def __init__(self, ops: Sequence[ZkOp], error: ZkError) -> None:
        super().__init__(ops[0].path, f"{len(ops)} operations were not written in {MAX_ATTEMPTS} attempts: {error}")


class ImageStaleError(Exception):
    """A znode differs from the image, because another process changed it.

    Nothing was written. The cluster has to be read again.
    """


async def wait_connected(zk: ZkStore) -> None:
    """Return when the session is connected. Raises ``ControllerMovedError`` when it is lost."""
    changed = trio.Event()
    unregister = zk.on_state(lambda _state: changed.set())
    try:
        while zk.state is not SessionState.CONNECTED:
            if zk.state is SessionState.LOST:
                raise ControllerMovedError("the ZooKeeper session is lost")
            await changed.wait()
            changed = trio.Event()
    finally:
        unregister()


def chunks(groups: Sequence[Sequence[ZkOp]]) -> list[list[ZkOp]]:
    """Groups of operations that belong together, packed into as few multis as the limits allow."""
    packed: list[list[ZkOp]] = []
    operations, size = MAX_OPERATIONS, MAX_BYTES
    for group in groups:
        group_bytes = sum(operation_bytes(op) for op in group)
        if operations + len(group) >= MAX_OPERATIONS or size + group_bytes > MAX_BYTES:
            packed.append([])
            operations = size = 0
        packed[-1].extend(group)
        operations += len(group)
        size += group_bytes
    return packed


async def read_each(items: Iterable[T], read: Callable[[T], Awaitable[None]]) -> None:
    """Call ``read`` for all items, a limited number at a time. Raises the first error once the other calls are done."""
    left = iter(items)
    failures: list[Exception] = []

    async def work(first: T) -> None:
        for item in itertools.chain([first], left):
            try:
                await read(item)
            except Exception as error:
                failures.append(error)

    async with trio.open_nursery() as nursery:
        for first in itertools.islice(left, CONCURRENT_READS):
            nursery.start_soon(work, first)
    if failures:
        raise failures[0]


async def read_all(items: Iterable[K], read: Callable[[K], Awaitable[T]]) -> tuple[dict[K, T], dict[K, ZkError]]:
    """Read all items, a limited number at a time. Returns the values that were read, and the other items' errors."""
    found: dict[K, T] = {}
    errors: dict[K, ZkError] = {}

    async def read_one(item: K) -> None:
        try:
            found[item] = await read(item)
        except ZkError as error:
            errors[item] = error

    wanted = list(items)
    await read_each(wanted, read_one)
    return {item: found[item] for item in wanted if item in found}, errors


class GuardedStore:
    """Reads and guarded writes of one term of office: ``epoch_version`` is the zkVersion of ``/controller_epoch``."""

    def __init__(self, zk: ZkStore, epoch_version: int) -> None:
        self._zk = zk
        self._guard = CheckOp(paths.CONTROLLER_EPOCH, epoch_version)

    async def get(self, path: str, watch: Watch | None = None) -> Znode | None:
        """The znode, or None. The watch is set only if the znode exists."""
        try:
            return await self._read(lambda: self._zk.get(path, watch))
        except NoNodeError:
            return None

    async def exists(self, path: str) -> Znode | None:
        return await self._read(lambda: self._zk.exists(path))

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Names, sorted; empty when the znode does not exist."""
        try:
            return await self._read(lambda: self._zk.children(path, watch))
        except NoNodeError:
            return []

    def check_fits(self, ops: Sequence[ZkOp]) -> None:
        """Raises ``ZkRequestTooLargeError`` if ``write`` would."""
        check_fits([*ops, self._guard], self._zk.max_request_bytes)

    async def write(self, ops: Sequence[ZkOp]) -> list[int]:
        """Write all operations or none. Returns the new version for each (0 for create, -1 for delete).

        Raises ``ControllerMovedError``, ``ImageStaleError``. Raises ``ZkError`` for operations that cannot be written:
        ``ZkRequestTooLargeError``, ``WriteGivenUpError``, ``NotEmptyError``. Then nothing was written.
        """
        guarded, attempts = [self._guard, *ops], 0
        while True:
            try:
                return (await self._zk.multi(guarded))[1:]
            except ZkConnectionError as error:
                attempts += 1
                await wait_connected(self._zk)
                if ops and (versions := await self._read_back(ops)) is not None:
                    return versions
                if ops and attempts == MAX_ATTEMPTS:
                    raise WriteGivenUpError(ops, error) from error
            except ZkSessionExpiredError as error:
                raise ControllerMovedError(str(error)) from error
            except (BadVersionError, NoNodeError, NodeExistsError) as error:
                if error.path == paths.CONTROLLER_EPOCH:
                    raise ControllerMovedError("another controller raised the controller epoch") from error
                raise ImageStaleError(str(error)) from error

    async def confirm_office(self) -> None:
        """Confirm that this controller was still in office after the call began. Raises ``ControllerMovedError``."""
        await self.write([])

    async def notify(self, prefix: str, data: bytes) -> str:
        """Create a sequence znode, unguarded. It only makes readers read again, so a second znode does no harm."""
        return await self._read(lambda: self._zk.create(prefix, data, sequence=True))

    async def _read(self, call: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await call()
            except ZkConnectionError:
                await wait_connected(self._zk)
            except ZkSessionExpiredError as error:
                raise ControllerMovedError(str(error)) from error

    async def _read_back(self, ops: Sequence[ZkOp]) -> list[int] | None:
        """If the multi was applied, the versions as ``write`` returns them; otherwise None."""
        versions = []
        for op in ops:
            found = await self.get(op.path)
            if isinstance(op, DeleteOp):
                applied = found is None
            elif isinstance(op, CheckOp):
                applied = True
            else:
                applied = found is not None and found.data == op.data
                if isinstance(op, SetOp) and op.version >= 0:
                    applied = applied and found is not None and found.version == op.version + 1
            if not applied:
                return None
            versions.append(found.version if found is not None and isinstance(op, CreateOp | SetOp) else -1)
        return versions
