"""CSV files and JSON lines: ids as they stand there, rows of any form, numbers that stay exact."""

import bz2
import codecs
import gzip
import json
import lzma
import re
import warnings

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

from seqdata import open_store
from seqdata.cli.app import app
from seqdata.errors import ConfigError, DataError, DecodeError, SeqDataWarning
from seqdata.readers import text_tables
from seqdata.readers.source import ReadOptions, find_source
from seqdata.readers.text_tables import parse_list_cells, read_csv, read_jsonl


def read(folder, options, kind):
    return list({"csv": read_csv, "jsonl": read_jsonl}[kind](find_source(folder)[0], options))


def save(path, name, cells):
    """Write one column, as a text of JSON each."""
    rows = [json.dumps(cell) for cell in cells]
    if path.suffix == ".jsonl":
        path.write_text("".join(f'{{"{name}": {row}}}\n' for row in rows))
    else:
        path.write_text(f"{name}\n" + "".join(f'"{row}"\n' for row in rows))


COMPRESS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda content: pa.compress(content, codec="zstd", asbytes=True),
}
TABLES = {
    "csv": "g;x\n# no row\na;1,5\na;2\nb;3\n",
    "jsonl": '{"g": "2020-01-01", "x": 1.5}\n{"g": "2020-01-01", "x": 2}\n{"g": "b", "x": 3}\n',
}


@pytest.mark.parametrize("ending", COMPRESS)
@pytest.mark.parametrize("kind", TABLES)
def test_compressed_tables_are_read_as_plain_ones(tmp_path, kind, ending):
    plain, packed = tmp_path / f"plain.{kind}", tmp_path / f"packed.{kind}{ending}"
    plain.write_text(TABLES[kind])
    packed.write_bytes(COMPRESS[ending](TABLES[kind].encode()))
    csv = {"delimiter": ";", "decimal": ",", "comment": "#"} if kind == "csv" else {}
    options = ReadOptions(group="g", **csv)
    found = [read(path, options, kind) for path in (plain, packed)]
    for first, second in zip(*found, strict=True):
        assert first["g"] == second["g"]
        assert first["x"].tolist() == second["x"].tolist()
    assert len(found[0]) == 2


def test_compressed_tables_are_found_by_their_suffixes(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.csv.gz").write_bytes(gzip.compress(b"g,x\na,1\na,2\n"))
    (source / "b.csv").write_text("g,x\nb,3\n")
    store = open_store(source, group="g")
    assert [row["x"].tolist() for row in store] == [[1, 2], [3]]
    out = tmp_path / "out"
    result = CliRunner().invoke(app, ["write", str(source), str(out), "--group", "g"])
    assert result.exit_code == 0, result.output
    assert [row["x"].tolist() for row in open_store(out)] == [[1, 2], [3]]
    with pytest.raises(DataError, match=r"a\.csv\.gz: .* Turn it into one with `seqdata write`"):
        open_store(source / "a.csv.gz")
    (source / "b.csv.gz").write_bytes(gzip.compress(b"g,x\nb,3\n"))
    with pytest.raises(
        ConfigError, match=r"must have each file once, but has 'b\.csv' and 'b\.csv"
    ):
        open_store(source, group="g")


def test_messages_about_compressed_tables(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"x": [1]}\n' * 1000)[:-4])
    with pytest.raises(DecodeError, match=r"a\.jsonl\.gz': must be a whole \.gz file, but is not"):
        read(path, ReadOptions(), "jsonl")
    path.write_bytes(gzip.compress(b'{"x": [1]}\n5\n'))
    with pytest.raises(DecodeError, match=r"a\.jsonl\.gz': line 2 must be a JSON object, but is a"):
        read(path, ReadOptions(), "jsonl")
    path = tmp_path / "a.csv"
    path.write_bytes(gzip.compress(b"x\n1\n"))
    with pytest.raises(DecodeError, match=r"compressed as \.gz\. Name it 'a\.csv\.gz', or decomp"):
        read(path, ReadOptions(group="x"), "csv")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"text"))
    result = CliRunner().invoke(app, ["write", str(tmp_path / "a.txt.gz"), str(tmp_path / "out")])
    assert result.exit_code != 0
    assert "ends in '.gz', and the bytes" in result.output.replace("\n", " ")


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
    with pytest.raises(DecodeError, match="column 's': must not hold missing values"):
        read(tmp_path, ReadOptions(**{name: "s"}), "csv")


