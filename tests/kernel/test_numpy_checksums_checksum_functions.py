"""Which function makes a checksum, with the wheel and without it."""

import pytest

from seqdata.kernel import checksum_functions


def test_without_the_wheel_the_twin_has_zlibs_only(monkeypatch):
    monkeypatch.setattr(checksum_functions, "_load_crc32c", lambda: None)
    assert checksum_functions.algorithms() == ("crc32",)
    with pytest.raises(ValueError, match=r"takes \(data, bounds, out, algorithm\)"):
        checksum_functions.get_checksum("crc32c")
