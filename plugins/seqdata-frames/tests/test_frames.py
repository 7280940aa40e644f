"""Tables in files, in memory and from streams: one answer, in place where rows are in order."""

import gc
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pytest
from frames_samples import alike, sales, shuffle, write
from hypothesis import given, settings
from hypothesis import strategies as st
from seqdata_frames import Frames

from seqdata import Bucketed, Loader, PluginHost, Windows, open_store, write_store
from seqdata.errors import ConfigError, DecodeError, SeqDataWarning
from seqdata_testing.contract import StoreContract
from seqdata_testing.stores import check_reads

BY = {"group": "series", "order": "time"}
FLAT = ("area",)  # what the core does not know to be constant


def open_both(data, frame, **options):
    """Return the store of the package, and the core's of the same rows in memory."""
    axes = dict.fromkeys(FLAT)
    expected = open_store(pa.Table.from_pandas(frame, preserve_index=False), axes=axes, **BY)
    return open_store(data, backend=Frames(**{"static": "auto", **options}), **BY), expected


class TestParquet(StoreContract):
    sequences = tuple(
        {
            "id": f"s{number}",
            "n": np.arange(length) * 2,
            "load": np.arange(length, dtype=np.float32) / (number + 1),
            "site": f"site {number} é",
            "area": np.int32(number),
        }
        for number, length in enumerate((1, 7, 30, 2))
    )

    def make(self, folder, sequences):
        rows = [
            {name: value[step] if np.ndim(value) else value for name, value in each.items()}
            for each in sequences
            for step in range(len(each["n"]))
        ]
        types = {"load": "float32", "area": "int32"}
        write(pd.DataFrame(rows).astype(types), folder / "table.parquet", 5)
        return open_store(
            folder / "table.parquet", backend=Frames(group="id", order="n", static="auto")
        )


class TestSorted(TestParquet):
    methods = ("fork",)

    def make(self, folder, sequences):
        super().make(folder, sequences)
        frame = pd.read_parquet(folder / "table.parquet")
        order = np.argsort(np.arange(len(frame)) % 3, kind="stable")  # the first rows stay first
        firsts = frame.groupby("id").head(1).index
        frame = pd.concat([frame.loc[firsts], frame.iloc[order].drop(index=firsts)])
        write(frame, folder / "table.parquet", 5)
        return open_store(
            folder / "table.parquet", backend=Frames(group="id", order="n", static="auto")
        )


@pytest.mark.parametrize("form", ["parquet", "feather", "arrow", "pandas", "polars", "table",
                                  "lazy", "stream", "capsule"])  # fmt: skip
@pytest.mark.parametrize("mixed", [False, True], ids=["in order", "mixed"])
def test_each_form_gives_what_the_core_reads_into_memory(tmp_path, form, mixed):
    frame = shuffle(sales()) if mixed else sales()
    table = pa.Table.from_pandas(frame, preserve_index=False)
    forms = {
        "parquet": lambda: write(frame, tmp_path / "t.parquet"),
        "feather": lambda: write_feather(table, tmp_path / "t.feather", "lz4"),
        "arrow": lambda: write_feather(table, tmp_path / "t.arrow", "uncompressed"),
        "pandas": lambda: frame,
        "polars": lambda: pl.from_pandas(frame),
        "table": lambda: table,
        "lazy": lambda: pl.from_pandas(frame).lazy(),
        "stream": lambda: pa.RecordBatchReader.from_batches(table.schema, table.to_batches(4)),
        "capsule": lambda: Capsule(table),
    }
    assert alike(*open_both(forms[form](), frame))


def write_feather(table, path, compression):
    pyarrow.feather.write_feather(table, path, compression=compression, chunksize=4)
    return path


