"""Sizes are written for people."""

import pytest

from seqdata.cli._report.console import format_bytes


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (1 << 41, "2.0 TiB")],
)
def test_sizes_are_written_for_people(count, text):
    assert format_bytes(count) == text
