"""An error about a sequence never touches what was cut off; in processes of their own."""

import os
import subprocess
import tempfile

import numpy as np
import pytest

from seqdata.storage.local_files import are_readable
from seqdata_testing.waiting import patient
from tests.preloaded import python

PLACE = """
import os, sys
import numpy as np
from seqdata import open_store, write_store

rows = [{"id": f"s{number}", "x": np.full(2000, number)} for number in range(40)]
write_store("data", rows, shard_bytes=100_000, progress=False)
store = open_store("data", verify=sys.argv[1])
name = sorted(one for one in os.listdir("data") if one.endswith(sys.argv[2]))[-1]
print("before:", store.locate(39))
os.truncate(f"data/{name}", 0)
print("after:", store.locate(39))
"""


@pytest.mark.parametrize(
    ("verify", "what"), [("off", ".arrow"), ("always", ".arrow"), ("always", ".crc")]
)
def test_a_place_in_a_shard_that_was_cut_off_has_no_id(tmp_path, verify, what):
    told = subprocess.run(
        [python(), "-c", PLACE, verify, what],
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=patient(),
    ).stdout  # fmt: skip
    before, after = told.splitlines()
    assert before.endswith('sequence 39 ("s39")')
    assert after.removeprefix("after:") == before.removeprefix("before:").removesuffix(' ("s39")')


CUT = """
import os
from pathlib import Path
import numpy as np
from seqdata import Fixed, Loader, WorkerDiedError, open_store, write_store

rows = [{"id": f"s{number}", "x": np.full(2000, number)} for number in range(40)]
write_store("data", rows, shard_bytes=100_000, progress=False)
last = sorted(Path("data").resolve().glob("*.arrow"))[-1]


def cutting(sequence, rng):
    if sequence["id"] == "s4":
        os.truncate(last, 0)
    return sequence


try:
    for batch in Loader(
        open_store("data"), Fixed(1, shuffle=False), num_workers=1, transform=cutting,
        start_method="fork",
    ):
        pass
except WorkerDiedError as error:
    print(error.details["signal"], error.details["file"] == last.name, "key" in error.details)
"""


@pytest.mark.slow
def test_a_worker_that_read_what_was_cut_off_does_not_take_the_training_process_with_it(tmp_path):
    done = subprocess.run(
        [python(), "-c", CUT],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=patient(),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "SIGBUS True False\n"), done.stderr


def test_memory_of_ones_own_and_of_a_whole_file_is_there():
    with tempfile.TemporaryFile() as file:
        file.write(bytes(10_000))
        file.flush()
        mapped = np.memmap(file, dtype=np.uint8, mode="r")
        assert are_readable(mapped, np.arange(6).reshape(2, 3), np.zeros(0))
        file.truncate(4_096)
        assert are_readable(mapped[:4_096])
        assert not are_readable(mapped)
        assert not are_readable(np.arange(3), mapped[:5_000])


def test_without_descriptors_nothing_can_be_told():
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        assert not are_readable(np.arange(3))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
