"""Tar shards as an indexed format of the core: their indexes, fields and encoding."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from seqdata import DecodeError
from seqdata.backends import (
    DataLocation,
    Field,
    FieldIndex,
    IndexedField,
    OpenedFiles,
    ShardIndex,
    make_shard_index,
)
from seqdata_webdataset.array_headers import WHOLE_SOUND, ArrayHeader, is_dtype
from seqdata_webdataset.decoders import FieldSpec, decode_member
from seqdata_webdataset.encoding import Encoder
from seqdata_webdataset.grouping import NUMBER_EXTENSIONS, CollectedMembers, group_samples
from seqdata_webdataset.schema import Extension, Schema, infer_specs
from seqdata_webdataset.tar_headers import is_checksum_valid, iter_members, last_part

SUFFIX = ".tar"
_NONE = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class IndexedTar:
    """Format of tar shards of the webdataset library. Implements ``IndexedFormat``.

    Attributes:
        schema: Extension -> its type; see ``open_webdataset``.
        unsafe: Extensions that may be decoded although this runs code.
    """

    schema: Schema | None = None
    unsafe: frozenset[str] = frozenset()

    name: ClassVar[str] = "webdataset"
    identity: ClassVar[str] = ""
    suffixes: ClassVar[tuple[str, ...]] = (SUFFIX,)
    packed: ClassVar[tuple[str, ...]] = (
        ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tar.lz4",
    )  # fmt: skip
    is_nested: ClassVar[bool] = False
    needs_command: ClassVar[bool] = True
    item: ClassVar[str] = (
        "sample (a file with a key and an extension, as 'utt-7.npy', not in a hidden folder)"
    )

    def make_index(
        self,
        content: NDArray[np.uint8],
        name: str,
        place: DataLocation,
        read_sibling: object = None,
    ) -> ShardIndex:
        """Return the index of a shard.

        Raises:
            DataError: If it is damaged, or does not hold samples.
            UnsafeContentError: If a member is a link or a device.
            LimitError: If a key, a header or the number of members exceeds a limit.
        """
        del read_sibling
        found = group_samples(content, place)
        return make_shard_index(
            name,
            content,
            {
                extension: _make_field_index(extension, collected)
                for extension, collected in found.members.items()
            },
            keys=np.frombuffer(bytes(found.keys), dtype=np.uint8),
            key_ends=np.array(found.key_offsets, dtype=np.int64),
            last=found.last_header,
        )

    def check(self, index: ShardIndex) -> None:
        """Check the members of an index that was read.

        Raises:
            ValueError: If the members are invalid.
        """
        for members in index.members.values():
            heads = _get_heads(members)
            for head in heads:
                if head.kind != "bad" and not (
                    is_dtype(head.descr) and head.width > 0 and min(head.shape, default=1) > 0
                ):
                    raise ValueError("invalid headers")
            is_counted = any(head.kind in WHOLE_SOUND for head in heads)
            if is_counted and (members.numbers is None or bool((members.numbers < 0).any())):
                raise ValueError("invalid numbers")

    def is_header(self, block: bytes) -> bool:
        """Return whether a block of bytes may be a header of a tar file."""
        return is_checksum_valid(block)

    def scan(self, content: NDArray[np.uint8], place: DataLocation) -> None:
        """Check the headers of a shard.

        Raises:
            DataError: If it is damaged.
        """
        for _ in iter_members(content, place):
            pass  # only its errors matter

    def fields(self, opened: OpenedFiles) -> Sequence[IndexedField]:
        """Return the fields of shards, by the user's schema and the headers of members.

        Raises:
            ConfigError: If the schema does not match the members.
            DecodeError: If members of one extension have different types.
            UnsafeContentError: If decoding the members of an extension would run code.
        """
        specs = infer_specs(_list_extensions(opened), self.schema, opened.location, self.unsafe)
        return [_make_field(opened, spec) for spec in specs]

    def make_encoder(self, fields: Mapping[str, Field]) -> Encoder:
        """Return the encoder of sequences with these fields.

        Raises:
            ConfigError: If a field's name cannot be an extension.
        """
        return Encoder.from_fields(fields)


def _make_field(opened: OpenedFiles, spec: FieldSpec) -> IndexedField:
    def decode(raw: NDArray[np.uint8], shard: int, at: int, place: DataLocation) -> NDArray[Any]:
        members = opened.indexes[shard].members[spec.extension]
        head = None if members.codes is None else _get_heads(members)[int(members.codes[at])]
        return decode_member(spec, raw, head, place)

    kinds = {"number": "values", "unsafe": "decode"}
    return IndexedField(
        name=spec.name, member=spec.extension, field=spec.field,
        access=kinds.get(spec.access, spec.access),
        lengths=None if spec.field.axis is None else _count_steps(opened, spec), decode=decode,
        is_named=spec.is_chosen, advice=f"Read it as bytes with `schema={{{spec.name!r}: bytes}}`",
        is_chosen_by_schema=True,
    )  # fmt: skip


def _make_field_index(extension: str, collected: CollectedMembers) -> FieldIndex:
    is_counted = any(head.kind in WHOLE_SOUND for head in collected.headers)
    numbers = collected.are_integers and last_part(extension) in NUMBER_EXTENSIONS
    return FieldIndex(
        begins=np.array(collected.begins, dtype=np.int64),
        sizes=np.array(collected.sizes, dtype=np.int64),
        heads=tuple(map(asdict, collected.headers)),
        codes=np.array(collected.codes, dtype=np.uint16) if collected.headers else None,
        numbers=np.array(collected.numbers, dtype=np.int64) if is_counted or numbers else None,
    )


def _get_heads(members: FieldIndex) -> tuple[ArrayHeader, ...]:
    """Return the headers of members.

    Raises:
        ValueError, KeyError, TypeError: If the index is invalid.
    """
    return tuple(
        _parse_head(
            str(head["kind"]), str(head["descr"]), tuple(map(int, head["shape"])),
            bool(head["scalar"]), bool(head["fortran"]),
        )
        for head in members.heads
    )  # fmt: skip


@functools.lru_cache(maxsize=1024)
def _parse_head(
    kind: str, descr: str, shape: tuple[int, ...], scalar: bool, fortran: bool
) -> ArrayHeader:
    return ArrayHeader(kind, descr, shape, scalar, fortran)


def _list_extensions(opened: OpenedFiles) -> list[Extension]:
    """Return the extensions of shards, in order of occurrence."""
    names = dict.fromkeys(name for index in opened.indexes for name in index.members)
    return [_describe_extension(opened, name) for name in names]


def _describe_extension(opened: OpenedFiles, name: str) -> Extension:
    having = [
        (i, index.members[name]) for i, index in enumerate(opened.indexes) if name in index.members
    ]
    heads = dict.fromkeys(head for _, members in having for head in _get_heads(members))
    shard, first = having[0]
    place = opened.place(shard, first, name, None)
    bad = next(
        (
            (i, members, int(np.flatnonzero(members.codes == code)[0]))
            for i, members in having
            for code, head in enumerate(_get_heads(members))
            if head.kind == "bad" and members.codes is not None
        ),
        None,
    )
    if bad is not None:
        place = opened.place(bad[0], bad[1], name, bad[2])
    declared = opened.indexes[shard].declared.get(name)
    are_numbers = not heads and all(members.numbers is not None for _, members in having)
    return Extension(
        name, tuple(heads), are_numbers, place,
        None if declared is None else (declared[0], Field(*declared[1:])),
    )  # fmt: skip


def _count_steps(opened: OpenedFiles, spec: FieldSpec) -> NDArray[np.int64] | None:
    """Return the number of timesteps of each sequence, int64; None if members must be decoded.

    Raises:
        DecodeError: If a member holds an incomplete timestep.
    """
    having = [index.members.get(spec.extension) for index in opened.indexes]
    present = [members for members in having if members is not None]
    if any(members.heads for members in present):
        counts = [_count_member_steps(members) for members in present if members.codes is not None]
        return np.concatenate([_NONE, *counts])
    if spec.access != "place":
        return None
    width = np.dtype(spec.field.dtype).itemsize * math.prod(spec.field.shape)
    sizes = np.concatenate([_NONE, *(members.sizes for members in present)])
    if len(sizes) and int(odd := (sizes % width != 0).argmax()) >= 0 and sizes[odd] % width:
        raise opened.locate(int(odd), spec.extension, spec.name).make_error(
            DecodeError,
            f"must have a multiple of {width} bytes for timesteps of {spec.field.dtype} "
            f"{list(spec.field.shape)}, but has {sizes[odd]}. Correct `schema`",
        )
    return sizes // width


def _count_member_steps(members: FieldIndex) -> NDArray[np.int64]:
    heads = _get_heads(members)
    if any(head.kind in WHOLE_SOUND for head in heads) and members.numbers is not None:
        return members.numbers
    widths = np.array([head.width for head in heads], dtype=np.int64)
    codes = np.zeros(len(members.sizes), np.uint16) if members.codes is None else members.codes
    steps: NDArray[np.int64] = members.sizes // widths[codes]
    return steps
