"""What files ask for is looked at before memory is taken, and what they say before it is used."""

import hashlib
import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from seqdata.api import open_store
from seqdata.errors import CorruptShardError, LimitError
from seqdata.protocols import Field
from seqdata.storage import columns, limits
from seqdata.storage.arrow.manifest import MANIFEST
from seqdata.storage.arrow.write import write_arrow
from seqdata.storage.columns import BufferSource
from seqdata.storage.data_location import DataLocation, ShardLayout
from seqdata.storage.digest_trailer import add_digest
from seqdata.storage.foreign import table_file, untrusted_ipc
from seqdata.storage.integrity.checksums import compute_checksums
from tests.fuzz import bombs, cases

HERE = DataLocation(dataset="/d", shard=0, file="f")


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
    assert (
        "must have at most 281474976710656, but declares 1152921504606846976 rows. If you"
        in str(error)
    )
    assert error.details["found"] == 1 << 60


def test_bytes_that_compression_declares_are_refused(tmp_path):
    bombs.BOMBS["declared.arrow"](tmp_path / "a.arrow")
    text = (
        r"must become at most 268435456, but has \d+ bytes that become 1152921504606846976 in "
        r"memory"
    )
    with pytest.raises(LimitError, match=text):
        open_store(tmp_path / "a.arrow")


@pytest.mark.parametrize("name", ["codes.arrow", "views.arrow", "codes.parquet", "texts.parquet"])
def test_texts_that_become_very_much_longer_are_refused(tmp_path, name):
    try:
        bombs.BOMBS[name](tmp_path / name)
    except ValueError as error:  # pyarrow 18 takes no buffers of views
        if "expected number of buffers" not in str(error):
            raise
        pytest.skip("this pyarrow makes no such array")
    assert 'field "t": must become at most ' in str(refused(tmp_path / name))