class Capsule:
    """What DuckDB and ADBC give: an Arrow stream, and nothing else."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    rows=st.integers(1, 9),
    seed=st.integers(0, 99),
    cache=st.sampled_from([0, 100, 1 << 20]),
    mixed=st.booleans(),
)
def test_any_spans_of_any_row_groups(tmp_path_factory, lengths, rows, seed, cache, mixed):
    frame = sales(lengths, seed)
    frame = shuffle(frame, seed) if mixed else frame
    path = write(frame, tmp_path_factory.mktemp("any") / "t.parquet", rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeqDataWarning)
        store, expected = open_both(path, frame, cache_bytes=cache, static=["area"])
    check_reads(store, [encode(expected, number) for number in range(len(expected))], rounds=2)


def encode(store, number):
    """The values of a sequence as they are stored."""
    length = int(store.lengths[number])
    columns = store.read(np.array([[number, 0, length]]), list(store.fields))
    row = {"id": store.keys([number])[0]}
    for name, column in columns.items():
        value = column[0]
        is_one = store.fields[name].axis is None and not isinstance(value, str)
        row[name] = value[0] if is_one else value
    return row


def test_equal_times_stay_in_the_order_of_the_table_with_a_warning(tmp_path):
    frame = sales((6, 4))
    frame["time"] = frame["time"].dt.floor("2h")
    mixed = shuffle(frame)
    write(mixed, tmp_path / "t.parquet")
    messages = []
    for data, backend in ((tmp_path / "t.parquet", Frames()), (mixed, None)):
        with pytest.warns(SeqDataWarning, match="equal values within a group") as caught:
            store = open_store(data, backend=backend, axes=dict.fromkeys(FLAT), **BY)
        messages.append((str(caught[0].message), [row["load"].tolist() for row in store]))
    assert messages[0] == messages[1]


def test_only_the_row_groups_and_columns_asked_for_are_decoded(tmp_path, monkeypatch):
    frame = sales((40, 40))
    store = open_store(
        write(frame, tmp_path / "t.parquet", 10), backend=Frames(static="auto"), **BY
    )
    columns = store.base._columns if hasattr(store, "base") else store._store._columns
    assert columns.decoded == 0
    store.read(np.array([[0, 12, 18], [1, 5, 6]]), ["load"])
    assert columns.decoded == 2
    store.read(np.array([[0, 18, 22]]), ["load", "count"])
    assert columns.decoded == 5  # two of `count`, one of `load`; the other was there


def test_files_of_a_folder_are_one_table_and_folders_name_columns(tmp_path):
    frame = sales((4, 4, 4))
    for number, (_, rows) in enumerate(frame.groupby("series")):
        folder = tmp_path / f"region={number // 2}"
        folder.mkdir(exist_ok=True)
        write(rows, folder / f"part.{10 if number == 1 else 2}.parquet")
    store = open_store(tmp_path, backend=Frames(static="auto"), **BY)
    assert [row["region"] for row in store] == [0, 0, 1]
    assert store.keys(range(3)) == ["s0", "s1", "s2"]
    expected = open_store(tmp_path, host=PluginHost(), axes=dict.fromkeys(["area", "region"]), **BY)
    assert alike(store, expected)


def test_constants_are_values_of_sequences(tmp_path):
    frame = sales((4, 4)).assign(same=7)
    path = write(frame, tmp_path / "t.parquet")
    assert open_store(path, backend=Frames(), **BY).fields["area"].axis == "time"
    fields = open_store(path, backend=Frames(static="auto"), **BY).fields
    per_sequence = {name for name, field in fields.items() if field.axis is None}
    assert per_sequence == {"id", "series", "store", "area"}  # `same` differs in no two groups
    named = open_store(path, backend=Frames(static=["same"]), **BY)
    assert (named[1]["same"], named.fields["area"].axis) == (7, "time")
    kept = open_store(path, backend=Frames(static="auto"), axes={"area": "time"}, **BY)
    assert kept.fields["area"].axis == "time"
    only = (
        frame[["series", "time", "area"]].rename(columns={"time": "n"}).assign(n=[0, 1, 2, 3] * 2)
    )
    lone = open_store(only[["series", "area"]], backend=Frames(static="auto"), group="series")
    assert lone.fields["area"].axis == "time"  # else there would be no timestep


@pytest.mark.parametrize("column", ["count", "event"])
def test_a_column_that_must_be_constant_and_is_not_is_refused_as_by_the_core(tmp_path, column):
    frame = sales((4, 4))
    path = write(frame, tmp_path / "t.parquet", 3)
    found = []
    for data, backend in ((path, Frames()), (frame, None)):
        with pytest.raises(DecodeError, match=f"column '{column}' must have one value per") as one:
            open_store(data, backend=backend, axes={column: None}, **BY)
        found.append(str(one.value))
    if column == "count":
        assert found[0].replace("`static` and `axes`", "`axes`") == found[1]


def test_missing_values_are_what_the_core_makes_of_them(tmp_path):
    frame = sales((4, 4)).astype({"load": "Float32", "count": "Int16"})
    frame.loc[[1, 6], "load"] = None
    path = write(frame, tmp_path / "t.parquet", 3)
    feather = write_feather(pa.Table.from_pandas(frame, preserve_index=False),
                            tmp_path / "t.feather", "lz4")  # fmt: skip
    axes = dict.fromkeys(FLAT)
    for data in (path, feather, frame):
        with pytest.warns(SeqDataWarning, match="'load' lacks 2 of 8 values, the first in row 1"):
            store = open_store(data, backend=Frames(static="auto"), **BY)
        assert alike(store, open_store(frame, axes=axes, missing="nan", **BY))
        filled = open_store(data, backend=Frames(static="auto"), missing=-1, **BY)
        assert alike(filled, open_store(frame, axes=axes, missing=-1, **BY))
        messages = []
        for backend in (Frames(), None):
            with pytest.raises(DecodeError, match="holds 2, the first in row 1") as caught:
                open_store(data, backend=backend, missing="error", host=PluginHost(), **BY)
            messages.append(str(caught.value).partition(" (in the file")[0])
        assert messages[0] in messages[1] or messages[1] in messages[0]
    frame.loc[5, "count"] = None
    write(frame, path, 3)
    with pytest.raises(DecodeError, match=r"column 'count': must not hold missing values.*row 5"):
        open_store(path, backend=Frames(static="auto"), missing="nan", **BY)
    with pytest.raises(ConfigError, match=r"`missing` must be .* but is 'drop'"):
        open_store(path, backend=Frames(static="auto"), missing="drop", **BY)


@pytest.mark.parametrize("column", ["series", "time"])
def test_rows_without_group_or_time_are_refused_with_their_number(tmp_path, column):
    frame = sales((4, 4))
    frame.loc[5, column] = None
    path = write(frame, tmp_path / "t.parquet", 3)
    with pytest.raises(DecodeError, match=f"column '{column}': must not hold missing.*in row 5"):
        open_store(path, backend=Frames(static="auto"), **BY)


def test_rows_in_no_order_need_one(tmp_path):
    frame = shuffle(sales((4, 4)))
    path = write(frame, tmp_path / "t.parquet", 3)
    found = []
    for data, backend in ((path, Frames()), (frame, None)):
        with pytest.raises(DecodeError, match=r"must be together.*Pass `order`") as caught:
            open_store(data, backend=backend, group="series")
        found.append(str(caught.value))
    assert found[0] == found[1]
    frame = sales((6, 4))
    frame.loc[[3, 4], "time"] = frame.loc[[4, 3], "time"].to_numpy()
    write(frame, path, 4)
    found = []
    for data, backend in ((path, Frames()), (frame, None)):
        with pytest.raises(DecodeError, match=r"must be in order of time.*row 4 after") as caught:
            open_store(data, backend=backend, group="series")
        found.append(str(caught.value))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("options", "passed", "message"),
    [
        ({}, {}, "`group` must name the column whose equal values make a sequence"),
        ({"freq": "h"}, {"group": "series"}, "`freq` requires `order`"),
        ({"static": "area"}, BY, "`static` must be 'auto' or a list of columns"),
        ({"static": ["aera"]}, BY, "no column 'aera'.*'area'"),
        ({}, {"group": "seires"}, "no column 'seires'"),
        ({}, {"group": "series", "order": "tmie"}, "no column 'tmie'"),
        ({}, {**BY, "verify": "always"}, "`verify` must be 'first_read', 'off' or None"),
        ({}, {"group": "series", "order": "series"}, "`order` must differ from `group`"),
        ({}, {"group": "series", "order": "open"}, "column 'open' must hold numbers, dates"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(tmp_path, options, passed, message):
    path = write(sales((4, 4)), tmp_path / "t.parquet")
    with pytest.raises(ConfigError, match=message):
        Frames(**options)(path, **passed)


def test_what_is_no_table_by_parts_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"must be the path of a table.*but is of type int"):
        Frames(group="series")(3)
    (tmp_path / "t.csv").write_text("series,x\na,1\n")
    with pytest.raises(ConfigError, match=r"must be Parquet, Arrow or Feather files.*but is csv"):
        Frames(group="series")(tmp_path / "t.csv")
    with pytest.raises(ConfigError, match="must hold at least one sequence"):
        Frames(**BY)(write(sales((1,)).iloc[:0], tmp_path / "t.parquet"))
    with pytest.raises(ConfigError, match="no column but 'series' has a value per timestep"):
        Frames(group="series")(sales((2, 2))[["series", "store"]])
    decimals = pa.table({"series": ["a"], "n": pa.array([1], pa.decimal128(5, 2)), "x": [1]})
    with pytest.raises(ConfigError, match=r"must hold integers, floats or dates.*decimal128"):
        Frames(group="series", order="n")(decimals)
    texts = pa.table({"series": ["a"], "n": ["2024-01-01 00:00:00.000000001"], "x": [1]})
    with pytest.raises(ConfigError, match="dates without nanoseconds"):
        Frames(group="series", order="n")(texts)


def test_a_stream_that_breaks_off_is_an_error(tmp_path):
    def batches():
        yield pa.record_batch({"series": ["a"], "x": [1]})
        raise OSError("the connection was lost")

    schema = pa.schema([("series", pa.string()), ("x", pa.int64())])
    stream = pa.RecordBatchReader.from_batches(schema, batches())
    with pytest.raises(
        DecodeError, match=r"failed before its end \(.*connection was lost.*Run the"
    ):
        Frames(group="series", cache_dir=str(tmp_path / "here"))(stream)
    gc.collect()
    assert list((tmp_path / "here").iterdir()) == []


def test_the_file_of_a_stream_lives_as_long_as_its_store(tmp_path):
    table = pa.Table.from_pandas(sales(), preserve_index=False)
    store = Frames(cache_dir=str(tmp_path / "here"), **BY)(Capsule(table))
    (folder,) = (tmp_path / "here").iterdir()
    assert store.read(np.array([[0, 0, 5]]), ["load"])["load"].lengths.tolist() == [5]
    del store
    gc.collect()
    assert not folder.exists()


def test_batches_of_workers_are_those_of_one_process(tmp_path):
    path = write(shuffle(sales((30, 20, 40))), tmp_path / "t.parquet", 16)
    store = open_store(path, backend=Frames(static="auto"), **BY)
    windows = Windows(size=4, horizon=2, stride=3, batch_size=5)
    alone, shared = (
        [(batch.ids.tolist(), batch["load"].tolist(), batch["area"].tolist()) for batch in loader]
        for loader in (Loader(store, windows), Loader(store, windows, num_workers=2))
    )
    assert alone == shared
    assert len(alone) > 3


def test_it_is_written_and_trained_like_any_store(tmp_path):
    path = write(shuffle(sales()), tmp_path / "t.parquet")
    store = open_store(path, backend=Frames(static="auto"), **BY)
    assert alike(write_store(tmp_path / "store", store), store)
    (batch,) = Loader(store, Bucketed(8))
    assert batch["load"].shape == (3, 9)
    assert sorted(store.where(lambda row: row["area"] > 10).ids) == ["s1", "s2"]


def test_installed_it_takes_over_tables_that_are_grouped(tmp_path):
    """As installed: in a process whose path has the package's metadata."""
    site = tmp_path / "site" / "seqdata_frames-0.1.0.dist-info"
    site.mkdir(parents=True)
    (site / "METADATA").write_text("Metadata-Version: 2.1\nName: seqdata-frames\nVersion: 0.1.0\n")
    (site / "entry_points.txt").write_text(
        "[seqdata]\nframes = seqdata_frames\n"
        "[seqdata.tables]\nparquet = frames\narrow = frames\nstream = frames\n"
    )
    write(shuffle(sales()), tmp_path / "t.parquet")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import polars as pl\n"
        "from seqdata import open_store, write_store\n"
        "by = {'group': 'series', 'order': 'time'}\n"
        "print('seqdata_frames' in sys.modules)\n"
        "print(repr(open_store(sys.argv[2], **by)).split('(')[0])\n"
        "print(repr(open_store(pl.scan_parquet(sys.argv[2]), **by)).split('(')[0])\n"
        "print(repr(open_store(pl.read_parquet(sys.argv[2]), **by)).split('(')[0])\n"
        "print(write_store(sys.argv[1] + '/out', sys.argv[2], **by).lengths.tolist())\n"
    )
    arguments = [str(site.parent), str(tmp_path / "t.parquet")]
    run = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip
    assert run.stdout.split()[:4] == ["False", "FrameStore", "FrameStore", "MemoryStore"], (
        run.stderr
    )


