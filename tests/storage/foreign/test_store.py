"""Files that others wrote are stores as they lie."""

import pickle
import re

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from seqdata.api import open_store
from seqdata.errors import DecodeError, FingerprintMismatch, SeqDataWarning
from seqdata.loading.loader import Loader
from seqdata.policies.fixed import Bucketed
from seqdata.protocols import Store
from seqdata.storage.columns import SpanColumn
from seqdata_testing.loaders import check_content, check_resumes, check_worlds
from seqdata_testing.stores import check_store

LENGTHS = (3, 0, 5, 1, 2, 4, 7)


def sequences():
    random = np.random.default_rng(0)
    return [
        {
            "id": f"u{number}",
            "x": random.integers(-9, 9, length).astype(np.int32),
            "mel": random.normal(size=(length, 2)).astype(np.float32),
            "on": random.integers(0, 2, length).astype(bool),
            "y": number,
            "v": random.normal(size=3),
            "speaker": "ab"[number % 2],
            "raw": bytes([number]) * number,
        }
        for number, length in enumerate(LENGTHS)
    ]


def table(dictionary=False, large=False):
    rows = sequences()
    lists = pa.large_list if large else pa.list_
    columns = {
        "id": pa.array([row["id"] for row in rows]),
        "x": pa.array([row["x"] for row in rows], lists(pa.int32())),
        "mel": pa.array([row["mel"].tolist() for row in rows], lists(pa.list_(pa.float32(), 2))),
        "on": pa.array([row["on"] for row in rows], lists(pa.bool_())),
        "y": pa.array([row["y"] for row in rows]),
        "v": pa.array([row["v"] for row in rows], pa.list_(pa.float64(), 3)),
        "speaker": pa.array([row["speaker"] for row in rows]),
        "raw": pa.array([row["raw"] for row in rows], pa.binary()),
    }
    if dictionary:
        columns["speaker"] = columns["speaker"].dictionary_encode()
    return pa.table(columns)


def write_ipc(path, given, *, compression=None, rows=3, stream=False):
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as file, make(file, given.schema, options=options) as writer:
        for batch in given.to_batches(max_chunksize=rows):
            writer.write_batch(batch)


def polars_frame():
    return pl.from_arrow(table())


WRITERS = {
    "file.arrow": lambda path: write_ipc(path, table()),
    "large.arrow": lambda path: write_ipc(path, table(large=True), rows=100),
    "stream.arrow": lambda path: write_ipc(path, table(), stream=True),
    "dictionary.arrow": lambda path: write_ipc(path, table(dictionary=True)),
    "zstd.arrow": lambda path: write_ipc(path, table(dictionary=True), compression="zstd"),
    "zstd-stream.arrow": lambda path: write_ipc(path, table(), compression="zstd", stream=True),
    "file.feather": lambda path: pa.feather.write_feather(table(), path),
    "file.parquet": lambda path: pa.parquet.write_table(table(), path, row_group_size=3),
    "spark.parquet": lambda path: pa.parquet.write_table(
        table(), path, row_group_size=2, store_schema=False, compression="snappy"
    ),
    "polars.arrow": lambda path: polars_frame().write_ipc(path),
    "polars.ipc": lambda path: polars_frame().write_ipc(path, compression="zstd"),
    "polars.parquet": lambda path: polars_frame().write_parquet(path, row_group_size=4),
}


@pytest.fixture(params=sorted(WRITERS))
def location(request, tmp_path):
    WRITERS[request.param](tmp_path / request.param)
    return tmp_path / request.param


def due(location):
    """What should be read; Parquet without Arrow's schema knows no lists of a fixed size."""
    rows = sequences()
    if location.name == "spark.parquet":
        return [{name: value for name, value in row.items() if name != "v"} for row in rows]
    return rows


def test_a_file_that_others_wrote_is_a_store(location):
    store = open_store(location)
    assert isinstance(store, Store)
    if location.name == "spark.parquet":
        assert store.fields["v"].axis == "v"  # a list of 3 each, on an axis of its own
        store = Chosen(store, "v")
    check_store(store, due(location))
    assert store.keys([6, 0]) == ["u6", "u0"]
    assert open_store(location).title == f"ForeignStore({str(location)!r}, 7 sequences)"


class Chosen:
    """A store without one field."""

    def __init__(self, store, without):
        self.store = store
        self.fields = {name: one for name, one in store.fields.items() if name != without}
        self.lengths = store.lengths
        self.lengths_of = {a: one for a, one in store.lengths_of.items() if a != without}
        for name in ("shards", "fingerprint", "keys", "base_numbers", "read"):
            setattr(self, name, getattr(store, name))

    def __reduce__(self):
        return Chosen, (self.store, "v")

    def __len__(self):
        return len(self.store)


