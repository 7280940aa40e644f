"""Remote files without a digest, replaced by others of their size between two openings."""

import os

import fsspec
import pyarrow as pa
import pytest
from packaging.version import Version
from pyarrow import parquet

from seqdata import Remote, open_store
from seqdata.cli._doctor.data import check_data
from seqdata.storage.remote.transport import make_remote_files
from seqdata_testing.faults.network import folder_of, served

pytestmark = pytest.mark.filterwarnings("ignore::seqdata.errors.SeqDataWarning")
NAME = "x.parquet"
LENGTH = "lengths"
OLD = Version(fsspec.__version__) < Version("2025.9")  # does not pass the time of a web server on
TOLD = {"etag": ("etag",), "time": ("last-modified",), "both": ("etag", "last-modified")}


def put(folder, value):
    """Write a table of one sequence; equal sizes, and a time of its own."""
    path = folder / NAME
    table = pa.table({"x": pa.array([[value] * 100], pa.list_(pa.int64()))})
    parquet.write_table(table, path, compression=None, use_dictionary=False)
    os.utime(path, (value, value))
    return path.stat().st_size


def telling(folder, names):
    """Serve a folder, with these of the headers that tell one version from another."""
    source = folder_of(folder)

    def answer(asked):
        found = source(asked)
        kept = [
            one for one in found.headers
            if one[0].lower() in names or one[0].lower() not in TOLD["both"]
        ]  # fmt: skip
        return type(found)(found.status, tuple(kept), found.body, found.size)

    return answer


def first(url, remote):
    store = open_store(f"{url}/{NAME}", remote=remote)
    return store[0]["x"][0].item()


@pytest.mark.parametrize(
    "told",
    [
        pytest.param(told, marks=pytest.mark.skipif(told == "time" and OLD, reason="an old fsspec"))
        for told in TOLD
    ],
)
def test_another_tag_or_time_is_another_file(tmp_path, told):
    remote = Remote(cache_dir=tmp_path / "cache")
    (tmp_path / "data").mkdir()
    size = put(tmp_path / "data", 1_000)
    with served(telling(tmp_path / "data", TOLD[told])) as made:
        stat = make_remote_files(made.url, remote).stat(NAME)
        assert first(made.url, remote) == 1_000
        asked = len(made.requests)
        assert first(made.url, remote) == 1_000
        assert {method for method, _ in made.requests[asked:]} == {"HEAD"}  # it is in the cache
        assert put(tmp_path / "data", 2_000) == size
        assert make_remote_files(made.url, remote).stat(NAME) != stat
        assert first(made.url, remote) == 2_000


def test_doctor_says_where_a_server_tells_nothing(tmp_path):
    remote = Remote(cache_dir=tmp_path / "cache")
    (tmp_path / "data").mkdir()
    put(tmp_path / "data", 1_000)
    for names, state in (((), "warn"), (TOLD["etag"], "ok")):
        with served(telling(tmp_path / "data", names)) as made:
            location = f"{made.url}/{NAME}"
            store = open_store(location, remote=remote)
            (said,) = [one for one in check_data(location, store) if one.name == "versions"]
            assert said.state == state
            if state == "warn":
                assert said.seen.startswith(
                    "the server sends no ETag and no modification time for 'x"
                )
                assert "of the same size is not noticed" in said.seen
