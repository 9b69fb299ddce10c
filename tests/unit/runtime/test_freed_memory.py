"""Freed memory is returned soon after a process has grown, and seldom if the process needs the memory again."""

from __future__ import annotations

from anabranch.runtime.freed_memory import GROWTH_BYTES, LONGEST_PAUSE, LOOK_S, REST_TIMES, FreedMemory

AT_START = 100 << 20


class Process:
    def __init__(self) -> None:
        self.resident: int | None = AT_START
        self.in_use = AT_START
        self.returned = 0
        self.takes_s = 0.0
        self.memory = FreedMemory(lambda: self.resident)

    def look(self) -> None:
        if self.memory.look():
            self.returned += 1
            self.resident = self.in_use
            self.memory.returned(self.takes_s)


def test_memory_is_returned_at_the_first_look_after_the_process_has_grown() -> None:
    process = Process()
    process.look()
    assert process.returned == 0
    process.resident = AT_START + GROWTH_BYTES
    process.look()
    assert (process.returned, process.resident) == (1, AT_START)


def test_memory_in_use_is_looked_for_more_and_more_seldom() -> None:
    process = Process()
    process.resident = process.in_use = AT_START + GROWTH_BYTES
    for _ in range(1000):
        process.look()
    assert process.returned == 11


def test_memory_that_was_in_use_when_the_process_grew_is_returned_once_it_is_free() -> None:
    process = Process()
    process.resident = process.in_use = AT_START + 10 * GROWTH_BYTES
    for _ in range(20):
        process.look()
    process.in_use = AT_START
    for _ in range(20):
        process.look()
    assert process.resident == AT_START


def test_memory_that_is_needed_again_at_once_is_returned_more_and_more_seldom() -> None:
    process = Process()
    for _ in range(10 * LONGEST_PAUSE):
        process.resident = AT_START + GROWTH_BYTES
        process.look()
    assert 10 <= process.returned <= 20


def test_after_a_quiet_look_memory_is_returned_at_once_again() -> None:
    process = Process()
    for _ in range(3):
        process.resident = AT_START + GROWTH_BYTES
        process.look()
    process.resident = AT_START
    for _ in range(LONGEST_PAUSE):
        process.look()
    before = process.returned
    for _ in range(2):
        process.resident = AT_START + GROWTH_BYTES
        process.look()
    assert process.returned == before + 2


def test_a_process_of_unknown_size_returns_nothing() -> None:
    process = Process()
    process.resident = None
    process.look()
    assert process.returned == 0


def test_returns_that_take_long_take_a_thousandth_of_the_time() -> None:
    process = Process()
    process.takes_s = 0.2
    looks = 10_000
    for _ in range(looks):
        process.resident = AT_START + 10 * GROWTH_BYTES
        process.look()
    share = process.returned * process.takes_s / (looks * LOOK_S)
    assert 0.5 / REST_TIMES <= share <= 1 / REST_TIMES
