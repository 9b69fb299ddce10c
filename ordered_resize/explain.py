"""Why a partition waits, in words for people."""

from __future__ import annotations

from typing import NamedTuple


class Wait(NamedTuple):
    """One thing that a partition waits for; -1 where a number is not known, None where the owner is not."""

    partition: int
    from_epoch: int
    """Its batches of this leader epoch and above wait."""
    on: int
    """The partition that has to be processed first."""
    epoch: int
    """Up to the end of this leader epoch."""
    offset: int = -1
    """That end."""
    position: int = -1
    owner: str | None = None

    def __str__(self) -> str:
        end = f"offset {self.offset}" if self.offset >= 0 else f"the end of epoch {self.epoch}, not known yet"
        owner = f"owned by {self.owner}" if self.owner is not None else "owner not known"
        at = f"at position {self.position}" if self.position >= 0 else "position not known"
        return f"partition {self.partition} from epoch {self.from_epoch} waits for {self.on} until {end}, {owner}, {at}"
