"""Grouping of the members of a shard into samples, as in the webdataset library.

Consecutive members with the same key are a sample.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from typing import Any

from seqdata import DecodeError
from seqdata.backends import DataLocation, quote
from seqdata_webdataset.array_headers import (
    HEADER_READERS,
    ArrayHeader,
    BadHeaderError,
)
from seqdata_webdataset.tar_headers import (
    MAX_KEY_BYTES,
    TAR_BLOCK,
    iter_members,
    last_part,
    raise_limit_error,
    split_name,
)

MAX_FIELDS = 64
"""Maximum number of members in a sample, and of extensions in a shard."""
MAX_NUMBER_BYTES = 24
"""Maximum size in bytes of a string that is parsed as an integer."""
_MAX_HEADERS = 1 << 16
NUMBER_EXTENSIONS = ("cls",)
"""Extensions whose members are integers."""
_INT64_LIMIT = 1 << 63


@dataclass(slots=True)
class CollectedMembers:
    """Members of one extension, in order of occurrence.

    Attributes:
        begins: First bytes of values; -1 if a sample has none.
        sizes: Sizes of values in bytes.
        headers: Header -> its code.
        codes: Code of the header of each sample.
        numbers: Value of each sample, if all are integers; or its number of timesteps, if it is
            decoded whole.
        are_integers: Whether all values are integers.
    """

    begins: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    headers: dict[ArrayHeader, int] = field(default_factory=dict)
    codes: array[int] = field(default_factory=lambda: array("H"))
    numbers: array[int] = field(default_factory=lambda: array("q"))
    are_integers: bool = True

    def pad_to(self, count: int) -> None:
        """Record that samples before ``count`` have no such member."""
        missing = count - len(self.begins)
        if missing > 0:
            self.begins.extend([-1] * missing)
            self.sizes.extend([0] * missing)
            self.codes.extend([0] * missing)
            self.numbers.extend([0] * missing)


@dataclass(slots=True)
class SampleGroup:
    """The samples of a shard.

    Attributes:
        keys: The concatenated bytes of all keys.
        key_offsets: Offset of each key in ``keys``, and the end of the last one.
        members: Extension -> its members.
        last_header: Offset of the last header of a member.
    """

    keys: bytearray = field(default_factory=bytearray)
    key_offsets: array[int] = field(default_factory=lambda: array("q", [0]))
    members: dict[str, CollectedMembers] = field(default_factory=dict)
    last_header: int = 0


def group_samples(content: Any, location: DataLocation) -> SampleGroup:
    """Read the headers of a shard and return its samples.

    Args:
        content: The shard's bytes.
        location: The location of the shard, for errors.

    Raises:
        CorruptShardError: If it is not a tar file, or is damaged.
        DecodeError: If two members of a sample have the same extension, a member has none, a key
            occurs again after other samples, a name is not UTF-8, or a member is sparse.
        UnsafeContentError: If a member is a link or a device.
        LimitError: If the shard has too many extensions, or a key or a header is too long.
    """
    view, samples, seen = memoryview(content), SampleGroup(), set[str]()
    fields, current_key, extensions = samples.members, None, set[str]()
    for raw, begin, size in iter_members(content, location):
        samples.last_header = begin - TAR_BLOCK
        name = _decode_name(raw, location, begin)
        parts = split_name(name)
        if parts is None:
            continue
        key, extension = parts
        if key != current_key:
            _begin_sample(samples, key, seen, location, begin)
            current_key, extensions = key, set()
        count = len(samples.key_offsets) - 2
        if extension in extensions or not extension:
            problem = "it occurs twice" if extension else "it has no extension"
            raise replace(location, offset=begin, length=size).make_error(
                DecodeError,
                f"member {quote(name)} must have an extension that occurs once in its sample, but "
                f"{problem}. Write the shard again",
                member=name, key=key,
            )  # fmt: skip
        extensions.add(extension)
        members = fields.get(extension)
        if members is None:
            if len(fields) == MAX_FIELDS:
                raise_limit_error(
                    replace(location, offset=begin), "holds members of more extensions "
                    f"({quote(extension)}; a key ends at its first dot)",
                    f"have at most {MAX_FIELDS} extensions", MAX_FIELDS + 1, MAX_FIELDS,
                )  # fmt: skip
            members = fields[extension] = CollectedMembers()
        if len(members.begins) < count:
            members.pad_to(count)
        _add_member(members, extension, view, begin, size)
    for members in fields.values():
        members.pad_to(len(samples.key_offsets) - 1)
    return samples


def _begin_sample(
    samples: SampleGroup, key: str, seen: set[str], location: DataLocation, begin: int
) -> None:
    raw = key.encode()
    if len(raw) > MAX_KEY_BYTES or b"\0" in raw:
        raise_limit_error(
            replace(location, offset=begin), f"has a key of {len(raw)} bytes {raw[:40]!r}",
            f"have keys of at most {MAX_KEY_BYTES} bytes without NUL", len(raw), MAX_KEY_BYTES,
        )  # fmt: skip
    if key in seen:
        raise replace(location, offset=begin).make_error(
            DecodeError,
            f"key {quote(key)} must occur once, with consecutive members, but occurs again after "
            "other samples. Write the shard again",
            key=key,
        )
    seen.add(key)
    samples.keys += raw
    samples.key_offsets.append(len(samples.keys))


def _decode_name(raw: bytes, location: DataLocation, begin: int) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise replace(location, offset=begin - TAR_BLOCK, length=TAR_BLOCK).make_error(
            DecodeError,
            f"names of members must be UTF-8, but one is {raw[:40]!r}. Write the shard again",
        ) from error


def _add_member(
    members: CollectedMembers, extension: str, view: memoryview, begin: int, size: int
) -> None:
    encoding = last_part(extension)
    reader, code, number = HEADER_READERS.get(encoding), 0, 0
    if reader is not None:
        try:
            header, skip, length, number = reader(view[begin : begin + size])
            begin, size = begin + skip, length
        except BadHeaderError as error:
            header = ArrayHeader("bad", str(error))
        if header not in members.headers and len(members.headers) + 1 == _MAX_HEADERS:
            header = ArrayHeader("bad", f"is one of more than {_MAX_HEADERS} dtypes and shapes")
        code = members.headers.setdefault(header, len(members.headers))
    elif encoding in NUMBER_EXTENSIONS:
        parsed = (
            _parse_integer(bytes(view[begin : begin + size])) if size <= MAX_NUMBER_BYTES else None
        )
        members.are_integers = members.are_integers and parsed is not None
        number = parsed or 0
    members.begins.append(begin)
    members.sizes.append(size)
    members.codes.append(code)
    members.numbers.append(number)


def _parse_integer(text: bytes) -> int | None:
    """Return the integer in a string, as ``int`` parses it; None if there is none."""
    try:
        number = int(text)
    except ValueError:
        return None
    return number if -_INT64_LIMIT <= number < _INT64_LIMIT else None
