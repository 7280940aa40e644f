"""CSV files and JSON lines: ids as they stand there, rows of any form, numbers that stay exact."""

import json

import pytest

from seqdata.errors import DecodeError
from seqdata.readers import tables
from seqdata.readers.source import ReadOptions, find_files
from seqdata.readers.tables import read_csv, read_jsonl


def read(folder, options, kind):
    return list({"csv": read_csv, "jsonl": read_jsonl}[kind](find_files(folder), options))


def save(path, name, cells):
    """Write one column, as a text of JSON each."""
    rows = [json.dumps(cell) for cell in cells]
    if path.suffix == ".jsonl":
        path.write_text("".join(f'{{"{name}": {row}}}\n' for row in rows))
    else:
        path.write_text(f"{name}\n" + "".join(f'"{row}"\n' for row in rows))


@pytest.mark.parametrize("name", ["group", "id"])
@pytest.mark.parametrize(
    "ids",
    [
        ["01", "1", "001"],
        ["12345678901234567891", "12345678901234567892"],
        ["1.50", "1.5"],
        ["2020-01-01", "2020-01-02"],
        ["true", "True"],
    ],
    ids=["zeros", "long", "decimals", "dates", "booleans"],
)
def test_ids_of_a_csv_file_are_texts_as_they_stand_there(tmp_path, name, ids):
    cell = "{}" if name == "group" else '"[{}]"'
    rows = "".join(f"{text},{cell.format(number)}\n" for number, text in enumerate(ids))
    (tmp_path / "t.csv").write_text("s,x\n" + rows)
    found = read(tmp_path, ReadOptions(**{name: "s"}), "csv")
    assert [sequence["id"] for sequence in found] == ids


@pytest.mark.parametrize("name", ["group", "id"])
def test_ids_of_json_that_look_like_dates_stay_texts(tmp_path, name):
    ids = ["2020-01-01 00:00:00", "2020-01-01"]
    lines = [{"s": text, "x": n if name == "group" else [n]} for n, text in enumerate(ids)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = read(tmp_path, ReadOptions(**{name: "s"}), "jsonl")
    assert [sequence["id"] for sequence in found] == ids


@pytest.mark.parametrize("name", ["group", "id"])
def test_an_empty_id_of_a_csv_file_is_missing(tmp_path, name):
    cells = ("1", "2") if name == "group" else ('"[1]"', '"[2]"')
    (tmp_path / "t.csv").write_text("s,x\na,{}\n,{}\n".format(*cells))
    with pytest.raises(DecodeError, match="column 's' has 1 missing values"):
        read(tmp_path, ReadOptions(**{name: "s"}), "csv")


def test_a_line_end_within_quotes_never_divides_a_row(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_BLOCK_BYTES", 1 << 16)  # so that a file of 2 MB has many
    rows = "".join(f'"k\n{number // 4}",{number}\n' for number in range(150_000))
    (tmp_path / "t.csv").write_text("s,v\n" + rows)
    found = read(tmp_path, ReadOptions(group="s"), "csv")
    assert [sequence["id"] for sequence in found] == [f"k\n{n}" for n in range(37_500)]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_row_may_have_more_than_a_mebibyte(tmp_path, kind):
    save(tmp_path / f"t.{kind}", "x", [list(range(300_000)), [1]])
    first, second = read(tmp_path, ReadOptions(), kind)
    assert (len(first["x"]), second["x"].tolist()) == (300_000, [1])


LARGE = 2**53 + 1  # between two numbers of float64


@pytest.mark.parametrize(
    ("kind", "content", "found"),
    [
        ("csv", f"s,x\na,0.5\na,{LARGE}\n", f"row 1, column 'x' .* but has {LARGE}"),
        ("csv", "s,x\na, -18446744073709551617 \n", "row 0, .* has -18446744073709551617"),
        ("csv", f"s,x\na,{'9' * 400}\n", "row 0, column 'x' .* has 9{40}. Write such"),
        ("csv", f's,x\na,"[1, {LARGE}]"\na,"[2.5]"\n', f"row 0, column 'x' .* has {LARGE}"),
        ("jsonl", f'{{"s": "a", "x": 0.5}}\n{{"s": "a", "x": {LARGE}}}\n', f"row 1, .* {LARGE}"),
        (
            "jsonl",
            f'{{"s": "a", "x": [0.5]}} {{"s": "a", "x": [1, {LARGE}]}}',
            f"row 1, .* {LARGE}",
        ),
        ("jsonl", f'{{"s": "a", "x": [[{LARGE}, 0.5]]}}', f"row 0, column 'x' .* has {LARGE}"),
    ],
)
def test_a_whole_number_that_float64_would_change_is_refused(tmp_path, kind, content, found):
    path = tmp_path / f"t.{kind}"
    path.write_text(content)
    with pytest.raises(DecodeError, match=found) as caught:
        read(tmp_path, ReadOptions(id="s") if "[" in content else ReadOptions(group="s"), kind)
    assert str(path) in str(caught.value)
    assert caught.value.facts["file"] == str(path)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("values", [[0.5, float(2**60), 1e300, -1e20], [0.5, 2**60], [1, LARGE]])
def test_large_numbers_that_can_be_held_are_read(tmp_path, kind, values):
    save(tmp_path / f"t.{kind}", "x", [values])
    (row,) = read(tmp_path, ReadOptions(), kind)
    assert row["x"].tolist() == values


def test_texts_of_json_that_begin_with_a_bracket_stay_texts(tmp_path):
    lines = [{"note": "[1]", "x": [1, 2]}, {"note": "[2]", "x": [3]}]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [row["note"] for row in read(tmp_path, ReadOptions(), "jsonl")] == ["[1]", "[2]"]
