"""What authors of formats implement: few members, known by their names."""

import inspect

import pytest

from seqdata.backends import Extents, FileFormat
from seqdata.storage.data_location import DataLocation
from seqdata.storage.indexed.file_format import FileReader, RandomAccessFile
from tests.storage.indexed.records import Records


class Unrelated:
    """A format that does not inherit from anything."""

    suffixes = (".x",)

    def index(self, file):
        raise NotImplementedError


@pytest.mark.parametrize("format", [Records(), Unrelated()])
def test_a_format_is_known_by_its_members(format):
    assert isinstance(format, FileFormat)


@pytest.mark.parametrize("other", [None, "records", object(), lambda location: None])
def test_nothing_else_is_a_format(other):
    assert not isinstance(other, FileFormat)


def test_extents_are_raw_values_along_time_unless_told_otherwise():
    extents = Extents([0], [4], "<i4")
    assert (extents.shape, extents.axis) == ((), "time")
    assert extents.decoder is extents.lengths is extents.values is None


def test_the_file_that_is_indexed_has_all_members_of_the_interface():
    names = [name for name in vars(RandomAccessFile) if not name.startswith("_")]
    assert {"name", "size", "read", "sibling"} <= set(names)
    file = FileReader("a", None, DataLocation(dataset="/d"))
    for name in ("read", "sibling"):
        theirs = inspect.signature(getattr(RandomAccessFile, name))
        mine = inspect.signature(getattr(type(file), name))
        assert list(mine.parameters) == list(theirs.parameters)
