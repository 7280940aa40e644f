"""A full disk ends a writing with an error that says so, and leaves whole shards only."""

import json
import subprocess
import sys

import numpy as np
import pytest

from seqdata.errors import IncompleteDatasetError
from seqdata.storage.arrow.store import open_arrow
from seqdata.storage.arrow.write import write_arrow
from seqdata.storage.writing.shards import explain_full_disk
from seqdata_testing.waiting import patient

LIMITED = """
import json, resource, sys
import numpy as np
from seqdata.errors import IncompleteDatasetError
from seqdata.storage.arrow.write import write_arrow

sizes = [900, 900, 9000, 900]  # of sequences, each a shard; no file may be as large as the third
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    rows = ({"x": np.full(size, i)} for i, size in enumerate(sizes))
    write_arrow(sys.argv[1], rows, shard_bytes=1)
except IncompleteDatasetError as error:
    print(json.dumps([str(error), error.details, error.__notes__]))
"""


def test_a_full_disk_is_an_error_that_says_what_is_needed_and_writing_goes_on(tmp_path):
    """A limit of the size of files stands for the disk: the system call fails likewise."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "store")],
        capture_output=True, text=True, timeout=patient(), check=True,
    )  # fmt: skip
    text, facts, notes = json.loads(done.stdout)
    assert (
        "00000-00002.arrow: cannot be written (File too large): it needs about 72008 bytes" in text
    )
    told = "more than `ulimit -f` or the file system allows. Raise the limit and write again"
    assert text.endswith(f"{told}: finished shards are kept.")
    assert (facts["needed"], facts["free"] > 0) == (72008, True)
    assert any("if they never end, cut them with itertools.islice" in note for note in notes)
    assert any("are kept: the same call continues after them" in note for note in notes)
    names = [path.name for path in (tmp_path / "store").glob(".seqdata-tmp-*/*")]
    assert "00000-00000.facts" in names
    assert not [name for name in names if name.startswith("00000-00002")], "nothing half"
    with pytest.raises(IncompleteDatasetError, match="writing was not finished"):
        open_arrow(tmp_path / "store")
    rows = [{"x": np.full(size, i)} for i, size in enumerate((900, 900, 9000, 900))]
    write_arrow(tmp_path / "store", rows, shard_bytes=1)
    write_arrow(tmp_path / "due", rows, shard_bytes=1)
    for path in (tmp_path / "due").iterdir():
        assert path.read_bytes() == (tmp_path / "store" / path.name).read_bytes()


def test_other_errors_of_the_disk_stay_what_they_are(tmp_path):
    with pytest.raises(PermissionError), explain_full_disk(tmp_path / "file", 1):
        raise PermissionError(13, "no")
