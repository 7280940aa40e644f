"""Recordings joined with a table of transcripts, by the names of their files."""

import re
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from seqdata_audio import Audio
from seqdata_audio.transcript import match_rows
from seqdata_audio.transcript_table import read_table

from seqdata import Bucketed, Loader, open_store, split
from seqdata.errors import ConfigError, DataError, SeqDataWarning
from seqdata_testing.stores import check_store

TEXTS = ["one", 'two "quoted"', "drei, vier", "fünf"]
SPEAKERS = ["a", "b", "a", "c"]


def write(folder, names=("x/0.wav", "x/1.wav", "y/2.wav", "y/3.wav")):
    rows = []
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        samples = np.arange(number * 10 + 5, dtype=np.int16)
        soundfile.write(path, samples, 8000)
        rows.append({"id": name, "audio": samples, "rate": np.int64(8000)})
    return rows


def make_table(files=("x/0.wav", "x/1.wav", "y/2.wav", "y/3.wav"), **columns):
    known = {"file": list(files), "text": TEXTS, "speaker": SPEAKERS, "age": [31, 7, 31, 50]}
    return pa.table(known | columns)


def save(table, path):
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".jsonl":
        table.to_pandas().to_json(path, orient="records", lines=True, force_ascii=False)
    elif path.suffix == ".csv":
        table.to_pandas().to_csv(path, index=False)
    else:  # as Common Voice writes: without quotes
        rows = [table.column_names, *zip(*table.to_pydict().values(), strict=True)]
        path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    return path


def expect(rows):
    pairs = zip(rows, TEXTS, SPEAKERS, [31, 7, 31, 50], strict=True)
    return [
        row | {"text": text, "speaker": speaker, "age": np.int64(age)}
        for row, text, speaker, age in pairs
    ]


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet", "jsonl"])
def test_a_table_in_a_file_gives_fields(tmp_path, ending):
    rows = write(tmp_path / "clips")
    path = save(make_table(), tmp_path / f"table.{ending}")
    with warnings.catch_warnings():
        warnings.simplefilter("error", SeqDataWarning)
        store = open_store(tmp_path / "clips", backend=Audio(transcript=str(path)))
    check_store(store, expect(rows))


@pytest.mark.parametrize("convert", [pa.Table.to_pandas, pl.from_arrow, lambda table: table])
def test_a_table_in_memory_gives_the_same(tmp_path, convert):
    rows = write(tmp_path)
    check_store(open_store(tmp_path, backend=Audio(transcript=convert(make_table()))), expect(rows))


@pytest.mark.parametrize(
    "files",
    [
        ["x/0", "x/1", "y/2", "y/3"],
        ["/data/0.wav", "/data/1.wav", "/data/2.wav", "/data/3.wav"],
        ["0", "1", "2", "3"],
        ["clips\\0.flac", "clips\\1.flac", "clips\\2.flac", "clips\\3.flac"],
        ["./x/0.wav", "./x/1.wav", "./y/2.wav", "./y/3.wav"],
    ],
)
def test_rows_name_files_by_as_much_as_is_unique(tmp_path, files):
    rows = write(tmp_path)
    check_store(open_store(tmp_path, backend=Audio(transcript=make_table(files))), expect(rows))


@pytest.mark.parametrize("file", ["file", "path", "audio_filepath"])
@pytest.mark.parametrize("text", ["text", "sentence", "transcript"])
def test_columns_may_have_the_names_of_others(tmp_path, file, text):
    rows = write(tmp_path)
    table = make_table().rename_columns([file, text, "speaker", "age"])
    check_store(open_store(tmp_path, backend=Audio(transcript=table)), expect(rows))


def test_what_has_no_row_and_what_has_no_recording_is_counted(tmp_path):
    rows = write(tmp_path, ("0.wav", "1.wav", "2.wav", "3.wav", "4.wav", "5.wav"))
    table = make_table(["5.wav", "9.wav", "0.wav", "3.wav"])
    text = (
        "transcript (Table): 3 of 6 recordings have no row and are dropped "
        "('1.wav', '2.wav', '4.wav'); 1 of 4 rows have no recording ('9.wav')"
    )
    with pytest.warns(SeqDataWarning, match=re.escape(text)):
        store = open_store(tmp_path, backend=Audio(transcript=table))
    texts = {0: TEXTS[2], 3: TEXTS[3], 5: TEXTS[0]}
    speakers = {0: "a", 3: "c", 5: "a"}
    ages = {0: 31, 3: 50, 5: 31}
    kept = [
        rows[n] | {"text": texts[n], "speaker": speakers[n], "age": np.int64(ages[n])}
        for n in texts
    ]
    check_store(store, kept)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_speakers_are_split_and_workers_read(tmp_path, method):
    write(tmp_path)
    store = open_store(tmp_path, backend=Audio(transcript=make_table()))
    parts = split(store, {"train": 0.5, "test": 0.5}, by="speaker", seed=1)
    speakers = [{part[at]["speaker"] for at in range(len(part))} for part in parts.values()]
    assert set.union(*speakers) == {"a", "b", "c"}
    assert not set.intersection(*speakers)
    (batch,) = Loader(store, Bucketed(4), num_workers=1, start_method=method)
    order = batch.ids.tolist()
    assert list(batch["text"]) == [TEXTS[at] for at in order]
    assert batch["age"].flatten().tolist() == [[31, 7, 31, 50][at] for at in order]


