"""``seqdata write``: people's files become stores; bad input is one line and an exit code."""

import os
import re
import shlex
import subprocess
import sys
import tarfile

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import feather, parquet

from seqdata.api import open_store
from seqdata.cli.app import app
from seqdata_testing.waiting import patient


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def without_plugins_suffixes(monkeypatch):
    """No installed package claims a suffix."""
    monkeypatch.setattr("seqdata.host.PluginHost.backend_of_suffix", lambda self, name: None)


def write(*arguments):
    return CliRunner().invoke(app, ["write", *map(str, arguments)])


def test_a_glob_of_files_becomes_a_store_of_bytes(folder):
    (folder / "logs" / "deep").mkdir(parents=True)
    (folder / "logs" / "a.txt").write_bytes(b"abc")
    (folder / "logs" / "deep" / "b.txt").write_bytes(b"")
    done = write("logs/**/*.txt", "store")
    assert done.exit_code == 0, done.output
    store = open_store("store")
    assert store.keys([0, 1]) == ["a.txt", "deep/b.txt"]
    assert store.lengths.tolist() == [3, 0]
    assert store.fields["x"].dtype == "uint8"
    assert "wrote 2 sequences, 3 timesteps along 'time': " in done.output
    assert "fields: id str, x uint8 [T]\n" in done.output
    assert "next: seqdata stats store\n" in done.output
    assert "seqdata plan store --batching token-budget --max-tokens 16384 --world" in done.output


def test_the_next_command_splits_where_sequences_are_long(folder):
    (folder / "a.txt").write_bytes(bytes(20_000))
    done = write("a.txt", "store")
    assert "--max-tokens 16384 --too-long split --world 1,2,8" in done.output


def test_a_folder_of_arrays_is_recognised_by_its_endings(folder):
    (folder / "in").mkdir()
    for name, length in (("a", 3), ("b", 1)):
        np.save(folder / "in" / f"{name}.npy", np.zeros((length, 2), dtype=np.float32))
    assert write("in", "store", "--field", "mel").exit_code == 0
    store = open_store("store")
    assert store.fields["mel"].shape == (2,)
    assert store.lengths.tolist() == [3, 1]


def test_a_csv_file_becomes_a_sequence_per_group(folder):
    (folder / "m.csv").write_text("site,load,country\nu,1.5,de\nu,3.5,de\nv,2.5,fr\n")
    assert write("m.csv", "store", "--group", "site").exit_code == 0
    store = open_store("store")
    assert store.keys([0, 1]) == ["u", "v"]
    assert store.lengths.tolist() == [2, 1]
    assert store.fields["country"].axis is None


def test_rows_of_jsonl_may_be_named_and_have_axes(folder):
    (folder / "r.jsonl").write_text(
        '{"name": "p", "mel": [1, 2], "text": [1], "v": [1, 2]}\n'
        '{"name": "q", "mel": [3], "text": [4, 5], "v": [3, 4]}\n'
    )
    done = write("r.jsonl", "store", "--id", "name", "--axes", "text=text", "--axes", "v=none")
    assert done.exit_code == 0, done.output
    store = open_store("store")
    assert store.keys([1]) == ["q"]
    assert store.lengths_of["text"].tolist() == [1, 2]
    assert store.fields["v"].axis is None


def test_a_format_may_be_named_against_the_endings(folder):
    (folder / "a.csv").write_text("g,x\n")
    assert write("a.csv", "store", "--format", "bytes").exit_code == 0
    assert open_store("store").lengths.tolist() == [4]


def test_shards_close_at_their_size(folder):
    for name in "abc":
        (folder / f"{name}.txt").write_bytes(bytes(1000))
    assert write(".", "store", "--shard-bytes", "1000").exit_code == 0
    assert len(open_store("store").shards) == 3


def test_what_lies_in_the_folder_that_is_written_is_no_input(folder):
    (folder / "a.txt").write_bytes(b"a")
    assert write(".", "store").exit_code == 0
    assert write(".", "store", "--overwrite").exit_code == 0
    assert len(open_store("store")) == 1


