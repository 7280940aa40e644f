"""The members of one shard, grouped into samples as the webdataset library does.

Consecutive members of one key are a sample. Place in the flow: indexing collects a shard with it.
Reads: names and places of members. Makes: columns of them.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from typing import Any

from seqdata.backends import Place, quoted
from seqdata.backends import refuse_size as refuse
from seqdata.errors import DecodeError
from seqdata_webdataset.array_headers import FIRST, READERS, Head, NoHeadError
from seqdata_webdataset.member_names import MOST_KEY, last_part, split_name
from seqdata_webdataset.tar_headers import BLOCK, walk

MAX_FIELDS = 64
"""Members of one sample, and extensions of one shard."""
MAX_NUMBER = 24
"""Bytes of a text that is looked at as a whole number."""
_MAX_HEADS = 1 << 16
NUMBERS = ("cls",)
"""Extensions of whole numbers."""
_LIMIT = 1 << 63


@dataclass(slots=True)
class Collected:
    """Members of one extension, as they are met.

    Attributes:
        begins: Of values; -1 where a sample has none.
        sizes: Of values, bytes.
        heads: What they hold -> its code.
        codes: Per sample.
        numbers: Per sample, where all are whole numbers.
        whole: Whether all are.
    """

    begins: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    heads: dict[Head, int] = field(default_factory=dict)
    codes: array[int] = field(default_factory=lambda: array("H"))
    numbers: array[int] = field(default_factory=lambda: array("q"))
    whole: bool = True

    def fill_up(self, count: int) -> None:
        """Note that samples before ``count`` have no such member."""
        missing = count - len(self.begins)
        if missing > 0:
            self.begins.extend([-1] * missing)
            self.sizes.extend([0] * missing)
            self.codes.extend([0] * missing)
            self.numbers.extend([0] * missing)


@dataclass(slots=True)
class Group:
    """The samples of a shard.

    Attributes:
        keys: Their bytes, one behind the other.
        ends: Where each ends.
        fields: Extension -> its members.
        last: Where the last header of a member lies.
    """

    keys: bytearray = field(default_factory=bytearray)
    ends: array[int] = field(default_factory=lambda: array("q", [0]))
    fields: dict[str, Collected] = field(default_factory=dict)
    last: int = 0


def group(content: Any, place: Place) -> Group:
    """Walk a shard and collect its samples.

    Args:
        content: The shard's bytes.
        place: The shard's, for errors.

    Raises:
        CorruptShardError: If it is no tar file, or is damaged.
        DecodeError: If two members of a sample have one extension, or a name is no text.
        UnsafeContentError: If a member is a link or a device.
        LimitError: If a sample has too many members.
    """
    view, made, seen = memoryview(content), Group(), set[str]()
    fields, current, extensions = made.fields, None, set[str]()
    for raw, begin, size in walk(content, place):
        made.last = begin - BLOCK
        name = _text(raw, place, begin)
        parts = split_name(name)
        if parts is None:
            continue
        key, extension = parts
        if key != current:
            _begin(made, key, seen, place, begin)
            current, extensions = key, set()
        count = len(made.ends) - 2
        if extension in extensions or not extension:
            what = "is there twice in its sample" if extension else "has no extension"
            raise replace(place, offset=begin, length=size).error(
                DecodeError,
                f"member {quoted(name)} {what}, must have one of its own; write the shard again",
                member=name, key=key,
            )  # fmt: skip
        extensions.add(extension)
        one = fields.get(extension)
        if one is None:
            if len(fields) == MAX_FIELDS:
                refuse(
                    replace(place, offset=begin), "holds members of more extensions "
                    f"({quoted(extension)}; a key ends at its first dot)",
                    f"have at most {MAX_FIELDS}", MAX_FIELDS + 1, MAX_FIELDS,
                )  # fmt: skip
            one = fields[extension] = Collected()
        if len(one.begins) < count:
            one.fill_up(count)
        _add(one, extension, view, begin, size)
    for one in fields.values():
        one.fill_up(len(made.ends) - 1)
    return made


def _begin(made: Group, key: str, seen: set[str], place: Place, begin: int) -> None:
    raw = key.encode()
    if len(raw) > MOST_KEY or b"\0" in raw:
        refuse(
            replace(place, offset=begin), f"has a key of {len(raw)} bytes {raw[:40]!r}",
            f"have at most {MOST_KEY} and no NUL", len(raw), MOST_KEY,
        )  # fmt: skip
    if key in seen:
        raise replace(place, offset=begin).error(
            DecodeError,
            f"key {quoted(key)} comes again after other samples, must be there once, with its "
            "members one after the other; write the shard again",
            key=key,
        )
    seen.add(key)
    made.keys += raw
    made.ends.append(len(made.keys))


def _text(raw: bytes, place: Place, begin: int) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise replace(place, offset=begin - BLOCK, length=BLOCK).error(
            DecodeError,
            f"has a member whose name {raw[:40]!r} is no UTF-8, must be; write the shard again",
        ) from error


def _add(one: Collected, extension: str, view: memoryview, begin: int, size: int) -> None:
    kind = last_part(extension)
    reader, code, number = READERS.get(kind), 0, 0
    if reader is not None:
        try:
            head, skip, length, number = reader(bytes(view[begin : begin + min(size, FIRST)]), size)
            begin, size = begin + skip, length
        except NoHeadError as error:
            head = Head("bad", str(error))
        if head not in one.heads and len(one.heads) + 1 == _MAX_HEADS:
            head = Head("bad", "is of one of very many dtypes and shapes")
        code = one.heads.setdefault(head, len(one.heads))
    elif kind in NUMBERS:
        told = _whole(bytes(view[begin : begin + size])) if size <= MAX_NUMBER else None
        one.whole = one.whole and told is not None
        number = told or 0
    one.begins.append(begin)
    one.sizes.append(size)
    one.codes.append(code)
    one.numbers.append(number)


def _whole(text: bytes) -> int | None:
    """Give the whole number that a text is, as ``int`` reads it; None: it is none."""
    try:
        number = int(text)
    except ValueError:
        return None
    return number if -_LIMIT <= number < _LIMIT else None
