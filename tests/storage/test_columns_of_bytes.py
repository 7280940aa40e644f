"""Timesteps of one byte, in files: dtype and shape are the field's, not those of its bytes."""

from dataclasses import dataclass

import numpy as np
import pytest

from seqdata import open_store, write_store
from seqdata.backends import Extents, FileFormat, FileIndex
from seqdata_testing.stores import check_store


@dataclass(frozen=True)
class Bytes(FileFormat):
    """Each file holds three sequences of numbers of one byte each."""

    dtype: str
    shape: tuple[int, ...] = ()
    suffixes = (".byte",)

    def index(self, file):
        begins, ends = np.array([0, 1, 6]), np.array([1, 6, 6])
        last = Extents(np.array([5, 6, 7]), np.array([6, 7, 8]), self.dtype, self.shape, None)
        return FileIndex({"x": Extents(begins, ends, self.dtype, self.shape), "y": last})


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize(
    ("dtype", "values"),
    [("|i1", [-1, -128, 127, 0, -5, 6, 7, -8]), ("|b1", [1, 0, 0, 1, 1, 0, 1, 1]),
     ("|u1", [255, 0, 1, 128, 4, 5, 6, 7])],
)  # fmt: skip
def test_timesteps_of_one_byte_have_their_dtype_and_shape_wherever_they_are_read(
    tmp_path, dtype, values, shape
):
    values = np.array(values).astype(dtype)
    values.tofile(tmp_path / "a.byte")
    store = open_store(tmp_path / "a.byte", backend=Bytes(dtype, shape))
    rows = [
        {"x": values[first:stop].reshape(-1, *shape), "y": values[at : at + 1].reshape(shape)}
        for first, stop, at in [(0, 1, 5), (1, 6, 6), (6, 6, 7)]
    ]
    check_store(store, rows)
    item = store[1]
    assert (item["x"].dtype, item["x"].shape) == (np.dtype(dtype), (5, *shape))
    np.testing.assert_array_equal(item["x"], rows[1]["x"])
    written = write_store(tmp_path / "copy", store)
    assert written.fields["x"].dtype == store.fields["x"].dtype
    np.testing.assert_array_equal(written[1]["x"], rows[1]["x"])
    if not shape:
        smallest = store.where(lambda sequence: sequence["x"].min(initial=1) == values.min())
        assert len(smallest) == sum(row["x"].min(initial=1) == values.min() for row in rows)