def test_another_table_is_another_fingerprint(tmp_path):
    write(tmp_path)
    one = open_store(tmp_path, backend=Audio(transcript=make_table()))
    other = open_store(tmp_path, backend=Audio(transcript=make_table(age=[1, 2, 3, 4])))
    texts = open_store(tmp_path, backend=Audio(transcript=make_table(text=list("abcd"))))
    again = open_store(tmp_path, backend=Audio(transcript=make_table()))
    assert len({one.fingerprint, other.fingerprint, texts.fingerprint}) == 3
    assert one.fingerprint == again.fingerprint


@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        (
            make_table(["a", "b", "c", "d"]),
            ConfigError,
            r"none does: rows name 'a', 'b', 'c', \.\.",
        ),
        (make_table(["0", "0", "2", "3"]), DataError, "rows 0 and 1 both name '0'. Remove one"),
        (make_table(rate=[1, 2, 3, 4]), ConfigError, "recordings, but 'rate' is. Rename the"),
        (make_table(offset=[0, 0.5, 0, 0]), DataError, "row 1 must describe a part of 'x/1.wav'"),
        (make_table(when=[[1]] * 4), ConfigError, r"'when' is list<.*Leave it out"),
        (pa.table({"text": TEXTS}), ConfigError, "column 'file', 'path' or 'audio_filepath', but"),
        (pa.table({"file": TEXTS}), ConfigError, "'sentence' or 'transcript', but has 'file'"),
        (make_table([1, 2, 3, 4]), ConfigError, "must hold strings, but one holds numbers"),
        (3, ConfigError, "must be a path .* or a pandas, Polars or Arrow table, but is a int"),
        ("nowhere.csv", ConfigError, "transcript 'nowhere.csv': cannot be read"),
        ("table.xls", ConfigError, r"must be a .csv, .tsv, .parquet, .jsonl or .json file"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(tmp_path, table, error, message):
    write(tmp_path)
    with pytest.raises(error, match=message):
        open_store(tmp_path, backend=Audio(transcript=table))


def test_a_manifest_of_nemo_is_a_table(tmp_path):
    rows = write(tmp_path, ("0.wav",))
    line = '{"audio_filepath": "/data/0.wav", "offset": 0, "duration": 0.01, "text": "a b"}\n'
    (tmp_path / "manifest.json").write_text(line)
    store = open_store(tmp_path / "0.wav", backend=Audio(transcript=tmp_path / "manifest.json"))
    due = {"text": "a b", "offset": np.int64(0), "duration": np.float64(0.01)}
    check_store(store, [rows[0] | due])


def test_a_row_of_two_recordings_is_refused(tmp_path):
    write(tmp_path, ("x/0.wav", "y/0.wav", "y/1.wav"))
    table = pa.table({"file": ["0.wav", "1.wav"], "text": ["a", "b"]})
    with pytest.raises(
        DataError, match=r"row 0 \('0.wav'\) must name one recording, but 'x/0.wav'"
    ):
        open_store(tmp_path, backend=Audio(transcript=table))


def test_a_sequence_that_is_not_there_is_refused(tmp_path):
    write(tmp_path)
    store = Audio(transcript=make_table())(tmp_path)
    for number in (-1, 4):
        with pytest.raises(ConfigError, match=r"must be in 0\.\.3, but are"):
            store.read(np.array([[number, 0, 1]]), ["text"])


@pytest.mark.parametrize(
    ("values", "due"),
    [
        (["007", "1"], ["007", "1"]),
        (["1", "-20"], [1, -20]),
        (["0.5", "10.25"], [0.5, 10.25]),
        (["1", ""], ["1", ""]),
        (["1e5", "2"], ["1e5", "2"]),
    ],
)
def test_text_becomes_numbers_only_without_loss(tmp_path, values, due):
    rows = [f"{n},x,{value}\n" for n, value in enumerate(values)]
    (tmp_path / "t.csv").write_text("file,text,v\n" + "".join(rows))
    assert list(read_table(tmp_path / "t.csv")[1]["v"]) == due


def test_missing_values_are_empty_or_nan():
    table = pd.DataFrame({"text": ["a", None], "n": [1, None], "yes": [True, False]})
    _, columns = read_table(table)
    assert columns["text"] == ["a", ""]
    assert columns["n"][0] == 1
    assert np.isnan(columns["n"][1])
    assert columns["yes"].tolist() == [1, 0]


@given(st.sets(st.from_regex(r"[a-z]{1,3}/[a-z0-9]{1,4}", fullmatch=True), min_size=1), st.data())
@settings(max_examples=50, deadline=None)
def test_each_recording_gets_its_own_row(names, data):
    ids = [f"{name}.wav" for name in sorted(names)]
    rows = data.draw(st.permutations(ids))
    found = match_rows("t", ids, rows)
    assert [rows[row] for row in found] == ids
