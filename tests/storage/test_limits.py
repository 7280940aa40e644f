"""What files ask for is looked at before memory is taken, and what they say before it is used."""

import hashlib
import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from seqdata.errors import CorruptShardError, LimitError
from seqdata.opening import open_store
from seqdata.protocols import Field
from seqdata.storage import limits, messages, pages, table_files, texts, thrift
from seqdata.storage.checksums import checksums_of
from seqdata.storage.columns import Layout
from seqdata.storage.manifest import MANIFEST
from seqdata.storage.messages import batches_of, check_message, check_stream
from seqdata.storage.pages import Chunk, Group, check_column, groups_of, pages_of
from seqdata.storage.places import Place
from seqdata.storage.texts import TextSource
from seqdata.storage.thrift import NoStructError, read_struct
from seqdata.storage.writer import write_arrow

HERE = Place(dataset="/d", shard=0, file="f")


def load(name):
    path = Path(__file__).parents[1] / "fuzz" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


bombs, cases = load("bombs"), load("cases")


def write(path, columns, compression=None, *, stream=False):
    bombs.write_ipc(path, columns, compression, stream=stream)
    return path


def column(rows=5):
    return {"x": bombs.lists(rows)}


def read_texts(path):
    store = open_store(path)
    return store.read(np.array([[0, 0, 0]]), set(store.fields) - {"x"})


def refused(path):
    with pytest.raises(LimitError) as told:
        read_texts(path)
    return told.value


# ---- how much


@pytest.mark.parametrize("name", ["rows.arrow", "rows-stream.arrow", "rows.parquet"])
def test_more_rows_than_there_can_be_are_refused(tmp_path, name):
    bombs.BOMBS[name](tmp_path / name)
    error = refused(tmp_path / name)
    assert "declares 1152921504606846976 rows, must have at most 281474976710656; where you" in str(
        error
    )
    assert error.facts["found"] == 1 << 60


def test_bytes_that_compression_declares_are_refused(tmp_path):
    bombs.BOMBS["declared.arrow"](tmp_path / "a.arrow")
    text = r"has \d+ bytes that become 1152921504606846976 in memory, must become at most 268435456"
    with pytest.raises(LimitError, match=text):
        open_store(tmp_path / "a.arrow")


@pytest.mark.parametrize("name", ["codes.arrow", "views.arrow", "codes.parquet", "texts.parquet"])
def test_texts_that_become_very_much_longer_are_refused(tmp_path, name):
    bombs.BOMBS[name](tmp_path / name)
    assert 'field "t": has ' in str(refused(tmp_path / name))


def test_what_small_data_becomes_is_not_limited_but_by_what_is_free(tmp_path, monkeypatch):
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 50, pa.int8()), ["t" * 100])
    path = write(tmp_path / "a.arrow", {**column(50), "t": text})
    pa.parquet.write_table(pa.table({**column(50), "t": text}), tmp_path / "a.parquet")
    for one in (path, tmp_path / "a.parquet"):
        open_store(one).read(np.array([[0, 0, 1]]), ["t"])
    monkeypatch.setattr(limits, "FREE_BYTES", 1)
    monkeypatch.setattr(limits, "MAX_RATIO", 20)
    assert "has 154 bytes that become 5000 in memory, must become at most 3080" in str(
        refused(path)
    )


def test_a_stream_is_held_whole_so_that_its_batches_count_together(tmp_path, monkeypatch):
    path = tmp_path / "a.arrow"
    batch = pa.record_batch({"x": bombs.lists(20_000)})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with (
        pa.OSFile(str(path), "wb") as file,
        pa.ipc.new_stream(file, batch.schema, options=options) as writer,
    ):
        for _ in range(9):
            writer.write_batch(batch)
    open_store(path)
    monkeypatch.setattr(limits, "FREE_BYTES", 500_000)
    monkeypatch.setattr(limits, "MAX_RATIO", 1)
    assert "bytes that become 900036 in memory" in str(refused(path))


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_rows_of_many_small_units_count_together(tmp_path, monkeypatch, name):
    many = pa.table({"x": bombs.lists(30_000)})
    pa.parquet.write_table(many, tmp_path / "a.parquet", row_group_size=1_000)
    bombs.write_ipc(tmp_path / "a.arrow", {"x": bombs.lists(30_000)}, "zstd")
    monkeypatch.setattr(limits, "FREE_BYTES", 235_000)
    monkeypatch.setattr(limits, "MAX_RATIO", 1)
    with pytest.raises(LimitError, match=r"^\S+ shard 0 \(.a\..*.\): has \d+ bytes that become 24"):
        open_store(tmp_path / name)


