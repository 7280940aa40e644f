"""Files are opened by URL under the names that they may have in a folder."""

from urllib.parse import quote

import fsspec
import pyarrow as pa
import pyarrow.parquet
import pytest

from seqdata.api import open_store
from seqdata.errors import DataError
from seqdata.storage.remote.options import Remote
from seqdata_testing.faults.network import served
from tests.storage.web_folder import listing_of

ORDINARY_NAMES = (
    "100%.parquet", "a%20b.parquet", "a+b.parquet", "date=2024-01-01.parquet", "it's.parquet",
    "part 1.parquet", "x#1&2?.parquet", "größe.parquet",
)  # fmt: skip


def write_named(folder, names):
    """Write a file for each name, which holds the name's place."""
    folder.mkdir()
    for number, name in enumerate(names):
        pyarrow.parquet.write_table(pa.table({"x": [[number]]}), folder / name)
    return folder


def first_values(store):
    return [int(store[number]["x"][0]) for number in range(len(store))]


def test_files_of_any_ordinary_name_are_opened_in_a_bucket(tmp_path, request):
    folder = write_named(tmp_path / "data", ORDINARY_NAMES)
    system, bucket = fsspec.filesystem("memory"), f"/{tmp_path.name}"
    request.addfinalizer(lambda: system.rm(bucket, recursive=True))
    for name in ORDINARY_NAMES:
        system.pipe_file(f"{bucket}/{name}", (folder / name).read_bytes())
    remote = Remote(cache_dir=tmp_path / "cache")
    store = open_store(f"memory:/{bucket}", remote=remote)
    assert first_values(store) == first_values(open_store(folder))
    for number, name in enumerate(ORDINARY_NAMES):
        if "?" not in name:  # in a URL it may begin a query
            store = open_store(f"memory:/{bucket}/{name}", remote=remote)
            assert first_values(store) == [number]


def test_files_of_any_ordinary_name_are_opened_from_a_web_server(tmp_path):
    folder = write_named(tmp_path / "data", ORDINARY_NAMES)
    remote = Remote(cache_dir=tmp_path / "cache")
    with served(listing_of(folder)) as web:
        store = open_store(web.url, remote=remote)
        assert first_values(store) == first_values(open_store(folder))
        for number, name in enumerate(ORDINARY_NAMES):
            names = {quote(name), *([] if set(name) & set("#%?") else [name])}
            for given in names:
                store = open_store(f"{web.url}/{given}?Signature=s3cret", remote=remote)
                assert first_values(store) == [number]
                assert "s3cret" not in repr(store)
        with pytest.raises(DataError, match="is not there") as missing:
            open_store(f"{web.url}/no 'one.parquet?Signature=s3cret", remote=remote)
        assert "s3cret" not in str(missing.value)


@pytest.mark.parametrize(
    "name", ["%2E%2E%2Fx.parquet", "a%2Fx.parquet", "a%5Cx.parquet", "a%00.parquet", "a%0Ax.pq"]
)
def test_a_name_that_leads_elsewhere_is_refused(tmp_path, name):
    with pytest.raises(DataError, match="must have the name of a file in its folder"):
        open_store(f"http://127.0.0.1:9/{name}", remote=Remote(cache_dir=tmp_path))


@pytest.mark.parametrize("name", ["a\\x.parquet", "a\nx.parquet", "a\x00x.parquet", "\x7f.pq"])
def test_a_name_that_no_system_should_meet_is_refused(tmp_path, name):
    with pytest.raises(DataError, match="must have the name of a file in its folder"):
        open_store(f"memory://none/{name}", remote=Remote(cache_dir=tmp_path))
