"""Delta tables, on a disk and in a bucket: the rows of one version, or an error."""

import json

import pyarrow as pa
import pytest
from frames_samples import alike, sales, shuffle
from seqdata_frames import Frames, delta

from seqdata import MissingShardError, Remote, open_store
from seqdata.errors import ConfigError, DecodeError

deltalake = pytest.importorskip("deltalake")
pytest.importorskip("s3fs")
pytest.importorskip("moto")
from seqdata_testing.faults.network import folder_of, served  # noqa: E402
from seqdata_testing.s3 import serve_s3  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*column 'time' has equal values"),
]
BY = {"group": "series", "order": "time"}
FIRST = f"{0:020}.json"


@pytest.fixture(scope="module")
def server():
    with serve_s3() as found:
        yield found


@pytest.fixture
def remote(server, tmp_path):
    return server.remote(tmp_path / "far")


def to_table(frame):
    return pa.Table.from_pandas(frame, preserve_index=False)


def make_table(path, frame, parts=3):
    """Write a table of several files and versions, of which the first was removed later."""
    table = to_table(frame)
    deltalake.write_deltalake(str(path), table.slice(0, 2))
    size = -(-len(table) // parts)
    for part in range(parts):
        mode = "append" if part else "overwrite"
        deltalake.write_deltalake(str(path), table.slice(part * size, size), mode=mode)
    return deltalake.DeltaTable(str(path))


def open_frames(location, **options):
    return open_store(str(location), backend=Frames(static="auto", progress=False), **options, **BY)


def change_log(path, old, new):
    file = path / "_delta_log" / FIRST
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.mark.parametrize("name", ["sales", "my sales", "sales.delta", "a%20b%41"])
@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_table_in_a_bucket_is_the_files_of_its_version(
    name, is_checkpointed, tmp_path, server, remote
):
    data, frame = tmp_path / "data", shuffle(sales())
    data.mkdir()
    path = tmp_path / "written"  # deltalake does not write to a folder whose name has a %
    table = make_table(path, frame)
    if is_checkpointed:
        table.create_checkpoint()
        deltalake.write_deltalake(str(path), to_table(sales(seed=1))[:0], mode="append")
    path.rename(data / name)
    here = open_frames(data / name)
    assert here.lengths.tolist() == [5, 3, 9]
    url = server.upload(data)
    server.list_read()
    there = open_frames(f"{url}/{name}/", remote=remote)
    assert alike(there, here)
    assert there.fingerprint == here.fingerprint
    read = server.list_read()
    versions = sorted(path for path in read if path.endswith(".json"))
    expected = range(3, 5) if is_checkpointed else range(4)
    assert versions == [f"{name}/_delta_log/{version:020}.json" for version in expected]
    assert sum(path.endswith("snappy.parquet") for path in read) == 3
    assert alike(open_frames(f"{url}/{name}", remote=remote), here)
    assert not server.list_read()


def test_the_error_about_a_folder_of_files_says_how_to_read_a_table(tmp_path, server, remote):
    make_table(tmp_path / "data" / "sales.parquet", shuffle(sales()))
    url = f"{server.upload(tmp_path / 'data')}/sales.parquet"  # by its name one file
    here = tmp_path / "data" / "sales.parquet"
    for location, options in ((f"{here}/*.parquet", {}), (url, {"remote": remote})):
        with pytest.raises(ConfigError, match=r"with a slash at its end and backend='frames'"):
            open_frames(location, **options)
    assert open_frames(f"{here}/").lengths.tolist() == [5, 3, 9]
    assert open_frames(f"{url}/", remote=remote).lengths.tolist() == [5, 3, 9]


def test_a_new_version_in_a_bucket_is_noticed(tmp_path, server, remote):
    data = tmp_path / "data"
    table = make_table(data / "sales", shuffle(sales()))
    url = server.upload(data)
    old = open_frames(f"{url}/sales", remote=remote)
    before = {path.name for path in (data / "sales").rglob("*")}
    table.delete("series = 's1'")
    for path in (data / "sales").rglob("*"):
        if path.is_file() and path.name not in before:
            server.filesystem.pipe_file(f"{url}/{path.relative_to(data)}", path.read_bytes())
    new = open_frames(f"{url}/sales", remote=remote)
    assert alike(new, open_frames(data / "sales"))
    assert new.lengths.tolist() == [5, 9]
    assert old.lengths.tolist() == [5, 3, 9]


def test_a_file_that_was_removed_meanwhile_is_named(tmp_path, server, remote):
    data = tmp_path / "data"
    table = make_table(data / "sales", shuffle(sales()))
    name = pa.table(table.get_add_actions(flatten=True))["path"][1].as_py()
    url = server.upload(data)
    server.filesystem.rm_file(f"{url}/sales/{name}")
    with pytest.raises(MissingShardError, match=r"is not there") as caught:
        open_frames(f"{url}/sales", remote=remote)
    assert name in str(caught.value)


def test_a_log_that_loses_a_file_while_it_is_read_is_no_folder_of_files(
    tmp_path, server, remote, monkeypatch
):
    make_table(tmp_path / "data" / "sales", shuffle(sales()))
    url = server.upload(tmp_path / "data")
    choose_files = delta._choose_log_files

    def choose_and_remove(path):
        files = choose_files(path)
        server.filesystem.rm_file(f"{url}/sales/_delta_log/{FIRST}")
        return files

    monkeypatch.setattr(delta, "_choose_log_files", choose_and_remove)
    with pytest.raises(MissingShardError, match=rf"{FIRST}.*is not there"):
        open_frames(f"{url}/sales", remote=remote)


REFUSED = {
    "partitions": (None, r"has the partitions store\. Pass its rows as a stream"),
    "vectors": (
        ['"minReaderVersion":1,"minWriterVersion":2',
         '"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["deletionVectors"],'
         '"writerFeatures":["deletionVectors"]'],
        r"requires readers that support deletionVectors\. Pass",
    ),
    "renamed": (['"minReaderVersion":1', '"minReaderVersion":2'], r"a reader of version 2\. Pass"),
    "clone": (['"path":"part', '"path":"s3://b/part'], r"in its folder, but has s3://b/part"),
    "above": (['"path":"part', '"path":"../part'], r"in its folder, but has \.\./part"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_tables_whose_files_are_not_their_rows_are_refused(case, tmp_path, server, remote):
    change, message = REFUSED[case]
    path = tmp_path / "data" / "sales"
    partitions = {"partition_by": ["store"]} if case == "partitions" else {}
    frame = sales()
    frame["time"] = frame["time"].dt.tz_localize("UTC")  # which needs no feature of readers
    deltalake.write_deltalake(str(path), to_table(frame), **partitions)
    if change:
        change_log(path, *change)
    with pytest.raises(ConfigError, match=message):
        open_frames(path)
    url = server.upload(tmp_path / "data")
    with pytest.raises(ConfigError, match=message) as caught:
        open_frames(f"{url}/sales", remote=remote)
    assert f"{url}/sales must be a Delta table" in str(caught.value)


def test_a_table_without_files_and_a_damaged_log_are_errors(tmp_path, server, remote):
    path = tmp_path / "data" / "sales"
    deltalake.write_deltalake(str(path), to_table(sales()))
    deltalake.DeltaTable(str(path)).delete()
    url = server.upload(tmp_path / "data")
    for location, options in ((path, {}), (f"{url}/sales", {"remote": remote})):
        with pytest.raises(ConfigError, match=r"must be a Delta table with rows, but its current"):
            open_frames(location, **options)
    file = path / "_delta_log" / FIRST
    file.write_text(file.read_text()[:100])
    server.filesystem.pipe_file(f"{url}/sales/_delta_log/{FIRST}", file.read_bytes())
    for location, options in ((path, {}), (f"{url}/sales", {"remote": remote})):
        with pytest.raises(DecodeError, match=r"sales must be readable, but is not \(.*Repair"):
            open_frames(location, **options)


def test_a_log_that_lacks_a_version_is_told_in_a_line(tmp_path):
    path = tmp_path / "sales"
    make_table(path, sales())
    (path / "_delta_log" / f"{1:020}.json").unlink()
    with pytest.raises(DecodeError, match=r"found gap: .* \.\.\.\)\. Repair the table") as caught:
        open_frames(path)
    assert len(str(caught.value)) < 300 + len(str(path))


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_table_on_a_web_server_is_refused(is_checkpointed, tmp_path):
    table = make_table(tmp_path / "data" / "sales", shuffle(sales()))
    if is_checkpointed:
        table.create_checkpoint()
        (tmp_path / "data" / "sales" / "_delta_log" / FIRST).unlink()
    with served(folder_of(tmp_path / "data")) as web:
        url = f"{web.url}/sales"
        with pytest.raises(ConfigError, match=rf"{url} is a Delta table .* cannot list its log"):
            open_frames(url, remote=Remote(cache_dir=tmp_path / "far"))


def test_names_in_a_log_are_percent_encoded(tmp_path):
    path = tmp_path / "sales"
    deltalake.write_deltalake(str(path), to_table(shuffle(sales())))
    entry = next(
        json.loads(line)["add"]["path"]
        for line in (path / "_delta_log" / FIRST).read_text().splitlines()
        if '"add"' in line
    )
    (path / entry).rename(path / f"a b%{entry}")
    change_log(path, '"path":"part', '"path":"a%20b%25part')
    assert open_frames(path).lengths.tolist() == [5, 3, 9]
