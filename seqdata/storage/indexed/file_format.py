"""The interface for authors of formats: extents of the values of each sequence in a file.

Below it the files that a format reads while it indexes them, and the validation of its results.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import CorruptShardError, MissingShardError, PluginError
from seqdata.kernel.dispatch import get_kernel
from seqdata.protocols import Field
from seqdata.storage.data_location import DataLocation
from seqdata.storage.fields import FIELD_DTYPES, MAX_WIDTH, kind_of
from seqdata.storage.indexed.shard_index import ENDS, MissingValues, digest_ends
from seqdata.storage.limits import MAX_ROWS

ABSENT = "absent"
"""Placeholder for the digest of a missing sibling."""
Decoder = Callable[[bytes], NDArray[Any]]
"""The bytes of one sequence's value -> (timesteps, *shape), or shape if there is no axis."""


@dataclass(frozen=True, slots=True, eq=False)
class FileReader:
    """A file whose bytes are mapped.

    Implements ``RandomAccessFile``.

    Attributes:
        name: Its path below the folder that was opened.
        content: Its bytes, uint8.
        place: Its place, for errors.
        read_sibling: Returns the bytes of a file next to it; None: there are none.
        siblings: The siblings that were read, by path; None for a missing one.
    """

    name: str
    content: NDArray[np.uint8]
    place: DataLocation
    read_sibling: Callable[[str, DataLocation], NDArray[np.uint8]] | None = None
    siblings: dict[str, NDArray[np.uint8] | None] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return len(self.content)

    def read(self, first: int, stop: int) -> bytes:
        """Return the bytes from ``first`` up to ``stop``, or to the end of the file.

        Raises:
            ValueError: If ``first`` is negative or greater than ``stop``.
        """
        if not 0 <= first <= stop:
            raise ValueError(f"read({first}, {stop}): must be 0 <= first <= stop")
        return self.content[first:stop].tobytes()

    def sibling(self, name: str) -> FileReader:
        """Return a file next to it.

        Raises:
            MissingShardError: If it does not exist.
        """
        folder, _, _ = self.name.rpartition("/")
        path = f"{folder}/{name}" if folder else name
        place = replace(self.place, file=path, file_kind=f"sibling of {self.name}", shard=None)
        if self.read_sibling is None or "/" in name or name.startswith("."):
            raise place.make_error(MissingShardError, "is not there. Restore it")
        self.siblings[path] = None  # that it is not there belongs to what the index was built with
        content = self.siblings[path] = self.read_sibling(path, place)
        return FileReader(path, content, place, self.read_sibling, self.siblings)

    def has_sibling(self, name: str) -> bool:
        """Return whether a file exists in the same folder; it does not become part of the index."""
        try:
            replace(self, siblings={}).sibling(name)
        except MissingShardError:
            return False
        return True


def sibling_facts(file: FileReader) -> dict[str, tuple[int, str]]:
    """Return the facts that identify the siblings that were read; see ``file_facts``."""
    return {name: file_facts(content) for name, content in file.siblings.items()}


def file_facts(content: NDArray[np.uint8] | None, using: str = "crc32") -> tuple[int, str]:
    """Return the facts that identify a sibling: its size, digest of both ends, and checksum.

    Args:
        content: The sibling; None if it does not exist.
        using: Algorithm of the checksum; by default one that every process can compute.

    Returns:
        (-1, ``ABSENT``) if it does not exist.
    """
    if content is None:
        return -1, ABSENT
    checksum = np.zeros(1, dtype=np.uint32)
    get_kernel().checksums(content, np.array([0, len(content)], dtype=np.int64), checksum, using)
    ends = digest_ends(content, max(0, len(content) - ENDS))
    return len(content), f"{ends} {using} {int(checksum[0]):08x}"


def has_facts(content: NDArray[np.uint8], facts: tuple[int, str]) -> bool:
    """Return whether a sibling has the facts of an index.

    Of an index whose checksum cannot be computed here, size and ends are compared.
    """
    words = facts[1].split()
    using = words[1] if len(words) == len(("ends", "algorithm", "checksum")) else "crc32"
    if using in get_kernel().algorithms():
        return file_facts(content, using) == facts
    size, found = file_facts(content)
    return size == facts[0] and found.split()[0] == words[0]


