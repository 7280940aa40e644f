"""What a format reads of a file and of the files next to it, and how these are identified."""

import numpy as np
import pytest

from seqdata.errors import MissingShardError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.indexed.file_format import (
    ABSENT,
    FileReader,
    file_facts,
    has_facts,
    sibling_facts,
)

FILES = {"sub/a.tok": b"0123456789", "sub/a.ends": b"xyz"}


def open_neighbour(path, place):
    if path not in FILES:
        raise place.make_error(MissingShardError, "is not there. Restore it")
    return np.frombuffer(FILES[path], np.uint8)


def make_reader(name="sub/a.tok", read_sibling=open_neighbour):
    place = DataLocation(dataset="/d", shard=0, file=name)
    return FileReader(name, np.frombuffer(FILES["sub/a.tok"], np.uint8), place, read_sibling)


def test_bytes_are_read_up_to_the_end_of_the_file():
    file = make_reader()
    assert file.size == 10
    assert file.read(2, 5) == b"234"
    assert file.read(8, 99) == b"89"
    assert file.read(99, 99) == b""


@pytest.mark.parametrize(("first", "stop"), [(-1, 2), (3, 2)])
def test_bytes_before_the_file_are_an_error(first, stop):
    with pytest.raises(ValueError, match=rf"read\({first}, {stop}\): must be 0 <= first <= stop"):
        make_reader().read(first, stop)


def test_siblings_are_found_next_to_the_file_and_remembered():
    file = make_reader()
    assert file.sibling("a.ends").read(0, 3) == b"xyz"
    assert list(sibling_facts(file)) == ["sub/a.ends"]
    assert sibling_facts(file)["sub/a.ends"] == file_facts(np.frombuffer(b"xyz", np.uint8))


def test_a_sibling_that_is_not_there_belongs_to_the_facts():
    file = make_reader()
    with pytest.raises(MissingShardError, match="is not there"):
        file.sibling("a.other")
    assert sibling_facts(file) == {"sub/a.other": (-1, ABSENT)}


def test_a_change_between_both_ends_gives_other_facts():
    content = np.zeros(5_000, dtype=np.uint8)
    before = file_facts(content)
    content[2_500] = 1
    assert file_facts(content) != before


def test_facts_are_compared_by_the_algorithm_that_they_name():
    content = np.zeros(5_000, dtype=np.uint8)
    by_others = file_facts(content, "crc32c")
    assert has_facts(content, file_facts(content))
    assert has_facts(content, by_others)
    unknown = by_others[0], by_others[1].replace("crc32c", "crc64")
    assert has_facts(content, unknown)  # which is all that can be seen here
    content[2_500] = 1
    assert not has_facts(content, by_others)
    content[0] = 1
    assert not has_facts(content, unknown)
    assert not has_facts(content, (-1, ABSENT))


@pytest.mark.parametrize("name", ["../a.ends", "x/a.ends", ".hidden"])
def test_a_sibling_is_a_plain_name_in_the_same_folder(name):
    with pytest.raises(MissingShardError, match=r"sibling of sub/a.tok .*is not there"):
        make_reader().sibling(name)


def test_a_file_without_neighbours_has_no_siblings():
    with pytest.raises(MissingShardError, match="is not there"):
        make_reader(read_sibling=None).sibling("a.ends")


def test_another_content_of_the_same_size_has_other_facts():
    assert file_facts(np.frombuffer(b"xyz", np.uint8)) != file_facts(
        np.frombuffer(b"xyw", np.uint8)
    )