def test_a_column_that_is_left_out_is_a_note(folder):
    (folder / "m.csv").write_text("g,x,id\na,1,n\na,2,m\n")
    done = write("m.csv", "store", "--group", "g")
    assert done.exit_code == 0
    assert "note: table: column 'id' is dropped" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere", "store"], 2, "error: source 'nowhere': must be a file"),
        (["empty", "store"], 2, "error: source 'empty': must hold at least one file"),
        (["mixed", "store"], 2, "are of several (1 .csv, 1 .txt). Pass"),
        (["t.csv", "store"], 2, "error: table: no column holds lists of numbers"),
        (["t.csv", "store", "--group", "h"], 2, "error: table: no column 'h'. Choose one of g, x"),
        (["t.csv", "store", "--axes", "x"], 2, "error: `--axes` must be FIELD=AXIS"),
        (["t.csv", "store", "--format", "cvs"], 1, "unknown reader 'cvs'; did you mean 'csv'?"),
        (["bad.npy", "store"], 1, "error: file 'bad.npy': cannot be read"),
        (["arrays", "store"], 1, "sequence 1 ('b.npy'), field 'x': must have shape (T, 1)"),
        (["store1"], 2, "Missing argument 'SOURCE'"),
        (["t.csv", "t.csv"], 2, "is a file"),
        (["t.csv", "store", "--shard-bytes", "0"], 2, "'--shard-bytes'"),
    ],
)
def test_bad_input_is_a_message_and_an_exit_code(folder, arguments, code, message):
    (folder / "empty").mkdir()
    (folder / "mixed").mkdir()
    (folder / "mixed" / "a.csv").write_text("g\n")
    (folder / "mixed" / "b.txt").write_text("g\n")
    (folder / "t.csv").write_text("g,x\na,1\n")
    (folder / "bad.npy").write_bytes(b"no array")
    (folder / "arrays").mkdir()
    np.save(folder / "arrays" / "a.npy", np.zeros((2, 1)))
    np.save(folder / "arrays" / "b.npy", np.zeros(1))
    done = write(*arguments)
    assert done.exit_code == code, done.output
    assert message in done.stderr
    assert isinstance(done.exception, SystemExit)
    assert not (folder / "store" / "seqdata.json").exists()


def test_a_store_that_is_there_is_kept(folder):
    (folder / "a.txt").write_bytes(b"a")
    assert write("a.txt", "store").exit_code == 0
    done = write("a.txt", "store")
    assert done.exit_code == 2
    assert "already holds a store. Choose another folder" in done.stderr


def test_writing_goes_on_where_it_stopped(folder):
    (folder / "in").mkdir()
    for name in "abc":
        np.save(folder / "in" / f"{name}.npy", np.zeros(30))
    (folder / "in" / "d.npy").write_bytes(b"no array")
    failed = write("in", "store", "--shard-bytes", "250")
    assert failed.exit_code == 1
    note, error = failed.stderr.splitlines()
    assert note == (
        "note: 3 finished shards (3 sequences) are kept: the same command continues after them, or "
        "starts again with --no-resume"
    )
    assert error.startswith("error: file 'in/d.npy': cannot be read")
    np.save(folder / "in" / "d.npy", np.zeros(20))
    done = write("in", "store", "--shard-bytes", "250")
    assert done.exit_code == 0, done.output
    assert done.stderr == "continuing after shard 2 (3 sequences)\n"
    assert open_store("store").lengths.tolist() == [30, 30, 30, 20]


def test_writing_may_begin_anew(folder):
    (folder / "in").mkdir()
    np.save(folder / "in" / "a.npy", np.zeros(30))
    (folder / "in" / "b.npy").write_bytes(b"no array")
    assert "1 finished shards" in write("in", "store", "--shard-bytes", "1").stderr
    (folder / "in" / "b.npy").unlink()
    np.save(folder / "in" / "a.npy", np.ones(3))
    done = write("in", "store", "--shard-bytes", "1")
    assert done.exit_code == 1
    assert "sequence 0: must be the one that was written before the interruption" in done.stderr
    done = write("in", "store", "--no-resume")
    assert done.exit_code == 0, done.output
    assert done.stderr == ""
    assert open_store("store").lengths.tolist() == [3]