def test_a_relation_of_duckdb_is_a_stream():
    duckdb = pytest.importorskip("duckdb")
    frame = shuffle(sales())
    table = pa.Table.from_pandas(frame, preserve_index=False)
    assert alike(*open_both(duckdb.from_arrow(table), frame))


def test_a_delta_table_is_the_files_of_its_version(tmp_path):
    deltalake = pytest.importorskip("deltalake")
    frame = shuffle(sales())
    table = pa.Table.from_pandas(frame, preserve_index=False)
    path = str(tmp_path / "delta")
    deltalake.write_deltalake(path, table.slice(0, 1))
    deltalake.write_deltalake(path, table, mode="overwrite")
    assert alike(*open_both(path, frame))
    deltalake.write_deltalake(path + "s", table, partition_by=["store"])
    with pytest.raises(ConfigError, match=r"has the partitions store. Pass its rows as a stream"):
        open_store(path + "s", backend=Frames(static="auto"), **BY)
    reader = deltalake.DeltaTable(path + "s").to_pyarrow_dataset().scanner().to_reader()
    assert open_store(reader, backend=Frames(static="auto"), **BY).lengths.sum() == len(frame)


def test_delta_needs_its_library(tmp_path, monkeypatch):
    (tmp_path / "_delta_log").mkdir()
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(ConfigError, match=r"needs the package deltalake\. Run `pip install 'seqda"):
        open_store(tmp_path, backend=Frames(static="auto"), **BY)


def test_opening_and_reading_a_table_import_no_pandas(tmp_path):
    path = write(sales().drop(columns="open"), tmp_path / "t.parquet")
    script = (
        "import sys; from seqdata import open_store; from seqdata_frames import Frames; "
        f"store = open_store({str(path)!r}, backend=Frames(), **{BY!r}); store[0]; "
        "sys.exit('pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, timeout=300)
    assert done.returncode == 0
