"""Locates a single changed byte from a CRC32C that does not match.

A CRC is linear: the difference, stored xor computed, depends only on the changed byte and its distance to the end. The
difference is stepped back over the data, by one zero byte at a time. At the changed byte, the difference equals the CRC
of a single byte. With several changed bytes there is no such position, or, once in 2**32 / (256 * size) cases, a wrong
one.
"""

from __future__ import annotations

_POLYNOMIAL = 0x82F63B78


def _tables() -> tuple[list[int], dict[int, int]]:
    forward = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        forward.append(crc)
    by_top = {entry >> 24: index for index, entry in enumerate(forward)}
    return forward, by_top


_FORWARD, _BY_TOP = _tables()
_SINGLE_BYTES = frozenset(_FORWARD[1:])


def locate_changed_byte(stored_crc: int, computed_crc: int, size: int) -> int | None:
    """The index of the byte whose change explains why the CRCs of ``size`` bytes differ; None if no byte does.

    Of several candidates, the one nearest to the end is returned. The search takes O(size) steps.
    """
    difference = stored_crc ^ computed_crc
    if difference == 0:
        return None
    for distance in range(size):
        if difference in _SINGLE_BYTES:
            return size - 1 - distance
        index = _BY_TOP[difference >> 24]
        difference = ((difference ^ _FORWARD[index]) << 8 & 0xFFFFFFFF) | index
    return None
