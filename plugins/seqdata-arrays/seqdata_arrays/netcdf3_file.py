"""Indexing of one classic NetCDF file (NetCDF-3): its header, and where its variables are.

CDF-1, CDF-2 (64-bit offsets) and CDF-5 (64-bit data) differ in the width of the numbers of the
header; all numbers are big-endian. A variable of fixed size is contiguous. Variables along the
unlimited dimension are stored record by record: each record has a row of every such variable.
Reads: headers of files. Makes: a tree of arrays.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.backends import RandomAccessFile
from seqdata.errors import LimitError
from seqdata_arrays.array_index import StoredArray, split_rows
from seqdata_arrays.layout import ArrayNode, Tree

_WIDTHS = {b"CDF\x01": (4, 4), b"CDF\x02": (4, 8), b"CDF\x05": (8, 8)}
"""First bytes -> bytes of a count and of an offset in the header."""
_CHARS = 2
_CLASSIC_TYPES = {1: "i1", _CHARS: "S1", 3: ">i2", 4: ">i4", 5: ">f4", 6: ">f8"}
_TYPES = {**_CLASSIC_TYPES, 7: "u1", 8: ">u2", 9: ">u4", 10: ">i8", 11: ">u8"}
_DIMENSIONS, _VARIABLES, _ATTRIBUTES = 10, 11, 12
_MOST_HEADER = 16 << 20
_MOST_NAME = 256  # bytes, as in the library of NetCDF
_MOST_DIMENSIONS = 32  # of a variable, as in HDF5


@dataclass(frozen=True, slots=True, eq=False)
class _Variable:
    """A variable as the header describes it.

    Attributes:
        name: Its name.
        dtype: Dtype as stored; ``S1``: characters.
        sizes: Sizes of its dimensions; the first is None if it is the unlimited dimension.
        attributes: Its attributes.
        begin: Its first byte.
    """

    name: str
    dtype: np.dtype[Any]
    sizes: tuple[int | None, ...]
    attributes: Mapping[str, Any]
    begin: int

    @property
    def is_recorded(self) -> bool:
        """Whether it has a row in each record."""
        return self.sizes[:1] == (None,)

    @property
    def width(self) -> int:
        """Size in bytes of its row in a record; of all its values if it has no records."""
        return math.prod(size for size in self.sizes if size is not None) * self.dtype.itemsize


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """Location of the values of a variable.

    Attributes:
        shape: Its shape.
        dtype: Dtype as stored.
        begin: Its first byte.
        step: Bytes from the beginning of a row to the next.
        width: Bytes of a row.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    begin: int
    step: int
    width: int

    @property
    def rows(self) -> int:
        """Number of rows; 1 for a variable without a dimension."""
        return self.shape[0] if self.shape else 1

    @property
    def is_whole(self) -> bool:
        """Whether its rows are contiguous."""
        return self.step == self.width or self.rows <= 1

    def read(self, file: RandomAccessFile) -> NDArray[Any]:
        """Return all values in the byte order of this machine."""
        pieces = [(self.begin, self.rows * self.width)]
        if not self.is_whole:
            pieces = [(self.begin + row * self.step, self.width) for row in range(self.rows)]
        content = b"".join(file.read(first, first + size) for first, size in pieces)
        values = np.frombuffer(content, self.dtype).reshape(self.shape)
        return values.astype(self.dtype.newbyteorder("="))


@dataclass(frozen=True, slots=True, eq=False)
class ClassicFile:
    """The variables of a classic NetCDF file.

    Attributes:
        tree: Its variables and attributes, which belong to one group.
        places: Variable -> location of its values.
    """

    tree: Tree
    places: Mapping[str, _Place]

    def find_begin(self, path: str) -> int | None:
        """Return the first byte of a contiguous variable; None for any other."""
        place = self.places[path]
        return place.begin if place.is_whole else None

    def describe(self, path: str) -> StoredArray:
        """Return the positions of the pieces of a variable."""
        place = self.places[path]
        step = place.width if place.is_whole else place.step
        return split_rows(path, place.dtype, place.shape, place.begin, step=step)


