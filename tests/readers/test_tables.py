"""Formats ``csv``, ``jsonl`` and ``parquet``: a sequence per row or per group."""

import json

import numpy as np
import pyarrow as pa
import pytest

from seqdata import open_store
from seqdata.errors import (
    ConfigError,
    CorruptShardError,
    DataError,
    DecodeError,
    SeqDataWarning,
)
from seqdata.logical_types import Categories, Timestamp
from seqdata.readers.groups import iter_groups
from seqdata.readers.source import ReadOptions, find_source
from seqdata.readers.tables import read_parquet
from seqdata.readers.text_tables import read_csv, read_jsonl

ROW = ReadOptions()
READERS = {"csv": read_csv, "jsonl": read_jsonl, "parquet": read_parquet}

NAME_TAKEN = "column 'id' is dropped: sequences are named by column '%s'.*; rename the column to k"


def save(path, columns):
    """Write a table as the file's ending says."""
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".csv":
        lines = [",".join(columns)]
        lines += [",".join(quoted(value) for value in row.values()) for row in rows]
        path.write_text("\n".join(lines) + "\n")
    else:
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.table(columns), path, row_group_size=2)


def quoted(value):
    return f'"{value}"' if isinstance(value, list) else str(value)


def read(folder, options=ROW, kind="parquet"):
    return list(READERS[kind](find_source(folder)[0], options))


@pytest.mark.parametrize("kind", READERS)
def test_a_row_is_a_sequence_whose_lists_are_ragged(tmp_path, kind):
    columns = {
        "name": ["a", "b", "c"],
        "x": [[1, 2], [3], [4, 5, 6]],
        "y": [0.5, 1.5, 2.5],
        "label": [7, 8, 9],
    }
    save(tmp_path / f"t.{kind}", columns)
    rows = read(tmp_path, ReadOptions(id="name"), kind)
    assert [row["id"] for row in rows] == ["a", "b", "c"]
    assert [row["x"].tolist() for row in rows] == columns["x"]
    assert [float(row["y"]) for row in rows] == columns["y"]
    assert {row["label"].dtype for row in rows} == {np.dtype(np.int64)}
    assert rows[0]["x"].dtype == np.int64
    assert "name" not in rows[0]


@pytest.mark.parametrize("kind", READERS)
def test_a_group_is_a_sequence_of_its_rows_in_order(tmp_path, kind):
    columns = {
        "site": ["u", "u", "u", "v", "v"],
        "load": [1.0, 2.0, 3.0, 10.0, 20.0],
        "state": [1, 1, 0, 0, 0],
        "country": ["de", "de", "de", "fr", "fr"],
    }
    save(tmp_path / f"t.{kind}", columns)
    first, second = read(tmp_path, ReadOptions(group="site"), kind)
    assert (first["id"], second["id"]) == ("u", "v")
    assert first["load"].tolist() == [1.0, 2.0, 3.0]
    assert second["load"].tolist() == [10.0, 20.0]
    assert first["state"].tolist() == [1, 1, 0]
    assert (first["country"], second["country"]) == ("de", "fr")
    assert (first["site"], second["site"]) == ("u", "v")  # the column keeps its name


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("taken", [[1, 2, 3], ["m", "m", "m"], ["m", "n", "o"]])
def test_a_column_id_leaves_groups_their_names_and_is_left_out_with_a_warning(
    tmp_path, kind, taken
):
    columns = {"id": taken, "site": ["north", "north", "south"], "load": [1.5, 2.5, 3.5]}
    save(tmp_path / f"t.{kind}", columns)
    with pytest.warns(SeqDataWarning, match=NAME_TAKEN % "site"):
        rows = read(tmp_path, ReadOptions(group="site"), kind)
    assert {row["id"]: row["load"].tolist() for row in rows} == {
        "north": [1.5, 2.5], "south": [3.5],
    }  # fmt: skip
    save(tmp_path / f"t.{kind}", {"id": columns["site"], "load": columns.pop("load")})
    found = read(tmp_path, ReadOptions(group="id"), kind)  # it may make groups itself
    assert [row["id"] for row in found] == ["north", "south"]
    save(tmp_path / f"t.{kind}", columns)
    with (
        pytest.warns(SeqDataWarning, match=NAME_TAKEN % "site"),
        pytest.raises(ConfigError, match="no column but 'site' and 'id' has a value per timestep"),
    ):
        read(tmp_path, ReadOptions(group="site"), kind)


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("taken", [[7, 8], ["m", "n"], [[1], [2]]])
def test_a_column_id_leaves_rows_their_names_and_is_left_out_with_a_warning(tmp_path, kind, taken):
    columns = {"id": taken, "name": ["a", "b"], "x": [[1], [2, 3]]}
    save(tmp_path / f"t.{kind}", columns)
    with pytest.warns(SeqDataWarning, match=NAME_TAKEN % "name"):
        rows = read(tmp_path, ReadOptions(id="name"), kind)
    assert [row["id"] for row in rows] == ["a", "b"]
    assert [set(row) for row in rows] == [{"id", "x"}] * 2
    columns["number"] = columns.pop("id")  # what the warning says
    save(tmp_path / f"t.{kind}", columns)
    rows = read(tmp_path, ReadOptions(id="name"), kind)
    assert [np.asarray(row["number"]).tolist() for row in rows] == taken


