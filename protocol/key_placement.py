"""Placement of keys on partitions: murmur2, linear hashing, and the tree of partitions that splits make (KIP-253).

``initial`` is the partition count a topic was created with (N), ``undeleted`` the count producers use now (U); N <= U.
The function ``place`` is the stock partitioner, ``hash % N``, until the first resize. Each partition from N on has one
parent, so partitions form N trees; a resize moves a key only along the path from a partition to its root.

Hashes are ``murmur2(key) & 0x7fffffff`` as in Kafka's Java client (``Utils.murmur2``, ``Utils.toPositive``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mypy_extensions import i64

MOVED_HEADER: Final = "__anabranch_moved"
"""Header of a tombstone in the previous partition of a moved key, written by the producer (KIP-253, section 9).

Only compacted topics have such tombstones. The tombstone lets compaction remove the key's older values there; a reader
of the key ignores it (docs/adr/0018).
"""

_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_SEED: Final = 0x9747B28C


def murmur2(data: bytes) -> int:
    """MurmurHash2 of ``data`` with Kafka's seed, as an unsigned 32-bit number."""
    # i64 matters to mypyc alone: the product may wrap, and the mask keeps its low 32 bits.
    length = len(data)
    h: i64 = _SEED ^ length
    whole = length & ~3
    pos = 0
    while pos < whole:
        k: i64 = data[pos] | data[pos + 1] << 8 | data[pos + 2] << 16 | data[pos + 3] << 24
        k = k * _M & _MASK
        h = (h * _M ^ (k ^ k >> 24) * _M) & _MASK
        pos += 4
    tail = length - whole
    if tail:
        if tail == 3:
            h ^= data[whole + 2] << 16
        if tail >= 2:
            h ^= data[whole + 1] << 8
        h ^= data[whole]
        h = h * _M & _MASK
    h ^= h >> 13
    h = h * _M & _MASK
    return h ^ h >> 15


def positive_hash(key: bytes) -> int:
    """The hash that determines a key's placement: 31 bits, never negative."""
    return murmur2(key) & 0x7FFFFFFF


def is_doubled(initial: int, count: int) -> bool:
    """Whether ``count`` is ``initial`` times a power of two: linear hashing and ``hash % count`` are the same then."""
    return count >= initial and count % initial == 0 and (count // initial).bit_count() == 1


def _check_layout(initial: int, undeleted: int) -> None:
    if initial < 1 or undeleted < initial:
        raise ValueError(f"not a layout: initial partition count {initial}, undeleted partition count {undeleted}")


def modulus(initial: int, undeleted: int) -> int:
    """The largest ``initial * 2**level`` that is at most ``undeleted``."""
    _check_layout(initial, undeleted)
    return initial << (undeleted // initial).bit_length() - 1


def place(key_hash: int, initial: int, undeleted: int) -> int:
    """The partition of a key with this ``positive_hash`` under a layout (linear hashing)."""
    m = modulus(initial, undeleted)
    p = key_hash % m
    return key_hash % (2 * m) if p < undeleted - m else p


def parent(partition: int, initial: int) -> int:
    """The partition from which ``partition`` was split; -1 for the first ``initial`` partitions, which have none."""
    if partition < 0 or initial < 1:
        raise ValueError(f"no partition {partition} with initial partition count {initial}")
    if partition < initial:
        return -1
    return partition - modulus(initial, partition)


def ancestors(partition: int, initial: int) -> list[int]:
    """Parent, its parent, and so on up to the root; empty for a root."""
    found: list[int] = []
    p = parent(partition, initial)
    while p >= 0:
        found.append(p)
        p = parent(p, initial)
    return found


def ancestor_below(partition: int, initial: int, limit: int) -> int:
    """The nearest of ``partition`` and its ancestors with an id below ``limit`` (``limit >= initial``).

    If a grow from ``limit`` adds ``partition``, the result is the partition that had the keys before. If a shrink to
    ``limit`` marks ``partition``, the result is the survivor that gets the keys.
    """
    _check_layout(initial, limit)
    p = partition
    while p >= limit:
        p = parent(p, initial)
    return p


def children(partition: int, initial: int, total: int) -> list[int]:
    """Partitions below ``total`` whose parent is ``partition``, ascending."""
    if partition < 0:
        raise ValueError(f"no partition {partition}")
    step = modulus(initial, partition) * 2 if partition >= initial else initial
    found: list[int] = []
    while partition + step < total:
        found.append(partition + step)
        step *= 2
    return found


def descendants(partition: int, initial: int, total: int) -> list[int]:
    """Every partition below ``total`` that has ``partition`` among its ancestors, ascending."""
    found: list[int] = []
    todo = children(partition, initial, total)
    while todo:
        p = todo.pop()
        found.append(p)
        todo.extend(children(p, initial, total))
    found.sort()
    return found
