"""The response to a request that is served in slices, encoded as the slices are answered.

Only the encoded bytes are kept. The responses to the slices may arrive in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from anabranch.protocol.api_keys import API, ApiKey
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.framing import frame_in_pieces
from anabranch.protocol.message import Message
from anabranch.protocol.pieces import Pieces, pieces

_CHUNK_BYTES = 256 * 1024


class RequestSlice(NamedTuple):
    """A part of a request: a request of the same kind, for some of the items."""

    request: Any
    continues: int = 0
    """The number of nested items at its start that began in the slice before: 2 for a group and its topic."""
    unfinished: tuple[int, ...] = ()
    """For each nested item at its end that continues in the next slice: the number of all its inner items."""


class AnswerError(Exception):
    """The response cannot be sent; close the connection."""


class EncodedAnswer(NamedTuple):
    """A response that is encoded already, with its frame. ``error`` replaces a response that cannot be sent."""

    parts: list[bytearray]
    size_bytes: int
    """The number of bytes that were counted."""
    error: str | None = None


class Sink(NamedTuple):
    """The connection that a response goes to."""

    most_bytes: int
    """``socket.response.max.bytes``."""
    counts: Callable[[int], None]
    """Gets the number of bytes that an encoded response grows by; negative: that were dropped."""
    take: Callable[[Message], None]
    """Gets the response to each slice before it is encoded."""


_Around = list[bytes | None]
"""The bytes around nested items, the outermost first."""
_REFUSED: _Around = [None]
"""Instead of it: the outermost item was refused as a whole, as a group of OffsetFetch is."""


class _Encoded:
    """The items of a slice, and the bytes around the nested items at its start and its end."""

    __slots__ = ("continued_bytes", "first", "is_inner", "items", "last")

    def __init__(self) -> None:
        self.items = bytearray()
        self.first: _Around = []
        self.last: _Around = []
        self.continued_bytes = 0
        """The bytes at the start of ``items`` that belong to the outermost item of the slice before."""
        self.is_inner = False
        """Whether this item continues in the next slice, too."""


class JoinedAnswer:
    """Takes the response to each slice, and gives the response to the whole.

    The fields outside of the items are from the first response. If a response refuses its slice as a whole, it is the
    response to the whole. If one refuses an outermost item as a whole, the answers to the rest of this item are left
    out. ``asked`` and ``answered``: the arrays in the request and the response, the outermost first.
    """

    def __init__(
        self, header: tuple[int, int, int], asked: tuple[str, ...], answered: tuple[str, ...], sink: Sink
    ) -> None:
        api_key, version, _ = self._header = header
        self._name = API[ApiKey(api_key)].name
        self._asked = asked
        self._pieces: Pieces = pieces(API[ApiKey(api_key)].response, version, answered)  # type: ignore[arg-type]
        self._sink = sink
        self._waiting: dict[int, _Encoded] = {}
        self._taken = 0
        """The number of slices whose items are in ``_chunks``."""
        self._open: _Around = []
        """What is around the nested items that the next slice continues."""
        self._chunks: list[bytearray] = [bytearray()]
        self._count = 0
        self._around: tuple[bytearray, bytearray] | None = None
        self._refusal: tuple[int, Message] | None = None
        self.size_bytes = 0

    def add(self, index: int, part: RequestSlice, response: Any) -> None:
        """Take the response to a slice. Raises ``AnswerError``."""
        self._sink.take(response)
        if getattr(response, "error_code", ErrorCode.NONE):
            if self._refusal is None or index < self._refusal[0]:
                self._refusal = index, response
            return
        if index == 0:
            level = self._pieces.levels[0]
            self._around = bytearray(), bytearray()
            level.before(response, self._around[0])
            level.after(response, self._around[1])
        answered = getattr(response, self._pieces.levels[0].array)
        encoded = _Encoded()
        encoded.is_inner = part.continues > 0 and part.unfinished != () and len(answered) == 1
        self._encode(0, getattr(part.request, self._asked[0]), answered, part, encoded, is_first=True, is_last=True)
        self._count += len(answered) - (part.continues > 0)
        self.size_bytes += len(encoded.items)
        self._sink.counts(len(encoded.items))
        if self.size_bytes > self._sink.most_bytes:
            raise AnswerError(f"the {self._name} response is too large (socket.response.max.bytes)")
        self._waiting[index] = encoded
        while (found := self._waiting.pop(self._taken, None)) is not None:
            self._append(found)

    def finished(self) -> Message | EncodedAnswer:
        """The response, when every slice is answered."""
        if self._refusal is not None:
            self._sink.counts(-self.size_bytes)
            return self._refusal[1]
        assert self._around is not None
        before, after = self._around
        self._pieces.length(self._count, before)
        return EncodedAnswer(frame_in_pieces(*self._header, [before, *self._chunks, after]), self.size_bytes)

    def _append(self, found: _Encoded) -> None:
        self._taken += 1
        if self._open == _REFUSED:
            del found.items[: found.continued_bytes]
            self.size_bytes -= found.continued_bytes
            self._sink.counts(-found.continued_bytes)
        elif found.first == _REFUSED:
            raise AnswerError(f"a part of the {self._name} request was refused after another part was answered")
        elif found.first != self._open:
            raise AnswerError(f"a topic was deleted and created again while the {self._name} request was served")
        if not (self._open == _REFUSED and found.is_inner):
            self._open = found.last
        if len(self._chunks[-1]) + len(found.items) > _CHUNK_BYTES:
            self._chunks.append(found.items)
        else:
            self._chunks[-1] += found.items

    def _encode(
        self,
        depth: int,
        asked: Any,
        answered: Any,
        part: RequestSlice,
        encoded: _Encoded,
        *,
        is_first: bool,
        is_last: bool,
    ) -> None:
        """Encode the items of one array. ``is_first`` and ``is_last``: whether it is at the slice's start and end."""
        if asked is not None and len(asked) != len(answered):
            raise AnswerError(f"the {self._name} handler answered {len(answered)} of {len(asked)} items")
        out = encoded.items
        if depth == len(self._pieces.levels) - 1:
            for item in answered:
                self._pieces.item(item, out)
            return
        level, array = self._pieces.levels[depth + 1], self._asked[depth + 1]
        for number, item in enumerate(answered):
            starts, ends = is_first and number == 0, is_last and number == len(answered) - 1
            continues, is_unfinished = starts and depth < part.continues, ends and depth < len(part.unfinished)
            inner = getattr(item, level.array)
            before, after = bytearray(), bytearray()
            level.before(item, before)
            level.after(item, after)
            if depth == 0 and not inner and getattr(item, "error_code", False):
                if continues:
                    encoded.first = _REFUSED
                else:
                    out += before
                    self._pieces.length(0, out)
                    out += after
                if is_unfinished:
                    encoded.last = _REFUSED
                continue
            if continues:
                encoded.first.append(bytes(before + after))
            else:
                out += before
                self._pieces.length(part.unfinished[depth] if is_unfinished else len(inner), out)
            if is_unfinished:
                encoded.last.append(bytes(before + after))
            asked_inner = None if asked is None else getattr(asked[number], array)
            self._encode(depth + 1, asked_inner, inner, part, encoded, is_first=starts, is_last=ends)
            if not is_unfinished:
                out += after
            if continues and depth == 0:
                encoded.continued_bytes = len(out)
