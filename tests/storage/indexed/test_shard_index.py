"""An index file: what is written is read back, and nothing in it is believed that cannot be."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata.errors import CorruptShardError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.indexed.shard_index import digest_ends, digest_extents, dump_index, load_index
from tests.storage.indexed.samples import make_index, make_int64

PLACE = DataLocation(dataset="/d", file="a.recs.idx", file_kind="index of shard 0")


@given(st.lists(st.integers(0, 1 << 40), max_size=12))
def test_what_is_written_is_read_back(sizes):
    index = make_index(sizes)
    found = load_index(dump_index(index), PLACE)
    for name in (
        "shard",
        "bytes",
        "sha256",
        "ends",
        "last",
        "block",
        "format_identity",
        "declared",
    ):
        assert getattr(found, name) == getattr(index, name)
    assert found.siblings == index.siblings
    assert [found.id_of(number) for number in range(len(found))] == [
        index.id_of(number) for number in range(len(index))
    ]
    for name in ("begins", "sizes", "sums", "firsts", "codes", "numbers", "values"):
        mine, its = getattr(found.members["x"], name), getattr(index.members["x"], name)
        assert its is None if mine is None else np.array_equal(mine, its)
    assert found.members["x"].extents[1].tolist() == np.cumsum(sizes).tolist()
    assert digest_extents(found) == digest_extents(index)


def test_numbered_ids_are_not_stored():
    index = make_index(
        keys=np.empty(0, np.uint8), key_ends=make_int64(0, 0, 0, 0), is_numbered=True
    )
    found = load_index(dump_index(index), PLACE)
    assert found.is_numbered
    assert [found.id_of(number) for number in range(3)] == ["a.recs/0", "a.recs/1", "a.recs/2"]


def test_both_ends_of_a_file_identify_it():
    content = bytearray(b"x" * 2000)
    before = digest_ends(content, 1488)
    content[1000] = 0  # neither end
    assert digest_ends(content, 1488) == before
    content[1999] = 0
    assert digest_ends(content, 1488) != before


def test_the_digest_of_extents_has_fields_places_and_ids():
    index = make_index()
    field = index.members["x"]
    others = [
        replace(index, keys=np.frombuffer(b"k0k1k9", np.uint8)),
        replace(index, members={"y": field}),
        replace(index, members={"x": replace(field, begins=field.begins + 1)}),
        replace(index, members={"x": replace(field, sizes=field.sizes + 1)}),
    ]
    assert len({digest_extents(each) for each in (index, *others)}) == 5


@pytest.mark.parametrize("at", [0, 20, -1])
def test_a_flipped_bit_is_a_damage(at):
    content = bytearray(dump_index(make_index()))
    content[at] ^= 1
    with pytest.raises(CorruptShardError, match="must be a valid index, but is damaged or not an"):
        load_index(bytes(content), PLACE)


def sealed(facts, arrays=b""):
    """Return an index file of any facts whose digest is right."""
    body = (facts if isinstance(facts, bytes) else json.dumps(facts).encode()) + b"\n" + arrays
    return b"seqdata index\n" + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def change(path, value, **changes):
    """Return an index file in which one fact is another."""
    content = dump_index(make_index(**changes))
    text, _, arrays = content[len(b"seqdata index\n") + 65 :].partition(b"\n")
    facts = json.loads(text)
    inside = facts
    *path, last = path
    for name in path:
        inside = inside[name]
    inside[last] = value
    changed = json.dumps(facts).encode()
    return sealed(changed + b" " * (len(text) - len(changed)), arrays)


def test_another_version_is_named():
    with pytest.raises(CorruptShardError, match="is of version 2, not 1"):
        load_index(change(["version"], 2), PLACE)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["bytes"], 3),
        (["bytes"], -1),
        (["bytes"], 10**30),
        (["block"], 0),
        (["last"], 13),
        (["last"], "0"),
        (["shard"], 7),
        (["keys"], 99),
        (["keys"], -1),
        (["key_ends"], 0),
        (["arrays"], [["|O", 3]]),
        (["arrays", 0], ["|u1", -1]),
        (["arrays", 0], ["|u1", 10**12]),
        (["numbered"], 4),
        (["numbered"], "3"),
        (["members"], []),
        (["members", "x", "begins"], None),
        (["members", "x", "values"], [0, "object", []]),
        (["members", "x", "values"], [0, "float32", [0]]),
        (["members", "x", "values"], [0, "float32", [1 << 70]]),
        (["siblings"], {"a": [float("inf"), ""]}),
        (["told", "x", 2], [float("inf")]),
        (["told", "x", 2], ["x"]),
        (["table"], {"names": 99}),
    ],
)
def test_facts_that_cannot_be_are_a_damage(path, value):
    with pytest.raises(CorruptShardError, match=r"must be a valid index, but is invalid \("):
        load_index(change(path, value), PLACE)


def test_numbered_sequences_need_no_more_memory_than_their_file():
    facts = {"bytes": 1 << 62, "numbered": 1 << 61}
    index = make_index(
        keys=np.empty(0, np.uint8), key_ends=make_int64(0, 0, 0, 0), is_numbered=True
    )
    content = dump_index(index)
    text, _, arrays = content[len(b"seqdata index\n") + 65 :].partition(b"\n")
    with pytest.raises(CorruptShardError, match="invalid numbers"):
        load_index(sealed({**json.loads(text), **facts}, arrays), PLACE)


@pytest.mark.parametrize("facts", [b"[" * 100_000, b"\xff", b"7", b"{}", b""])
def test_a_text_that_is_not_an_index_is_a_damage(facts):
    with pytest.raises(CorruptShardError, match=r"must be a valid index, but is invalid \("):
        load_index(sealed(facts), PLACE)


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
    index = make_index()
    index = replace(index, members={"x": replace(index.members["x"], **changes)})
    with pytest.raises(CorruptShardError, match=f"invalid {what}"):
        load_index(dump_index(index), PLACE)


class RefusingFormat:
    """Refuses every index of its own."""

    name, identity = "records", "m:Records() version 1"

    def check(self, index):
        raise ValueError("refused by its format")


def test_a_kind_checks_its_own_indexes_only():
    with pytest.raises(CorruptShardError, match="refused by its format"):
        load_index(dump_index(make_index()), PLACE, RefusingFormat())
    other = load_index(dump_index(make_index(format_identity="another")), PLACE, RefusingFormat())
    assert other.format_identity == "another"
