"""Seals: what is kept on disk is what was kept, under its own name, or it is made again."""

import io
import logging
import os

import numpy as np
import pytest
import yaml

from seqdata.storage.digest_trailer import (
    add_digest,
    has_trailer,
    read_with_digest,
    strip_digest,
    write_with_digest,
)


@pytest.mark.parametrize("content", [b"", b"12", b"\n", bytes(range(256))])
def test_a_flip_of_any_bit_or_a_cut_at_any_byte_is_told(content):
    raw = add_digest(content, "a")
    assert strip_digest(raw, "a") == content
    assert strip_digest(raw, "b") is None
    for bit in range(8 * len(raw)):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        assert strip_digest(bytes(flipped), "a") is None
    for size in range(len(raw)):
        assert strip_digest(raw[:size], "a") is None
        assert not has_trailer(raw[:size])
    assert strip_digest(raw + b"\n", "a") is None


def test_readers_of_arrays_archives_and_yaml_pass_over_the_seal():
    numbers, file, archive = np.arange(5), io.BytesIO(), io.BytesIO()
    np.save(file, numbers)
    np.savez(archive, x=numbers)
    assert np.load(io.BytesIO(add_digest(file.getvalue(), "n"))).tolist() == numbers.tolist()
    with np.load(io.BytesIO(add_digest(archive.getvalue(), "n"))) as found:
        assert found["x"].tolist() == numbers.tolist()
    assert yaml.safe_load(add_digest(b"a: [1, 2]\n", "n")) == {"a": [1, 2]}


def test_what_is_kept_is_found_under_its_name_only(tmp_path, caplog):
    path, other = tmp_path / "a", tmp_path / "b"
    with caplog.at_level(logging.WARNING):
        assert read_with_digest(path) is None  # not there: nothing to tell
        assert write_with_digest(path, b"12")
        assert read_with_digest(path) == b"12"
        assert not caplog.text
        os.replace(path, other)
        assert read_with_digest(other) is None
        assert (
            f"{other}: is damaged, or was written under another name, so it is ign" in caplog.text
        )
        other.write_bytes(b"12")
        assert read_with_digest(other) is None
    assert (
        f"{other}: has no digest line, so it is ignored: its content is computed again"
        in caplog.text
    )


def test_what_cannot_be_kept_leaves_nothing(tmp_path):
    (tmp_path / "a").mkdir()
    assert not write_with_digest(tmp_path / "a", b"12")
    assert not write_with_digest(tmp_path / "no" / "a", b"12")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
