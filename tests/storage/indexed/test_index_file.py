"""Index files: what is written is read back, and nothing is believed that cannot be."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata.errors import CorruptShardError, UnsafeContentError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.indexed import index_file
from seqdata.storage.indexed.index_file import (
    dump_index_files,
    load_index_file,
    load_old_index,
    load_old_list,
)
from seqdata.storage.indexed.shard_index import ListedShard, digest_extents
from tests.storage.indexed.samples import make_index, make_int64

LOCATION = DataLocation(dataset="/d", file="seqdata-index/index.idx", file_kind="index")
DECLARED = {"npy": ("x", "float32", (4,), "time"), "txt": ("text", "str", (), None)}
LISTED = {
    name: ListedShard(digit * 64, DECLARED) for name, digit in (("b.tar", "1"), ("a.tar", "2"))
}
HEAD = len(b"seqdata index 2\n") + 65


def dump(*indexes, listed=None):
    ((_, content),) = dump_index_files(indexes, listed)
    return content


def load(content, file_format=None):
    """Return name -> index; raises what damage is found."""
    found = load_index_file(content, LOCATION, file_format)
    if found.error is not None:
        raise found.error
    return {name: group.take(row) for group in found.groups for row, name in enumerate(group.names)}


def check_same(found, index):
    for name in (
        "shard", "bytes", "sha256", "ends", "last", "algorithm", "block", "format_identity",
        "declared", "is_numbered", "siblings",
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
    ]  # fmt: skip
    found = load(dump(*indexes[::-1]))
    assert sorted(found) == list("abcdefghi")
    for index in indexes:
        check_same(found[index.shard], index)
    assert dump(*indexes) == dump(*indexes[::-1])
    assert len(load_index_file(dump(*indexes), LOCATION).groups) == 5


def test_numbered_ids_are_not_stored():
    index = make_index(
        keys=np.empty(0, np.uint8), key_ends=make_int64(0, 0, 0, 0), is_numbered=True
    )
    check_same(load(dump(index))["a.recs"], index)
    assert load(dump(index))["a.recs"].id_of(2) == "a.recs/2"


def test_many_bytes_are_stored_in_several_files_the_first_of_which_comes_last(monkeypatch):
    monkeypatch.setattr(index_file, "PIECE_BYTES", 300)
    indexes = [make_index(shard=name) for name in "abcde"]
    files = list(dump_index_files(indexes, LISTED))
    assert [number for number, _ in files] == [1, 2, 0]
    found = [load_index_file(content, LOCATION) for _, content in files]
    assert [each.pieces for each in found] == [1, 1, 3]
    assert [each.listed is None for each in found] == [True, True, False]
    assert [group.names for each in found for group in each.groups] == [
        ["c", "d"],
        ["e"],
        ["a", "b"],
    ]


def test_a_list_is_read_as_it_was_written_in_its_order():
    found = load_index_file(dump(listed=LISTED), LOCATION).listed
    assert [(name, shard.sha256) for name, shard in found.items()] == [
        ("b.tar", "1" * 64), ("a.tar", "2" * 64),
    ]  # fmt: skip
    assert all(shard.declared == DECLARED for shard in found.values())


def test_every_changed_byte_is_found():
    content = dump(make_index(), listed=LISTED)
    for at in range(len(content)):
        damaged = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        with pytest.raises(CorruptShardError, match="must be a valid index, but is damaged or not"):
            load(damaged)


def test_a_list_survives_damage_of_the_indexes():
    content = dump(make_index(), listed=LISTED)
    for damaged in (content[:-1], content[:-1] + b"x", content + b"x"):
        found = load_index_file(damaged, LOCATION)
        assert list(found.listed) == ["b.tar", "a.tar"]
        assert found.groups == []
        assert "`seqdata verify --repair-index`" in str(found.error)


@pytest.mark.parametrize(
    "name", ["a b.tar", "more/a.tar", "..a.tar", "a..tar", ".a/b.tar", "größe"]
)
def test_ordinary_names_of_shards_are_read(name):
    listed = {name: LISTED["a.tar"]}
    assert list(load_index_file(dump(listed=listed), LOCATION).listed) == [name]


@pytest.mark.parametrize(
    "name",
    ["/etc/x.tar", "../x.tar", "a/../../x.tar", "a/..", "..", "./x.tar", ".", "", "a//x.tar", "a/",
     "http://x/y.tar", "C:x.tar", "..\\x.tar", "a\nb.tar", "a\0b.tar", "a\x7f.tar", "a\x85.tar"],
)  # fmt: skip
def test_a_name_that_leads_out_of_the_folder_is_refused(name):
    content = dump(listed={**LISTED, name: LISTED["a.tar"]})
    with pytest.raises(UnsafeContentError, match=r"must name shards by .* below"):
        load_index_file(content, LOCATION)


def parts(content):
    text = content[HEAD : content.index(b"\n", HEAD) + 1]
    return json.loads(text), content[HEAD + len(text) :]


def resealed(header, arrays=b""):
    """Return an index file of any header whose digest is right."""
    text = (header if isinstance(header, bytes) else json.dumps(header).encode()) + b"\n"
    return b"seqdata index 2\n" + hashlib.sha256(text).hexdigest().encode() + b"\n" + text + arrays


def change(path, value, *indexes):
    """Return an index file in which one entry of its header is another."""
    header, arrays = parts(dump(*(indexes or [make_index()]), listed=LISTED))
    inside = header
    *path, last = path
    for name in path:
        inside = inside[name]
    inside[last] = value
    return resealed(header, arrays)


def test_another_version_is_named():
    with pytest.raises(CorruptShardError, match="is of version 7, not 2"):
        load(change(["version"], 7))


GROUP = ["groups", 0]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["pieces"], 0),
        (["pieces"], "1"),
        (["list"], 7),
        (["list"], {"shards": 3}),
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


def dump_old_list(shards, version=1):
    """Return the list of files as earlier releases have written it."""
    fields = {name: list(info) for name, info in sorted(DECLARED.items())}
    info = {"version": version, "fields": fields, "shards": [list(shard) for shard in shards]}
    digest = hashlib.sha256(json.dumps(info).encode()).hexdigest()
    return json.dumps({"seal": digest, **info}, indent=1).encode() + b"\n"


def test_the_list_of_an_earlier_release_is_read_and_every_changed_byte_is_found():
    shards = [(name, shard.sha256) for name, shard in LISTED.items()]
    content = dump_old_list(shards)
    listed = load_old_list(content, LOCATION)
    assert [(name, shard.sha256) for name, shard in listed.items()] == shards
    assert all(shard.declared == DECLARED for shard in listed.values())
    for at in range(len(content)):
        damaged = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        with pytest.raises(CorruptShardError, match=r"must be unchanged since it was written, but"):
            load_old_list(damaged, LOCATION)
    with pytest.raises(CorruptShardError, match=r"is of version 7\. Restore it, or, if shards"):
        load_old_list(dump_old_list(shards, 7), LOCATION)
    with pytest.raises(UnsafeContentError, match=r"must name shards by .* below"):
        load_old_list(dump_old_list([("../x.tar", "1" * 64)]), LOCATION)


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b'{"shards": 3}', b'{"version": 1}'])
def test_what_is_not_a_list_is_damaged(content):
    with pytest.raises(CorruptShardError, match=r"is damaged. Restore it, or, if shards"):
        load_old_list(content, LOCATION)


@pytest.mark.parametrize("content", [b"", b"seqdata index\n", dump(make_index())])
def test_what_is_not_an_index_of_an_earlier_release_is_damaged(content):
    with pytest.raises(CorruptShardError, match="must be a valid index, but is damaged or not an"):
        load_old_index(content, LOCATION)
