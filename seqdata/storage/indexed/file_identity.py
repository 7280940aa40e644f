"""Whether a file is the one that was indexed, as far as its size and both ends tell."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import CorruptShardError, DataError, FingerprintMismatch
from seqdata.storage.data_location import DataLocation
from seqdata.storage.indexed.file_kind import FileKind
from seqdata.storage.indexed.shard_index import ShardIndex
from seqdata.storage.indexed.shards import Shard

ENDS = 512
"""Bytes at each end of a file that are compared when it is opened."""


def get_checked_content(
    shard: Shard,
    index: ShardIndex,
    place: DataLocation,
    kind: FileKind,
    release: Callable[[], None] | None,
) -> NDArray[np.uint8]:
    """Return the bytes of a file that is the one that was indexed.

    Args:
        shard: The file.
        index: What it must be.
        place: Its place, for errors.
        kind: Of the file.
        release: Closes other files, where there is no room.

    Raises:
        CorruptShardError: If it has another size.
        FingerprintMismatch: If it is another one.
    """
    whole = replace(place, offset=0, length=index.bytes)
    content = shard.content(whole, index, release=release)
    check_size(len(content), index, place)
    try:
        _check(content, index, place, kind)
    except DataError:
        if not shard.mend(content, index, place):
            raise
        _check(content, index, place, kind)
    return content


def _check(
    content: NDArray[np.uint8], index: ShardIndex, place: DataLocation, kind: FileKind
) -> None:
    first, last = (bytes(content[at : at + ENDS]) for at in (0, index.last))
    check_ends(first, last, index, place, kind)


def check_size(size: int, index: ShardIndex, place: DataLocation) -> None:
    """Refuse a file of another size.

    Raises:
        CorruptShardError: If it has one.
    """
    if size != index.bytes:
        shorter, longer = sorted((size, index.bytes))
        raise replace(place, offset=shorter, length=longer - shorter).make_error(
            CorruptShardError,
            f"has {size} bytes, must have {index.bytes} as when it was indexed; restore it, or, if "
            "it was written anew, make its index anew with --repair-index",
            expected=index.bytes, found=size,
        )  # fmt: skip


def check_ends(
    first: bytes, last: bytes, index: ShardIndex, place: DataLocation, kind: FileKind
) -> None:
    """Refuse a file whose first or last bytes are others.

    Raises:
        CorruptShardError: If they can be of no such file.
        FingerprintMismatch: If they are another one's.
    """
    found = hashlib.sha256(first + last).hexdigest()
    if found == index.ends:
        return
    for at, block in ((0, first), (index.last, last)):
        if not kind.is_header(block):
            raise replace(place, offset=at, length=ENDS).make_error(
                CorruptShardError,
                "is no header of a tar file or a damaged one, must be the one that was "
                "indexed; restore the shard, or, if it was written anew, make its index anew "
                "with --repair-index",
                expected=index.ends, found=found,
            )  # fmt: skip
    raise replace(place, offset=index.last, length=ENDS).make_error(
        FingerprintMismatch,
        f"has first and last bytes of digest {found[:16]}, must be {index.ends[:16]} as when "
        "it was indexed; it is another shard: restore it, or make its index anew with "
        "--repair-index",
        expected=index.ends, found=found,
    )  # fmt: skip