def is_classic(file: RandomAccessFile) -> bool:
    """Return whether a file is classic NetCDF, by its first bytes."""
    return file.read(0, 4) in _WIDTHS


def read_classic(file: RandomAccessFile) -> ClassicFile:
    """Return the variables of a classic NetCDF file.

    Raises:
        LimitError: If its header is too large.
        ValueError: If it is damaged or cut off.
    """
    header = _Header(file)
    declared = header.read_count("the number of records")
    dimensions = [
        (header.read_name(what), header.read_count(f"the size of {what}"))
        for what in header.iter_list(_DIMENSIONS, "dimension")
    ]
    unlimited = [name for name, size in dimensions if not size]
    if len(unlimited) > 1:
        raise ValueError(f"dimensions {unlimited[0]!r} and {unlimited[1]!r} are both unlimited")
    attributes = header.read_attributes("the file")
    variables: dict[str, _Variable] = {}
    for what in header.iter_list(_VARIABLES, "variable"):
        variable = header.read_variable(what, dimensions)
        if variable.name in variables:
            raise ValueError(f"two variables have the name {variable.name!r}")
        variables[variable.name] = variable
    is_unknown = declared == (1 << 8 * header.count_width) - 1
    places = _find_places(variables, None if is_unknown else declared, file.size)
    nodes = {
        name: _make_node(file, variables[name], places[name])
        for name in sorted(variables, key=str.encode)  # as HDF5 lists them
    }
    return ClassicFile(Tree(nodes, {"": attributes}), places)


def _make_node(file: RandomAccessFile, variable: _Variable, place: _Place) -> ArrayNode:
    dtype = variable.dtype
    is_text = dtype.kind == "S"
    return ArrayNode(
        variable.name, place.shape, None if is_text else dtype,
        "strings" if is_text else dtype.name, variable.attributes, partial(place.read, file),
    )  # fmt: skip


