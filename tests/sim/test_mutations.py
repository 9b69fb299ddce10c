"""Each safety rule is switched off in turn, and the checker must report a violation."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.mutations import MUTATIONS, Mutation
from tests.sim.random_run import NotHealedError, Plan, run_plan
from tests.support import mutation_list


def missed(mutation: Mutation, monkeypatch: pytest.MonkeyPatch, plan_of: Callable[[int], Plan]) -> None:
    """Switch a rule off, and run seeds until one of the rule's checks reports a violation."""
    mutation.switch_off(monkeypatch)
    seen: dict[int, list[str]] = {}
    for seed in range(mutation.first_seed, mutation.first_seed + mutation.seeds):
        try:
            violations = run_plan(plan_of(seed)).violations()
        except BaseExceptionGroup as error:
            if error.subgroup(NotHealedError) is None:
                raise
            continue  # another violation than the expected one
        seen[seed] = sorted({violation.check for violation in violations})
        if set(seen[seed]) & set(mutation.found_by):
            return
    pytest.fail(f"none of {mutation.found_by} reported anything: {seen}")


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
@pytest.mark.mutation
def test_the_checker_reports_each_rule_that_is_switched_off(
    mutation: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    missed(mutation, monkeypatch, lambda seed: Plan(seed=seed, faults=mutation.faults, churn=False))


def test_the_list_of_mutations_is_current() -> None:
    """The diff of a commit shows which rules are not switched off any more."""
    assert mutation_list.LIST.read_text() == mutation_list.text(), "run `make gen`"
