from __future__ import annotations

import pytest

from anabranch.broker.log.checkpoint_files import MalformedFileError
from anabranch.broker.log.leader_epoch_cache import LeaderEpochCache
from tests.support.log.log_fixture import LogFixture


@pytest.fixture
def cache(log_fixture: LogFixture) -> LeaderEpochCache:
    cache = LeaderEpochCache(log_fixture.storage, str(log_fixture.root / "leader-epoch-checkpoint"))
    for epoch, start_offset in [(2, 0), (3, 10), (6, 25)]:
        cache.assign(epoch, start_offset)
    return cache


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (6, (6, 40)),  # the current epoch ends at the log end
        (3, (3, 25)),
        (5, (3, 25)),  # KIP-279: the largest epoch not above the requested one
        (2, (2, 10)),
        (1, (1, 0)),  # older than all known epochs
        (7, (-1, -1)),
        (-1, (-1, -1)),
    ],
)
def test_an_epoch_ends_where_the_next_known_epoch_begins(
    cache: LeaderEpochCache, asked: int, answer: tuple[int, int]
) -> None:
    assert cache.end_offset_for(asked, 40) == answer


def test_known_and_older_epochs_change_nothing(cache: LeaderEpochCache) -> None:
    cache.assign(6, 30)
    cache.assign(4, 30)
    assert cache.entries == [(2, 0), (3, 10), (6, 25)]


def test_an_epoch_without_records_is_replaced_by_the_next(cache: LeaderEpochCache) -> None:
    cache.assign(7, 25)
    assert cache.entries == [(2, 0), (3, 10), (7, 25)]


def test_truncations_at_both_ends_are_written_to_disk(cache: LeaderEpochCache, log_fixture: LogFixture) -> None:
    cache.truncate_from_end(25)
    cache.truncate_from_start(4)
    assert cache.entries == [(2, 4), (3, 10)]
    again = LeaderEpochCache(log_fixture.storage, str(log_fixture.root / "leader-epoch-checkpoint"))
    again.load()
    assert again.entries == cache.entries and again.latest_epoch == 3
    assert [again.epoch_for(offset) for offset in (3, 4, 9, 10, 99)] == [-1, 2, 2, 3, 3]


def test_the_file_never_has_an_epoch_without_records(cache: LeaderEpochCache, log_fixture: LogFixture) -> None:
    cache.begin(8, 40)
    cache.truncate_from_start(20)
    again = LeaderEpochCache(log_fixture.storage, str(log_fixture.root / "leader-epoch-checkpoint"))
    again.load()
    assert again.entries == [(3, 20), (6, 25)]
    cache.assign(8, 40)
    again.load()
    assert again.entries == [(3, 20), (6, 25), (8, 40)]


def test_a_log_that_begins_anew_has_no_epoch_in_its_file(cache: LeaderEpochCache, log_fixture: LogFixture) -> None:
    """Also if the epochs of the file were without records, so that the log does not know them."""
    cache.restore([])
    cache.clear()
    again = LeaderEpochCache(log_fixture.storage, str(log_fixture.root / "leader-epoch-checkpoint"))
    again.load()
    assert again.entries == []


def test_a_failed_write_is_repeated_by_the_next_save(cache: LeaderEpochCache, log_fixture: LogFixture) -> None:
    log_fixture.storage.full = True
    cache.assign(9, 50)
    assert cache.latest_epoch == 9
    log_fixture.storage.full = False
    cache.save()
    again = LeaderEpochCache(log_fixture.storage, str(log_fixture.root / "leader-epoch-checkpoint"))
    again.load()
    assert again.latest_epoch == 9


def test_the_error_for_a_malformed_file_names_it(log_fixture: LogFixture) -> None:
    path = log_fixture.root / "leader-epoch-checkpoint"
    path.write_text("0\n1\nx y\n")
    with pytest.raises(MalformedFileError, match="leader-epoch-checkpoint"):
        LeaderEpochCache(log_fixture.storage, str(path)).load()


def test_an_epoch_is_written_with_its_first_record(cache: LeaderEpochCache, log_fixture: LogFixture) -> None:
    """A broker that begins to lead many partitions would wait for the disk for each of them."""
    path = log_fixture.root / "leader-epoch-checkpoint"
    before = path.read_bytes()
    cache.begin(8, 40)
    assert (cache.latest_epoch, cache.recorded_epoch, cache.end_offset_for(6, 40)) == (8, 6, (6, 40))
    cache.assign(7, 40)  # a record of an older epoch
    cache.truncate_from_end(40)
    assert cache.latest_epoch == 6
    cache.begin(8, 40)
    assert path.read_bytes() == before
    cache.assign(8, 40)
    assert path.read_bytes() == b"0\n4\n2 0\n3 10\n6 25\n8 40\n"
    cache.truncate_from_end(40)
    assert path.read_bytes() == before
