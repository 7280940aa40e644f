import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from seqdata.errors import CorruptShardError, DecodeError
from seqdata.storage.arrow.store import open_arrow
from seqdata.storage.arrow.write import write_arrow
from seqdata.storage.data_location import DataLocation, ShardLayout, SupportsLocation, quote
from seqdata.storage.dataset import DatasetStore
from seqdata.storage.foreign.store import open_foreign
from seqdata.storage.memory import MemoryStore

WHOLE = DataLocation(
    dataset="store/train", shard=17, file="part-00017.arrow", sequence=88123, key="utt-381",
    field="x", offset=10240, length=8192, verify=True,
)  # fmt: skip


def test_a_place_reads_as_the_page_of_uses_shows_it():
    error = WHOLE.make_error(
        DecodeError, "is what it is, must be another; do it", expected=1, found=2
    )
    assert str(error) == (
        'store/train shard 17 ("part-00017.arrow"), sequence 88123 ("utt-381"), field "x", '
        "bytes 10240..18432: is what it is, must be another; do it\n"
        "  Verify: seqdata verify store/train --shard 17."
    )
    assert error.details == {
        "dataset": "store/train", "shard": 17, "file": "part-00017.arrow", "sequence": 88123,
        "key": "utt-381", "field": "x", "offset": 10240, "length": 8192, "expected": 1,
        "found": 2, "remedy": "seqdata verify store/train --shard 17",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (DataLocation(dataset="memory", sequence=3), "memory, sequence 3"),
        (
            DataLocation(dataset="d", file_kind="manifest", file="seqdata.json"),
            'd manifest ("seqdata.json")',
        ),
        (
            DataLocation(dataset="d", shard=1, file="a.parquet", unit=2),
            'd shard 1 ("a.parquet", unit 2)',
        ),
        (DataLocation(dataset="d", file="a", offset=7), 'd ("a"), byte 7'),
        (DataLocation(dataset="d", sequence=0, key="a\n\"b'"), 'd, sequence 0 ("a\\n\\"b\'")'),
    ],
)
def test_what_is_not_known_is_not_said(place, words):
    assert str(place) == words
    assert str(place.make_error(DecodeError, "bad")) == f"{words}: bad"


def test_the_command_is_safe_to_paste():
    error = DataLocation(dataset="my store; rm x", verify=True).make_error(CorruptShardError, "bad")
    assert error.details["remedy"] == "seqdata verify 'my store; rm x'"


def test_numbers_of_numpy_are_plain_facts():
    place = DataLocation(dataset="d", shard=np.int64(1), sequence=np.uint32(2), offset=np.int64(3))
    details = place.make_error(DecodeError, "bad").details
    expected = {"dataset": "d", "shard": 1, "sequence": 2, "offset": 3}
    assert json.loads(json.dumps(details)) == expected


def test_a_long_id_is_cut_in_the_message_and_whole_in_the_facts():
    key = "k" * 1000
    error = DataLocation(dataset="d", sequence=0, key=key).make_error(DecodeError, "bad")
    assert error.details["key"] == key
    assert quote(key) == f'"{"k" * 80}…"'
    assert quote(key) in str(error)
    assert len(str(error)) < 150


def test_every_store_knows_where_its_sequences_lie(tmp_path):
    rows = [{"id": f"s{i}", "x": np.arange(i)} for i in range(3)]
    root = tmp_path / "store"
    write_arrow(root, rows, shard_bytes=1)
    pa.parquet.write_table(pa.table({"x": [[1], [2]], "id": ["a", "b"]}), tmp_path / "p.parquet")
    stores = {
        open_arrow(root): f'{root} shard 2 ("part-00002.arrow"), sequence 2 ("s2")',
        open_foreign(tmp_path / "p.parquet"): f"{tmp_path / 'p.parquet'}",
        MemoryStore.from_sequences(rows): 'memory, sequence 2 ("s2")',
        DatasetStore.from_dataset(dict(enumerate(rows)), [0, 1, 2]): "dataset, sequence 2",
    }
    for store, words in stores.items():
        assert isinstance(store, SupportsLocation)
        assert str(store.locate(2)) == words  # the file of two rows has no sequence 2
    assert str(open_foreign(tmp_path / "p.parquet").locate(1)).endswith(
        'p.parquet shard 0 ("p.parquet"), sequence 1 ("b")'
    )


def test_the_page_on_errors_lists_every_fact_of_a_place():
    page = Path(__file__).parents[2] / "docs" / "guides" / "trouble" / "error-details.md"
    table = page.read_text("utf-8").partition("| detail | meaning |")[2]
    assert not [name for name in WHOLE.details if f"`{name}`" not in table]


def test_of_a_very_long_location_a_message_has_the_beginning_and_no_command():
    paths = [f"/data/part-{number}.recs" for number in range(400)]
    for count in (90, 400):
        dataset = "::".join(paths[:count])
        error = DataLocation(dataset=dataset, verify=True).make_error(DecodeError, "is wrong")
        assert error.details["dataset"] == dataset
        assert ("seqdata verify" in str(error)) == (dataset in str(error)) == (count == 90)
    assert f"… ({len(dataset):,} characters): is wrong" in str(error)
    assert len(str(error)) < 1_100


def test_some_shards_of_a_layout_keep_the_indices_of_the_dataset():
    layout = ShardLayout(
        "/d", ["a", "b", "c"], [0, 2, 5, 6], {"time": np.arange(6)},
        lambda i: DataLocation(dataset="/d", shard=i, file="abc"[i]), lambda number: f"s{number}",
    )  # fmt: skip
    part = layout.select(range(1, 3), lambda shard: f"copy {shard} was dropped")
    assert (part.shards, part.shard_offsets) == (["b", "c"], [0, 3, 4])
    assert part.lengths_of["time"].tolist() == [2, 3, 4, 5]
    assert [str(part.locate(number)) for number in (0, 3)] == [
        '/d shard 1 ("b"), sequence 2 ("s2")',
        '/d shard 2 ("c"), sequence 5 ("s5")',
    ]
    error = part.explain_damage(CorruptShardError.at("is damaged"), 1)
    assert "copy 2 was dropped" in str(error)
    assert str(part.select(range(1, 2)).locate(0)) == '/d shard 2 ("c"), sequence 5 ("s5")'
    assert str(ShardLayout("/d", ["a"], [0, 1], {}).select(range(1)).locate(0)) == "/d, sequence 0"
