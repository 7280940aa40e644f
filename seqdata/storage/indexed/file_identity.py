"""A cheap identity check of a file against its index: size, first and last bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import CorruptShardError, DataError, FingerprintMismatch
from seqdata.storage.data_location import DataLocation
from seqdata.storage.indexed.indexed_format import IndexedFormat
from seqdata.storage.indexed.shard_index import ENDS, ShardIndex
from seqdata.storage.indexed.shards import Shard


def get_checked_content(
    shard: Shard,
    index: ShardIndex,
    place: DataLocation,
    file_format: IndexedFormat,
    release: Callable[[], None] | None,
) -> NDArray[np.uint8]:
    """Return the bytes of a file after checking that it is the one that was indexed.

    Args:
        shard: The file.
        index: Its index.
        place: Its location, for errors.
        file_format: Of the file.
        release: Closes other files if there is no room.

    Raises:
        CorruptShardError: If its size differs.
        FingerprintMismatch: If it is another file.
    """
    file_location = replace(place, offset=0, length=index.bytes)
    content = shard.content(file_location, index, release=release)
    check_size(len(content), index, place)
    try:
        check_content(content, index, place, file_format)
    except DataError:
        if not shard.repair_copy(content, index, place):
            raise
        check_content(content, index, place, file_format)
    return content


def check_content(
    content: NDArray[np.uint8], index: ShardIndex, place: DataLocation, file_format: IndexedFormat
) -> None:
    """Raise if the first or last bytes of a file of the right size differ; see ``check_ends``."""
    first, last = (bytes(content[at : at + ENDS]) for at in (0, index.last))
    check_ends(first, last, index, place, file_format)


def check_size(size: int, index: ShardIndex, place: DataLocation) -> None:
    """Raise if the size of a file differs.

    Raises:
        CorruptShardError: If it does.
    """
    if size != index.bytes:
        shorter, longer = sorted((size, index.bytes))
        raise replace(place, offset=shorter, length=longer - shorter).make_error(
            CorruptShardError,
            f"must have {index.bytes} bytes as when it was indexed, but has {size}. Restore it, "
            "or, if it was written again, rebuild its index with `seqdata verify --repair-index`",
            expected=index.bytes, found=size,
        )  # fmt: skip


def check_ends(
    first: bytes, last: bytes, index: ShardIndex, place: DataLocation, file_format: IndexedFormat
) -> None:
    """Raise if the first or last bytes of a file differ.

    Raises:
        CorruptShardError: If they cannot be of such a file.
        FingerprintMismatch: If they are of another file.
    """
    found = hashlib.sha256(first + last).hexdigest()
    if found == index.ends:
        return
    for at, block in ((0, first), (index.last, last)):
        if not file_format.is_header(block):
            raise replace(place, offset=at, length=ENDS).make_error(
                CorruptShardError,
                "must be the header that was indexed, but is not a valid header of this kind of "
                "file. Restore the file, or, if it was written again, rebuild its index with "
                "`seqdata verify --repair-index`",
                expected=index.ends, found=found,
            )  # fmt: skip
    raise replace(place, offset=index.last, length=ENDS).make_error(
        FingerprintMismatch,
        f"must have first and last bytes of digest {index.ends[:16]} as when it was indexed, but "
        f"has {found[:16]}: it is another file. Restore it, or rebuild its index with `seqdata "
        "verify --repair-index`",
        expected=index.ends, found=found,
    )  # fmt: skip
