"""The list of a writer's shards: read as it was written, and refused where a byte differs."""

import json

import pytest

from seqdata.errors import CorruptShardError, UnsafeContentError
from seqdata.storage.indexed.index_file import dump_list, load_list

DECLARED = {"npy": ("x", "float32", (4,), "time"), "txt": ("text", "str", (), None)}
SHARDS = [("b.tar", "1" * 64), ("a.tar", "2" * 64)]


def test_a_list_is_read_as_it_was_written_in_its_order():
    listed = load_list(dump_list(SHARDS, DECLARED), "/d")
    assert [(name, shard.sha256) for name, shard in listed.items()] == SHARDS
    assert all(shard.declared == DECLARED for shard in listed.values())


def test_every_changed_byte_is_found():
    content = dump_list(SHARDS, DECLARED)
    for at in range(len(content)):
        damaged = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        with pytest.raises(CorruptShardError, match=r'"shards.json"\): must be unchanged .* but'):
            load_list(damaged, "/d")


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b'{"shards": 3}', b'{"version": 1}'])
def test_what_is_not_a_list_is_damaged(content):
    with pytest.raises(CorruptShardError, match=r"is damaged. Restore it, or, if shards"):
        load_list(content, "/d")


def test_another_version_is_named():
    facts = json.loads(dump_list(SHARDS, DECLARED))
    with pytest.raises(CorruptShardError, match="is of version 7"):
        load_list(json.dumps({**facts, "version": 7}).encode(), "/d")


@pytest.mark.parametrize(
    "name", ["a b.tar", "more/a.tar", "..a.tar", "a..tar", ".a/b.tar", "größe"]
)
def test_ordinary_names_of_shards_are_read(name):
    assert list(load_list(dump_list([(name, "1" * 64)], DECLARED), "/d")) == [name]


@pytest.mark.parametrize(
    "name",
    ["/etc/x.tar", "../x.tar", "a/../../x.tar", "a/..", "..", "./x.tar", ".", "", "a//x.tar", "a/",
     "http://x/y.tar", "C:x.tar", "..\\x.tar", "a\nb.tar", "a\0b.tar", "a\x7f.tar", "a\x85.tar"],
)  # fmt: skip
def test_a_name_that_leads_out_of_the_folder_is_refused(name):
    content = dump_list([SHARDS[0], (name, "1" * 64)], DECLARED)
    message = r'"shards.json"\): must name shards by .* malicious.*If you trust'
    with pytest.raises(UnsafeContentError, match=message):
        load_list(content, "/d")