@dataclass(frozen=True, slots=True, eq=False)
class Extents:
    """Extents of one field in one file.

    Attributes:
        begins: int64 (n,), first byte of the values of each sequence; -1 if it has none.
        ends: int64 (n,), one past the last byte.
        dtype: Stored dtype with byte order, such as ``"<f4"``, or ``"str"`` or ``"bytes"``. For
            decoded values, the dtype that the decoder returns.
        shape: Shape of one timestep, or of the whole value if there is no axis.
        axis: Name of the axis of the field; None: one value per sequence.
        decoder: Method of the format that converts the bytes of one sequence into an array; its
            name must begin with ``decode`` or ``_decode``. None: raw values, which are read in
            place.
        lengths: int64 (n,), number of timesteps. None: computed from the extents, or, for decoded
            values, counted once by decoding.
        values: (n, *shape), small decoded values to keep in the index, for fields without an axis.
            They are returned only after a comparison of the checksum of their bytes.
    """

    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    dtype: str
    shape: tuple[int, ...] = ()
    axis: str | None = "time"
    decoder: Decoder | None = None
    lengths: NDArray[np.int64] | None = None
    values: NDArray[Any] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class FileIndex:
    """Content of one file.

    Attributes:
        fields: Name -> extents of the values, with all fields in the same order of sequences.
        ids: Ids of the sequences; None: the name of the file, with a number if there are several.
        missing: Value that only some sequences have, so that it does not become a field -> the
            number of the others, and the indices of some, for messages.
    """

    fields: Mapping[str, Extents]
    ids: Sequence[str] | None = None
    missing: MissingValues = field(default_factory=dict)


class RandomAccessFile(Protocol):
    """Local or remote file that is being indexed."""

    @property
    def name(self) -> str:
        """Path relative to the opened folder."""
        ...

    @property
    def size(self) -> int:
        """Size in bytes."""
        ...

    def read(self, first: int, stop: int) -> bytes:
        """Return the bytes from ``first`` up to ``stop``, or to the end of the file."""
        ...

    def sibling(self, name: str) -> RandomAccessFile:
        """Return a file in the same folder, such as ``x.idx`` for ``x.bin``.

        Raises:
            MissingShardError: If the file does not exist.
        """
        ...

    def has_sibling(self, name: str) -> bool:
        """Return whether a file exists in the same folder; it does not become part of the index."""
        ...