def test_messages_that_lie_on_one_another_are_an_error(tmp_path):
    path = tmp_path / "a.arrow"
    batch = pa.record_batch(column(500))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        for _ in range(3):
            writer.write_batch(batch)
    raw = path.read_bytes()
    first, _, last = batches_of(HERE, memoryview(raw))
    whole = (first[0], first[1], sum(last) - first[0] - first[1])  # all three in one
    raw = raw.replace(block_bytes(first), block_bytes(whole))
    with pytest.raises(
        CorruptShardError, match="has messages that lie on one another, or one that"
    ):
        batches_of(HERE, memoryview(raw))


def block_bytes(block):
    at, metadata, body = block
    return np.array([at, metadata, body], dtype=np.int64).tobytes()


def test_metadata_without_end_is_refused(tmp_path, monkeypatch):
    path = write(tmp_path / "a.arrow", column())
    monkeypatch.setattr(messages, "MAX_METADATA", 100)
    with pytest.raises(LimitError, match=r"has \d+ bytes of metadata, must have at most 100"):
        open_store(path)


@pytest.mark.parametrize("name", ["a.arrow", "a.parquet"])
def test_a_footer_without_end_is_refused(tmp_path, monkeypatch, name):
    write(tmp_path / "a.arrow", column())
    pa.parquet.write_table(pa.table(column()), tmp_path / "a.parquet")
    monkeypatch.setattr(table_files, "MAX_FOOTER", 100)
    with pytest.raises(LimitError, match=r"has a footer of \d+ bytes, must have at most 100"):
        open_store(tmp_path / name)


def test_types_inside_of_one_another_without_end_are_refused(tmp_path):
    def nested(depth):
        inner = pa.int8()
        for _ in range(depth - 2):
            inner = pa.list_(inner, 1)
        return pa.array([[]], pa.list_(inner))

    write(tmp_path / "a.arrow", {**column(1), "deep": nested(8)})
    assert open_store(tmp_path / "a.arrow").fields["deep"].shape == (1,) * 6
    write(tmp_path / "b.arrow", {**column(1), "deep": nested(9)})
    with pytest.raises(LimitError, match="has a type of 9 types inside of one another, must have"):
        open_store(tmp_path / "b.arrow")


def test_timesteps_that_no_memory_holds_are_refused(tmp_path):
    wide = pa.array([[]], pa.list_(pa.list_(pa.int64(), 1 << 28)))
    write(tmp_path / "a.arrow", {**column(1), "wide": wide})
    text = 'field "wide": declares timesteps of 2147483648 bytes, must have less than 2147483648'
    with pytest.raises(LimitError, match=text):
        open_store(tmp_path / "a.arrow")


def test_memory_that_does_not_suffice_is_an_error_with_its_place():
    text = r"/d shard 0 \(.f.\): asks for more memory than there is \(.*\), must fit; write the"
    with pytest.raises(LimitError, match=text), table_files.guarded(HERE):
        np.empty(1 << 60, dtype=np.int8)


def test_texts_that_lie_on_one_another_are_refused_before_memory_is_taken(monkeypatch):
    values = np.frombuffer(b"t" * 1_000, dtype=np.uint8)
    offsets = np.array([0, 1_000] * 50 + [0])  # every other text is the whole shard
    layout = Layout("/d", ("a",), [0, 100], {"time": np.ones(100, np.uint32)})
    source = TextSource.of("t", Field("str", (), None), layout, [values], [offsets])
    assert len(source.raw(np.zeros(1_000, dtype=np.int64))[0]) == 1_000_000  # asked for so often
    monkeypatch.setattr(texts, "FREE_BYTES", 10_000)
    assert len(source.raw(np.zeros(1_000, dtype=np.int64))[0]) == 1_000_000
    text = 'field "t": and 49 others take 50000 bytes of 1000, must not lie on one another; the'
    with pytest.raises(CorruptShardError, match=text):
        source.raw(np.arange(0, 100, 2))


