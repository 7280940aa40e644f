"""Tar shards as a format of the core's engine: their indexes and fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from seqdata.backends import (
    CHECKSUM_BYTES,
    DataLocation,
    FieldIndex,
    IndexedField,
    OpenedFiles,
    ShardIndex,
    checksum_algorithm,
    compute_checksums,
    compute_sha256,
    digest_ends,
)
from seqdata_webdataset.array_headers import WHOLE_SOUND, is_dtype
from seqdata_webdataset.decoders import FieldSpec, decode_member
from seqdata_webdataset.grouping import NUMBER_EXTENSIONS, CollectedMembers, group_samples
from seqdata_webdataset.member_names import last_part
from seqdata_webdataset.members import extensions_of, heads_of, steps_of
from seqdata_webdataset.schema import Schema, infer_specs
from seqdata_webdataset.tar_headers import is_checksum_valid, iter_members

SUFFIX = ".tar"


@dataclass(frozen=True)
class IndexedTar:
    """Tar shards as the webdataset library writes them: an ``IndexedFormat``.

    Attributes:
        schema: Extension -> its type; see ``open_webdataset``.
        unsafe: Kinds of members that may run code.
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
            LimitError: If it exceeds a limit.
        """
        del read_sibling
        found = group_samples(content, place)
        using = checksum_algorithm()
        places = [_get_places(collected) for collected in found.members.values()]
        sums = compute_checksums(content, places, using)
        members = {
            extension: _make_field_index(extension, collected, *both)
            for (extension, collected), both in zip(found.members.items(), sums, strict=True)
        }
        return ShardIndex(
            shard=name,
            bytes=len(content),
            sha256=compute_sha256(content),
            ends=digest_ends(content, found.last_header),
            last=found.last_header,
            algorithm=using,
            block=CHECKSUM_BYTES,
            members=members,
            declared={},
            keys=np.frombuffer(bytes(found.keys), dtype=np.uint8),
            key_ends=np.array(found.key_offsets, dtype=np.int64),
        )

    def check(self, index: ShardIndex) -> None:
        """Check the members of an index that was read.

        Raises:
            ValueError: If they are invalid.
        """
        for members in index.members.values():
            heads = heads_of(members)
            for head in heads:
                if head.kind != "bad" and not (
                    is_dtype(head.descr) and head.width > 0 and min(head.shape, default=1) > 0
                ):
                    raise ValueError("invalid headers")
            is_counted = any(head.kind in WHOLE_SOUND for head in heads)
            if is_counted and (members.numbers is None or bool((members.numbers < 0).any())):
                raise ValueError("invalid numbers")

    def is_header(self, block: bytes) -> bool:
        """Return whether a block may be a tar file's header."""
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
            ConfigError: If the schema does not fit the members.
            DecodeError: If members of one extension have different types.
            UnsafeContentError: If an extension stands for code.
        """
        specs = infer_specs(extensions_of(opened), self.schema, opened.location, self.unsafe)
        return [_make_field(opened, spec) for spec in specs]


def _make_field(opened: OpenedFiles, spec: FieldSpec) -> IndexedField:
    def decode(raw: NDArray[np.uint8], shard: int, at: int, place: DataLocation) -> NDArray[Any]:
        members = opened.indexes[shard].members[spec.extension]
        head = None if members.codes is None else heads_of(members)[int(members.codes[at])]
        return decode_member(spec, raw, head, place)

    kinds = {"number": "values", "unsafe": "decode"}
    return IndexedField(
        name=spec.name, member=spec.extension, field=spec.field,
        access=kinds.get(spec.access, spec.access),
        lengths=None if spec.field.axis is None else steps_of(opened, spec), decode=decode,
        is_named=spec.is_chosen, advice=f"Read it as bytes with `schema`={{{spec.name!r}: bytes}}",
        is_chosen_by_schema=True,
    )  # fmt: skip


def _make_field_index(
    extension: str,
    collected: CollectedMembers,
    sums: NDArray[np.uint32],
    firsts: NDArray[np.int64] | None,
) -> FieldIndex:
    is_counted = any(head.kind in WHOLE_SOUND for head in collected.headers)
    numbers = collected.are_whole_numbers and last_part(extension) in NUMBER_EXTENSIONS
    begins, sizes = _get_places(collected)
    return FieldIndex(
        begins=begins,
        sizes=sizes,
        sums=sums,
        firsts=firsts,
        heads=tuple(map(asdict, collected.headers)),
        codes=np.array(collected.codes, dtype=np.uint16) if collected.headers else None,
        numbers=np.array(collected.numbers, dtype=np.int64) if is_counted or numbers else None,
    )


def _get_places(collected: CollectedMembers) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.array(collected.begins, dtype=np.int64), np.array(collected.sizes, dtype=np.int64)
