"""The output of ``anabranch topics alter --dry-run``."""

from __future__ import annotations

from fractions import Fraction

from anabranch.cli.output import print_table
from anabranch.protocol.plurals import counted
from anabranch.view.moves import percent
from anabranch.view.resize import ResizePlan


def print_plan(plan: ResizePlan) -> None:
    """Print a dry run for people."""
    before, after = plan.partitions, plan.partitions_after
    share = Fraction(plan.moved_share)
    moving = f", about {percent(share)} of the keys move" if share else ""
    print(f"{plan.topic}: {before} -> {counted(after, 'partition')}{moving}")
    if plan.moves:
        columns = ["split" if after > before else "merge", "into", "keys", "leader", "into_leader"]
        print_table(
            columns,
            [
                [row.from_, row.into, percent(Fraction(row.share)), row.from_leader, row.into_leader]
                for row in plan.moves
            ],
        )
    for note in plan.notes:
        print(note)
    print(f"refused: {plan.refused}" if plan.refused else "the controller would accept the resize")
