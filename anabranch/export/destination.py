"""The destination of an export: a directory, or a URI for fsspec (``s3://``, ``gs://``, ``memory://``, ...).

If the storage supports it, a file appears with all its bytes or not at all. The manifest does not need this, because it
names only files that were written completely.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from anabranch.command_error import CommandError
from anabranch.export.state import UNFINISHED_SUFFIX

_LOCAL = ("file", "local")


class Destination(Protocol):
    """Files by their path below one root, with ``/`` between names."""

    name: str

    def hold(self) -> contextlib.AbstractContextManager[None]:
        """Lock out other exports during the block, if the storage has locks. Raises CommandError."""
        ...

    def sizes(self) -> dict[str, int]:
        """All present files, with their sizes in bytes."""
        ...

    def read(self, path: str) -> bytes | None: ...

    def write(self, path: str, chunks: Iterable[bytes]) -> None:
        """Write or replace a file. The old file stays when ``chunks`` or the storage fails."""
        ...

    def remove(self, path: str) -> None: ...

    def flush(self) -> None:
        """Make everything written so far survive a crash of the machine."""
        ...


def open_destination(to: str | Path) -> Destination:
    """The destination for a path or a URI. Raises CommandError for a URI that cannot be written."""
    protocol, separator, _ = str(to).partition("://")
    if not separator:
        return LocalDestination(Path(to))
    if protocol in _LOCAL:
        return LocalDestination(Path(unquote(urlsplit(str(to)).path)))
    try:
        import fsspec
    except ImportError:
        raise CommandError(f"{to}: URIs need the package fsspec: pip install 'anabranch[export]'") from None
    try:
        filesystem, root = fsspec.core.url_to_fs(str(to))
    except ImportError as error:
        raise CommandError(f"{to}: no driver for {protocol}://: {error} (with pip)") from None
    except ValueError as error:
        raise CommandError(f"{to}: {error}; install the package that adds this protocol to fsspec, with pip") from None
    return FsspecDestination(str(to), filesystem, root)


class LocalDestination:
    """A directory. Files are written under a temporary name and renamed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.name = str(root)
        self._unflushed: set[Path] = set()

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        self.root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CommandError(f"another export into {self.root} is running") from None
            yield
        finally:
            os.close(descriptor)

    def sizes(self) -> dict[str, int]:
        found = {}
        for directory, _, names in os.walk(self.root):
            for name in names:
                path = Path(directory, name)
                found[path.relative_to(self.root).as_posix()] = path.stat().st_size
        return found

    def read(self, path: str) -> bytes | None:
        try:
            return (self.root / path).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, path: str, chunks: Iterable[bytes]) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(target.name + UNFINISHED_SUFFIX)
        try:
            with open(unfinished, "wb") as file:
                for chunk in chunks:
                    file.write(chunk)
            os.replace(unfinished, target)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        self._unflushed |= {target, target.parent}

    def remove(self, path: str) -> None:
        (self.root / path).unlink(missing_ok=True)

    def flush(self) -> None:
        for path in sorted(self._unflushed):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        self._unflushed.clear()


class FsspecDestination:
    """A prefix in a file system of fsspec. Files are committed by its transactions, an object by one put."""

    def __init__(self, name: str, filesystem: Any, root: str) -> None:
        self.name = name
        self._fs = filesystem
        self._root = root.rstrip("/")

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        yield  # object stores have no locks

    def sizes(self) -> dict[str, int]:
        self._fs.invalidate_cache()
        try:
            found = self._fs.find(self._root, detail=True)
        except FileNotFoundError:
            return {}
        return {path.removeprefix(self._root).lstrip("/"): state["size"] for path, state in found.items()}

    def read(self, path: str) -> bytes | None:
        try:
            content: bytes = self._fs.cat_file(self._at(path))
        except FileNotFoundError:
            return None
        return content

    def write(self, path: str, chunks: Iterable[bytes]) -> None:
        target = self._at(path)
        self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
        with self._fs.transaction, self._fs.open(target, "wb") as file:
            for chunk in chunks:
                file.write(chunk)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._at(path))

    def flush(self) -> None:
        """Do nothing: a commit is durable."""

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"
