"""Tests of ``anabranch.record_decoders``: keys and values as text."""

from __future__ import annotations

import pytest

from anabranch.record_decoders import decode_text


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        ("c3a9", "é"),
        ("eda080", "?"),
        ("edbfbf41", "?A"),
        ("eda041", "?A"),
        ("eda0", "?"),
        ("ed41", "?A"),
        ("ed9f41", "?A"),
        ("e09f80", "???"),
        ("f09041", "?A"),
        ("f4908080", "????"),
        ("c0ff", "??"),
    ],
)
def test_malformed_text_has_as_many_replacements_as_java_writes(data: str, shown: str) -> None:
    """The expected texts are those of ``new String(data, UTF_8)`` of Java 17, which ``kafka-dump-log`` uses."""
    assert decode_text(None, bytes.fromhex(data)) == (None, shown.replace("?", "\ufffd"))