@runtime_checkable
class FileFormat(Protocol):
    """Base of file formats, which is all that most backends implement. It must be picklable.

    The options of a format (the fields of a dataclass) are stored in its indexes. Indexes with
    other options, or another ``version``, are rebuilt. The attributes ``remedy_for_fields`` and
    ``remedy_for_dtypes`` are the advice in the errors about files of several fields or dtypes. If
    ``reads_only_headers`` is True, a local file that was written to after it was indexed is
    compared with its index when it is opened.
    """

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Suffixes of the files, in lower case."""
        ...

    def index(self, file: RandomAccessFile) -> FileIndex:
        """Return the index of a file.

        Raises:
            DataError: If the file is damaged or has another format. A ``ValueError`` is converted
                into a DataError.
        """
        ...


@functools.lru_cache(maxsize=256)
def native_name(dtype: str) -> str:
    """Return the name of a stored dtype when it is read."""
    return dtype if dtype in FIELD_DTYPES else np.dtype(dtype).name


def check_suffixes(format: FileFormat) -> None:
    """Raise if the suffixes of a format name no files.

    Raises:
        PluginError: If ``suffixes`` is not a tuple of strings that begin with a dot.
    """
    suffixes = format.suffixes
    if not isinstance(suffixes, tuple | list) or not all(
        isinstance(suffix, str) and suffix[:1] == "." and suffix[1:] for suffix in suffixes
    ):
        raise PluginError.at(
            f"{type(format).__name__}: `suffixes` must be a tuple of strings that begin with a "
            f"dot, such as ('.rec',), but is {suffixes!r}. Report it to the author of the format"
        )


def check_file_index(found: object, where: str) -> FileIndex:
    """Return what a format's method returned.

    Raises:
        PluginError: If it is not a FileIndex with at least one field.
    """
    if isinstance(found, FileIndex) and not isinstance(found.fields, Mapping):
        raise _make_error(
            where, "`fields` must be a mapping of names to Extents", type(found.fields).__name__
        )
    if not isinstance(found, FileIndex) or not found.fields:
        is_index = isinstance(found, FileIndex)
        raise PluginError.at(
            f"{where}: must return a FileIndex with at least one field, but returned "
            f"{'one without fields' if is_index else 'a ' + type(found).__name__}. "
            "Report it to the author of the format"
        )
    return found


def count_sequences(found: FileIndex, where: str) -> int:
    """Return how many sequences a file holds.

    Raises:
        PluginError: If its fields have different numbers of sequences or invalid names, or one is
            not an Extents.
    """
    counts: dict[str, int] = {}
    for name, extents in found.fields.items():
        if not isinstance(name, str) or name in ("", "id"):
            raise _make_error(
                where, "names of fields must be strings, not empty and not 'id'", name
            )
        if not isinstance(extents, Extents):
            raise _make_error(f"{where}, field {name!r}", "must be an Extents", extents)
        begins = _make_array(extents.begins, "begins", f"{where}, field {name!r}")
        if begins.ndim == 0:
            raise _make_error(
                f"{where}, field {name!r}",
                "`begins` must be an array of integers, one of each sequence", extents.begins,
            )  # fmt: skip
        counts[name] = len(begins)
    if found.ids is not None:
        counts["ids"] = _count_ids(found.ids, where)
    if len(set(counts.values())) > 1:
        raise PluginError.at(
            f"{where}: fields and ids must have the same number of sequences, but have {counts}. "
            "Report it to the author of the format"
        )
    return next(iter(counts.values()))


def _count_ids(ids: Any, where: str) -> int:
    try:
        if not isinstance(ids, str | bytes):
            return len(ids)
    except TypeError:
        pass
    raise _make_error(where, "`ids` must be a sequence of strings, or None", ids)


def check_has_axis(found: FileIndex, where: str) -> None:
    """Raise if no field runs along an axis.

    Raises:
        PluginError: If none does.
    """
    if all(extents.axis is None for extents in found.fields.values()):
        raise PluginError.at(
            f"{where}: at least one field must run along an axis, but {', '.join(found.fields)} "
            "do not. Report it to the author of the format"
        )


def check_missing(found: FileIndex, count: int, where: str) -> None:
    """Raise if what a file tells of values that some sequences lack cannot be so.

    Raises:
        PluginError: If so.
    """
    for name, (many, some) in found.missing.items():
        if not all(_is_whole(each) and 0 <= each < count for each in (many, *some)):
            raise _make_error(
                where, f"`missing` must have integers in [0, {count}) of {name!r}", (many, some)
            )


def check_extents(
    extents: Extents,
    count: int,
    size: int | NDArray[np.int64],
    where: str,
    place: DataLocation,
    field: str,
) -> None:
    """Raise if the extents of a field are invalid.

    Args:
        extents: Extents of all sequences of the file, or of files of one sequence each.
        count: Number of sequences.
        size: Size of the file in bytes; or of that of each sequence, int64 (count,).
        where: The format's method and the field, for errors of the format.
        place: The file, for errors of the file.
        field: Name of the field.

    Raises:
        PluginError: If they are.
        CorruptShardError: If values end after the file.
    """
    begins = _make_array(extents.begins, "begins", where)
    ends = _make_array(extents.ends, "ends", where)
    try:
        dtype = native_name(extents.dtype) if isinstance(extents.dtype, str) else ""
    except (TypeError, ValueError, SyntaxError):
        dtype = ""
    if dtype not in FIELD_DTYPES:
        raise _make_error(where, f"`dtype` must be one of {', '.join(FIELD_DTYPES)}", extents.dtype)
    if not (_are_integers(begins, count) and _are_integers(ends, count)):
        said = f"{begins.dtype} {list(begins.shape)} and {ends.dtype} {list(ends.shape)}"
        raise _make_error(where, f"`begins` and `ends` must be integers ({count},)", said)
    wrong = (begins < -1) | ((begins >= 0) & (ends < begins))
    if wrong.any():
        at = int(np.argmax(wrong))
        raise _make_error(
            where, "extents must begin at 0 or later, and end where they begin or later",
            f"{begins[at]}..{ends[at]} of sequence {at}",
        )  # fmt: skip
    _check_inside(begins, ends, size, place, field)
    if extents.axis is not None and not (isinstance(extents.axis, str) and extents.axis):
        raise _make_error(where, "`axis` must be a string, not empty, or None", extents.axis)
    if extents.lengths is not None:
        _check_lengths(_make_array(extents.lengths, "lengths", where), count, where)
    if not (isinstance(extents.shape, tuple | list) and all(map(_is_whole, extents.shape))):
        raise _make_error(where, "`shape` must be a tuple of integers", extents.shape)
    if not kind_of(Field(dtype)).is_array:
        _check_text(extents, where)
        return
    _check_numbers(extents, np.dtype(dtype), count, where)


def _check_numbers(extents: Extents, dtype: np.dtype[Any], count: int, where: str) -> None:
    width = dtype.itemsize * math.prod(map(int, extents.shape))
    if min(extents.shape, default=1) < 1 or width >= MAX_WIDTH:
        raise _make_error(
            where, "`shape` must have at least one number, and less than 2 GiB", extents.shape
        )
    if extents.values is not None:
        values = _make_array(extents.values, "values", where)
        if extents.axis is not None or values.shape != (count, *extents.shape):
            raise _make_error(
                where, f"`values` must be ({count}, *shape), of `axis=None`",
                f"{list(values.shape)} of `axis={extents.axis!r}`",
            )  # fmt: skip
        _check_values(values, dtype, where)
    if extents.decoder is None and extents.values is None:
        _check_sizes(extents, value_sizes(extents), width, where)


def _check_text(extents: Extents, where: str) -> None:
    if extents.axis is not None or extents.shape or extents.decoder is not None:
        raise _make_error(
            where, "strings must have `axis=None`, no shape and no decoder", extents.axis
        )
    if extents.values is not None:
        raise PluginError.at(
            f"{where}: strings must have no `values` (they are read from the file), but have some. "
            "Report it to the author of the format"
        )


def _check_lengths(lengths: NDArray[Any], count: int, where: str) -> None:
    must = f"`lengths` must be integers ({count},) in [0, {MAX_ROWS}]"
    said = f"{lengths.dtype} {list(lengths.shape)}"
    if not _are_integers(lengths, count):  # what else they are may have no order
        raise _make_error(where, must, said)
    low, high = lengths.min(initial=0), lengths.max(initial=0)
    if low < 0 or high > MAX_ROWS:
        raise _make_error(where, must, f"{said} from {low} to {high}")


def _check_values(values: NDArray[Any], dtype: np.dtype[Any], where: str) -> None:
    """Raise if a dtype does not hold values as they are; fractions may be rounded.

    Raises:
        PluginError: If a value changes when it is converted.
    """
    must = f"`values` must be representable as {dtype.name}"
    if values.dtype.kind not in "biuf":
        raise _make_error(where, must, f"{values.dtype}")
    if values.dtype == dtype:
        return
    with np.errstate(all="ignore"):
        converted = values.astype(dtype)
    same = (converted == values) | ((converted != converted) & (values != values))
    if dtype.kind == "f" and values.dtype.kind == "f":
        same |= np.isfinite(converted)
    if not same.all():
        raise _make_error(where, must, values[~same].flat[0].item())


def _check_inside(
    begins: NDArray[Any],
    ends: NDArray[Any],
    size: int | NDArray[np.int64],
    place: DataLocation,
    field: str,
) -> None:
    outside = (begins >= 0) & (ends > size)
    if outside.any():
        at = int(np.argmax(outside))
        begin, end = int(begins[at]), int(ends[at])
        size = int(np.broadcast_to(size, begins.shape)[at])
        raise replace(place, field=field, offset=begin, length=end - begin).make_error(
            CorruptShardError,
            f"the values of its sequence {at} must end inside the {size} bytes of the file, but "
            f"end at {end}: it is cut off. Restore it; if it is complete, report it to the "
            "author of the format",
            expected=end, found=size,
        )  # fmt: skip


def _is_whole(number: object) -> bool:
    return isinstance(number, int | np.integer) and not isinstance(number, bool)


def _make_array(values: object, name: str, where: str) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except Exception as error:  # they are of the user's code, and may raise anything
        raise PluginError.at(
            f"{where}: `{name}` must be an array, but cannot become one ({error}). Report it to "
            "the author of the format"
        ) from error


def _are_integers(values: NDArray[Any], count: int) -> bool:
    return values.shape == (count,) and (values.dtype.kind in "iu" or not count)


def _check_sizes(extents: Extents, sizes: NDArray[np.int64], width: int, where: str) -> None:
    bad = sizes % width != 0 if extents.axis is not None else sizes != width
    if extents.lengths is not None:
        bad |= sizes != np.asarray(extents.lengths) * width
    if bad.any():
        at = int(np.argmax(bad))
        must = f"a multiple of {width}" if extents.axis is not None else f"{width}"
        if extents.lengths is not None:
            needed = int(np.asarray(extents.lengths)[at]) * width
            must = f"{width} bytes for each timestep of `lengths`, here {needed}"
        raise PluginError.at(
            f"{where}: the values of sequence {at} must have {must} bytes, but have {sizes[at]}. "
            "Report it to the author of the format"
        )


def _make_error(where: str, must: str, found: object) -> PluginError:
    return PluginError.at(
        f"{where}: {must}, but is {found!r}. Report it to the author of the format"
    )


def clamp_begins(extents: Extents) -> NDArray[np.int64]:
    """Return the begins of values, int64; -1 if a sequence has none and the index keeps none."""
    begins = np.array(extents.begins, dtype=np.int64)
    if extents.values is None:
        return begins
    return np.maximum(begins, 0)  # kept in the index without any bytes


def value_sizes(extents: Extents) -> NDArray[np.int64]:
    """Return the sizes of values in bytes, int64."""
    begins, ends = np.array(extents.begins, dtype=np.int64), np.array(extents.ends, dtype=np.int64)
    sizes: NDArray[np.int64] = np.where(begins < 0, 0, ends - begins)
    return sizes