@pytest.mark.parametrize("lengths", [[1 << 40, 1], [3, 3], [1 << 63, (1 << 63) + 3]])
def test_lengths_that_the_shards_do_not_hold_are_refused(tmp_path, lengths):
    """Whoever writes them on purpose makes their digests, too."""
    write_arrow(tmp_path, [{"x": [1, 2]}, {"x": [3]}])
    raw = np.array(lengths, dtype="<u8").tobytes()
    whole = json.loads((tmp_path / MANIFEST).read_text())
    about = whole["lengths"]["time"]
    (tmp_path / about["file"]).write_bytes(raw)
    about |= {"dtype": "uint64", "sha256": hashlib.sha256(raw).hexdigest()}
    made = checksums_of(np.frombuffer(raw, np.uint8), np.array([0, len(raw)]), 1)
    whole["checksums"]["lengths"]["time"] = int(made.values[0])
    (tmp_path / MANIFEST).write_text(cases.sealed(whole))
    text = (
        r"lengths of axis .time. .*: add up to \d+ timesteps, the longest has \d+, must add up to 3"
    )
    with pytest.raises(CorruptShardError, match=text):
        open_store(tmp_path)


# ---- what pyarrow would follow without a look


def damaged(path, good, bad):
    raw = path.read_bytes()
    assert raw.count(good) == 1
    path.write_bytes(raw.replace(good, bad))
    return path


def read_text(path):
    return open_store(path).read(np.array([[0, 0, 1], [1, 0, 1]]), ["t"])["t"]


def test_a_view_of_bytes_that_are_not_there_is_an_error(tmp_path):
    text = pa.array(["one text that is long", "another text, as long"], pa.string_view())
    path = write(tmp_path / "a.arrow", {**column(2), "t": text})
    assert read_text(path) == ["one text that is long", "another text, as long"]
    view = np.array([21, int.from_bytes(b"anot", "little"), 0, 21], np.int32)
    bad = np.array([21, int.from_bytes(b"anot", "little"), 0, 1 << 30], np.int32)
    damaged(path, view.tobytes(), bad.tobytes())
    with pytest.raises(CorruptShardError, match='field "t": cannot be read'):
        read_text(path)


def test_a_count_of_nulls_that_are_not_there_is_an_error(tmp_path):
    values = pa.array([True, None, True, False, True] * 7)
    path = write(tmp_path / "a.arrow", {**column(35), "t": values})
    bitmap = np.packbits([True, False, True, True, True] * 7, bitorder="little").tobytes()
    damaged(path, bitmap, b"\xff" * len(bitmap))
    with pytest.raises(CorruptShardError, match="has a count of nulls that are not there, must be"):
        read_text(path)


def test_a_column_of_other_rows_than_were_counted_is_an_error(tmp_path):
    path = tmp_path / "a.parquet"
    pa.parquet.write_table(pa.table({**column(4), "t": ["a", "b", "c", "d"]}), path)
    open_store(path)
    (kept,) = tmp_path.glob(".seqdata-lengths-*")
    with open(kept, "wb") as file:
        np.savez(file, **{"rows": np.array([3]), "lengths/x": np.ones(3, np.uint32)})
    with pytest.raises(CorruptShardError, match='field "t": has 4 rows, must have 3 as were count'):
        read_text(path)


@pytest.mark.parametrize(
    "change",
    [
        {"rows": np.array([4.0])},
        {"rows": np.array([-4])},
        {"rows": np.array([[4]])},
        {"rows": np.array([4, 0])},
        {"lengths/x": np.ones(4, np.int64)},
        {"lengths/x": np.array([None] * 4)},
    ],
)
def test_a_count_that_cannot_be_true_is_made_again(tmp_path, change):
    path = tmp_path / "a.parquet"
    pa.parquet.write_table(pa.table(column(4)), path)
    open_store(path)
    (kept,) = tmp_path.glob(".seqdata-lengths-*")
    content = {"rows": np.array([4]), "lengths/x": np.full(4, 7, np.uint32)}
    for saved, expected in ((np.savez, 7), (np.savez_compressed, 1)):
        with open(kept, "wb") as file:
            saved(file, **content)
        assert open_store(path).lengths[0] == expected  # compressed: sizes would be believed
    with open(kept, "wb") as file:
        np.savez(file, **content | change)
    assert open_store(path).lengths.tolist() == [1] * 4


def test_a_state_of_the_datasets_library_without_end_is_not_believed(tmp_path):
    write(tmp_path / "a.arrow", column(4))
    (tmp_path / "state.json").write_text("[" * 200_000)
    assert len(open_store(tmp_path)) == 4


# ---- Arrow's messages


def check_file(place, data):
    for unit, block in enumerate(batches_of(place, data)):
        check_message(replace(place, unit=unit), data, *block)


def arrow_bytes(tmp_path, *, stream=False, compression="lz4"):
    return write(tmp_path / "a.arrow", column(), compression, stream=stream).read_bytes()


