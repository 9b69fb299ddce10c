"""Record batches for tests."""

from __future__ import annotations

from anabranch.protocol.batch_builder import build_batch


def batch_of(count: int, *, value_bytes: int = 10, **fields: int) -> bytes:
    """One uncompressed batch of ``count`` keyed records from offset 0; ``fields`` as for ``build_batch``."""
    records = [(b"key-%d" % number, b"v" * value_bytes, [], 1_700_000_000_000 + number) for number in range(count)]
    return build_batch(records, **fields)
