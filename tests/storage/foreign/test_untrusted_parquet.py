"""What Parquet says of its pages is read without belief: every number, at every damaged byte."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from seqdata.api import open_store
from seqdata.errors import CorruptShardError, DataError, LimitError
from seqdata.storage import limits
from seqdata.storage.data_location import DataLocation
from seqdata.storage.foreign import untrusted_parquet
from seqdata.storage.foreign.untrusted_parquet import (
    ColumnChunkInfo,
    RowGroupInfo,
    check_column,
    read_row_groups,
    sum_pages,
)
from tests.fuzz import bombs

HERE = DataLocation(dataset="/d", shard=0, file="f")


def column(rows=5):
    return {"x": bombs.lists(rows)}


def parquet_bytes(tmp_path, **options):
    pa.parquet.write_table(pa.table(column(5)), tmp_path / "a.parquet", **options)
    return (tmp_path / "a.parquet").read_bytes()


def test_the_footer_says_what_pyarrow_says(tmp_path):
    given = pa.table({
        "x": [[1, 2], [3]], "t": ["a", "b"], "f": [1.0, 2.0], "s": [{"a": 1, "b": 2}] * 2,
        "raw": pa.array([b"123", b"456"], pa.binary(3)),
    })  # fmt: skip
    pa.parquet.write_table(given, tmp_path / "a.parquet", row_group_size=1)
    raw = memoryview((tmp_path / "a.parquet").read_bytes())
    about = pa.parquet.ParquetFile(tmp_path / "a.parquet").metadata
    groups = read_row_groups(HERE, raw)
    assert len(groups) == about.num_row_groups == 2
    for number, group in enumerate(groups):
        assert group.rows == about.row_group(number).num_rows
        for place, chunk in enumerate(group.chunks):
            said = about.row_group(number).column(place)
            assert (chunk.path, chunk.values) == (said.path_in_schema, said.num_values)
            assert chunk.size == said.total_compressed_size
            found = sum_pages(HERE, raw, chunk)
            assert found.values == said.num_values
    assert [chunk.width for chunk in groups[0].chunks] == [8, None, 8, 8, 8, 3]


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (lambda raw: raw[:-1], "must end with a footer, but does not: it was cut off"),
        (lambda raw: raw[:6], "must end with a footer, but does not"),
        (lambda raw: raw[:-8] + b"\xff\xff\xff\x7fPAR1", "but has a footer that cannot be read"),
        (lambda raw: raw[:-8] + b"\0\0\0\0PAR1", "has a footer that cannot be read"),
        (lambda raw: raw[:-60] + b"\xff" * 52 + raw[-8:], "has a footer that cannot be read"),
    ],
)
def test_a_footer_of_parquet_that_is_none_is_an_error(tmp_path, bad, text):
    with pytest.raises(CorruptShardError, match=text):
        read_row_groups(HERE, memoryview(bad(parquet_bytes(tmp_path))))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"begin": -1}, "but has pages that extend beyond the file. Restore"),
        ({"size": 1 << 40}, "has pages that extend beyond the file"),
        ({"size": -1}, "has pages that extend beyond the file"),
        ({"begin": 0}, "must be unchanged since it was written, but has a page without a header"),
        ({"size": 30}, "has a page without a header|has pages that extend beyond the column"),
        ({"values": 0}, "but has 0 values for 5 rows. Restore the file"),
    ],
)
def test_pages_that_cannot_be_true_are_an_error(tmp_path, change, text):
    raw = memoryview(parquet_bytes(tmp_path))
    (group,) = read_row_groups(HERE, raw)
    (chunk,) = group.chunks
    facts = {name: getattr(chunk, name) for name in ColumnChunkInfo.__slots__} | change
    with pytest.raises(CorruptShardError, match=text):
        check_column(HERE, raw, RowGroupInfo(group.rows, (ColumnChunkInfo(**facts),)), "x")


def test_every_damaged_byte_of_a_parquet_file_is_an_error_of_ours_or_none(tmp_path):
    raw = parquet_bytes(tmp_path, store_schema=False)
    found = set()
    for place in range(len(raw)):
        for value in (0x7F, 0x80, 0xFF):
            bad = bytearray(raw)
            bad[place] = value
            try:
                for group in read_row_groups(HERE, memoryview(bad)):
                    check_column(HERE, memoryview(bad), group, "x")
            except DataError as error:
                found.add(type(error))
    assert found == {CorruptShardError, DataError}  # the latter of a bit that says: encrypted


def test_a_run_of_one_value_counts_as_often_as_it_is_said(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    pa.parquet.write_table(pa.table(column(100_000)), path)
    assert path.stat().st_size < 100_000
    monkeypatch.setattr(limits, "UNCHECKED_BYTES", 850_000)
    monkeypatch.setattr(limits, "MAX_RATIO", 1)
    with pytest.raises(
        LimitError, match=r"must become at most .* bytes that become 12\d{5} in memory"
    ):
        open_store(path)


def test_too_many_pages_are_refused(tmp_path, monkeypatch):
    raw = memoryview(parquet_bytes(tmp_path))
    monkeypatch.setattr(untrusted_parquet, "MAX_PAGES", 1)
    with pytest.raises(
        LimitError, match=r"must have at most 1, but has too many pages. If you trust"
    ):
        check_column(HERE, raw, read_row_groups(HERE, raw)[0], "x")


def test_texts_are_read_by_pieces_where_they_might_become_long(tmp_path, monkeypatch):
    texts = ["t" * (i % 50) for i in range(300)]
    pa.parquet.write_table(pa.table({**column(300), "t": texts}), tmp_path / "a.parquet")
    monkeypatch.setattr(untrusted_parquet, "TEXT_BATCH_BYTES", 20_000)
    raw = memoryview((tmp_path / "a.parquet").read_bytes())
    rows = check_column(HERE, raw, read_row_groups(HERE, raw)[0], "t")
    assert 1 < rows < 100
    spans = np.stack([np.arange(300), np.zeros(300, int), np.zeros(300, int)], axis=1)
    assert open_store(tmp_path / "a.parquet").read(spans, ["t"])["t"] == texts


# ---- Thrift
