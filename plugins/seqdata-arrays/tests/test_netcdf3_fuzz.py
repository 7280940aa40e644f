"""Mutated classic NetCDF files: data or an error of ours, nothing else, in bounded memory."""

import json
import os
import tempfile
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from classic_samples import ClassicBytes, bits, chars
from seqdata_arrays import HDF5

from seqdata import open_store
from seqdata.errors import SeqDataError

CAP = 128 << 20  # bytes, of files of some hundred
NASTY = (0, 1, 2, 3, 5, 7, 10, 11, 12, 255, 256, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1,
         1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -4, -200)  # fmt: skip
BACKENDS = (
    HDF5(fields=["y", "one"], attributes=["vector"]),
    HDF5(fields={"a": "x", "b": "y", "c": "n", "d": "one"}),
    HDF5(lengths="n", ids="who", fields=["x", "y"]),
)


def make(version, *, is_recorded):
    """Return a small file with all that a header may hold."""
    made = ClassicBytes(version)
    attributes = [made.attribute("subject", 2, b"s1"), made.attribute("gain", 5, bytes(4)),
                  made.attribute("vector", 3, bytes(6))]  # fmt: skip
    variables = {
        "x": (("time", "k"), bits("f4", (9, 3))), "y": (("time",), bits("i1", 9)),
        "n": (("s",), np.array([3, 0, 6], "i4")), "who": (("s", "w"), chars(["a", "bc", "d"])),
        "one": ((), np.float64(3)),
    }  # fmt: skip
    unlimited = "time" if is_recorded else None
    return made.file(variables, attributes=attributes, unlimited=unlimited)


SEEDS = [make(version, is_recorded=way) for version in (1, 2, 5) for way in (False, True)]


def mutated(number):
    """Return the seed of a case, and its bytes: always the same ones."""
    rng = np.random.default_rng([13, number])
    raw = bytearray(SEEDS[number % len(SEEDS)])
    for _ in range(int(rng.choice([1, 1, 1, 2, 4]))):
        mutate(raw, rng)
    return bytes(raw)


def mutate(raw, rng):
    at, how = int(rng.integers(4, max(5, len(raw)))) if len(raw) > 4 else 0, int(rng.integers(6))
    if how <= 2:  # counts, sizes and offsets
        width = int(rng.choice([4, 4, 8]))
        at = at // 4 * 4
        value = NASTY[int(rng.integers(len(NASTY)))] % (1 << 8 * width)
        raw[at : at + width] = value.to_bytes(width, "big")
    elif how == 3:
        raw[at : at + 1] = bytes([int(rng.integers(256))])
    elif how == 4:
        del raw[at:]
    else:
        size, other = int(rng.choice([4, 8, 24])), int(rng.integers(len(raw) + 1)) // 4 * 4
        raw[at // 4 * 4 : at // 4 * 4 + size] = raw[other : other + size]


def read_all(path, backend):
    """Read every value of every field."""
    store = open_store(path, backend=backend)
    for row in store:
        for value in row.values():
            np.asarray(value).tobytes()
    store.keys(range(len(store)))


def run(first, last):
    """Return the outcome of each case, and the most memory that one took."""
    outcomes, most = Counter(), 0
    there = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=there) as folder:
        tracemalloc.start()
        for number in range(first, last):
            path = Path(folder) / f"{number}.nc"
            path.write_bytes(mutated(number))
            tracemalloc.reset_peak()
            try:
                read_all(path, BACKENDS[number // len(SEEDS) % len(BACKENDS)])
                outcomes["data"] += 1
            except SeqDataError as error:
                outcomes[type(error).__name__] += 1
            except BaseException as error:
                raise AssertionError(f"case {number} raised {error!r}") from error
            most = max(most, tracemalloc.get_traced_memory()[1])
            path.unlink()
        tracemalloc.stop()
    return outcomes, most


def check(found, count):
    outcomes, most = found
    assert outcomes.total() == count
    assert most < CAP
    assert 0.05 < outcomes["data"] / count < 0.6  # mutations reach behind the door
    assert "PluginError" not in outcomes  # the plugin says what is wrong, before the core does


def test_the_seeds_are_read(tmp_path):
    for number, content in enumerate(SEEDS):
        (tmp_path / f"{number}.nc").write_bytes(content)
        for backend in BACKENDS:
            read_all(tmp_path / f"{number}.nc", backend)


@pytest.mark.slow
def test_some_mutated_files_are_data_or_an_error_of_ours():
    check(run(0, 150), 150)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_ten_thousand_mutated_files_are_data_or_an_error_of_ours(record_property):
    outcomes, most = run(150, 10_150)
    told = {"files": outcomes.total(), "failures": 0, "kinds": {"NetCDF-3": outcomes.total()}}
    record_property("fuzz", json.dumps(told))
    check((outcomes, most), 10_000)
