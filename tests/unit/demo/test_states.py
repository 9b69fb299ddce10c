"""The demo's states are saved before a key moves and loaded after the move. If a step is left out, a state is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.demo.events import Event
from anabranch.demo.states import SKIPPED, FileState, KeyStates, StateStore, fold

EVENTS = [Event(n, 100 + n, "a", "M") for n in range(1, 7)]


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    return StateStore(tmp_path / "states.sqlite")


def test_a_key_moves_and_comes_back_with_its_state(store: StateStore, tmp_path: Path) -> None:
    parent, child = KeyStates(store), KeyStates(StateStore(tmp_path / "states.sqlite"))
    assert [parent.apply(1, event) for event in EVENTS[:2]] == [0, 1]
    parent.flush([1])
    child.reload([5])
    assert [child.apply(5, event) for event in EVENTS[2:4]] == [2, 3]
    child.flush([5])
    parent.reload([1])
    assert [parent.apply(1, event) for event in EVENTS[4:]] == [4, 5]
    parent.flush_all()
    assert store.all() == fold(EVENTS)


def test_a_child_that_begins_before_its_parent_saved_has_a_wrong_state(store: StateStore, tmp_path: Path) -> None:
    parent, child = KeyStates(store), KeyStates(StateStore(tmp_path / "states.sqlite"))
    parent.apply(1, EVENTS[0])
    assert child.apply(5, EVENTS[1]) == 0
    parent.flush([1])
    child.flush([5])
    assert store.load("a") != fold(EVENTS[:2])["a"]


def test_a_parent_that_does_not_load_again_continues_with_an_old_state(store: StateStore, tmp_path: Path) -> None:
    parent, child = KeyStates(store), KeyStates(StateStore(tmp_path / "states.sqlite"))
    parent.apply(1, EVENTS[0])
    parent.flush([1])
    child.apply(5, EVENTS[1])
    child.flush([5])
    assert parent.apply(1, EVENTS[2]) == 1


def test_an_applied_event_is_not_applied_again(store: StateStore) -> None:
    states = KeyStates(store)
    states.apply(1, EVENTS[1])
    assert (states.apply(1, EVENTS[0]), states.apply(1, EVENTS[1])) == (SKIPPED, SKIPPED)
    states.flush([1])
    assert store.load("a") == FileState().after(EVENTS[1])


def test_a_flush_saves_only_the_states_of_the_named_partitions(store: StateStore) -> None:
    states = KeyStates(store)
    states.apply(1, EVENTS[0])
    states.apply(2, Event(9, 1, "b", "A"))
    states.flush([2, 3])
    assert list(store.all()) == ["b"]
    states.reload([1])
    assert sorted(store.all()) == ["a", "b"]


def test_an_unknown_key_has_an_empty_state(store: StateStore) -> None:
    assert store.load("nowhere") == FileState()
    store.save({})
    assert store.all() == {}
