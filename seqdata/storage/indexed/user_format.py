"""A ``FileFormat`` of a user as the engine reads it; its results are validated first."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import CorruptShardError, DataError, DecodeError, PluginError, SeqDataError
from seqdata.protocols import Field
from seqdata.storage.data_location import DataLocation
from seqdata.storage.fields import FIELD_DTYPES, kind_of
from seqdata.storage.indexed.alike_files import group_alike, join_extents, make_alike_indexes
from seqdata.storage.indexed.build_index import make_shard_index
from seqdata.storage.indexed.file_format import (
    Extents,
    FileFormat,
    FileIndex,
    FileReader,
    check_extents,
    check_file_index,
    check_has_axis,
    check_missing,
    check_suffixes,
    clamp_begins,
    count_sequences,
    native_name,
    sibling_facts,
    value_sizes,
)
from seqdata.storage.indexed.indexed_format import (
    Decode,
    IndexedField,
    ReadSibling,
    UnindexedFile,
)
from seqdata.storage.indexed.opened_files import OpenedFiles
from seqdata.storage.indexed.shard_index import (
    VERSION,
    FieldIndex,
    MissingValues,
    ShardIndex,
    check,
)
from seqdata.storage.limits import MAX_ROWS

_TWO_STORES = "Open them as two stores"


@dataclass(frozen=True, slots=True, eq=False)
class _Located:
    """The ids and values of a file, without checksums; see ``ShardIndex``."""

    members: Mapping[str, FieldIndex]
    keys: NDArray[np.uint8]
    key_ends: NDArray[np.int64]
    is_numbered: bool
    missing: MissingValues


@dataclass(frozen=True)
class UserFormat:
    """A ``FileFormat`` as an ``IndexedFormat``.

    Attributes:
        format: The user's format.
    """

    format: FileFormat

    def __post_init__(self) -> None:
        check_suffixes(self.format)

    @property
    def name(self) -> str:
        """Name in messages: the class of the format, in lower case."""
        return type(self.format).__name__.lower()

    @functools.cached_property
    def identity(self) -> str:
        """The class, its options, and its version."""
        format_class = type(self.format)
        mine: Any = self.format
        known = dataclasses.fields(mine) if dataclasses.is_dataclass(mine) else ()
        named = [index.name for index in known] or list(getattr(mine, "__dict__", ()))
        state = {name: getattr(mine, name) for name in named}
        said = ", ".join(f"{name}={value!r}" for name, value in sorted(state.items()))
        version = getattr(self.format, "version", 1)
        return f"{format_class.__module__}:{format_class.__qualname__}({said}){VERSION}{version}"

    @property
    def _remedy_for_dtypes(self) -> str:
        """Advice for files of several dtypes, which the format may give."""
        return str(getattr(self.format, "remedy_for_dtypes", _TWO_STORES))

    @property
    def _remedy_for_fields(self) -> str:
        """Advice for files of several sets of fields, which the format may give."""
        return str(getattr(self.format, "remedy_for_fields", _TWO_STORES))

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The suffixes of such files."""
        return tuple(self.format.suffixes)

    @property
    def packed(self) -> tuple[str, ...]:
        """The suffixes of compressed files."""
        ends = (".gz", ".bz2", ".xz", ".zst", ".lz4")
        return tuple(suffix + end for suffix in self.suffixes for end in ends)

    @property
    def is_nested(self) -> bool:
        """True: names and indexes are of the folder that is opened."""
        return True

    @property
    def needs_command(self) -> bool:
        """False: indexes are built when files are opened."""
        return False

    @property
    def item(self) -> str:
        """The required content of files."""
        return "sequence"

    @property
    def reads_only_headers(self) -> bool:
        """Whether the format has a true attribute ``reads_only_headers``."""
        return bool(getattr(self.format, "reads_only_headers", False))

    def make_index(
        self,
        content: NDArray[np.uint8],
        name: str,
        place: DataLocation,
        read_sibling: ReadSibling | None = None,
    ) -> ShardIndex:
        """Return the index of a file, with checksums of all values.

        Raises:
            DataError: If the file is damaged, or not of the format.
            PluginError: If the format returns an invalid index.
        """
        file = FileReader(name, content, place, read_sibling)
        return self._make_index(file, self._index_file(file))

    def make_indexes(self, files: Sequence[UnindexedFile]) -> list[ShardIndex]:
        """Return the index of each file; see ``make_index``."""
        readers = [
            FileReader(file.name, file.content, file.place, file.read_sibling) for file in files
        ]
        found = list(map(self._index_file, readers))
        indexes: dict[int, ShardIndex] = {}
        for numbers in group_alike(found):
            made = self._make_alike([readers[i] for i in numbers], [found[i] for i in numbers])
            indexes.update(zip(numbers, made, strict=True))
        return [indexes[number] for number in range(len(files))]

    def _make_alike(
        self, files: Sequence[FileReader], found: Sequence[FileIndex]
    ) -> list[ShardIndex]:
        """Return the indexes of the files of a group; see ``group_alike``."""
        if len(files) > 1:
            sizes = np.array([file.size for file in files])
            with suppress(SeqDataError):  # one is invalid: which, the checks of each will tell
                members = self._make_members(join_extents(found), len(files), sizes, files[0])
                return list(make_alike_indexes(files, members, self.identity))
        return [self._make_index(file, each) for file, each in zip(files, found, strict=True)]

    def _make_index(self, file: FileReader, found: FileIndex) -> ShardIndex:
        located = self._locate(file, found)
        index = make_shard_index(
            file.name, file.content, located.members, keys=located.keys, key_ends=located.key_ends
        )
        return replace(
            index, format_identity=self.identity, siblings=sibling_facts(file),
            is_numbered=located.is_numbered, missing=located.missing,
        )  # fmt: skip

    def has_same_headers(
        self,
        content: NDArray[np.uint8],
        index: ShardIndex,
        place: DataLocation,
        read_sibling: ReadSibling | None = None,
    ) -> bool:
        """Return whether an index has the ids, fields, extents and kept values of a file.

        Raises:
            DataError: If the file is damaged, or not of the format.
            PluginError: If the format returns an invalid index.
        """
        file = FileReader(index.shard, content, place, read_sibling)
        located = self._locate(file, self._index_file(file))
        return (
            located.is_numbered == index.is_numbered
            and _as_tuples(located.missing) == _as_tuples(index.missing)
            and np.array_equal(located.keys, index.keys)
            and np.array_equal(located.key_ends, index.key_ends)
            and located.members.keys() == index.members.keys()
            and all(_is_same(each, index.members[name]) for name, each in located.members.items())
        )

    def _locate(self, file: FileReader, found: FileIndex) -> _Located:
        """Return where the values of a file lie."""
        where = self._describe_place(file.name)
        count = count_sequences(found, where)
        members = self._make_members(found, count, file.size, file)
        check_missing(found, count, where)
        keys, key_ends = _pack_keys(found, count, file.name, file.place)
        return _Located(members, keys, key_ends, found.ids is None and count > 1, found.missing)

    def _make_members(
        self, found: FileIndex, count: int, size: int | NDArray[np.int64], file: FileReader
    ) -> dict[str, FieldIndex]:
        """Return the index of each field, without checksums, after checks.

        Args:
            found: Result of the format.
            count: Number of sequences.
            size: Size of the file; or of that of each sequence, int64 (count,).
            file: The file, for errors.
        """
        members: dict[str, FieldIndex] = {}
        place = self._describe_place(file.name)
        for field, located in found.fields.items():
            where = f"{place}, field {field!r}"
            check_extents(located, count, size, where, file.place, field)
            members[field] = FieldIndex(
                begins=clamp_begins(located), sizes=value_sizes(located),
                heads=(self._make_head(located, where),),
                numbers=None if located.lengths is None else np.array(located.lengths, np.int64),
                values=_get_values(located),
            )  # fmt: skip
        check_has_axis(found, place)
        return members

    def check(self, index: ShardIndex) -> None:
        """Check the fields of an index that was read.

        Raises:
            ValueError: If they are invalid.
        """
        for members in index.members.values():
            check(len(members.heads) == 1 and members.codes is None, "fields")
            field, decoder = _make_field(members.heads[0]), members.heads[0]["decoder"]
            check(field.dtype in FIELD_DTYPES, "fields")
            check(decoder is None or _may_decode(str(decoder)), "decoders")
            lengths = np.empty(0, np.int64) if members.numbers is None else members.numbers
            check(bool(((lengths >= 0) & (lengths <= MAX_ROWS)).all()), "lengths")

    def is_header(self, block: bytes) -> bool:
        """Return True: any bytes may be of such a file."""
        del block
        return True

    def scan(self, content: NDArray[np.uint8], place: DataLocation) -> None:
        """Do nothing: its structure is not known beyond its index."""
        del content, place

    def fields(self, opened: OpenedFiles) -> Sequence[IndexedField]:
        """Return the fields of files, which must be the same in all of them.

        Raises:
            DecodeError: If two files have different fields.
        """
        first = opened.indexes[0]
        heads = {name: member.heads[0] for name, member in first.members.items()}
        for i, index in enumerate(opened.indexes):
            remedies = self._remedy_for_fields, self._remedy_for_dtypes
            _check_alike(opened, i, index, heads, *remedies)
        return [
            self._make_indexed_field(opened, name, first.members[name]) for name in first.members
        ]

    def _describe_place(self, name: str) -> str:
        return f"{type(self.format).__name__}.index({name!r})"

    def _index_file(self, file: FileReader) -> FileIndex:
        place = file.place
        try:
            found = self.format.index(file)
        except DataError as error:
            if "dataset" in error.details:
                raise
            raise error.with_place(f"It is {place}", **place.details) from error
        except SeqDataError:
            raise
        except Exception as error:  # a format is the user's code and may raise anything
            raise place.make_error(
                CorruptShardError,
                "must be a complete file of its format, but cannot be read by "
                f"{type(self.format).__name__} ({type(error).__name__}: {error}). "
                "If it is damaged, restore it",
            ) from error
        return check_file_index(found, self._describe_place(file.name))

    def _make_head(self, extents: Extents, where: str) -> Mapping[str, Any]:
        decoder: Any = extents.decoder
        decoder = None if decoder is None else self._find_decoder_name(decoder, where)
        shape, axis = list(map(int, extents.shape)), extents.axis
        return {"dtype": extents.dtype, "shape": shape, "axis": axis, "decoder": decoder}

    def _find_decoder_name(self, decoder: object, where: str) -> str:
        """Return the name of a decoder in the format, so that an index can store it."""
        for name in filter(_may_decode, dir(self.format) if callable(decoder) else ()):
            method = getattr(self.format, name)
            if callable(method) and method == decoder:  # an array is compared by its elements
                return name
        raise PluginError.at(
            f"{where}: `decoder` must be a method of the format whose name begins with 'decode' or "
            f"'_decode', but is {decoder!r}. Report it to the author of the format; a "
            "function becomes one by `decode_x = staticmethod(function)` in the class"
        )

    def _make_indexed_field(
        self, opened: OpenedFiles, name: str, members: FieldIndex
    ) -> IndexedField:
        heads = [index.members[name].heads[0] for index in opened.indexes]
        head, field = heads[0], _make_field(heads[0])
        access, decode = "place", None
        if not kind_of(field).is_array:
            access = "text"
        elif head["decoder"] or not _is_native(str(head["dtype"])) or not _are_alike(heads):
            access, decode = "decode", self._decode(heads, field)
        if members.values is not None:
            access = "values"
        return IndexedField(
            name=name, member=name, field=field, access=access, decode=decode,
            lengths=None if field.axis is None else _find_lengths(opened, name, heads),
        )  # fmt: skip

    def _decode(self, heads: Sequence[Mapping[str, Any]], field: Field) -> Decode:
        """Return a function that decodes values as the index of their file prescribes."""

        def decode(
            raw: NDArray[np.uint8], shard: int, at: int, place: DataLocation
        ) -> NDArray[Any]:
            del at
            name, stored = heads[shard]["decoder"], str(heads[shard]["dtype"])
            if name is None:
                values = np.frombuffer(raw.tobytes(), stored).astype(field.dtype)
                return values.reshape(-1, *field.shape)
            try:
                found = np.asarray(getattr(self.format, name)(raw.tobytes()))
            except SeqDataError:
                raise
            except Exception as error:  # a decoder is the user's code and may raise anything
                raise place.make_error(
                    DecodeError,
                    f"cannot be decoded by {type(self.format).__name__}.{name} "
                    f"({type(error).__name__}: {error}). Restore the file",
                ) from error
            if field.axis is None:
                found = found[None]
            if found.dtype != np.dtype(field.dtype) or found.shape[1:] != field.shape:
                unit = "sequence" if field.axis is None else "timestep"
                raise place.make_error(
                    DecodeError,
                    f"must be decoded by {type(self.format).__name__}.{name} to {field.dtype} "
                    f"{list(field.shape)} per {unit}, but is {found.dtype} "
                    f"{list(found.shape[1:])}. Report it to the author of the format",
                )
            return np.ascontiguousarray(found)

        return decode


