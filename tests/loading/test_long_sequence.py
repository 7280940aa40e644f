"""A sequence far longer than memory is read as a stream of lanes: nothing grows with its length."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from seqdata import write_store
from seqdata_testing.waiting import patient

RUN = Path(__file__).with_name("sparse_run.py")
MOST = 64 << 20  # bytes that playing takes above a process that has imported torch
LANES, CHUNK = 64, 1 << 13

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="Linux says what a process alone holds"
)


class Sparse:
    """A file that leaves a hole where a long buffer is written."""

    def __init__(self, file):
        self.file = file
        self.holes = []
        self.closed = False

    def write(self, piece):
        if len(piece) < 1 << 20:
            return self.file.write(piece)
        self.holes.append(self.file.tell())
        self.file.seek(len(piece), 1)
        return len(piece)

    def close(self):
        self.closed = True


def sparse(path, length, marks):
    """Write an ordinary Arrow file of one sequence of bytes: zeros but for some marks."""
    zeros = path.with_suffix(".zeros")
    with open(zeros, "wb") as file:
        file.truncate(length)
    values = pa.py_buffer(np.memmap(zeros, dtype=np.uint8, mode="r"))
    flat = pa.Array.from_buffers(pa.uint8(), length, [None, values])
    column = pa.LargeListArray.from_arrays(pa.array([0, length], pa.int64()), flat)
    batch = pa.RecordBatch.from_arrays([column], ["x"])
    with open(path, "wb") as file:
        holed = Sparse(file)
        options = pa.ipc.IpcWriteOptions(allow_64bit=True)
        with (
            pa.PythonFile(holed, "w") as sink,
            pa.ipc.new_file(sink, batch.schema, options=options) as writer,
        ):
            writer.write_batch(batch)
        begin = holed.holes[0]
        for place, value in marks:
            file.seek(begin + place)
            file.write(bytes([value]))
    zeros.unlink()
    return path


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_sequence_of_more_than_2_to_the_31_values_is_written_and_read(tmp_path):
    length = (1 << 31) + 10
    whole = np.zeros(length, dtype=np.uint8)
    whole[[5, -5]] = 7, 9
    store = write_store(tmp_path / "store", [{"x": whole}], progress=False)
    assert store.lengths.tolist() == [length]
    ends = np.array([[0, 0, 10], [0, length - 10, length]])
    column = store.read(ends, ["x"])["x"]
    assert [column[number].tolist().index(value) for number, value in ((0, 7), (1, 9))] == [5, 5]


@pytest.mark.timeout(1600)
@pytest.mark.parametrize("length", [10**8, pytest.param(10**10, marks=pytest.mark.nightly)])
@pytest.mark.slow
def test_a_long_sequence_streams_in_memory_that_does_not_grow(tmp_path, length):
    marks = [[0, 1], [length // LANES, 2], [length // 7, 3], [length // 2 + 1, 4], [length - 1, 5]]
    path = sparse(tmp_path / "long.arrow", length, marks)
    assert path.stat().st_blocks * 512 < 1 << 20  # a hole takes no room
    done = subprocess.run(
        [sys.executable, str(RUN), str(path), str(LANES), str(CHUNK)],
        capture_output=True, text=True, timeout=patient(1500), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["steps"] == length
    assert found["marks"] == marks
    assert found["most"] - found["before"] <= MOST
