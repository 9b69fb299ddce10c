"""Each file operation of the log fails, once or permanently: no acknowledged record is lost or skipped."""

from __future__ import annotations

import errno
import os

import pytest
import trio

from sim.storage import FailingCalls
from tests.support.log.log_faults import KINDS, SCENARIOS, Machine, Scenario, after_the_fault

RESTARTS = ("kill", "stop", "power cut")


def count_calls(scenario: Scenario, number: int) -> int:
    """The number of file operations of the scenario that can fail with this errno."""
    failing = FailingCalls(-1, number, operations=KINDS[number])

    async def run() -> None:
        machine = Machine(failing)
        await scenario(machine)
        machine.check(serving=True)
        assert not machine.refused

    trio.run(run)
    return failing.calls


def broken_promise(scenario: Scenario, number: int, call: int, *, lasting: bool, restart: str) -> list[str]:
    """Make the operation number ``call`` fail. Returns a description of the broken promise; empty if all hold."""
    failing = FailingCalls(call, number, lasting=lasting, operations=KINDS[number])
    machine = Machine(failing)

    async def run() -> None:
        await scenario(machine)
        machine.check()
        if not lasting:
            machine.disk.failing = None
            if number == errno.EMFILE:  # no bytes were lost, so a log works again with the next descriptor
                assert not any(log.is_broken for log in machine.manager.logs())
        if restart == "stop":
            await machine.stop()
        elif restart == "kill":
            machine.kill()
        else:
            machine.cut_power()
        machine.disk.failing = None
        await after_the_fault(machine)

    try:
        trio.run(run)
    except Exception as error:
        struck = failing.failed[0] if failing.failed else "nothing"
        length = "for good" if lasting else "once"
        return [f"{errno.errorcode[number]} {length} at call {call} ({struck}), {restart}: {error!r}"]
    return []


@pytest.mark.parametrize("number", KINDS, ids=lambda number: errno.errorcode[number])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_no_fault_loses_an_acknowledged_record(scenario: Scenario, number: int) -> None:
    """Each operation fails once: the combinations of the fault's duration and the process's end take turns.

    This takes seconds. ``LOG_FAULTS=all`` runs every combination for each operation, which takes minutes.
    """
    calls = count_calls(scenario, number)
    assert calls > 30
    endings = [(lasting, restart) for restart in RESTARTS for lasting in (False, True)]
    problems = []
    for call in range(calls):
        chosen = endings if os.environ.get("LOG_FAULTS") == "all" else [endings[(call + number) % len(endings)]]
        for lasting, restart in chosen:
            problems += broken_promise(scenario, number, call, lasting=lasting, restart=restart)
    assert not problems, f"{len(problems)} broken promises:\n" + "\n".join(problems[:20])
