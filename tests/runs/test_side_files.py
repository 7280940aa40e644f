"""Files next to a run file: arrays come back as they were, or not at all."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata import Bucketed, ConfigError, Fixed, Mix, Part, Weighted
from seqdata.runs import side_files as module
from seqdata.runs.class_paths import ArgumentReader, ArgumentWriter, NotReplayableError
from seqdata.runs.side_files import pack_arrays, read_arrays


def reopened(value, folder):
    """Return a value after it was written to a run file and read again."""
    writer = ArgumentWriter()
    plain = writer.to_plain(value, "batching")
    for name, arrays in writer.arrays.items():
        (folder / name).write_bytes(pack_arrays(arrays, name))
    return ArgumentReader("run.yaml", folder, writer.roots).from_plain(plain, "batching")


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
    writer = ArgumentWriter(Path("run.yaml"))
    for _ in range(3):
        writer.save_arrays({"values": np.zeros(1)}, "batching", "numbers")
    assert list(writer.arrays) == ["run-batching.npz", "run-batching-1.npz", "run-batching-2.npz"]


def test_very_many_weights_are_not_kept(monkeypatch):
    monkeypatch.setattr("seqdata.runs.class_paths.MOST_NUMBERS", 2)
    assert module.MOST_NUMBERS >= 1 << 24
    with pytest.raises(NotReplayableError, match=r"^3 numbers of a WeightArray, more than 2$"):
        ArgumentWriter().to_plain(Weighted(Bucketed(4), [1.0, 2, 3]), "batching")


@pytest.mark.parametrize("content", [None, b"", b"text", b"PK\x03\x04"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, content):
    path = Path(tmp_path / "run-batching.npz")
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(
        ConfigError, match=r"it are in the file 'run-batching\.npz', .*Copy it there"
    ):
        read_arrays(path, "it")
