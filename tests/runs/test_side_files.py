"""Files next to a run file: arrays come back as they were, or not at all."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata import Bucketed, ConfigError, Fixed, Mix, Part, Weighted
from seqdata.planning.sequence_weights import WeightArray
from seqdata.runs import side_files as module
from seqdata.runs.side_files import SideFiles, pack_arrays, read_arrays
from seqdata.runs.to_plain import UNREPLAYABLE, PlainReader, PlainWriter


def reopened(value, folder):
    """Return a value after it was written to a run file and read again."""
    writer = PlainWriter()
    plain = writer.to_plain(value, "batching")
    assert writer.missing == []
    for name, arrays in writer.side_files.arrays.items():
        (folder / name).write_bytes(pack_arrays(arrays, name))
    return PlainReader(writer.roots, "run.yaml", folder).from_plain(plain, "batching")


@given(
    st.lists(st.integers(-(2**62), 2**62), max_size=9),
    st.lists(st.floats(allow_nan=False), max_size=9),
)
def test_numbers_come_back_as_they_were(tmp_path_factory, integers, floats):
    path = tmp_path_factory.mktemp("run") / "a.npz"
    arrays = {"integers": np.array(integers, np.int64), "floats": np.array(floats)}
    path.write_bytes(pack_arrays(arrays, path.name))
    found = read_arrays(path, "it")
    assert found["integers"].tolist() == integers
    assert found["floats"].tobytes() == arrays["floats"].tobytes()


@pytest.mark.parametrize(
    "policy",
    [
        Weighted(Bucketed(4), [0.1, 2.0, 1e-300]),
        Mix({"a": Part(1, Weighted(Fixed(2), [1, 2.5])), "b": Part(3, Weighted(Fixed(2), [3, 1]))}),
    ],
)
def test_a_policy_with_weights_is_opened_again(tmp_path, policy):
    assert reopened(policy, tmp_path) == policy


def test_each_array_has_a_file_of_its_own():
    files = SideFiles("run")
    names = [files.add("batching", {"values": np.zeros(1)}) for _ in range(3)]
    assert names == ["run-batching.npz", "run-batching-1.npz", "run-batching-2.npz"]


def test_very_many_weights_are_not_kept(monkeypatch):
    monkeypatch.setattr("seqdata.runs.to_plain.MOST_NUMBERS", 2)
    assert module.MOST_NUMBERS >= 1 << 24
    writer = PlainWriter()
    plain = writer.to_plain(Weighted(Bucketed(4), [1.0, 2, 3]), "batching")
    assert UNREPLAYABLE in str(plain)
    assert writer.missing == ["batching: 3 numbers of a WeightArray, more than 2"]


def test_a_class_without_an_import_path_is_not_kept():
    @dataclass
    class Own:
        arrays = WeightArray(np.ones(2)).arrays
        digest = "0"

    class Plain(WeightArray):
        pass

    for value, name in ((Own(), "Own"), (Plain(np.ones(2)), "Plain")):
        writer = PlainWriter()
        assert UNREPLAYABLE in str(writer.to_plain(value, "transform"))
        assert f"{name}, defined in a function, has no import path" in writer.missing[0]
        assert writer.side_files.arrays == {}


@pytest.mark.parametrize("content", [None, b"", b"text", b"PK\x03\x04"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, content):
    path = Path(tmp_path / "run-batching.npz")
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"it are in 'run-batching\.npz' next to .*Copy it there"):
        read_arrays(path, "it")
