"""The moves of keys in a resize of a topic, and the tree of its splits. Pure (KIP-253, Proposed Changes 1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from fractions import Fraction
from typing import NamedTuple

from anabranch.protocol.key_placement import ancestor_below, children, modulus


class KeyMove(NamedTuple):
    """Keys that go from one partition to another. ``share`` is their share of all keys if hashes are uniform."""

    source: int
    target: int
    share: Fraction


def key_share(partition: int, initial: int, undeleted: int) -> Fraction:
    """The share of all keys that linear hashing puts into ``partition``."""
    m = modulus(initial, undeleted)
    was_split = partition >= m or partition < undeleted - m
    return Fraction(1, 2 * m if was_split else m)


def moves(initial: int, before: int, after: int) -> list[KeyMove]:
    """The splits of a grow or the merges of a shrink, in the order of the partitions that are added or removed."""
    if after > before:
        return [
            KeyMove(ancestor_below(new, initial, before), new, key_share(new, initial, after))
            for new in range(before, after)
        ]
    return [
        KeyMove(gone, ancestor_below(gone, initial, after), key_share(gone, initial, before))
        for gone in range(after, before)
    ]


def unordered_share(before: int, after: int) -> Fraction:
    """The share of all keys that move when a key's partition is its hash modulo the count."""
    return 1 - Fraction(min(before, after), math.lcm(before, after))


def percent(share: Fraction) -> str:
    return f"{float(share) * 100:.1f} %"


def split_tree(initial: int, existing: Collection[int], label: Callable[[int], str]) -> list[str]:
    """One line for each partition, below the line of its parent; the first ``initial`` partitions are the roots."""
    total = max(existing, default=-1) + 1
    lines: list[str] = []

    def add(partition: int, first: str, rest: str) -> None:
        lines.append(f"{first}{label(partition)}".rstrip())
        below = [child for child in children(partition, initial, total) if child in existing]
        for child in below:
            last = child == below[-1]
            add(child, rest + ("└── " if last else "├── "), rest + ("    " if last else "│   "))

    for root in range(min(initial, total)):
        add(root, "", "")
    return lines
