"""Each rule of ordered resize is switched off in turn, and a check must report a violation."""

from __future__ import annotations

import pytest

from tests.sim.mutations import Mutation
from tests.sim.random_run import Plan
from tests.sim.resize_mutations import RESIZE_MUTATIONS, RETENTION_MUTATIONS
from tests.sim.test_mutations import missed


@pytest.mark.parametrize("mutation", RESIZE_MUTATIONS, ids=lambda mutation: mutation.name)
@pytest.mark.mutation
def test_the_checker_reports_each_rule_that_is_switched_off(
    mutation: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    missed(mutation, monkeypatch, Plan.resizing)


@pytest.mark.parametrize("mutation", RETENTION_MUTATIONS, ids=lambda mutation: mutation.name)
@pytest.mark.mutation
def test_the_checker_reports_each_retention_rule_that_is_switched_off(
    mutation: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    missed(mutation, monkeypatch, Plan.expiring)