def _find_places(
    variables: Mapping[str, _Variable], records: int | None, size: int
) -> dict[str, _Place]:
    """Return variable -> location of its values.

    Args:
        variables: Name -> variable.
        records: Number of records; None: as many as fit into the file.
        size: Size of the file.

    Raises:
        ValueError: If a variable ends after the file.
    """
    recorded = [each for each in variables.values() if each.is_recorded]
    step = sum(-(-each.width // 4) * 4 for each in recorded)
    if len(recorded) == 1:  # then, and only then, records are not padded
        step = recorded[0].width
    if records is None:
        last = max((each.begin + each.width for each in recorded), default=0)
        records = 0 if not recorded or last > size else (size - last) // step + 1
    places: dict[str, _Place] = {}
    for name, each in variables.items():
        shape = tuple(records if length is None else length for length in each.sizes)
        width = each.width
        if not each.is_recorded and shape:
            width //= shape[0]
        begin = each.begin if 0 not in shape else 0
        place = _Place(shape, each.dtype, begin, step if each.is_recorded else width, width)
        end = begin + (place.rows - 1) * place.step + width if place.rows else 0
        if end > size:
            raise ValueError(f"variable {name!r} ends at byte {end}, but the file has {size} bytes")
        places[name] = place
    return places


class _Header:
    """Reader of the numbers, names and lists of a header, in their order.

    Args:
        file: A classic NetCDF file.
    """

    def __init__(self, file: RandomAccessFile) -> None:
        self._name, self._is_longer = file.name, file.size > _MOST_HEADER
        self._content = file.read(0, _MOST_HEADER)
        self._at = 4
        self.count_width, self._offset_width = _WIDTHS[self._content[:4]]
        self._types = _TYPES if self.count_width > 4 else _CLASSIC_TYPES

    def take(self, size: int, what: str) -> bytes:
        """Return the next bytes, and skip the padding to a multiple of four bytes.

        Raises:
            LimitError: If the header is too large.
            ValueError: If the file ends before them.
        """
        stop = self._at + size
        if stop > len(self._content):
            if self._is_longer:
                raise LimitError.at(
                    f"{self._name}: must have a header of at most {_MOST_HEADER} bytes, but "
                    f"{what} ends at byte {stop}. If you trust the file, write it again with "
                    "fewer variables and attributes"
                )
            raise ValueError(
                f"{what} ends at byte {stop}, but the file has {len(self._content)} bytes"
            )
        content = self._content[self._at : stop]
        self._at = stop + -stop % 4
        return content

    def read_number(self, width: int, what: str) -> int:
        """Return an unsigned integer of ``width`` bytes."""
        return int.from_bytes(self.take(width, what), "big")

    def read_count(self, what: str) -> int:
        """Return a count or a size."""
        return self.read_number(self.count_width, what)

    def read_name(self, what: str) -> str:
        """Return a name.

        Raises:
            ValueError: If the name is not valid.
        """
        size = self.read_count(f"the size of the name of {what}")
        if not 0 < size <= _MOST_NAME:
            raise ValueError(f"the name of {what} has {size} bytes, not 1 to {_MOST_NAME}")
        raw = self.take(size, f"the name of {what}")
        try:
            name = raw.decode()
        except UnicodeDecodeError:
            raise ValueError(f"the name of {what} is {raw!r}, which is not UTF-8") from None
        if "/" in name or "\0" in name:
            raise ValueError(f"the name of {what} is {name!r}, which has a '/' or NUL")
        return name

    def iter_list(self, kind: int, what: str) -> Iterator[str]:
        """Yield a description for messages of each element of a list; the caller reads the element.

        Raises:
            ValueError: If the list is of another kind.
        """
        found = self.read_number(4, f"the kind of the list of {what}s")
        count = self.read_count(f"the number of {what}s")
        if found != kind and (found or count):
            raise ValueError(f"the list of {what}s is of kind {found}, not {kind}")
        for number in range(count):
            yield f"{what} {number}"

    def read_type(self, what: str) -> np.dtype[Any]:
        """Return the dtype of values as stored.

        Raises:
            ValueError: If the type is unknown.
        """
        found = self.read_number(4, f"the type of {what}")
        if found not in self._types:
            raise ValueError(f"the type of {what} is {found}, not 1 to {max(self._types)}")
        return np.dtype(self._types[found])

    def read_attributes(self, owner: str) -> dict[str, Any]:
        """Return name -> value of each attribute: bytes for a string, an array for several numbers.

        Attributes without a value are omitted.

        Raises:
            ValueError: If two attributes have the same name.
        """
        attributes: dict[str, Any] = {}
        for number in self.iter_list(_ATTRIBUTES, f"attribute of {owner}"):
            name = self.read_name(number)
            what = f"attribute {name!r} of {owner}"
            dtype = self.read_type(what)
            count = self.read_count(f"the size of {what}")
            raw = self.take(count * dtype.itemsize, f"the value of {what}")
            if name in attributes:
                raise ValueError(f"two attributes of {owner} have the name {name!r}")
            if dtype.kind == "S" and count:
                attributes[name] = raw.rstrip(b"\0")
            elif count:
                values = np.frombuffer(raw, dtype).astype(dtype.newbyteorder("="))
                attributes[name] = values[0] if len(values) == 1 else values
        return attributes

    def read_variable(self, number: str, dimensions: list[tuple[str, int]]) -> _Variable:
        """Return a variable.

        Raises:
            ValueError: If it is damaged.
        """
        name = self.read_name(number)
        what = f"variable {name!r}"
        count = self.read_count(f"the number of dimensions of {what}")
        if count > _MOST_DIMENSIONS:
            raise ValueError(f"{what} has {count} dimensions, more than {_MOST_DIMENSIONS}")
        sizes: list[int | None] = []
        for at in range(count):
            which = self.read_count(f"dimension {at} of {what}")
            if which >= len(dimensions):
                raise ValueError(f"dimension {at} of {what} is {which} of {len(dimensions)}")
            size = dimensions[which][1]
            if not size and at:
                raise ValueError(f"the unlimited dimension of {what} is {at}, not the first")
            sizes.append(size or None)
        attributes = self.read_attributes(what)
        dtype = self.read_type(what)
        self.read_count(f"the bytes of {what}")  # follow from its shape
        begin = self.read_number(self._offset_width, f"the offset of {what}")
        return _Variable(name, dtype, tuple(sizes), attributes, begin)