def test_a_footer_that_leads_out_of_the_file_is_an_error(tmp_path):
    raw = arrow_bytes(tmp_path)
    for size in (-1, len(raw)):
        bad = raw[:-10] + size.to_bytes(4, "little", signed=True) + raw[-6:]
        with pytest.raises(
            CorruptShardError, match="has a footer that leads out of the file, must"
        ):
            check_file(HERE, memoryview(bad))
    for bad in (raw[:-1], raw[:5]):
        with pytest.raises(CorruptShardError, match="has no footer at its end, must have one; it"):
            check_file(HERE, memoryview(bad))


@pytest.mark.parametrize("place", [(-8, 5), (1 << 40, 5), (24, 1 << 40), (24, -1), (24, 1 << 62)])
def test_a_buffer_that_leads_out_of_its_message_is_an_error(tmp_path, place):
    path = write(tmp_path / "a.arrow", column())
    damaged(path, np.array([24, 5]).tobytes(), np.array(place).tobytes())
    with pytest.raises(
        CorruptShardError, match=r"unit 0.: has a message that leads out of the file"
    ):
        check_file(HERE, memoryview(path.read_bytes()))


def test_every_damaged_byte_of_a_file_is_an_error_of_ours_or_none(tmp_path):
    raw = arrow_bytes(tmp_path)
    check_file(HERE, memoryview(raw))
    seen = set()
    for place in range(len(raw)):
        for value in (0x7F, 0x80, 0xFF):
            bad = bytearray(raw)
            bad[place] = value
            try:
                check_file(HERE, memoryview(bad))
            except (CorruptShardError, LimitError) as error:
                seen.add(str(error).split(": ", 1)[1].split(",")[0].strip("0123456789"))
    assert "has a message that leads out of the file" in seen
    assert "has a footer that leads out of the file" in seen


def test_every_damaged_byte_of_a_stream_is_an_error_of_ours_or_none(tmp_path):
    raw = arrow_bytes(tmp_path, stream=True)
    check_stream(HERE, memoryview(raw))
    found = 0
    for place in range(len(raw)):
        for value in (0x7F, 0x80, 0xFF):
            bad = bytearray(raw)
            bad[place] = value
            try:
                check_stream(HERE, memoryview(bad))
            except (CorruptShardError, LimitError):
                found += 1
    assert found > 100
    for cut in (4, 6, 200, len(raw) - 100):
        with pytest.raises(CorruptShardError, match="has a message that leads out of the file"):
            check_stream(HERE, memoryview(raw[:cut] if cut > 4 else b"\xff\xff\xff\xff"))


# ---- Parquet's footer and pages


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
    groups = groups_of(HERE, raw)
    assert len(groups) == about.num_row_groups == 2
    for number, group in enumerate(groups):
        assert group.rows == about.row_group(number).num_rows
        for place, chunk in enumerate(group.chunks):
            said = about.row_group(number).column(place)
            assert (chunk.path, chunk.values) == (said.path_in_schema, said.num_values)
            assert chunk.size == said.total_compressed_size
            found = pages_of(HERE, raw, chunk)
            assert found.values == said.num_values
    assert [chunk.width for chunk in groups[0].chunks] == [8, None, 8, 8, 8, 3]


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (lambda raw: raw[:-1], "has no footer at its end, must have one; it was cut off"),
        (lambda raw: raw[:6], "has no footer at its end"),
        (lambda raw: raw[:-8] + b"\xff\xff\xff\x7fPAR1", "has a footer that cannot be read, must"),
        (lambda raw: raw[:-8] + b"\0\0\0\0PAR1", "has a footer that cannot be read"),
        (lambda raw: raw[:-60] + b"\xff" * 52 + raw[-8:], "has a footer that cannot be read"),
    ],
)
def test_a_footer_of_parquet_that_is_none_is_an_error(tmp_path, bad, text):
    with pytest.raises(CorruptShardError, match=text):
        groups_of(HERE, memoryview(bad(parquet_bytes(tmp_path))))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"begin": -1}, "has pages that lead out of the file, must be as it was written; restore"),
        ({"size": 1 << 40}, "has pages that lead out of the file"),
        ({"size": -1}, "has pages that lead out of the file"),
        ({"begin": 0}, "has a page without a header, must be as it was written"),
        ({"size": 30}, "has a page without a header|has pages that lead out of the column"),
        ({"values": 0}, "has 0 values for 5 rows, must be as it was written; restore the file"),
    ],
)
def test_pages_that_cannot_be_true_are_an_error(tmp_path, change, text):
    raw = memoryview(parquet_bytes(tmp_path))
    (group,) = groups_of(HERE, raw)
    (chunk,) = group.chunks
    facts = {name: getattr(chunk, name) for name in Chunk.__slots__} | change
    with pytest.raises(CorruptShardError, match=text):
        check_column(HERE, raw, Group(group.rows, (Chunk(**facts),)), "x")


