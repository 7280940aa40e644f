"""Which function makes a checksum, with the wheel and without it."""

import pytest

from seqdata.kernel import numpy_checksums


def test_without_the_wheel_the_twin_has_zlibs_only(monkeypatch):
    monkeypatch.setattr(numpy_checksums, "_load_crc32c", lambda: None)
    assert numpy_checksums.algorithms() == ("crc32",)
    with pytest.raises(ValueError, match="`algorithm` must be 'crc32', but is 'crc32c'"):
        numpy_checksums.get_checksum("crc32c")
