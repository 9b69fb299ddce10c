"""Linear hashing and the split tree are compared with other clients' vectors and a second implementation."""

import random

import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from anabranch.protocol.key_placement import (
    ancestor_below,
    ancestors,
    children,
    descendants,
    modulus,
    murmur2,
    parent,
    place,
    positive_hash,
)

LAYOUTS = [(n, u) for n in (1, 2, 3, 4, 6, 7) for u in range(n, 8 * n + 3)]


def place_by_descent(key_hash: int, initial: int, undeleted: int) -> int:
    """Follow the splits of the key from the root of its tree, one split at a time."""
    p = key_hash % initial
    step = initial
    while True:
        child = p + step
        if key_hash % (2 * step) == child:
            if child >= undeleted:
                return p
            p = child
        step *= 2
        if step > 2 * (undeleted + initial):
            return p


def parent_by_search(p: int, initial: int) -> int:
    """Return p - N * 2^l for the only level l with N * 2^l <= p < N * 2^(l+1)."""
    (low,) = [initial << level for level in range(40) if initial << level <= p < initial << level + 1]
    return p - low


# Kafka's UtilsTest.testMurmur2.
JAVA_VECTORS = [
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
]


@pytest.mark.parametrize(("key", "signed"), JAVA_VECTORS)
def test_murmur2_gives_the_java_clients_vectors(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF
    assert positive_hash(key) == signed & 0x7FFFFFFF


@pytest.mark.parametrize("length", range(40))
def test_murmur2_agrees_with_other_python_clients(length: int) -> None:
    key = random.Random(length).randbytes(length)
    assert murmur2(key) == aiokafka_murmur2(key) & 0xFFFFFFFF
    assert murmur2(key) == kafka_python_murmur2(key) & 0xFFFFFFFF


@pytest.mark.parametrize(("initial", "undeleted"), LAYOUTS)
def test_place_follows_the_definition(initial: int, undeleted: int) -> None:
    hashes = [*range(300), 0x7FFFFFFF, 0x7FFFFFFE, 0x12345678]
    placed = [place(h, initial, undeleted) for h in hashes]
    assert placed == [place_by_descent(h, initial, undeleted) for h in hashes]
    assert set(placed) == set(range(undeleted))


@pytest.mark.parametrize("initial", [1, 2, 3, 5, 12, 100])
def test_place_is_the_stock_partitioner_before_any_resize(initial: int) -> None:
    for h in (0, 1, 5, 99, 12345, 0x7FFFFFFF):
        assert place(h, initial, initial) == h % initial


@pytest.mark.parametrize("initial", [1, 2, 3, 4, 6])
def test_parent_is_one_level_down(initial: int) -> None:
    assert [parent(p, initial) for p in range(initial)] == [-1] * initial
    for p in range(initial, 20 * initial):
        assert parent(p, initial) == parent_by_search(p, initial)


@pytest.mark.parametrize("initial", [1, 2, 3, 4, 6])
def test_partitions_form_as_many_trees_as_the_initial_count(initial: int) -> None:
    total = 9 * initial + 1
    roots = [p for p in range(total) if parent(p, initial) < 0]
    assert roots == list(range(initial))
    members = [p for root in roots for p in (root, *descendants(root, initial, total))]
    assert sorted(members) == list(range(total))
    for p in range(total):
        assert children(p, initial, total) == [c for c in range(total) if parent(c, initial) == p]
        assert ancestors(p, initial)[-1:] == ([p % initial] if p >= initial else [])


@pytest.mark.parametrize("initial", [1, 3, 4])
def test_every_key_of_a_new_partition_came_from_its_nearest_old_ancestor(initial: int) -> None:
    for old in range(initial, 5 * initial):
        for new in range(old + 1, 6 * initial):
            for h in range(200):
                p = place(h, initial, new)
                assert place(h, initial, old) == ancestor_below(p, initial, old)


def test_one_survivor_can_get_the_keys_of_every_marked_partition() -> None:
    assert {ancestor_below(p, 1, 1) for p in range(64)} == {0}
    assert descendants(0, 1, 64) == list(range(1, 64))


def test_the_worked_example_places_a_key_in_partition_1_then_5_then_1() -> None:
    """4 -> 6 -> 4 with a key of hash 5: partition 1, then 5, then 1."""
    assert [place(5, 4, u) for u in (4, 6, 4)] == [1, 5, 1]
    assert (parent(4, 4), parent(5, 4)) == (0, 1)


@pytest.mark.parametrize(("initial", "undeleted"), [(0, 0), (0, 4), (-1, 4), (4, 3), (2, -1)])
def test_impossible_layouts_are_refused(initial: int, undeleted: int) -> None:
    with pytest.raises(ValueError, match="not a layout"):
        place(1, initial, undeleted)
    with pytest.raises(ValueError, match="not a layout"):
        modulus(initial, undeleted)


def test_impossible_partitions_are_refused() -> None:
    with pytest.raises(ValueError, match="no partition"):
        parent(-1, 4)
    with pytest.raises(ValueError, match="no partition"):
        children(-1, 4, 8)
    with pytest.raises(ValueError, match="not a layout"):
        ancestor_below(7, 4, 3)
