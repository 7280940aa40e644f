"""``seqdata write`` of Delta tables, on a disk and in a bucket: as of the same rows in one file."""

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from frames_samples import alike, sales, shuffle, write

import tests.s3
from seqdata import PluginHost, open_store, write_store
from seqdata.cli.app import app

deltalake = pytest.importorskip("deltalake")

server = tests.s3.server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*column 'time' has equal values"),
    pytest.mark.filterwarnings("ignore:The inplace keyword:DeprecationWarning"),  # pandas 3
]
BY = ("--group", "series", "--order", "time")


def run(*arguments, status=0):
    done = CliRunner().invoke(app, ["write", *map(str, arguments)])
    assert done.exit_code == status, done.output
    return done.output


def make_table(path, frame, parts=3, **options):
    """Write a table of several files and versions, of which the first was removed later."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    deltalake.write_deltalake(str(path), table.slice(0, 2), **options)
    size = -(-len(table) // parts)
    for part in range(parts):
        mode = "append" if part else "overwrite"
        rows = table.slice(part * size, size)
        deltalake.write_deltalake(str(path), rows, mode=mode, **options)
    return path


@pytest.fixture
def bucket(server, tmp_path, monkeypatch):
    """Function that copies a folder into a bucket, which commands find without options."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name, value in server.enter_environment().items():
        monkeypatch.setenv(name, value)
    return server.upload


@pytest.fixture
def expected(tmp_path):
    """The store of the same rows in one Parquet file."""
    write(shuffle(sales()), tmp_path / "one.parquet")
    run(tmp_path / "one.parquet", tmp_path / "expected", *BY)
    return open_store(tmp_path / "expected")


@pytest.mark.parametrize("name", ["sales", "my {sales}", "sales.parquet"])
def test_a_table_is_written_as_one_file_of_its_rows(tmp_path, expected, name):
    path = make_table(tmp_path / "written", shuffle(sales())).rename(tmp_path / name)
    for number, source in enumerate((path, f"{path}/")):
        run(source, tmp_path / f"out{number}", *BY)
        assert alike(open_store(tmp_path / f"out{number}"), expected)
    assert expected.lengths.tolist() == [5, 3, 9]


def test_a_table_in_a_bucket_is_written_as_one_file_of_its_rows(tmp_path, expected, bucket, server):
    make_table(tmp_path / "data/sales", shuffle(sales()))
    url = bucket(tmp_path / "data")
    server.list_read()
    out = run(f"{url}/sales", tmp_path / "out", *BY)
    assert f"3 files ({url}/sales/part-" in out
    assert f"{url}/sales/part" not in out.partition(": copied to ")[2]
    assert alike(open_store(tmp_path / "out"), expected)
    assert sum(name.endswith(".parquet") for name in server.list_read()) == 3
    run(f"{url}/sales/", f"{url}/out", *BY)
    assert alike(open_store(f"{url}/out"), expected)


def test_without_a_group_each_row_is_a_sequence(tmp_path, bucket):
    frame = sales((7,))[["load", "count"]].assign(name=[f"n{at}" for at in range(7)])
    frame["tokens"] = [list(range(at + 1)) for at in range(7)]
    make_table(tmp_path / "data/sales", frame)
    url = bucket(tmp_path / "data")
    for number, source in enumerate((tmp_path / "data/sales", f"{url}/sales")):
        run(source, tmp_path / f"out{number}", "--id", "name")
        store = open_store(tmp_path / f"out{number}")
        order = [store.keys(range(7)).index(f"n{at}") for at in range(7)]
        assert [store[at]["tokens"].tolist() for at in order] == frame["tokens"].tolist()
        assert [store[at]["load"] for at in order] == frame["load"].tolist()


def test_without_options_each_row_is_a_sequence(tmp_path, bucket):
    rows = pa.table({"tokens": [[1, 2], [3], [4, 5, 6]]})
    deltalake.write_deltalake(str(tmp_path / "data/rows"), rows)
    url = bucket(tmp_path / "data")
    for number, source in enumerate((tmp_path / "data/rows", f"{url}/rows")):
        run(source, tmp_path / f"out{number}")
        store = open_store(tmp_path / f"out{number}")
        assert [row["tokens"].tolist() for row in store] == [[1, 2], [3], [4, 5, 6]]


def test_a_new_version_is_written(tmp_path, bucket):
    path = make_table(tmp_path / "data/sales", shuffle(sales()))
    deltalake.DeltaTable(str(path)).delete("series = 's1'")
    url = bucket(tmp_path / "data")
    for number, source in enumerate((path, f"{url}/sales")):
        run(source, tmp_path / f"out{number}", *BY)
        assert open_store(tmp_path / f"out{number}").lengths.tolist() == [5, 9]


def test_tables_whose_files_are_not_their_rows_are_refused(tmp_path, bucket):
    frame = sales()
    frame["time"] = frame["time"].dt.tz_localize("UTC")
    make_table(tmp_path / "data/sales", frame, partition_by=["store"])
    url = bucket(tmp_path / "data")
    for source in (tmp_path / "data/sales", f"{url}/sales"):
        text = " ".join(run(source, tmp_path / "out", *BY, status=2).split())
        assert f"{source} must be a Delta table whose rows can be read from its files" in text
        assert not (tmp_path / "out").exists()


def test_a_file_that_is_gone_is_named(tmp_path, bucket, server):
    path = make_table(tmp_path / "data/sales", shuffle(sales()))
    url = bucket(tmp_path / "data")
    name = pa.table(deltalake.DeltaTable(str(path)).get_add_actions(flatten=True))["path"][
        1
    ].as_py()
    (path / name).unlink()
    server.filesystem.rm_file(f"{url}/sales/{name}")
    for source in (path, f"{url}/sales"):
        text = "".join(run(source, tmp_path / "out", *BY, status=1).split())
        assert name in text
        assert "isnotthere" in text
        assert len(text) < 600


def test_a_url_that_is_no_folder_is_not_searched_for_a_log(tmp_path, bucket, server):
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data/a.npy", np.zeros((3, 2)))
    write_store(tmp_path / "data/store", [{"x": np.zeros((3, 2))}])
    url = bucket(tmp_path / "data")
    server.requests.clear()
    for number, name in enumerate(("a.npy", "store")):
        run(f"{url}/{name}", tmp_path / f"out{number}")
        assert open_store(tmp_path / f"out{number}").lengths.tolist() == [3]
    assert not [each for each in server.requests if "_delta_log" in each]


def test_a_folder_without_a_log_is_written_as_before(tmp_path, bucket):
    pytest.importorskip("seqdata_webdataset")
    write_store(tmp_path / "data/tars", [{"x": np.zeros((3, 2))}], format="webdataset")
    url = bucket(tmp_path / "data")
    for number, source in enumerate((f"{url}/tars/", f"{url}/tars", tmp_path / "data/tars")):
        assert "copied to" not in run(source, tmp_path / f"out{number}")  # it is opened
        assert open_store(tmp_path / f"out{number}").lengths.tolist() == [3]


def test_without_the_package_the_error_says_what_to_install(tmp_path, monkeypatch):
    path = make_table(tmp_path / "sales", shuffle(sales()))
    monkeypatch.setattr(PluginHost, "backend_of_tables", lambda *_: None)
    text = " ".join(run(path, tmp_path / "out", *BY, status=2).split())
    assert "For `seqdata write`, pass its folder, with seqdata-frames[delta] installed" in text