@pytest.mark.parametrize(
    "name",
    ["file.arrow", pytest.param("zstd.arrow", marks=pytest.mark.nightly), "file.parquet"],
)
@pytest.mark.slow
def test_child_processes_read_the_same(tmp_path, name):
    WRITERS[name](tmp_path / name)
    check_store(open_store(tmp_path / name), sequences(), methods=("fork", "spawn"))


@pytest.mark.parametrize("name", ["file.arrow", "file.parquet"])
def test_loaders_over_it_keep_their_promises(tmp_path, name):
    WRITERS[name](tmp_path / name)
    store = open_store(tmp_path / name)

    def loader(world=None):
        return Loader(store, Bucketed(2), world=world, fields=("x", "y"), seed=3)

    check_content(loader, store, size=2)
    check_worlds(loader, [2, 3], epochs=2)
    check_resumes(loader, 2, [1])


@pytest.mark.parametrize("name", ["file.arrow", "large.arrow", "stream.arrow", "file.parquet"])
def test_numbers_of_uncompressed_arrow_files_are_read_in_place(tmp_path, name):
    WRITERS[name](tmp_path / name)
    columns = open_store(tmp_path / name).read(np.array([[2, 0, 5]]), ["x", "mel", "on"])
    in_place = {field: isinstance(column, SpanColumn) for field, column in columns.items()}
    mapped = name != "file.parquet"
    assert in_place == {"x": mapped, "mel": mapped, "on": False}  # bools lie as bits


def test_a_folder_is_one_store_in_the_order_of_names(tmp_path):
    whole = table()
    pa.parquet.write_table(whole.slice(0, 4), tmp_path / "part-00000-a.snappy.parquet")
    pa.parquet.write_table(whole.slice(4), tmp_path / "part-00001-b.snappy.parquet")
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".part-00000-a.snappy.parquet.crc").touch()
    store = open_store(tmp_path)
    check_store(store, sequences())
    assert list(store.shards) == ["part-00000-a.snappy.parquet", "part-00001-b.snappy.parquet"]


def test_a_saved_dataset_is_opened_by_the_files_that_its_state_names(tmp_path):
    write_ipc(tmp_path / "data-00000-of-00001.arrow", table(), stream=True)
    other = table().slice(0, 2).set_column(0, "id", pa.array(["cached-0", "cached-1"]))
    write_ipc(tmp_path / "cache-0123.arrow", other, stream=True)
    state = '{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}'
    (tmp_path / "state.json").write_text(state)
    assert len(open_store(tmp_path)) == 7
    (tmp_path / "state.json").write_text("{}")
    assert len(open_store(tmp_path)) == 9


@pytest.mark.parametrize("ending", ["arrow", "parquet"])
@pytest.mark.parametrize(
    ("ids", "again", "first"), [("abca", 3, 0), ("abcdb", 4, 1), ("abb", 2, 1), ("abcdeff", 6, 5)]
)
def test_an_id_that_two_sequences_have_is_refused_each_time(tmp_path, ending, ids, again, first):
    for number in range(0, len(ids), 4):  # two files; row groups of two
        some = list(ids[number : number + 4])
        given = pa.table({"id": some, "x": [[1, 2]] * len(some)})
        path = tmp_path / f"part-{number}.{ending}"
        if ending == "parquet":
            pa.parquet.write_table(given, path, row_group_size=2)
        else:
            write_ipc(path, given)
    for _ in range(2):  # nothing is cached of what was refused
        with pytest.raises(DecodeError) as caught:
            open_store(tmp_path)
        assert re.search(
            rf'part-{again // 4 * 4}\.{ending}.*field "id": sequence {again}: the id must be '
            rf"unique, but '{ids[again]}' is also the id of sequence {first}\. .* the column 'id'",
            str(caught.value),
        )
        assert caught.value.details["sequence"] == again
        assert caught.value.details["file"] == f"part-{again // 4 * 4}.{ending}"


@pytest.mark.parametrize("ending", ["arrow", "parquet"])
def test_ids_that_repeat_after_the_files_were_replaced_are_refused(tmp_path, ending):
    def write(ids):
        given = pa.table({"id": ids, "x": [[1]] * len(ids)})
        path = tmp_path / f"a.{ending}"
        write_ipc(path, given) if ending == "arrow" else pa.parquet.write_table(given, path)

    write(["a", "b"])
    pickled = pickle.dumps(open_store(tmp_path))
    write(["a", "b", "a"])
    with pytest.raises((DecodeError, FingerprintMismatch)):
        pickle.loads(pickled)  # which counts, and may keep what it counted
    with pytest.raises(DecodeError, match="sequence 2: the id must be unique"):
        open_store(tmp_path)