def _as_tuples(missing: MissingValues) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Return missing values as an index file returns them: with tuples."""
    return {name: (many, tuple(some)) for name, (many, some) in missing.items()}


def _is_same(found: FieldIndex, known: FieldIndex) -> bool:
    """Return whether two indexes of a field are the same, except for checksums."""
    arrays = (
        (getattr(found, name), getattr(known, name))
        for name in ("begins", "sizes", "numbers", "values")
    )
    return [dict(head) for head in found.heads] == [dict(head) for head in known.heads] and all(
        mine is its is None
        or (
            mine is not None
            and its is not None
            and (mine.dtype, mine.shape) == (its.dtype, its.shape)
            and mine.tobytes() == its.tobytes()
        )
        for mine, its in arrays
    )


def _may_decode(name: str) -> bool:
    """Return whether the data may choose a method of this name as a decoder."""
    return name.lstrip("_").startswith("decode")


def _get_values(extents: Extents) -> NDArray[Any] | None:
    if extents.values is None:
        return None
    return np.asarray(extents.values).astype(native_name(extents.dtype))


def _is_native(dtype: str) -> bool:
    return np.dtype(dtype).isnative


def _make_field(head: Mapping[str, Any]) -> Field:
    axis = head["axis"]
    shape = tuple(map(int, head["shape"]))
    return Field(native_name(str(head["dtype"])), shape, None if axis is None else str(axis))


def _find_width(head: Mapping[str, Any]) -> int:
    return int(np.dtype(str(head["dtype"])).itemsize * math.prod(head["shape"]))


def _are_alike(heads: Sequence[Mapping[str, Any]]) -> bool:
    return all(head is heads[0] or head == heads[0] for head in heads)


def _find_lengths(
    opened: OpenedFiles, name: str, heads: Sequence[Mapping[str, Any]]
) -> NDArray[np.int64] | None:
    """Return the timesteps by indexes or sizes; None if some are known only by decoding."""
    lengths: list[NDArray[np.int64]] = []
    width = _find_width(heads[0])  # a field has one shape and one itemsize in all files
    for index, head in zip(opened.indexes, heads, strict=True):
        members = index.members[name]
        if members.numbers is not None:
            lengths.append(members.numbers)
        elif head["decoder"] is not None:
            return None
        else:
            lengths.append(members.sizes // width)
    return np.concatenate(lengths)


def _pack_keys(
    found: FileIndex, count: int, name: str, place: DataLocation
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    ids = found.ids
    if ids is None and count != 1:  # created on demand
        return np.empty(0, np.uint8), np.zeros(count + 1, np.int64)
    ids = [name] if ids is None else ids
    try:
        raw = [key.encode() for key in ids]
    except (AttributeError, UnicodeEncodeError) as error:
        raise place.make_error(
            DecodeError,
            f"must have ids that are UTF-8 text, but has others ({error}). Report it to the "
            "author of the format",
        ) from error
    ends = np.array([0, *itertools.accumulate(map(len, raw))], dtype=np.int64)
    empty = [number for number, key in enumerate(raw) if not key]
    if empty:
        raise replace(place, sequence=empty[0]).make_error(
            DecodeError, "must have an id of its own, but has an empty one. Correct the file"
        )
    return np.frombuffer(b"".join(raw), dtype=np.uint8), ends


def _check_alike(
    opened: OpenedFiles,
    i: int,
    index: ShardIndex,
    must: Mapping[str, Any],
    remedy_for_fields: str,
    remedy_for_dtypes: str,
) -> None:
    """Raise if a file has other fields than the first; their storage may differ.

    Args:
        opened: All files.
        i: Index of the file.
        index: Its index.
        must: Field -> its head in the first file.
        remedy_for_fields: Advice for other fields.
        remedy_for_dtypes: Advice for other dtypes.

    Raises:
        DecodeError: If it has.
    """
    mine = {name: member.heads[0] for name, member in index.members.items()}
    if mine.keys() != must.keys():
        raise replace(opened.locate_shard(i), verify=False).make_error(  # its bytes may be right
            DecodeError,
            f"must have the fields {', '.join(must)} like {opened.names[0]!r}, but has "
            f"{', '.join(mine)}. {remedy_for_fields}",
        )
    if mine == must:
        return
    for name, head in mine.items():
        found, due = _make_field(head), _make_field(must[name])
        if found != due:
            raise replace(opened.locate_shard(i), field=name, verify=False).make_error(
                DecodeError,
                f"must hold {due.dtype} {list(due.shape)} on axis {due.axis} like "
                f"{opened.names[0]!r}, but holds {found.dtype} {list(found.shape)} on axis "
                f"{found.axis}. "
                + (remedy_for_dtypes if found.shape == due.shape else _TWO_STORES),
            )
