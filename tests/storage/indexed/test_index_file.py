"""Index files: what is written is read back, and nothing is believed that cannot be."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata.errors import CorruptShardError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.indexed import index_file
from seqdata.storage.indexed.index_file import (
    dump_index_files,
    load_index_file,
    load_old_index,
)
from seqdata.storage.indexed.shard_index import digest_extents
from tests.storage.indexed.samples import make_index, make_int64

LOCATION = DataLocation(dataset="/d", file="seqdata-index/index.idx", file_kind="index")
HEAD = len(b"seqdata index\n") + 65


def dump(*indexes):
    (content,) = dump_index_files(indexes)
    return content


def load(content, file_format=None):
    """Return name -> index."""
    groups = load_index_file(content, LOCATION, file_format)
    return {name: group.take(row) for group in groups for row, name in enumerate(group.names)}


def check_same(found, index):
    for name in (
        "shard", "bytes", "sha256", "ends", "last", "algorithm", "block", "format_identity",
        "declared", "is_numbered", "siblings", "missing",
    ):  # fmt: skip
        assert getattr(found, name) == getattr(index, name)
    assert [found.id_of(number) for number in range(len(found))] == [
        index.id_of(number) for number in range(len(index))
    ]
    assert list(found.members) == list(index.members)
    for field, mine in found.members.items():
        for name in ("begins", "sizes", "sums", "firsts", "codes", "numbers", "values"):
            its = getattr(index.members[field], name)
            assert (
                its is None
                if getattr(mine, name) is None
                else np.array_equal(getattr(mine, name), its)
            )
        assert mine.heads == index.members[field].heads
    assert digest_extents(found) == digest_extents(index)


@given(st.lists(st.lists(st.integers(0, 1 << 40), max_size=12), min_size=1, max_size=3))
def test_what_is_written_is_read_back(sizes_of):
    indexes = [make_index(sizes, shard=f"{at}.recs") for at, sizes in enumerate(sizes_of)]
    found = load(dump(*indexes))
    assert list(found) == [index.shard for index in indexes]
    for index in indexes:
        check_same(found[index.shard], index)


def with_field(shard, **changes):
    index = make_index(shard=shard)
    return replace(index, members={"x": replace(index.members["x"], **changes)})


def test_files_of_any_fields_and_formats_are_in_one():
    codes = np.array([0, 1, 0], np.uint16)
    heads = ({"dtype": "<f4"}, {"dtype": "<i2"})
    indexes = [
        make_index(shard="a"), make_index(shard="b", format_identity="", declared={}, last=7),
        make_index(shard="c", siblings={}), with_field("d", codes=codes, heads=heads),
        with_field("e", codes=codes[::-1], heads=heads), with_field("f", numbers=None, values=None),
        with_field("g", sums=np.arange(5, dtype=np.uint32), firsts=make_int64(0, 1, 4, 5)),
        make_index(shard="h", members={}, algorithm="xxh3"), make_index((), shard="i"),
        make_index(shard="j", missing={"a": (2, (0, 1)), "b": (1, (2,))}),
    ]  # fmt: skip
    found = load(dump(*indexes[::-1]))
    assert sorted(found) == list("abcdefghij")
    for index in indexes:
        check_same(found[index.shard], index)
    assert dump(*indexes) == dump(*indexes[::-1])
    assert len(load_index_file(dump(*indexes), LOCATION)) == 5


def test_the_time_of_a_file_is_stored_if_one_was_recorded():
    indexes = [
        make_index(shard="a"),
        replace(make_index(shard="b"), modified=1_700_000_000_123_456_789),
    ]
    found = load(dump(*indexes))
    assert [found[name].modified for name in "ab"] == [0, 1_700_000_000_123_456_789]
    assert b"modified" not in dump(indexes[0])
    name_ends = 1  # the number of an array with one more than there are files
    with pytest.raises(CorruptShardError, match="invalid table"):
        load(change(["groups", 0, "table", "modified"], name_ends, *indexes))


def test_numbered_ids_are_not_stored():
    index = make_index(
        keys=np.empty(0, np.uint8), key_ends=make_int64(0, 0, 0, 0), is_numbered=True
    )
    check_same(load(dump(index))["a.recs"], index)
    assert load(dump(index))["a.recs"].id_of(2) == "a.recs/2"


def test_many_bytes_are_stored_in_several_files(monkeypatch):
    monkeypatch.setattr(index_file, "PIECE_BYTES", 300)
    indexes = [make_index(shard=name) for name in "abcde"]
    found = [list(load(content)) for content in dump_index_files(indexes)]
    assert found == [["a", "b"], ["c", "d"], ["e"]]


def test_every_changed_byte_is_found():
    content = dump(make_index())
    for at in range(len(content)):
        damaged = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        with pytest.raises(CorruptShardError, match="must be a valid index, but is damaged"):
            load(damaged)


def resealed(header, arrays=b""):
    """Return an index file of any header whose digest is right."""
    body = (header if isinstance(header, bytes) else json.dumps(header).encode()) + b"\n" + arrays
    return b"seqdata index\n" + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def change(path, value, *indexes):
    """Return an index file in which one entry of its header is another."""
    text, _, arrays = dump(*(indexes or [make_index()]))[HEAD:].partition(b"\n")
    header = json.loads(text)
    inside = header
    *path, last = path
    for name in path:
        inside = inside[name]
    inside[last] = value
    changed = json.dumps(header).encode()
    return resealed(changed + b" " * (len(text) - len(changed)), arrays)


def test_another_version_is_named():
    with pytest.raises(CorruptShardError, match="is of version 7, not 2"):
        load(change(["version"], 7))


GROUP = ["groups", 0]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["groups"], None),
        (["arrays"], [["|O", 3]]),
        (["arrays", 0], ["|u1", -1]),
        (["arrays", 0], ["|u1", 10**12]),
        ([*GROUP, "block"], 0),
        ([*GROUP, "algorithm"], 7),
        ([*GROUP, "keys"], 99),
        ([*GROUP, "keys"], -1),
        ([*GROUP, "key_ends"], 0),
        ([*GROUP, "numbered"], 4),
        ([*GROUP, "numbered"], "3"),
        ([*GROUP, "members"], []),
        ([*GROUP, "members", "x", "begins"], None),
        ([*GROUP, "members", "x", "values"], [0, "object", []]),
        ([*GROUP, "members", "x", "values"], [0, "float32", [0]]),
        ([*GROUP, "members", "x", "values"], [0, "float32", [1 << 70]]),
        ([*GROUP, "siblings"], [{"a": [float("inf"), ""]}]),
        ([*GROUP, "siblings"], [{}, {}]),
        ([*GROUP, "siblings"], {"a": 1}),
        ([*GROUP, "missing"], [{"a": [1, [0]]}, {}]),
        ([*GROUP, "missing"], [{"a": [1, [1 << 40]]}]),
        ([*GROUP, "missing"], [{"a": [1, ["r0"]]}]),
        ([*GROUP, "missing"], [{"a": 1}]),
        ([*GROUP, "declared", "x", 2], [float("inf")]),
        ([*GROUP, "declared", "x", 2], ["x"]),
        ([*GROUP, "table"], {"names": 99}),
        ([*GROUP, "table", "counts"], 2),
        ([*GROUP, "table", "last"], 1),
        ([*GROUP, "table", "sha256"], 0),
    ],
)
def test_a_header_that_cannot_be_is_a_damage(path, value):
    with pytest.raises(CorruptShardError, match=r"must be a valid index, but is invalid \("):
        load(change(path, value))


def test_numbered_sequences_need_no_more_memory_than_their_file():
    index = make_index(
        keys=np.empty(0, np.uint8), key_ends=make_int64(0, 0, 0, 0), is_numbered=True
    )
    with pytest.raises(CorruptShardError, match="invalid numbers"):
        load(change([*GROUP, "numbered"], 1 << 61, index))


def test_counts_of_files_need_no_more_memory_than_their_file():
    index = make_index(bytes=1 << 50)
    table = json.loads(dump(index)[HEAD:].partition(b"\n")[0])["groups"][0]["table"]
    with pytest.raises(CorruptShardError, match="invalid table"):
        load(change([*GROUP, "table", "counts"], table["bytes"], index))


@pytest.mark.parametrize("header", [b"[" * 100_000, b"\xff", b"7", b"{}", b""])
def test_a_text_that_is_not_an_index_is_a_damage(header):
    with pytest.raises(CorruptShardError, match=r"must be a valid index, but is invalid \("):
        load(resealed(header))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"begins": make_int64(0, 4, 5)}, "places"),  # ends after the file
        ({"begins": make_int64(-2, 4, 4)}, "places"),
        ({"sizes": make_int64(4, -1, 8)}, "places"),
        ({"begins": make_int64(0, 4)}, "places"),
        ({"numbers": make_int64(0)}, "numbers"),
        ({"sums": np.zeros(2, np.uint32)}, "checksums"),
        ({"firsts": make_int64(0, 1, 2, 4)}, "checksums"),
        ({"firsts": make_int64(0, 2, 1, 3)}, "checksums"),
        ({"codes": np.array([0, 1, 0], np.uint16)}, "heads"),
    ],
)
def test_arrays_that_do_not_fit_are_a_damage(changes, what):
    for others in ([], [make_index((1000,), shard="larger.recs")]):  # each has a size of its own
        with pytest.raises(CorruptShardError, match=f"invalid {what}"):
            load(dump(with_field("a.recs", **changes), *others))


class RefusingFormat:
    """Refuses every index of its own."""

    name, identity = "records", "m:Records() version 1"

    def check(self, index):
        raise ValueError("refused by its format")


def test_a_format_checks_its_own_indexes_only():
    with pytest.raises(CorruptShardError, match="refused by its format"):
        load(dump(make_index()), RefusingFormat())
    other = load(dump(make_index(format_identity="another")), RefusingFormat())
    assert other["a.recs"].format_identity == "another"


@pytest.mark.parametrize("content", [b"", b"seqdata index\n"])
def test_what_is_not_an_index_of_an_earlier_release_is_damaged(content):
    with pytest.raises(CorruptShardError, match="must be a valid index, but is damaged"):
        load_old_index(content, LOCATION)


def test_an_index_of_an_earlier_release_is_of_another_version():
    with pytest.raises(CorruptShardError, match="is of version 2, not 1"):
        load_old_index(dump(make_index()), LOCATION)
