"""The checkpoint's offsets are read back as written, and the pieces of a range make up the range."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from anabranch.protocol.stream_offsets import Offsets, StreamPosition, TopicPositions
from anabranch.spark.offsets import Range, decode, encode, ranges, split

numbers = st.integers(0, 2**40)
positions = st.builds(StreamPosition, numbers, st.integers(-1, 99), st.integers(-1, 2**40), st.integers(-1, 2**40))
topics = st.builds(
    TopicPositions,
    st.uuids().map(str),
    st.integers(-1, 2**40),
    st.integers(-1, 99),
    st.dictionaries(st.integers(0, 12), positions, max_size=4),
)
offsets = st.builds(
    Offsets, st.text(max_size=5), st.dictionaries(st.text(max_size=3), topics, max_size=3), st.booleans()
)


@given(offsets)
def test_offsets_are_read_back(found: Offsets) -> None:
    assert decode(json.loads(json.dumps(encode(found)))) == found


@given(offsets)
def test_equal_offsets_are_encoded_as_equal_text(found: Offsets) -> None:
    """Spark compares the text, so the text must not depend on the order of topics and of partitions."""
    turned = Offsets(
        found.cluster_id,
        {
            name: TopicPositions(t.topic_id, t.incarnation, t.layout_version, dict(reversed(t.partitions.items())))
            for name, t in reversed(found.topics.items())
        },
        found.is_initial,
    )
    assert json.dumps(encode(found)) == json.dumps(encode(turned))


@given(offsets, offsets)
def test_a_range_begins_at_the_begin_of_its_end_position_or_else_at_its_start_position(
    start: Offsets, end: Offsets
) -> None:
    found = {(one.topic, one.partition): (one.start, one.end) for one in ranges(start, end)}
    for name, topic in end.topics.items():
        for p, position in topic.partitions.items():
            before = start.position(name, p)
            begin = position.begin if position.begin >= 0 else position.offset if before is None else before.offset
            assert found.get((name, p)) == ((begin, position.offset) if begin < position.offset else None)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 1000)), max_size=6), st.integers(1, 40))
def test_ranges_are_split_into_at_least_as_many_adjacent_pieces_as_wanted(
    found: list[tuple[int, int]], wanted: int
) -> None:
    whole = [Range("t", p, at, at + count, 3) for p, (at, count) in enumerate(found)]
    pieces = split(whole, wanted)
    for one in whole:
        own = [piece for piece in pieces if piece.partition == one.partition]
        assert [piece.start for piece in own] == [one.start, *(piece.end for piece in own[:-1])]
        assert own[-1].end == one.end and all(piece.start < piece.end for piece in own)
    assert len(pieces) >= min(wanted, sum(one.size for one in whole))
