"""All checks of a history. A check gets a ``History`` and returns its violations, in linear time except sorting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from tests.history import group_checks, log_checks, promise_checks, resize_checks
from tests.history.events import Event
from tests.history.index import History, Violation

MAX_PER_CHECK = 20
"""The most violations that one check returns: a damaged log has thousands, and the first ones are enough."""

CHECKS: tuple[Callable[[History], Iterator[Violation]], ...] = (
    log_checks.lost_acknowledged,
    log_checks.inconsistent_offsets,
    log_checks.refused_but_written,
    log_checks.duplicates,
    log_checks.key_order,
    log_checks.leader_epochs,
    log_checks.replicas_identical,
    log_checks.watermarks,
    group_checks.unseen,
    group_checks.polls,
    group_checks.commits,
    group_checks.owners,
    promise_checks.promise,
    promise_checks.callbacks,
    promise_checks.positions,
    resize_checks.routing,
    resize_checks.closed,
    resize_checks.layouts,
    resize_checks.incarnations,
)


def check_history(events: Iterable[Event]) -> list[Violation]:
    """The first violations of each check; empty for a correct history."""
    history = History(events)
    return [violation for check in CHECKS for violation in islice(check(history), MAX_PER_CHECK)]
