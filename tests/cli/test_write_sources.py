"""``seqdata write`` of a glob: the same as of its file or folder, or refused; never other bytes."""

import io
import tarfile

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import feather, parquet

from seqdata.api import open_store
from seqdata.cli.app import app
from seqdata.cli.write import choose_reader
from seqdata.errors import ConfigError
from seqdata.host import default_host
from seqdata.readers.source import find_source
from seqdata_testing.faults.network import folder_of, served

URL = "https://someone:p4ssw0rd@host/meters.parquet?X-Amz-Signature=s1gn4ture"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def write(*arguments, code=0):
    done = CliRunner().invoke(app, ["write", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done.stderr


def table(*ids):
    return pa.table({"x": [[1, 2], [3]], "id": list(ids)})


def read(location):
    store = open_store(location)
    return store.keys([*range(len(store))]), [row["x"].tolist() for row in store]


@pytest.mark.parametrize("suffix", [".arrow", ".feather", ".FEATHER", ".ipc", ".pq"])
@pytest.mark.parametrize("source", ["in/*", "in/*{}", "in/?{}", "i*/*{}"])
def test_tables_of_others_are_opened_by_a_glob(folder, suffix, source):
    save = parquet.write_table if suffix == ".pq" else feather.write_feather
    save(table("a", "b"), folder / f"1{suffix}")
    save(table("c", "d"), folder / f"2{suffix}")
    write("in", "due")
    write(source.format(suffix), "store")
    assert read("store") == read("due") == (["a", "b", "c", "d"], [[1, 2], [3]] * 2)


def test_a_glob_leaves_out_the_store_that_is_written(folder):
    feather.write_feather(table("a", "b"), folder / "1.arrow")
    for _ in range(2):
        write("**/*.arrow", "store", "--overwrite")
        assert read("store")[0] == ["a", "b"]


def test_token_files_are_opened_by_a_glob_or_braces(folder):
    pytest.importorskip("seqdata_tokens")
    for name, count in (("a", 8), ("b", 6)):
        np.arange(count, dtype=np.uint16).tofile(folder / f"{name}.bin")
    for source in ("in", "in/*", "in/*.bin", "in/{a,b}.bin"):
        write(source, "store", "--overwrite")
        assert open_store("store").fields["tokens"].dtype == "uint16"
        assert open_store("store").lengths.tolist() == [8, 6]
    write("in/*", "store", "--overwrite", "--format", "bytes")
    assert open_store("store").lengths.tolist() == [16, 12]


def test_files_of_a_backend_and_others_in_one_glob_are_refused(folder):
    feather.write_feather(table("a", "b"), folder / "a.feather")
    (folder / "b.txt").write_text("b")
    said = write("in/*", "store", code=2)
    assert (
        "files must be of one format, but are of several (1 .feather, 1 .txt). Pass `--format`, "
        in said
    )
    parquet.write_table(table("a", "b"), folder / "a.pq")
    said = write("in/a.*", "store", code=1)
    assert "must be of the same kind as 'a.pq' next to it, but is not" in said


@pytest.mark.parametrize(
    ("source", "options", "fault"),
    [
        ("in", ["--id", "id", "--order", "id"], "must be written without `--order`, `--id`, which"),
        ("in/deep/a.arrow", ["--field", "y"], "must be written without `--field`, which only"),
        ("in/deep/*", ["--id", "id"], "Leave it out, or pass `--format`"),
    ],
)
def test_files_of_a_backend_are_never_read_as_bytes_unless_asked_for(
    folder, source, options, fault
):
    (folder / "deep").mkdir()
    feather.write_feather(table("a", "b"), folder / "deep" / "a.arrow")
    said = write(source, "store", *options, code=2)
    assert "files that the backend 'foreign' opens (1 .arrow) must" in said
    assert fault in said
    write("in/**/*", "store")
    assert read("store")[0] == ["a", "b"]
    write("in", "bytes", "--format", "bytes")
    assert open_store("bytes").lengths.tolist() == [(folder / "deep" / "a.arrow").stat().st_size]
    files = find_source("in")[0]
    with pytest.raises(ConfigError, match=r"were not detected as one. Pass `--backend foreign`"):
        choose_reader(files, "auto", default_host())


@pytest.mark.parametrize("source", ["in", "in/*", "in/x.TAR"])
def test_tar_shards_may_end_in_capital_letters(folder, source):
    pytest.importorskip("seqdata_webdataset")
    content = io.BytesIO()
    np.save(content, np.arange(5))
    with tarfile.open(folder / "x.TAR", "w") as shard:
        member = tarfile.TarInfo("a.npy")
        member.size = len(content.getvalue())
        shard.addfile(member, io.BytesIO(content.getvalue()))
    write(source, "store")
    assert open_store("store").lengths.tolist() == [5]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--field", "x", "--backend", "foreign"], ": `--backend` opens a store, which has"),
        (["--field", "x", "--format", "store"], ": `--format store` opens a store, which"),
    ],
)
def test_the_secrets_of_a_url_are_not_shown(folder, monkeypatch, options, text):
    monkeypatch.setattr("seqdata.cli._report.console.redact_secrets", str)  # what each place says
    said = write(URL, "store", *options, code=2)
    assert f"error: source 'https://host/meters.parquet'{text}" in said


def test_a_file_of_a_web_server_is_copied_and_its_secrets_are_not_shown(folder, monkeypatch):
    monkeypatch.setattr("seqdata.cli._report.console.redact_secrets", str)
    monkeypatch.setenv("HOME", str(folder.parent / "home"))
    (folder / "meters.csv").write_text("site,hour,load\na,0,1.5\na,1,2.5\nb,0,3.5\n")
    write("in/meters.csv", "due", "--group", "site")
    with served(folder_of(folder)) as web:
        url = f"{web.url.replace('://', '://someone:p4ssw0rd@')}/meters.csv?X-Amz-Signature=s1gn4"
        said = write(url, "store", "--group", "site")
        said += write(url.replace("meters", "gone"), "other", "--group", "site", code=1)
    assert f"{web.url}/meters.csv: copied to " in said
    assert "gone.csv" in said
    assert "p4ssw0rd" not in said
    assert "s1gn4" not in said
    assert open_store("store").fingerprint == open_store("due").fingerprint