def test_a_folder_without_rights_is_one_line(folder):
    if os.geteuid() == 0:
        target = "/proc/store"
    else:
        (folder / "closed").mkdir(mode=0o500)
        target = "closed/store"
    (folder / "a").write_bytes(b"a")
    done = write("a", target)
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")


@pytest.mark.slow
def test_the_command_runs_as_a_program(folder):
    (folder / "a.txt").write_bytes(b"abc")
    done = subprocess.run(
        [sys.executable, "-m", "seqdata", "write", "a.txt", "store"],
        capture_output=True,
        text=True,
        timeout=patient(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("wrote 1 sequences, 3 timesteps along 'time': ")
    assert done.stderr == ""
    failed = subprocess.run(
        [sys.executable, "-m", "seqdata", "stats", "nowhere"],
        capture_output=True,
        text=True,
        timeout=patient(),
        check=False,
    )
    assert failed.returncode == 2
    assert failed.stderr.startswith(f"error: {folder / 'nowhere'}: must be a store's")


def test_a_store_is_written_again_and_what_is_none_is_said(folder):
    np.save(folder / "a.npy", np.arange(5))
    assert write("a.npy", "store").exit_code == 0
    done = write("store", "again", "--shard-bytes", 10)
    assert done.exit_code == 0, done.output
    assert open_store("again").fingerprint == open_store("store").fingerprint
    done = write("a.npy", "other", "--format", "store")
    assert done.exit_code != 0
    assert "source 'a.npy': must be a store with `--format store`, but is not. Leave" in done.output


@pytest.mark.usefixtures("without_plugins_suffixes")
@pytest.mark.parametrize(
    ("name", "content", "package"),
    [
        ("a.wav", b"anything", "soundfile"),
        ("A.WAV", b"anything", "soundfile"),
        ("a.flac", b"anything", "soundfile"),
        ("a.mp3", b"anything", "torchaudio"),
        ("a.ogg", b"anything", "soundfile"),
        ("a.zip", b"anything", "a program that unpacks it"),
        ("a.txt.gz", b"anything", "gzip.open"),
        ("a.h5", b"anything", "h5py"),
        ("a.png", b"anything", "PIL"),
        ("a.jpg", b"anything", "PIL"),
        ("a.npz", b"anything", "numpy.load"),
        ("a.pt", b"anything", "torch.load"),
        ("a.safetensors", b"anything", "safetensors"),
        ("a.json", b"[]", "jsonl"),
        ("a.dat", b"RIFF\x24\0\0\0WAVEfmt ", "begins like a '.wav' file"),
        ("a", b"\x1f\x8b\x08\0", "begins like a '.gz' file"),
        ("a.dat", b"\x89HDF\r\n\x1a\n", "h5py"),
    ],
)
def test_files_of_a_known_binary_format_are_not_taken_for_bytes(folder, name, content, package):
    (folder / "in").mkdir()
    (folder / "in" / name).write_bytes(content)
    for source in ("in", f"in/{name}", "in/*"):
        done = write(source, "store")
        assert done.exit_code == 2, done.output
        assert f"file 'in/{name}' " in done.stderr
        assert package in done.stderr
        assert "pass `--format bytes`" in done.stderr
    done = write("in", "store", "--format", "bytes")
    assert done.exit_code == 0, done.output
    assert open_store("store").lengths.tolist() == [len(content)]


@pytest.mark.usefixtures("without_plugins_suffixes")
def test_one_binary_file_among_texts_is_seen(folder):
    (folder / "in").mkdir()
    (folder / "in" / "a.txt").write_text("a")
    (folder / "in" / "b.wav").write_bytes(b"b")
    assert "file 'in/b.wav' ends in '.wav'" in write("in", "store").stderr


def test_tar_shards_go_through_the_plugin_with_or_without_an_index(folder):
    pytest.importorskip("seqdata_webdataset")
    (folder / "in").mkdir()
    np.save(folder / "a.npy", np.arange(5))
    with tarfile.open(folder / "in" / "x.tar", "w") as shard:
        shard.add(folder / "a.npy", "a.npy")
    for source in ("in/x.tar", "in", "in/*.tar"):
        done = write(source, "store", "--overwrite")
        assert done.exit_code == 0, done.output
        assert "fields: id str, npy int64 [T]\n" in done.output
        assert open_store("store").lengths.tolist() == [5]
    with tarfile.open(folder / "x.tar.gz", "w:gz") as shard:
        shard.add(folder / "a.npy", "a.npy")
    done = write("x.tar.gz", "other")
    assert done.exit_code == 2
    assert "x.tar.gz: must be a plain tar file" in done.stderr


def test_arrow_files_of_others_are_opened_not_read_as_bytes(folder):
    for name in ("x.arrow", "x.feather"):
        feather.write_feather(pa.table({"x": [[1, 2], [3]]}), folder / name)
        done = write(name, "store", "--overwrite")
        assert done.exit_code == 0, done.output
        assert open_store("store").lengths.tolist() == [2, 1]


def test_a_url_of_nothing_is_said(folder):
    done = write("memory://nothing/x.csv", "store")
    assert done.exit_code == 1
    assert "memory://nothing/x.csv: is not there" in done.output


def list_examples():
    """Return the arguments of each example of the help; the text beside it is dropped."""
    epilog = app.commands["write"].epilog
    return [
        shlex.split(re.split(r" {2,}", line.strip())[0])[1:]
        for line in epilog.splitlines()
        if line.strip().startswith("seqdata")
    ]


@pytest.fixture
def inputs(folder):
    """The files that the examples of the help name."""
    (folder / "logs" / "deep").mkdir(parents=True)
    (folder / "logs" / "deep" / "a.txt").write_text("abc")
    (folder / "arrays").mkdir()
    for number in range(3):
        np.save(folder / "arrays" / f"{number}.npy", np.zeros(number + 1))
    (folder / "meters.csv").write_text("site,hour,load\nu,0,1.5\nu,1,3.5\nv,0,2.5\n")
    (folder / "rows.jsonl").write_text(
        '{"name": "a", "x": [1, 2], "text": [3, 4], "vector": [5, 6]}\n'
    )
    return folder


@pytest.mark.parametrize("arguments", list_examples(), ids=" ".join)
def test_each_example_of_the_help_works(inputs, arguments):
    pytest.importorskip("seqdata_webdataset")
    source = arguments[1]
    if source.startswith("s3://"):  # a bucket in this process
        arguments[1] = source = source.replace("s3://", f"memory://{inputs.name}-")
        assert write("arrays", source, "--to", "webdataset").exit_code == 0
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "note" not in done.stderr
    store = open_store(arguments[2])
    ids = {"logs": ["deep/a.txt"], "meters": ["u", "v"], "rows": ["a"]}
    shards = ["0", "1", "2"] if "webdataset" in arguments or "bucket" in source else None
    found = ids.get(re.match(r"\w+", source)[0], shards or ["0.npy", "1.npy", "2.npy"])
    if "rows.jsonl" in arguments and "--id" not in arguments:
        found = ["0"]
    assert (sorted if "--shuffle" in arguments else list)(store.keys(range(len(store)))) == found
    assert len(list_examples()) == 9


@pytest.mark.parametrize("source", ["arrays", "arrow"])
def test_what_an_error_of_a_key_says_works_as_it_stands(inputs, source):
    pytest.importorskip("seqdata_webdataset")
    (inputs / "arrays" / "0.txt.npy").write_bytes((inputs / "arrays" / "0.npy").read_bytes())
    assert write("arrays", "arrow").exit_code == 0
    command = [source, "shards", "--to", "webdataset"]
    failed = write(*command)
    assert failed.exit_code == 1
    assert "the id must be a valid key of a tar shard, not empty, without a dot" in failed.stderr
    remedy = shlex.split(failed.stderr.rpartition("or pass ")[2].partition(" to ")[0])
    assert remedy == ["--id="]
    done = write(*command, *remedy)
    assert done.exit_code == 0, done.output
    store = open_store("shards")
    assert store.keys([0, 3]) == ["000000000", "000000003"]
    assert [row["id"] for row in store] == ["0.npy", "0.txt.npy", "1.npy", "2.npy"]
    assert store.lengths.tolist() == [1, 1, 2, 3]
    assert write("shards", "back").exit_code == 0
    assert open_store("back").keys([0, 3]) == ["0.npy", "2.npy"]


def test_options_are_named_as_the_command_has_them(inputs):
    done = write("arrays", "store", "--id", "name")
    assert "error: format 'npy': --id must be left out, but is 'name'" in done.stderr
    done = write("meters.csv", "store", "--id", "site", "--group", "site")
    assert "error: table: --id and --group cannot be combined" in done.stderr
    done = write("arrays", "store", "--field", "id")
    assert "error: format 'npy': --field must be a name" in done.stderr


def test_a_form_that_cannot_be_written_is_named_by_its_option(folder):
    (folder / "a.txt").write_bytes(b"abc")
    done = write("a.txt", "store", "--to", "zip")
    assert done.exit_code == 2
    assert "write_store: --to must be 'arrow' or an installed backend" in done.stderr


@pytest.mark.parametrize("name", ["a.ts", "a.fst", "a.conllu", "a.xyz", "a.vcf", "a", "A.PHY"])
@pytest.mark.parametrize("source", ["in", "in/*", "file"])
def test_a_suffix_that_nobody_claims_is_never_written_as_bytes(folder, name, source):
    (folder / "in").mkdir()
    (folder / "in" / name).write_text("1 2 3\n")
    source = f"in/{name}" if source == "file" else source
    done = write(source, "store")
    assert done.exit_code == 2
    assert f"file 'in/{name}': must end in a suffix that a reader or an installed" in done.stderr
    assert "Pass `--format` bytes, text, npy, csv, jsonl, parquet, arrow or a plu" in done.stderr
    assert "`--format bytes` writes the bytes of each file as one sequence" in done.stderr
    assert not (folder / "store").exists()
    assert write(source, "store", "--format", "bytes").exit_code == 0
    assert open_store("store").lengths.tolist() == [6]


@pytest.mark.parametrize("suffix", [".jsonl", ".ndjson", ".jsonlines", ".NDJSON"])
def test_json_lines_have_several_suffixes(folder, suffix):
    (folder / f"rows{suffix}").write_text('{"x": [1, 2, 3], "y": 0}\n{"x": [4], "y": 1}\n')
    assert write(f"rows{suffix}", "store").exit_code == 0
    assert open_store("store").lengths.tolist() == [3, 1]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_part_files_are_read_in_the_order_of_their_numbers(folder, suffix):
    (folder / "in").mkdir()
    for part in range(12):
        csv, row = f"site,t\na,{part}\n", f'{{"site": "a", "t": {part}}}\n'
        (folder / "in" / f"part.{part}.{suffix}").write_text(csv if suffix == "csv" else row)
    assert write("in", "store", "--group", "site").exit_code == 0
    assert open_store("store")[0]["t"].tolist() == list(range(12))


def test_what_is_left_out_of_a_source_is_a_note(folder):
    (folder / "in" / "run1").mkdir(parents=True)
    np.save(folder / "in" / "run1" / "0.npy", np.arange(5))
    (folder / "in" / "run1" / "._0.npy").write_bytes(b"x")
    (folder / "in" / "latest").symlink_to("run1")
    done = write("in", "store")
    assert done.exit_code == 0
    skipped = "skipped: 1 hidden file ('run1/._0.npy'), 1 link to files that are read already"
    assert skipped in done.stderr
    assert len(open_store("store")) == 1


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_folders_that_are_named_as_columns_become_columns(folder, suffix):
    for label in (1, 0):
        path = folder / "in" / f"label={label}" / f"part.{suffix}"
        path.parent.mkdir(parents=True)
        if suffix == "parquet":
            parquet.write_table(pa.table({"x": [[label, 7]]}), path)
        else:
            path.write_text('x\n"[7, 7]"\n' if suffix == "csv" else '{"x": [7, 7]}\n')
    assert write("in", "store").exit_code == 0
    assert [int(row["label"]) for row in open_store("store")] == [0, 1]