def test_numbers_in_a_column_of_ids_may_repeat(tmp_path):
    pa.parquet.write_table(pa.table({"id": [7, 7], "x": [[1], [2, 3]]}), tmp_path / "a.parquet")
    assert open_store(tmp_path / "a.parquet").keys([0, 1]) == ["0", "1"]


def test_columns_of_other_lengths_run_on_axes_of_their_own(tmp_path):
    rows = {"tokens": [[1], [2, 3]], "labels": [[0], [1, 1]], "audio": [[0.5] * 4, [0.25] * 3]}
    pa.parquet.write_table(pa.table(rows), tmp_path / "speech.parquet")
    store = open_store(tmp_path / "speech.parquet")
    assert {name: field.axis for name, field in store.fields.items()} == {
        "tokens": "time", "labels": "time", "audio": "audio",
    }  # fmt: skip
    assert store.lengths.tolist() == [1, 2]
    assert store.lengths_of["audio"].tolist() == [4, 3]
    assert store.keys([1]) == ["1"]


@pytest.mark.parametrize("ending", ["arrow", "parquet"])
def test_lists_in_lists_of_one_width_are_vectors_per_timestep(tmp_path, ending):
    given = pa.table({"mel": [[[1.0, 2.0]], [], [[3.0, 4.0], [5.0, 6.0]]]})
    path = tmp_path / f"mel.{ending}"
    write_ipc(path, given) if ending == "arrow" else pa.parquet.write_table(given, path)
    store = open_store(path)
    assert store.fields["mel"].shape == (2,)
    rows = [{"mel": np.reshape(row, (-1, 2))} for row in given["mel"].to_pylist()]
    check_store(store, rows)


def test_columns_that_cannot_be_fields_are_left_out_with_one_warning(tmp_path):
    given = pa.table(
        {
            "x": [[1], [2, 3]],
            "at": pa.array([0, 1], pa.time32("s")),
            "words": [{"a": 1}, {"a": 2}],
            "uneven": [[[1], [1, 2]], [[1]]],
        }
    )
    write_ipc(tmp_path / "x.arrow", given)
    with pytest.warns(SeqDataWarning, match=r"dropped: 'at' \(time32\[s\]\), 'words'") as told:
        store = open_store(tmp_path / "x.arrow")
    assert len(told) == 1
    assert "'uneven' (1 to 2 numbers per timestep)" in str(told[0].message)
    assert list(store.fields) == ["x"]
    assert list(pickle.loads(pickle.dumps(store)).fields) == ["x"]  # says nothing again


def test_lengths_are_counted_once_and_kept_beside_the_data(tmp_path, monkeypatch):
    WRITERS["file.parquet"](tmp_path / "a.parquet")
    first = open_store(tmp_path / "a.parquet")
    kept = list(tmp_path.glob(".seqdata-lengths-*"))
    assert len(kept) == 1
    monkeypatch.setattr(
        "seqdata.storage.foreign.length_scan.measure_row_lengths", None
    )  # counting again would fail
    again = open_store(tmp_path / "a.parquet")
    assert again.lengths.tolist() == first.lengths.tolist() == list(LENGTHS)
    assert again.fingerprint == first.fingerprint


def test_the_fingerprint_is_of_names_sizes_footers_and_lengths(tmp_path):
    marks = set()
    for name, given in {
        "a.parquet": table(),
        "b.parquet": table(),
        "c.parquet": table().slice(1),
        "a.arrow": table(),
    }.items():
        path = tmp_path / name
        write_ipc(path, given) if name == "a.arrow" else pa.parquet.write_table(given, path)
        marks.add(open_store(path).fingerprint)
        assert open_store(path).fingerprint in marks
    assert len(marks) == 4


def test_a_unit_larger_than_the_cache_is_read(tmp_path, monkeypatch):
    WRITERS["file.parquet"](tmp_path / "a.parquet")
    store = open_store(tmp_path / "a.parquet")
    for source in store._reader.sources.values():
        object.__setattr__(source.cache, "limit", 1)
    check_store(store, sequences())


@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "zstd"])
def test_categories_of_polars_are_text(tmp_path, compression):
    names = ["ann", "a name that is longer than a view", "ann", ""]
    frame = pl.DataFrame(
        {"x": [[1], [2, 2], [], [3]], "who": pl.Series(names, dtype=pl.Categorical)}
    )
    frame.write_ipc(tmp_path / "a.arrow", compression=compression)
    spans = np.array([[3, 0, 0], [1, 0, 0], [0, 0, 0]])
    found = open_store(tmp_path / "a.arrow").read(spans, ["who"])["who"]
    assert found == [names[3], names[1], names[0]]