def test_a_line_end_within_quotes_never_divides_a_row(tmp_path, monkeypatch):
    monkeypatch.setattr(text_tables, "_BLOCK_BYTES", 1 << 16)  # so that a file of 2 MB has many
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
    assert caught.value.details["file"] == str(path)


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


OUT_OF_RANGE = r"must have numbers that int64 or float64 hold exactly, but has -?1e400"
MIXED_CELL = "column 'x' is .*, but must be a list of numbers"
MIXED_JSON = "must have values of one kind in column 'x', but has a boolean besides a number of"


@pytest.mark.parametrize(
    ("kind", "rows", "line", "reason"),
    [
        ("csv", ["s,x", "a,1", "a,1e400"], 3, OUT_OF_RANGE),
        ("csv", ["s,x", "a,-1e400", "a,inf"], 2, OUT_OF_RANGE),
        ("csv", ['s,x', 'a,"[1]"', 'b,"[2, 1e400]"'], 3, OUT_OF_RANGE),
        ("csv", ["s,x", "a,true", "", "a,1"], 4, "true or false as in other rows, but is 1"),
        ("csv", ["s,x", "a,0", "a,false"], 2, "must be true or false as in other rows, but is 0"),
        ("csv", ['s,x', 'a,"[1]"', 'b,"[1, true]"'], 3, MIXED_CELL),
        ("csv", ['s,x', '"a\n",1', 'b,1e400'], 4, OUT_OF_RANGE),
        ("jsonl", ['{"s": "a", "x": 1}', '{"s": "a", "x": 1e400}'], 2, "that float64 holds"),
        ("jsonl", ['{"s": "a", "x": [1, 1e400]}'], 1, "numbers that float64 holds in column 'x'"),
        ("jsonl", ['{"s": "a", "x": [1]}', "", '{"s": "a", "x": [1, true]}'], 3, MIXED_JSON),
        ("jsonl", ['{"s": "a", "x": 1}', '{"s": "a", "x": true}'], 2, MIXED_JSON),
        ("jsonl", ['{"s": "a", "x": [[1, 2], [3, true]]}'], 1, "has a number besides a boolean of"),
        ("jsonl", ['{"s": "b", "x": [null, 1]}'], 1, "has null in a list"),
        ("jsonl", ['{"s": "a", "x": [1]}', '{"s": "b", "x": [1]'], 2, "object, but is no JSON"),
        ("jsonl", ['[{"s": "a", "x": [1]}]'], 1, "must be a JSON object, but is a list"),
    ],
    ids=str,
)  # fmt: skip
def test_a_number_that_a_parser_would_change_is_refused_with_its_line(
    tmp_path, kind, rows, line, reason
):
    (tmp_path / f"a.{kind}").write_text("\n".join(rows[:1] * (kind == "csv")) + "\n")
    path = tmp_path / f"b.{kind}"
    path.write_text("\n".join(rows) + "\n")
    options = ReadOptions(id="s") if "[" in "".join(rows) else ReadOptions(group="s")
    for source in (path, tmp_path):  # the lines are those of the file, whichever precede it
        with pytest.raises(DecodeError, match=reason) as caught:
            read(source, options, kind)
        assert f"line {line} " in str(caught.value)
        assert caught.value.details["file"] == str(path)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_infinity_and_nan_that_a_list_says_are_read(tmp_path, kind):
    save(tmp_path / f"t.{kind}", "x", [[1.5, float("inf"), float("-inf")], [float("nan")]])
    first, second = read(tmp_path, ReadOptions(), kind)
    assert first["x"].tolist() == [1.5, float("inf"), float("-inf")]
    assert str(second["x"].tolist()) == "[nan]"


