"""Whatever holds sequences goes everywhere that a store goes."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pytest
import torch
from torch.utils.data import Dataset

from seqdata import (
    Bucketed,
    Loader,
    SequenceDataModule,
    concat,
    folds,
    measure_lengths,
    open_store,
    split,
    write_store,
)
from seqdata.errors import ConfigError, DecodeError, LimitError, SeqDataWarning
from seqdata.storage import memory
from seqdata.storage.views import View
from tests.storage.somebodys import Somebodys

ROWS = [{"id": f"u{i}", "x": np.arange(i + 1, dtype=np.int64), "y": i % 2} for i in range(6)]


class Items(Dataset):
    def __len__(self):
        return len(ROWS)

    def __getitem__(self, number):
        return {**ROWS[number], "x": torch.from_numpy(ROWS[number]["x"])}


def frame():
    return pd.DataFrame({name: [row[name] for row in ROWS] for name in ROWS[0]})


def holders(folder):
    write_store(folder / "a", ROWS[:2])
    write_store(folder / "b", ROWS[2:])
    table = pa.Table.from_pylist([{**row, "x": row["x"].tolist()} for row in ROWS])
    return {
        "dicts": (ROWS, None),
        "pandas": (frame(), None),
        "polars": (pl.from_arrow(table), None),
        "arrow": (table, None),
        "dataset": (Items(), [len(row["x"]) for row in ROWS]),
        "paths": ([folder / "a", str(folder / "b")], None),
        "stores": ([open_store(folder / "a"), folder / "b"], None),
        "somebody's": (Somebodys(open_store(ROWS)), None),
        "view": (open_store(ROWS).take(range(6)), None),
    }


KINDS = ("dicts", "pandas", "polars", "arrow", "dataset", "paths", "stores", "somebody's", "view")


def first_two(sequence, rng):
    return {"x": sequence["x"][:2]}


@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_everywhere(tmp_path, kind):
    data, lengths = holders(tmp_path)[kind]
    store = open_store(data, lengths=lengths)
    assert [one["id"] for one in store] == [row["id"] for row in ROWS]
    assert store.lengths.tolist() == [1, 2, 3, 4, 5, 6]
    assert all(np.array_equal(store[i]["x"], ROWS[i]["x"]) for i in range(6))
    due = [batch["x"] for batch in Loader(ROWS, Bucketed(2), seed=1)]
    found = [batch["x"] for batch in Loader(data, Bucketed(2), seed=1, lengths=lengths)]
    assert all(map(torch.equal, due, found))
    module = SequenceDataModule(train=data, batching=Bucketed(2), seed=1, lengths=lengths)
    module.setup("fit")
    assert all(map(torch.equal, due, (batch["x"] for batch in module.train_dataloader())))
    module.teardown("fit")
    parts = split(data, {"a": 0.5, "b": 0.5}, exact=True, lengths=lengths)
    assert {name: len(view) for name, view in parts.items()} == {"a": 3, "b": 3}
    assert [len(val) for _, val in folds(data, 3, lengths=lengths)] == [2, 2, 2]
    if lengths is None:
        assert len(concat([data, ROWS])) == 12
        assert measure_lengths(data, first_two).lengths.tolist() == [1, 2, 2, 2, 2, 2]
    written = write_store(tmp_path / "out", data)
    assert written.fingerprint == write_store(tmp_path / "due", ROWS).fingerprint


def test_a_list_of_tuples_has_the_fields_of_a_dataset():
    pairs = [(np.ones((2, 3)), 1), (np.ones((4, 3)), 0)]
    (batch,) = Loader(pairs, Bucketed(2))
    assert sorted(batch.keys()) == ["x", "y"]
    assert batch["x"].shape == (2, 4, 3)
    (batch,) = Loader(pairs, Bucketed(2), fields=("frames", "label"))
    assert sorted(batch.keys()) == ["frames", "label"]
    assert open_store([(1, 2, 3), (4, 5)]).lengths.tolist() == [3, 2]  # sequences of numbers


STEPS = {
    "site": ["b", "b", "b", "a", "a"],
    "load": [0.5, 2.5, 4.5, 1.5, 3.5],
    "label": [1, 1, 1, 2, 2],
}


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table], ids=["pd", "pl", "pa"])
def test_a_table_with_a_row_per_timestep_names_group(make, tmp_path):
    with pytest.raises(ConfigError) as caught:
        Loader(make(STEPS), Bucketed(2))
    assert str(caught.value) == (
        "table: a column must hold lists of numbers, a row per sequence, but site, load, label hold"
        " one value per row. If a row is a timestep, name the column whose equal values make a "
        "sequence: open_store(table, group='site'), or `seqdata write --group site`"
    )
    store = open_store(make(STEPS), group="site")
    assert [one["id"] for one in store] == ["b", "a"]
    assert store[0]["load"].tolist() == [0.5, 2.5, 4.5]
    assert store[1]["label"].tolist() == [2, 2]
    single = open_store(make(STEPS), group="site", axes={"label": None})
    assert single[1]["label"] == 2
    assert write_store(tmp_path / "s", make(STEPS), group="site").lengths.tolist() == [3, 2]
    with pytest.raises(ConfigError, match=r"no column 'sight'; did you mean 'site'"):
        open_store(make(STEPS), group="sight")
    with pytest.raises(DecodeError, match=r"column 'load' must have one value per sequence, but in "
                       r"the rows of 'b' it has 0\.5 and 2\.5"):  # fmt: skip
        open_store(make(STEPS), group="site", axes={"load": None})


def test_lists_inside_of_a_group_are_left_out_with_a_warning():
    table = pa.table({"site": ["a", "a"], "x": [1, 2], "more": [[1], [2]]})
    with pytest.warns(SeqDataWarning, match="column 'more' is dropped: lists"):
        assert list(open_store(table, group="site").fields) == ["id", "site", "x"]


def test_the_index_of_a_frame_is_kept_where_it_has_a_name():
    named = frame().set_index("id")
    assert open_store(named).keys([5]) == ["u5"]
    both = frame().set_index(["id", "y"])
    assert open_store(both)[1]["y"] == 1
    assert list(open_store(frame().iloc[[4, 2]]).fields) == [
        "id",
        "x",
        "y",
    ]  # numbers: nothing lost
    with pytest.warns(SeqDataWarning, match="the index is dropped: it has no name; keep it with"):
        open_store(frame().set_index(pd.Index(list("abcdef"))))
    with pytest.raises(ConfigError, match=r"two of the name .*a named index of pandas is a column"):
        open_store(frame().rename_axis("y"))
    steps = pd.DataFrame(STEPS).set_index("site")
    assert open_store(steps, group="site").lengths.tolist() == [3, 2]


def test_the_index_that_pandas_wrote_to_a_file_is_no_field(tmp_path):
    rows = pd.DataFrame({"x": [[1.0, 2.0], [3.0]]}, index=["a", "b"])
    rows.to_parquet(tmp_path / "t.parquet")
    with pytest.warns(SeqDataWarning, match="'__index_level_0__' .an unnamed index of pandas"):
        assert list(open_store(tmp_path / "t.parquet").fields) == ["x"]
    with pytest.warns(SeqDataWarning, match="'__index_level_0__' is dropped: it is an index of"):
        assert list(open_store(pa.Table.from_pandas(rows)).fields) == ["x"]


def test_two_columns_of_one_name_are_refused():
    table = pa.table([pa.array([[1]]), pa.array([[2]])], names=["x", "x"])
    with pytest.raises(ConfigError, match="must have columns of different names, but"):
        open_store(table)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1, "a", 2.5, 0, 0], "Could not convert 'a'.* column c"),
        ([1j] * 5, "numpy type.*column c"),
        (pd.arrays.SparseArray([0, 0, 1, 0, 0]), "Sparse .*column c"),
    ],
    ids=["mixed", "complex", "sparse"],
)
def test_a_column_of_pandas_that_arrow_has_no_type_for_is_refused_by_name(values, reason):
    steps = pd.DataFrame(STEPS).assign(c=values)
    with pytest.raises(DecodeError, match=rf"must hold values of one type .*{reason}.* leave it"):
        open_store(steps, group="site")


def test_the_index_in_a_csv_file_of_pandas_is_no_field(tmp_path):
    pd.DataFrame(STEPS).to_csv(tmp_path / "steps.csv")
    table = pyarrow.csv.read_csv(tmp_path / "steps.csv")
    with pytest.warns(SeqDataWarning, match="column '' is dropped: it is an index of pandas"):
        assert list(open_store(table, group="site").fields) == ["id", "site", "load", "label"]


def test_an_iterator_that_does_not_fit_into_memory_is_stopped(monkeypatch):
    def endless():
        while True:
            yield np.zeros(1000)

    monkeypatch.setattr(memory, "free_memory", lambda: 4_000_000)
    with pytest.raises(LimitError, match="sequences of unknown number must fit into 1,000,000 byt"):
        Loader(endless(), Bucketed(2))
    assert len(open_store([np.zeros(1000)] * 200)) == 200  # a list is there already
    monkeypatch.setattr(memory, "free_memory", lambda: None)
    assert len(open_store(iter([np.zeros(1000)] * 200))) == 200


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (
            [1, 2, 3],
            r"but holds numbers, the first is 1\. One sequence of numbers is passed in a l",
        ),
        (np.arange(3), "but holds numbers"),
        (torch.arange(3), "but holds numbers"),
        (
            ["some text", "more"],
            r"item 0 of the list: .*some text: must be .*, but is not there .* A list of strings",
        ),
        ([ROWS[0], None], "sequence 1: must be a dict of fields"),
        (
            [{"x": None}],
            "sequence 0, field 'x': is None, which cannot be stored; fill it, or leave",
        ),
        ([{"text": "abc", "y": 3}], r"'text' \(str, one per sequence\), 'y' \(int64.* Encode text"),
        (3, "`sequences` must be an iterable .*, but is a int"),
        ({"x": [1, 2]}, "must be an iterable of dicts|1 named stores need a policy that draws"),
        ({"a"}, "but holds a str: 'a'. Encode text as numbers"),
        ([open_store(ROWS), 3], "must hold nothing else, but item 1 is a int. Open it first"),
    ],
)
def test_what_cannot_be_sequences_is_refused_with_what_to_do(data, text):
    for use in (open_store, lambda one: Loader(one, Bucketed(2)), lambda one: split(one, {"a": 1})):
        with pytest.raises((ConfigError, DecodeError), match=text):
            use(data)


def test_lists_of_paths_that_differ_show_both_schemas(tmp_path):
    write_store(tmp_path / "a", ROWS)
    write_store(tmp_path / "b", [{"x": np.zeros(2, np.float32)}])
    with pytest.raises(ConfigError) as caught:
        Loader([tmp_path / "a", tmp_path / "b"], Bucketed(2))
    text = str(caught.value)
    assert "store 1 differs from store 0" in text
    assert "x int64 (time,), y int64 per sequence" in text
    assert "x float32 (time,)" in text


@pytest.mark.parametrize(
    ("data", "options", "text"),
    [
        (ROWS, {"verify": "always"}, "`verify` is for a path or URL, but the data is a list"),
        ("there", {"lengths": [1]}, "`lengths` is for data in memory, .* Leave it out"),
        ("there", {"group": "y"}, "there': must be a file, a folder or a glob"),
        ("there", {"axes": {}}, "`axes` is for data in memory"),
        (ROWS, {"group": "y"}, "`group` is 'y', but the data is a list: it is for a pandas"),
        (ROWS, {"lengths": [1]}, "`lengths` are for a Dataset only, but the data is a list"),
    ],
)
def test_options_that_do_not_go_with_the_data_are_refused(data, options, text):
    with pytest.raises(ConfigError, match=text):
        open_store(data, **options)


def test_only_a_string_that_is_no_path_may_be_text(tmp_path):
    write_store(tmp_path / "a", ROWS)
    with pytest.raises(ConfigError, match=r"item 0 of the list: .*A list of strings is a list of"):
        open_store(["some text"])
    for data in ([tmp_path / "missing"], [str(tmp_path / "a")]):
        with pytest.raises(ConfigError, match="item 0 of the list") as caught:
            open_store(data, verify="bogus")
        assert "A list of strings" not in str(caught.value)


@pytest.mark.parametrize("wrong", ["there", open_store(ROWS), 3])
def test_concat_wants_a_list(wrong):
    with pytest.raises(
        ConfigError, match=r"must be given as a list, but this is a .* Write concat"
    ):
        concat(wrong)


def test_a_backend_that_has_only_the_contract_is_wrapped():
    store = open_store("there", backend=lambda location, *, verify: Somebodys(open_store(ROWS)))
    assert isinstance(store, View)
    assert store[2]["id"] == "u2"
    assert store.where(lambda sequence: sequence["y"] == 1).numbers.tolist() == [1, 3, 5]


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
def test_a_column_id_of_a_table_does_not_hide_its_groups(make, tmp_path):
    table = {"id": [1, 2, 3], "site": ["north", "north", "south"], "load": [1.5, 2.5, 3.5]}
    for store in (
        lambda: open_store(make(table), group="site"),
        lambda: write_store(tmp_path / "s", make(table), group="site"),
    ):
        with pytest.warns(SeqDataWarning, match=r"'id' is dropped: .* 'site'.*; rename the column"):
            assert [row["id"] for row in store()] == ["north", "south"]
    renamed = open_store(make({"row": table.pop("id"), **table}), group="site")
    assert renamed[0]["id"] == "north"
    assert renamed[0]["row"].tolist() == [1, 2]


@pytest.mark.parametrize("suffix", [".jsonl", ".ndjson", ".jsonlines"])
def test_json_lines_of_any_suffix_are_read_by_group(tmp_path, suffix):
    path = tmp_path / f"rows{suffix}"
    path.write_text('{"site": "a", "t": 1}\n{"site": "a", "t": 2}\n{"site": "b", "t": 3}\n')
    store = open_store(path, group="site")
    assert store.lengths.tolist() == [2, 1]