def test_every_damaged_byte_of_a_parquet_file_is_an_error_of_ours_or_none(tmp_path):
    raw = parquet_bytes(tmp_path, store_schema=False)
    found = set()
    for place in range(len(raw)):
        for value in (0x7F, 0x80, 0xFF):
            bad = bytearray(raw)
            bad[place] = value
            try:
                for group in groups_of(HERE, memoryview(bad)):
                    check_column(HERE, memoryview(bad), group, "x")
            except (CorruptShardError, LimitError) as error:
                found.add(type(error))
    assert found == {CorruptShardError}


def test_a_run_of_one_value_counts_as_often_as_it_is_said(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    pa.parquet.write_table(pa.table(column(100_000)), path)
    assert path.stat().st_size < 100_000
    monkeypatch.setattr(limits, "FREE_BYTES", 850_000)
    monkeypatch.setattr(limits, "MAX_RATIO", 1)
    with pytest.raises(
        LimitError, match=r"bytes that become 12\d{5} in memory, must become at most"
    ):
        open_store(path)


def test_too_many_pages_are_refused(tmp_path, monkeypatch):
    raw = memoryview(parquet_bytes(tmp_path))
    monkeypatch.setattr(pages, "MAX_PAGES", 1)
    with pytest.raises(
        LimitError, match="has too many pages, must have at most 1; where you trust"
    ):
        check_column(HERE, raw, groups_of(HERE, raw)[0], "x")


def test_texts_are_read_by_pieces_where_they_might_become_long(tmp_path, monkeypatch):
    texts = ["t" * (i % 50) for i in range(300)]
    pa.parquet.write_table(pa.table({**column(300), "t": texts}), tmp_path / "a.parquet")
    monkeypatch.setattr(pages, "PIECE_BYTES", 20_000)
    raw = memoryview((tmp_path / "a.parquet").read_bytes())
    rows = check_column(HERE, raw, groups_of(HERE, raw)[0], "t")
    assert 1 < rows < 100
    spans = np.stack([np.arange(300), np.zeros(300, int), np.zeros(300, int)], axis=1)
    assert open_store(tmp_path / "a.parquet").read(spans, ["t"])["t"] == texts


# ---- Thrift


def test_a_struct_is_read_with_what_is_wanted_of_it():
    inner = b"\x15\x06\x00"  # {1: 3}
    data = (
        b"\x15\x02"  # 1: 1
        b"\x11"  # 2: true
        b"\x18\x03abc"  # 3: bytes
        b"\x1c" + inner  # 4: a struct
        + b"\x19\x2c" + inner * 2  # 5: a list of two
        + b"\x19\x21\x01\x02"  # 6: a list of bools
        b"\x13\x7f\x17" + b"\0" * 8  # 7: a byte, 8: a double
        + b"\x05\xc8\x01\x03\x00"  # 100: -2, far away
    )  # fmt: skip
    wanted = {1: None, 3: bytes, 4: {1: None}, 5: [{1: None}], 100: None}
    found, end = read_struct(memoryview(data), 0, wanted)
    assert found == {1: 1, 3: b"abc", 4: {1: 3}, 5: [{1: 3}, {1: 3}], 100: -2}
    assert end == len(data)
    assert read_struct(memoryview(data), 0, {}) == ({}, len(data))


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x15", b"\x15\x02", b"\x15" + b"\xff" * 11, b"\x1b\x00\x00", b"\x1e\x00",
        b"\x18\x7fabc\x00", b"\x19\xfc\x7f\x00", b"\x1c" * 20 + b"\x00" * 21,
        b"\x19\x19" + b"\x19" * 20 + b"\x00" * 30,
    ],
)  # fmt: skip
def test_what_is_no_struct_is_an_error(data):
    for wanted in ({}, {1: None}, {1: bytes}, {1: [None]}, {1: {}}):
        with pytest.raises(NoStructError):
            read_struct(memoryview(data), 0, wanted)


def test_a_field_of_another_type_is_an_error():
    with pytest.raises(NoStructError):
        read_struct(memoryview(b"\x15\x02\x00"), 0, {1: {1: None}})
    assert thrift.MAX_NESTING == 12
