"""Each rule of holding, by name (docs/model/README.md, Hold.tla)."""

from __future__ import annotations

from anabranch.ordered_resize.facts import Facts, Lineage
from anabranch.ordered_resize.progress import ANY_GROUP, Reader, ReadProgress
from anabranch.ordered_resize.withheld_from_stock_consumers import Patience, Requirements
from anabranch.zk_schemas.partition_state import LineageEntry as Entry


def known(facts: Facts, partition: int, as_of: int, *entries: tuple[int, dict[int, int]]) -> None:
    facts.on_lineage(partition, Lineage(as_of, -1, tuple(Entry(e, losers) for e, losers in entries)))


def chain() -> Facts:
    """Return the facts of 1 -> 2 -> 4.

    Partition 1 was split from partition 0, and partition 3 from partition 1. Epoch 0 of partition 0 ended at offset
    100. Epoch 0 of partition 1 is empty.
    """
    facts = Facts()
    known(facts, 0, 2)
    known(facts, 1, 1, (0, {0: 0}))
    known(facts, 3, 0, (0, {1: 0}))
    facts.on_end(0, 0, 100)
    facts.on_end(1, 0, 0)
    return facts


def cap(facts: Facts, partition: int, *readers: Reader, released: tuple[str, int, int, int] | None = None) -> int:
    requirements = Requirements(facts, [partition])
    waits = requirements.waits(ReadProgress(facts, readers))
    return requirements.caps(facts, [wait for wait in waits if wait.key != released])[partition]


def test_every_group_is_waited_for() -> None:
    done, behind = Reader("done", 1, {0: 100}), Reader("behind", 1, {0: 99})
    assert cap(chain(), 1, done) == 1
    assert cap(chain(), 1, done, behind) == -1


def test_an_empty_loser_that_waits_itself_frees_no_gainer() -> None:
    """Model: off_hold_recursion."""
    assert cap(chain(), 3, Reader("g", 1, {0: 99})) == -1
    assert cap(chain(), 3, Reader("g", 1, {0: 100})) == 0


def test_a_group_without_a_commit_counts_from_the_log_start() -> None:
    assert cap(chain(), 1, Reader("g", 1)) == -1
    facts = chain()
    facts.on_log_start(0, 100)
    assert cap(facts, 1, Reader("g", 1)) == 1


def test_a_log_start_does_not_replace_the_position_that_an_owner_reports() -> None:
    facts = chain()
    facts.on_log_start(0, 100)
    assert cap(facts, 1, Reader("g", 1, reporting=frozenset({0}))) == -1


def test_a_batch_above_the_lineage_is_held_even_without_a_group() -> None:
    assert cap(chain(), 0) == 2
    assert cap(Facts(), 0) == -1


def test_with_unknown_groups_a_topic_is_held_at_the_lowest_entry_that_is_not_over() -> None:
    facts = Facts()
    known(facts, 0, 5, (2, {1: 0}), (4, {1: 3}))
    known(facts, 1, 4)
    facts.on_end(1, 0, 10)
    facts.on_end(1, 3, 20)
    assert cap(facts, 0, ANY_GROUP) == 1
    facts.on_lineage(1, None, over=0)
    assert cap(facts, 0, ANY_GROUP) == 3
    facts.on_lineage(1, None, over=4)
    assert cap(facts, 0, ANY_GROUP) == 5


def test_max_hold_releases_one_group_from_one_epoch_only() -> None:
    facts = chain()
    mute, slow = Reader("mute", 1), Reader("slow", 1, {0: 50})
    found = Requirements(facts, [1]).waits(ReadProgress(facts, [mute, slow]))
    assert [(*wait.key, wait.position, wait.offset) for wait in found] == [
        ("mute", 1, 0, 0, -1, 100),
        ("slow", 1, 0, 0, 50, 100),
    ]
    assert cap(facts, 1, mute, slow, released=("mute", 1, 0, 0)) == -1
    assert cap(facts, 1, mute, released=("mute", 1, 0, 0)) == 1
    assert cap(facts, 3, mute, released=("mute", 1, 1, 0)) == -1, "partition 0 is still to be processed"


def test_a_recreated_group_is_not_released_with_the_earlier_one() -> None:
    assert cap(chain(), 1, Reader("g", 2), released=("g", 1, 0, 0)) == -1


def test_the_time_limit_of_a_wait_begins_again_after_the_wait_has_ended() -> None:
    patience = Patience[str]()
    assert patience.look(["q"], 0, 10) == []
    assert patience.look(["q"], 10, 10) == ["q"] and patience.released == {"q"}
    assert patience.look(["q"], 11, 10) == [] and patience.released == {"q"}
    assert patience.look([], 12, 10) == [] and patience.released == set()
    assert patience.look(["q"], 13, 10) == [] and patience.since("q") == 13


def test_thousands_of_resizes_are_followed_to_the_end() -> None:
    """1 -> 2 -> 1 and so on, with no partition removed: each entry waits for the entry before it."""
    facts = Facts()
    known(facts, 0, 4000, *((e, {1: e - 1}) for e in range(2, 4000, 2)))
    known(facts, 1, 4000, *((e, {0: e - 1}) for e in range(1, 4000, 2)))
    for p in (0, 1):
        for e in range(4000):
            facts.on_end(p, e, e + 1)
    assert cap(facts, 0, Reader("g", 1, {0: 5000, 1: 5000})) == 4000
    assert cap(facts, 0, Reader("g", 1, {0: 0, 1: 5000})) == 1, "partition 1 requires unread records of 0"
