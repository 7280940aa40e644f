"""Tables that packages read by parts, with the core's rules."""

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pytest
from pyarrow import parquet

from seqdata import PluginHost, open_store
from seqdata.backends.files import RowTables
from seqdata.errors import ConfigError, CorruptShardError, DecodeError, PluginError, SeqDataWarning
from seqdata.plugin_source import SuffixClaim
from seqdata.resolve import find_table_backend

ROWS = {"site": ["a", "a", "b"], "n": [1, 2, 1], "x": [0.5, None, 1.5], "kind": ["u", "v", "u"]}


@pytest.fixture
def path(tmp_path):
    parquet.write_table(pa.table(ROWS), tmp_path / "t.parquet", row_group_size=2)
    return tmp_path / "t.parquet"


def test_units_are_row_groups_whose_columns_are_read(path):
    tables = RowTables.open([path])
    assert (tables.names, tables.unit_rows.tolist()) == (["t.parquet"], [2, 1])
    table = tables.read(1, ["kind", "n"], ["kind"])
    assert pa.types.is_dictionary(table.schema.field("kind").type)
    assert table.to_pydict() == {"kind": ["u"], "n": [1]}
    assert tables.read(0, ["x"]).to_pydict() == {"x": [0.5, None]}
    assert tables.head().num_rows == 1


def test_fields_are_those_of_the_core(path):
    tables = RowTables.open([path])
    found = tables.infer_fields("site", "n", [], "nan", None)
    expected = open_store(path, group="site", order="n", missing="nan", host=PluginHost())
    assert dict(found) | {"kind": expected.fields["kind"]} == dict(expected.fields)
    with pytest.raises(ConfigError, match="no column but 'site' has a value per timestep"):
        RowTables.from_table(pa.table({"site": ["a"], "kind": ["u"]})).infer_fields(
            "site", None, [], None, None, has_steps=False
        )


def test_missing_values_are_counted_over_all_units(path):
    tables = RowTables.open([path])
    with pytest.warns(SeqDataWarning, match="'x' lacks 1 of 3 values, the first in row 1"):
        tables.refuse_missing_values(["n", "x"], None)
    with pytest.raises(DecodeError, match=r"'x' must not hold .* but holds 1, the first in row 1"):
        tables.refuse_missing_values(["n", "x"], "error")
    tables.refuse_missing_values(["n", "x"], "nan")
    column = tables.column(tables.read(0, ["x"]), "x")
    assert np.isnan(tables.convert("x", column, 0, None)).tolist() == [False, True]
    assert tables.convert("x", column, 0, 7).tolist() == [0.5, 7]


@pytest.mark.parametrize("first", [0, 1])
def test_a_column_that_a_file_lacks_counts_as_missing(tmp_path, first):
    tables = [pa.table({"n": [1, 2], "x": [0.5, 1.5]}), pa.table({"n": [3, 4, 5]})]
    for number in (0, 1):
        folder = tmp_path / f"day={number}"
        folder.mkdir()
        parquet.write_table(tables[number ^ first], folder / "a.parquet")
    opened = RowTables.open([tmp_path])
    row = 0 if first else 2
    with pytest.warns(SeqDataWarning, match=f"'x' lacks 3 of 5 values, the first in row {row}"):
        opened.refuse_missing_values(["n", "x", "day"], None)


def test_files_of_one_table_have_one_schema(tmp_path):
    for number, type_ in enumerate(("int32", "int64")):
        folder = tmp_path / f"day={number}"
        folder.mkdir()
        table = pa.table({"site": ["a"], "x": pa.array([number], type_)})
        pyarrow.feather.write_feather(table, folder / "t.feather")
    tables = RowTables.open([tmp_path])
    assert tables.schema.field("x").type == pa.int64()
    assert [tables.read(unit, ["x", "day"]).to_pylist() for unit in (0, 1)] == [
        [{"x": 0, "day": 0}],
        [{"x": 1, "day": 1}],
    ]
    pyarrow.feather.write_feather(pa.table({"site": [1], "x": [1]}), folder / "t.feather")
    with pytest.raises(DecodeError, match="the files' columns do not match"):
        RowTables.open([tmp_path])


def test_strings_read_as_codes_are_checked_as_others_are(path):
    content = bytearray(path.read_bytes())
    tables = RowTables.open([path])
    column = parquet.read_metadata(path).row_group(0).column(3)
    first = column.dictionary_page_offset
    content[first : first + 20] = bytes(20)
    path.write_bytes(content)
    with pytest.raises((CorruptShardError, DecodeError)):
        RowTables.open([path]).read(0, ["kind"], ["kind"])
    with pytest.raises(Exception, match=r"must be the file that was opened"):
        tables.read(0, ["kind"], ["kind"])


def test_a_package_claims_kinds_of_tables(path, monkeypatch):
    host = PluginHost()
    assert find_table_backend(path, host) is None
    claims = (SuffixClaim("parquet", "mine", "mine", "mine 1"),)
    monkeypatch.setattr(host, "_table_claims", claims)
    assert find_table_backend(path, host) == "mine"
    assert find_table_backend([path, path], host) == "mine"
    assert find_table_backend("s3://bucket/t.parquet", host) == "mine"
    assert find_table_backend("s3://bucket/t.csv.gz", host) is None
    assert find_table_backend(pa.table(ROWS), host) is None
    assert find_table_backend([[1, 2]], host) is None
    monkeypatch.setattr(host, "_table_claims", (*claims, SuffixClaim("parquet", "a", "a", "a 2")))
    with pytest.raises(PluginError, match=r"claimed by mine 1 .*'mine'.* and a 2 .*Pass `backend`"):
        find_table_backend(path, host)


def test_a_backend_without_groups_is_refused(path):
    def opener(location):
        return location

    with pytest.raises(ConfigError, match="does not take `group`, but it is 'site'"):
        open_store(path, backend=opener, group="site")
    with pytest.raises(ConfigError, match="`schema` opens a store, but `group` reads a table"):
        open_store(path, backend=opener, group="site", schema={})