@pytest.mark.parametrize(
    ("mark", "encoding"),
    [(codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"),
     (codecs.BOM_UTF16_BE, "utf-16-be"), (codecs.BOM_UTF32_LE, "utf-32-le")],
)  # fmt: skip
def test_a_csv_file_in_a_marked_encoding_is_read(tmp_path, mark, encoding):
    (tmp_path / "t.csv").write_bytes(mark + "s,x\nä,1\nä,2\nö,3\n".encode(encoding))
    rows = read(tmp_path, ReadOptions(group="s"), "csv")
    assert [(row["id"], row["x"].tolist()) for row in rows] == [("ä", [1, 2]), ("ö", [3])]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_another_encoding_is_refused_with_how_to_convert_it(tmp_path, kind, encoding):
    if (kind, encoding) == ("csv", "utf-16"):
        pytest.skip("is read")
    content = {"csv": "s,x\na,1\n", "jsonl": '{"x": [1]}\n'}[kind]
    (tmp_path / f"t.{kind}").write_bytes(content.encode(encoding))
    with pytest.raises(DecodeError, match=r"must be UTF-8 text, but .*UTF-16") as refused:
        read(tmp_path, ReadOptions(), kind)
    command = re.search(r"`iconv -f (\S+) -t UTF-8`", str(refused.value))
    assert command is not None
    assert content.encode(encoding).decode(command[1]) == content


@pytest.mark.parametrize("mark", [";", "\t", "|"])
@pytest.mark.parametrize("cells", [("a", "1"), ("a", "1,5"), ("a", '"[1, 2]"')])
def test_columns_that_are_separated_otherwise_are_never_one_column(tmp_path, mark, cells):
    path, out = tmp_path / "t.csv", tmp_path / "store"
    path.write_text(f"s{mark}x\n" + mark.join(cells) + "\n")
    with pytest.raises(
        ConfigError, match=r"separated by ',', but its first line is 's.*x', with 2 "
    ):
        read(tmp_path, ReadOptions(), "csv")
    naming = ["--id", "s"] if "[" in cells[1] else ["--group", "s"]
    refused = CliRunner().invoke(app, ["write", str(path), str(out), *naming])
    assert f"--delimiter={mark!r}" in refused.stderr.replace("--delimiter \\", "--delimiter='\\")
    decimal = ["--decimal", ","] if cells[1] == "1,5" else []
    options = [*naming, "--delimiter", mark.replace("\t", "\\t"), *decimal]
    done = CliRunner().invoke(app, ["write", str(path), str(out), *options])
    assert done.exit_code == 0, done.output
    due = {"1": [1], "1,5": [1.5], '"[1, 2]"': [1, 2]}[cells[1]]
    assert open_store(out)[0]["x"].tolist() == due
    assert open_store(out).keys([0]) == ["a"]


@pytest.mark.parametrize("rows", ['"[1, 2]"\n"[3]"\n', 'a,"[1, 2]"\nb,"[3]"\n', "[1]\n[2]\n"])
def test_a_csv_file_without_names_of_columns_is_refused(tmp_path, rows):
    (tmp_path / "t.csv").write_text(rows)
    with pytest.raises(ConfigError, match="must have the names of its columns in the first line"):
        read(tmp_path, ReadOptions(), "csv")


def test_one_column_without_any_delimiter_is_a_table(tmp_path):
    (tmp_path / "t.csv").write_text('"x;y"\n"[1, 2]"\n')
    assert read(tmp_path, ReadOptions(), "csv")[0]["x;y"].tolist() == [1, 2]


@pytest.mark.parametrize("text", ["1_000", "1,000", "1 000", "1.234,5", "1'000.5", "-3,25"])
def test_numbers_in_another_notation_are_told(tmp_path, text):
    (tmp_path / "t.csv").write_text(f's,x,y\na,1,"{text}"\na,2,"{text}"\n')
    with pytest.warns(
        SeqDataWarning, match=r"'y' holds strings such as .* not read as numbers. Pass"
    ):
        read(tmp_path, ReadOptions(group="s"), "csv")


def test_lists_in_some_rows_only_are_told(tmp_path):
    (tmp_path / "t.csv").write_text('s,x,y\na,"[1]","[1, 2]"\nb,"[2]",""\n')
    with pytest.warns(SeqDataWarning, match="'y' holds lists of numbers in some rows only"):
        read(tmp_path, ReadOptions(id="s"), "csv")


def test_ordinary_texts_are_not_told(tmp_path):
    (tmp_path / "t.csv").write_text("s,x,y,z,d\na,1,note 1,10.0.0.1,a-1\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (row,) = read(tmp_path, ReadOptions(group="s"), "csv")
    assert (row["y"], row["z"]) == ("note 1", "10.0.0.1")


@pytest.mark.parametrize("option", ["delimiter", "decimal"])
def test_options_of_csv_are_refused_for_other_formats(tmp_path, option):
    (tmp_path / "t.jsonl").write_text('{"x": [1]}\n')
    with pytest.raises(
        ConfigError, match=f"format 'jsonl': `{option}` must be left out, but is ';'"
    ):
        read(tmp_path, ReadOptions(**{option: ";"}), "jsonl")
    done = CliRunner().invoke(app, ["write", str(tmp_path), "out", f"--{option}", "ab"])
    assert done.exit_code == 2
    assert "must be one character, such as ';', but is 'ab'" in done.stderr


def test_texts_that_are_lists_are_parsed_where_a_text_file_has_them():
    texts = ["[1, 2.5]", "[]", "[3]"]
    table = pa.table({"c": texts, "id": texts, "note": ["[1]", "2", "x"]})
    parsed = parse_list_cells(table, ["id"])
    assert parsed.column("c").to_pylist() == [[1.0, 2.5], [], [3.0]]
    assert parsed.column("id").to_pylist() == texts
    assert parsed.column("note").to_pylist() == ["[1]", "2", "x"]


def read_text(folder, text, encoding="utf-8", **options):
    (folder / "t.csv").write_text(text, encoding)
    return list(read_csv(find_source(folder)[0], ReadOptions(group="g", **options)))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_lines_that_begin_with_the_mark_of_a_comment_are_left_out(tmp_path, encoding):
    text = "# made by hand\ng,x\n# one\na,1\na,2\n#\nb,3\n"
    first, second = read_text(tmp_path, text, encoding, comment="#")
    assert (first["x"].tolist(), second["x"].tolist()) == ([1, 2], [3])
    with pytest.raises(DecodeError, match="line 6"):  # as the file counts them
        read_text(tmp_path, "# made by hand\ng,x\n# one\na,true\na,false\na,1\n", comment="#")


def test_bytes_that_are_no_text_stay_an_error_beside_comments(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"# \xff\ng,x\na,1\n")
    (row,) = read_csv(find_source(tmp_path)[0], ReadOptions(group="g", comment="#"))
    assert row["x"].tolist() == [1]
    (tmp_path / "t.csv").write_bytes(b"# c\ng,x\n\xff,1\n")
    with pytest.raises(DecodeError):
        list(read_csv(find_source(tmp_path)[0], ReadOptions(group="g", comment="#")))


@pytest.mark.parametrize(
    ("cells", "options", "values"),
    [
        (
            ["1,234", " 56 ", "-7,000,000"],
            {"thousands": ",", "delimiter": ";"},
            [1234, 56, -7000000],
        ),
        (
            ["1.234,5", "+6", "7"],
            {"thousands": ".", "delimiter": ";", "decimal": ","},
            [1234.5, 6, 7],
        ),
        (["1'000", "2"], {"thousands": "'"}, [1000, 2]),
        (["9,223,372,036,854,775,807"], {"thousands": ",", "delimiter": ";"}, [2**63 - 1]),
    ],
)
def test_numbers_with_separators_of_thousands_are_numbers(tmp_path, cells, options, values):
    mark = options.get("delimiter", ",")
    text = f"g{mark}x\n" + "".join(f"a{mark}{cell}\n" for cell in cells)
    (row,) = read_text(tmp_path, text, **options)
    assert row["x"].tolist() == values
    assert row["x"].dtype == (np.float64 if isinstance(values[0], float) else np.int64)


def test_strings_that_are_not_all_numbers_stay_strings(tmp_path):
    text = "g;x;y\na;1,23;1\na;1,234;2\n"
    with pytest.warns(SeqDataWarning, match="'1,23', which are not read as numbers. .*`thousands="):
        (row,) = read_text(tmp_path, text, thousands=",", delimiter=";")
    assert row["x"].logical.values == ("1,23", "1,234")


@pytest.mark.parametrize("cells", [["9,223,372,036,854,775,808"], ["9,007,199,254,740,993", "0.5"]])
def test_numbers_with_separators_are_not_rounded(tmp_path, cells):
    text = "g;x\n" + "".join(f"a;{cell}\n" for cell in cells)
    with pytest.raises(DecodeError, match="numbers that int64 or float64 hold exactly, but has 9"):
        read_text(tmp_path, text, thousands=",", delimiter=";")