def test_groups_may_be_numbers_and_reach_over_files(tmp_path):
    save(tmp_path / "a.csv", {"g": [2, 1], "x": [1.5, 2.5]})
    save(tmp_path / "b.csv", {"g": [1, 0], "x": [3, 4]})
    rows = read(tmp_path, ReadOptions(group="g"), "csv")
    assert {row["id"]: row["x"].tolist() for row in rows} == {
        "2": [1.5],
        "1": [2.5, 3.0],
        "0": [4.0],
    }


def test_the_rows_of_large_groups_keep_their_order(tmp_path):
    save(
        tmp_path / "t.parquet", {"g": [row // 1000 for row in range(3000)], "x": list(range(3000))}
    )
    for row in read(tmp_path, ReadOptions(group="g")):
        assert row["x"].tolist() == list(range(int(row["id"]) * 1000, int(row["id"]) * 1000 + 1000))


def test_lists_of_equal_lists_are_vectors_per_timestep(tmp_path):
    save(tmp_path / "t.jsonl", {"x": [[[1, 2], [3, 4]], [[5, 6]], []]})
    rows = read(tmp_path, kind="jsonl")
    assert [row["x"].shape for row in rows] == [(2, 2), (1, 2), (0, 2)]


def test_lists_of_unequal_lists_are_refused(tmp_path):
    save(tmp_path / "t.jsonl", {"x": [[[1, 2], [3]]]})
    with pytest.raises(
        DecodeError,
        match="must hold the same number of values per timestep, but holds vectors of 1 to 2",
    ):
        read(tmp_path, kind="jsonl")


def test_cells_of_csv_may_be_lists_of_whole_numbers_or_fractions(tmp_path):
    save(tmp_path / "t.csv", {"x": [[1, 2], [], [0.5]]})
    rows = read(tmp_path, kind="csv")
    assert [row["x"].tolist() for row in rows] == [[1.0, 2.0], [], [0.5]]
    assert {row["x"].dtype for row in rows} == {np.dtype(np.float64)}


@pytest.mark.parametrize("cell", ["[1; 2]", "[[1], [2, 3]]", "['a']", '[""x""]', "[[1]]"])
def test_a_cell_that_is_no_list_of_numbers_is_refused_with_its_place(tmp_path, cell):
    (tmp_path / "t.csv").write_text(f'x\n"[1]"\n"{cell}"\n')
    with pytest.raises(
        DecodeError, match=r"row 1, column 'x' is .*, but must be a list of numbers"
    ) as e:
        read(tmp_path, kind="csv")
    assert e.value.details == {"field": "x", "row": 1, "file": str(tmp_path / "t.csv")}


def test_missing_integers_are_refused(tmp_path):
    (tmp_path / "t.csv").write_text("g,x\na,1\na,\nb,2\n")
    with pytest.raises(DecodeError, match="column 'x': must not hold missing values"):
        read(tmp_path, ReadOptions(group="g"), "csv")


def test_a_string_that_changes_within_a_group_has_a_code_per_timestep(tmp_path):
    save(tmp_path / "t.csv", {"g": ["a", "a"], "x": [1, 2], "note": ["n", "m"]})
    (row,) = read(tmp_path, ReadOptions(group="g"), "csv")
    assert row["note"].values.tolist() == [0, 1]
    assert row["note"].logical == Categories(("n", "m"))


def test_dates_are_integers_with_their_unit(tmp_path):
    (tmp_path / "t.csv").write_text("g,when,x\na,2026-01-01 10:00:00,1\n")
    (row,) = read(tmp_path, ReadOptions(group="g"), "csv")
    assert row["when"].logical == Timestamp("s")
    assert row["when"].logical.decode(row["when"].values) == np.datetime64("2026-01-01T10:00:00")


def test_a_column_of_another_type_is_left_out_with_a_warning(tmp_path):
    from pyarrow import parquet

    times = pa.array([0], pa.time32("s"))
    parquet.write_table(pa.table({"g": ["a"], "when": times, "x": [1]}), tmp_path / "t.parquet")
    with pytest.warns(
        SeqDataWarning, match=r"column 'when' is dropped: of type time32\[ms\]; must"
    ):
        (row,) = read(tmp_path, ReadOptions(group="g"))
    assert set(row) == {"id", "g", "x"}


def test_lists_of_strings_are_codes_per_timestep(tmp_path):
    save(tmp_path / "t.jsonl", {"x": [[1, 2], [3]], "words": [["b", "a"], ["a"]]})
    first, second = read(tmp_path, kind="jsonl")
    assert (first["words"].values.tolist(), second["words"].values.tolist()) == ([0, 1], [1])
    assert first["words"].logical.values == ("b", "a")


def test_a_dictionary_column_is_its_values(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    kinds = pa.array(["a", "b", "a"]).dictionary_encode()
    parquet.write_table(pa.table({"x": [[1], [2], [3]], "kind": kinds}), tmp_path / "t.parquet")
    assert [row["kind"] for row in read(tmp_path)] == ["a", "b", "a"]


def test_bytes_are_one_value_per_sequence_and_no_ids(tmp_path):
    save(tmp_path / "t.parquet", {"x": [[1], [2]], "raw": [b"a", b""]})
    assert [row["raw"] for row in read(tmp_path)] == [b"a", b""]
    with pytest.raises(
        ConfigError, match=r"'raw' must hold strings or numbers to be ids, .* binary"
    ):
        read(tmp_path, ReadOptions(id="raw"))


def test_rows_without_lists_need_a_group(tmp_path):
    save(tmp_path / "t.csv", {"x": [1, 2]})
    with pytest.raises(ConfigError, match=r"no column holds lists of numbers.*`--group COLUMN`"):
        read(tmp_path, kind="csv")


def test_groups_without_numbers_are_refused(tmp_path):
    save(tmp_path / "t.csv", {"g": ["a"], "s": ["b"]})
    with pytest.raises(ConfigError, match="no column but 'g' has a value per timestep"):
        read(tmp_path, ReadOptions(group="g"), "csv")
    save(tmp_path / "t.csv", {"g": ["a"], "n": [1]})
    with pytest.raises(ConfigError, match="Add such a column, or leave it out of `axes`"):
        read(tmp_path, ReadOptions(group="g", per_sequence=("n",)), "csv")


@pytest.mark.parametrize("option", ["group", "id"])
def test_a_column_that_is_not_there_is_refused(tmp_path, option):
    save(tmp_path / "t.csv", {"x": [[1]], "y": [2]})
    with pytest.raises(ConfigError, match=r"no column 'z'. Choose one of x, y"):
        read(tmp_path, ReadOptions(**{option: "z"}), "csv")


def test_group_and_id_together_are_refused(tmp_path):
    save(tmp_path / "t.csv", {"x": [1], "y": [2]})
    with pytest.raises(ConfigError, match="`id` and `group` cannot be combined"):
        read(tmp_path, ReadOptions(group="x", id="y"), "csv")


def test_a_field_name_is_refused_since_columns_have_names(tmp_path):
    save(tmp_path / "t.csv", {"x": [[1]]})
    with pytest.raises(ConfigError, match="table: `field` is for files of one array, but is 'mel'"):
        read(tmp_path, ReadOptions(field="mel"), "csv")


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("jsonl", b'{"x": [1], "x": [2]}\n'),
        ("csv", b"a,b\n1\n"),
        ("csv", b""),
    ],
)
def test_a_file_of_another_kind_is_refused_by_name(tmp_path, kind, content):
    (tmp_path / f"t.{kind}").write_bytes(content)
    with pytest.raises(
        DecodeError, match=rf"t\.{kind}': must be {kind}, but cannot be read as such \("
    ):
        read(tmp_path, kind=kind)


@pytest.mark.parametrize("content", [b"PAR1 no", b"g,x\n"])
def test_a_file_that_is_not_parquet_is_refused_as_a_store_of_it_is(tmp_path, content):
    path = tmp_path / "t.parquet"
    path.write_bytes(content)
    said = []
    for opened in (lambda: open_store(path), lambda: read(tmp_path)):
        with pytest.raises(DataError) as caught:
            opened()
        said.append(str(caught.value).replace(f' ("{path.name}")', ""))
    assert "t.parquet" in said[1]
    assert said[0].partition(": ")[2] == said[1].partition(": ")[2]


def test_files_whose_columns_do_not_go_together_are_refused(tmp_path):
    save(tmp_path / "a.jsonl", {"x": [[1]]})
    save(tmp_path / "b.jsonl", {"x": ["text"]})
    with pytest.raises(DecodeError, match="jsonl: the files' columns do not match"):
        read(tmp_path, kind="jsonl")


@pytest.mark.parametrize("options", [ROW, ReadOptions(group="x")])
def test_rows_that_pyarrow_leaves_out_without_an_error_are_damage(tmp_path, options):
    """A flipped bit in the header of a page may make PyArrow skip the page, or its end."""
    import pyarrow as pa
    from pyarrow import parquet

    path = tmp_path / "t.parquet"
    values = [[1], [2, 3], [4]] if options is ROW else [1, 2, 2]
    parquet.write_table(pa.table({"x": values}), path, compression="none", use_dictionary=False)
    well = path.read_bytes()
    begin = parquet.ParquetFile(path).metadata.row_group(0).column(0).data_page_offset
    left_out = 0
    for bit in range(8 * begin, 8 * (begin + 24)):
        damaged = bytearray(well)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            rows = len(parquet.read_table(path))
        except (OSError, ValueError):
            continue
        if rows != 3:
            left_out += 1
            with pytest.raises(CorruptShardError, match=r"must have 3 rows|values for 3 rows"):
                read(tmp_path, options)
    assert left_out


def test_groups_by_codes_are_those_of_the_values_that_occur(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    codes = pa.DictionaryArray.from_arrays([1, 1, 0, 0], ["a", "b", "z"])
    table = pa.table({"s": codes, "v": [1, 3, 2, 4], "text": ["u", "u", "v", "v"]})
    parquet.write_table(table, tmp_path / "t.parquet")
    found = read(tmp_path, ReadOptions(group="s"))
    assert [(its["id"], its["v"].tolist(), its["text"]) for its in found] == [
        ("b", [1, 3], "u"), ("a", [2, 4], "v"),
    ]  # fmt: skip
    missing = pa.DictionaryArray.from_arrays([0, 1], ["a", None])
    with pytest.raises(DecodeError, match="column 's': must not hold missing values"):
        list(iter_groups(pa.table({"s": missing, "v": [1, 2]}), "s"))


@pytest.mark.parametrize("name", ["group", "id"])
def test_a_column_of_lists_names_no_sequences(tmp_path, name):
    save(tmp_path / "t.parquet", {"s": [[[1]], [[2]]], "x": [[1], [2]]})
    with pytest.raises(ConfigError, match=r"column 's' must hold .*, but is of type list.*another"):
        read(tmp_path, ReadOptions(**{name: "s"}))


def test_checksums_of_pages_are_compared(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    path, table = tmp_path / "t.parquet", pa.table({"x": [[1, 123456789, 1 << 40]]})
    parquet.write_table(
        table, path, compression="none", use_dictionary=False, write_page_checksum=True
    )
    damaged = bytearray(path.read_bytes())
    at = damaged.index((123456789).to_bytes(8, "little"))
    damaged[at] ^= 4
    path.write_bytes(damaged)
    with pytest.raises(CorruptShardError, match="CRC"):
        read(tmp_path)
    with pytest.raises(CorruptShardError, match="CRC"):
        open_store(path)


def test_a_footer_that_contradicts_itself_is_damage(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    path = tmp_path / "t.parquet"
    ids = [f"n{number}" for number in range(60)]
    table = pa.table({"id": ids, "x": [[n] for n in range(60)]})
    parquet.write_table(table, path, compression="none", row_group_size=30, use_dictionary=False)
    well, told = path.read_bytes(), 0
    begin = len(well) - 8 - int.from_bytes(well[-8:-4], "little")
    for at in range(begin, len(well) - 8):
        if well[at] not in (60, 120):  # numbers of rows, as zigzag
            continue
        for bit in range(1, 6):
            damaged = bytearray(well)
            damaged[at] ^= 1 << bit
            path.write_bytes(damaged)
            for opened in (lambda: list(open_store(path)), lambda: read(tmp_path)):
                try:
                    assert len(opened()) == 60
                except (DataError, OSError):
                    told += 1
    assert told


@pytest.mark.parametrize("kind", READERS)
def test_errors_about_a_table_name_its_file(tmp_path, kind):
    save(tmp_path / f"a.{kind}", {"s": ["a"], "x": [[1]]})
    with pytest.raises(ConfigError, match=rf"column 'z'.*\n  in the file '.*a\.{kind}'$") as caught:
        read(tmp_path, ReadOptions(id="z"), kind)
    assert caught.value.details["file"] == str(tmp_path / f"a.{kind}")
    save(tmp_path / f"b.{kind}", {"s": ["a"], "x": [[1]]})
    with pytest.raises(ConfigError, match=r"column 'z'.*\n  in the file '.*' and 1 more$"):
        read(tmp_path, ReadOptions(group="z"), kind)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("options", [ROW, ReadOptions(group="s")])
def test_two_columns_of_one_name_are_refused(tmp_path, kind, options):
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(
        pa.table([[1], [[2]], [[3]]], names=["s", "x", "x"]), tmp_path / "t.parquet"
    )
    (tmp_path / "t.csv").write_text("s,x,x\n1,2,3\n")
    with pytest.raises(ConfigError, match=r"but has two of the name 'x'\. Rename one") as caught:
        read(tmp_path / f"t.{kind}", options, kind)
    assert f"t.{kind}" in str(caught.value)