def test_what_small_data_becomes_is_not_limited_but_by_what_is_free(tmp_path, monkeypatch):
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 50, pa.int8()), ["t" * 100])
    path = write(tmp_path / "a.arrow", {**column(50), "t": text})
    pa.parquet.write_table(pa.table({**column(50), "t": text}), tmp_path / "a.parquet")
    for one in (path, tmp_path / "a.parquet"):
        open_store(one).read(np.array([[0, 0, 1]]), ["t"])
    monkeypatch.setattr(limits, "UNCHECKED_BYTES", 1)
    monkeypatch.setattr(limits, "MAX_RATIO", 20)
    assert "must become at most 3080, but has 154 bytes that become 5000 in memory" in str(
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
    monkeypatch.setattr(limits, "UNCHECKED_BYTES", 500_000)
    monkeypatch.setattr(limits, "MAX_RATIO", 1)
    assert "bytes that become 900036 in memory" in str(refused(path))


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_rows_of_many_small_units_count_together(tmp_path, monkeypatch, name):
    many = pa.table({"x": bombs.lists(30_000)})
    pa.parquet.write_table(many, tmp_path / "a.parquet", row_group_size=1_000)
    bombs.write_ipc(tmp_path / "a.arrow", {"x": bombs.lists(30_000)}, "zstd")
    monkeypatch.setattr(limits, "UNCHECKED_BYTES", 235_000)
    monkeypatch.setattr(limits, "MAX_RATIO", 1)
    with pytest.raises(
        LimitError, match=r"^\S+ shard 0 \(.a\..*.\): must .*, but has \d+ bytes that become 24"
    ):
        open_store(tmp_path / name)


def test_metadata_without_end_is_refused(tmp_path, monkeypatch):
    path = write(tmp_path / "a.arrow", column())
    monkeypatch.setattr(untrusted_ipc, "MAX_METADATA", 100)
    with pytest.raises(LimitError, match=r"must have at most 100, but has \d+ bytes of metadata"):
        open_store(path)


@pytest.mark.parametrize("name", ["a.arrow", "a.parquet"])
def test_a_footer_without_end_is_refused(tmp_path, monkeypatch, name):
    write(tmp_path / "a.arrow", column())
    pa.parquet.write_table(pa.table(column()), tmp_path / "a.parquet")
    monkeypatch.setattr(table_file, "MAX_FOOTER", 100)
    with pytest.raises(LimitError, match=r"must have at most 100, but has a footer of \d+ bytes"):
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
    with pytest.raises(LimitError, match=r"must have at most .*, but has a type of 9 nested types"):
        open_store(tmp_path / "b.arrow")


def test_timesteps_that_no_memory_holds_are_refused(tmp_path):
    wide = pa.array([[]], pa.list_(pa.list_(pa.int64(), 1 << 28)))
    write(tmp_path / "a.arrow", {**column(1), "wide": wide})
    text = (
        'field "wide": must have less than 2147483648, but declares timesteps of 2147483648 bytes'
    )
    with pytest.raises(LimitError, match=text):
        open_store(tmp_path / "a.arrow")


def test_memory_that_does_not_suffice_is_an_error_with_its_place():
    text = (
        r"/d shard 0 \(.f.\): must fit into memory, but needs more than there is \(.*\)\. Write the"
    )
    with pytest.raises(LimitError, match=text), table_file.translate_errors(HERE):
        np.empty(1 << 60, dtype=np.int8)


def test_texts_that_lie_on_one_another_are_refused_before_memory_is_taken(monkeypatch):
    values = np.frombuffer(b"t" * 1_000, dtype=np.uint8)
    offsets = np.array([0, 1_000] * 50 + [0])  # every other text is the whole shard
    layout = ShardLayout("/d", ("a",), [0, 100], {"time": np.ones(100, np.uint32)})
    source = BufferSource.from_arrays("t", Field("str", (), None), layout, [values], [offsets])
    assert (
        len(source.read_bytes(np.zeros(1_000, dtype=np.int64))[0]) == 1_000_000
    )  # asked for so often
    monkeypatch.setattr(columns, "UNCHECKED_BYTES", 10_000)
    assert len(source.read_bytes(np.zeros(1_000, dtype=np.int64))[0]) == 1_000_000
    text = 'field "t": and 49 others must not overlap, but take 50000 bytes of 1000. The'
    with pytest.raises(CorruptShardError, match=text):
        source.read_bytes(np.arange(0, 100, 2))


@pytest.mark.parametrize("lengths", [[1 << 40, 1], [3, 3], [1 << 63, (1 << 63) + 3]])
def test_lengths_that_the_shards_do_not_hold_are_refused(tmp_path, lengths):
    """Whoever writes them on purpose makes their digests, too."""
    write_arrow(tmp_path, [{"x": [1, 2]}, {"x": [3]}])
    raw = np.array(lengths, dtype="<u8").tobytes()
    whole = json.loads((tmp_path / MANIFEST).read_text())
    about = whole["lengths"]["time"]
    (tmp_path / about["file"]).write_bytes(raw)
    about |= {"dtype": "uint64", "sha256": hashlib.sha256(raw).hexdigest()}
    made = compute_checksums(np.frombuffer(raw, np.uint8), np.array([0, len(raw)]), 1)
    whole["checksums"]["lengths"]["time"] = int(made.values[0])
    (tmp_path / MANIFEST).write_text(cases.sealed(whole))
    text = (
        r"lengths of axis .time. .*: must add up to 3 .*, but add up to \d+, the longest being \d+"
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
    with pytest.raises(
        CorruptShardError,
        match='field "t": must be unchanged since it was written, but cannot be read',
    ):
        read_text(path)


def test_a_count_of_nulls_that_are_not_there_is_an_error(tmp_path):
    values = pa.array([True, None, True, False, True] * 7)
    path = write(tmp_path / "a.arrow", {**column(35), "t": values})
    bitmap = np.packbits([True, False, True, True, True] * 7, bitorder="little").tobytes()
    damaged(path, bitmap, b"\xff" * len(bitmap))
    with pytest.raises(
        CorruptShardError, match="must be unchanged since it was written, but has a null count"
    ):
        read_text(path)


def forge(kept, content, saved=np.savez):
    """Keep another count, sealed as one who means harm can: a seal is no signature."""
    file = io.BytesIO()
    saved(file, **content)
    kept.write_bytes(add_digest(file.getvalue(), kept.name))


def test_a_column_of_other_rows_than_were_counted_is_an_error(tmp_path):
    path = tmp_path / "a.parquet"
    pa.parquet.write_table(pa.table({**column(4), "t": ["a", "b", "c", "d"]}), path)
    open_store(path)
    (kept,) = tmp_path.glob(".seqdata-lengths-*")
    forge(kept, {"rows": np.array([3]), "lengths/x": np.ones(3, np.uint32)})
    with pytest.raises(
        CorruptShardError, match='field "t": must have 3 rows, as counted before, but has 4'
    ):
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
        forge(kept, content, saved)
        assert open_store(path).lengths[0] == expected  # compressed: sizes would be believed
    forge(kept, content | change)
    assert open_store(path).lengths.tolist() == [1] * 4


def test_a_state_of_the_datasets_library_without_end_is_not_believed(tmp_path):
    write(tmp_path / "a.arrow", column(4))
    (tmp_path / "state.json").write_text("[" * 200_000)
    assert len(open_store(tmp_path)) == 4
