"""Numbers in files of text: cells that are lists become lists, but for columns of names."""

import pyarrow as pa

from seqdata.readers.text_numbers import parse_list_cells


def test_texts_that_are_lists_are_parsed_where_a_text_file_has_them():
    texts = ["[1, 2.5]", "[]", "[3]"]
    table = pa.table({"c": texts, "id": texts, "note": ["[1]", "2", "x"]})
    parsed = parse_list_cells(table, ["id"])
    assert parsed.column("c").to_pylist() == [[1.0, 2.5], [], [3.0]]
    assert parsed.column("id").to_pylist() == texts
    assert parsed.column("note").to_pylist() == ["[1]", "2", "x"]
